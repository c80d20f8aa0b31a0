"""The contract of the command line: one JSON object with the agreed fields, exit codes, and text for people."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import xstage as xs
from xstage.cli import main

AUDIT = ["audit", "--machine", "hgx-b200", "--producers", "148", "--bytes", "32 KiB", "--gap", "4 us"]
SMALL = ["run", "isolated-burst", "--set", "workload.producers=8", "--engine", "simpy"]


@pytest.fixture
def command(capsys):
    """Runs a command line; gives its exit code, standard output and standard error."""

    def run(*words):
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def answer(command):
    """Runs a command line with --json; gives its exit code and its answer, and checks that stdout holds nothing else."""

    def run(*words):
        code, out, _ = command(*words, "--json")
        assert out.endswith("}\n")
        return code, json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    return run


def test_every_answer_has_the_common_fields(answer):
    for words in (SMALL, AUDIT, ["scenarios"], ["scenarios", "list"], ["scenarios", "schema"], ["doctor"],
                  ["scenarios", "show", "hgx-b200"]):  # fmt: skip
        code, found = answer(*words)
        assert code == 0
        assert found["schema_version"] == 1
        assert found["xstage_version"] == xs.__version__
        assert found["timing"]["wall_s"] >= 0
        assert "seed" in found


def test_run_answers_with_the_agreed_fields(answer):
    code, found = answer(*SMALL, "--set", "seed=3")
    assert code == 0
    assert (found["scenario"], found["engine"], found["seed"]) == ("isolated-burst", "simpy", 3)
    assert found["bytes_stored"] == 8 * 48 * 2**10
    assert set(found["roles"]["producer"]) >= {"busy_mean_us", "stall_mean_us", "wait_mean_us"}
    assert set(found["spans"]["burst"]) >= {"median_us", "p95_us"}
    for name in ("makespan_us", "stall_total_us"):
        assert isinstance(found[name], float)
    for name in ("ops", "events", "occupancy_peak_bytes"):
        assert isinstance(found[name], int)


def test_both_engines_give_the_same_answer(answer):
    simpy, compiled = (answer(*SMALL[:-1], engine)[1] for engine in ("simpy", "compiled"))
    differing = {name for name in simpy if simpy[name] != compiled[name]}
    assert differing <= {"engine", "timing", "command"}


def test_an_isolated_burst_takes_the_overflow_over_the_drain_rate(answer):
    """arXiv 2607.23264: T_iss = (V - Q) / R for a burst beyond the knee."""
    _, found = answer("run", "isolated-burst")
    overflow_us = (148 * 48 * 2**10 - 4.25 * 2**20) / 717e9 * 1e6
    assert found["spans"]["burst"]["p95_us"] == pytest.approx(overflow_us, rel=0.01)


def test_run_prints_what_was_simulated_and_numbers_with_units(command):
    code, out, _ = command(*SMALL)
    assert code == 0
    first, second, third = out.splitlines()[:3]
    assert first.startswith("isolated-burst, as written: ") and first.endswith("?")
    assert second == "changed: workload.producers = 8"
    assert third == "burst_train, on 2 GPUs of hgx-b200, simpy engine"
    assert " us" in out and "producer" in out


def test_run_explains_what_each_part_became(command, answer):
    _, out, _ = command(*SMALL, "--explain", "--set", "machine.interconnect.drain_rate=358 GB/s")
    for part in (
        "interconnect.drain_rate",
        "set by --set machine.interconnect.drain_rate",
        "assumed",
        "2 egress",
        "8 store",
    ):
        assert part in out
    _, found = answer(*SMALL, "--parts", "--set", "machine.interconnect.drain_rate=358 GB/s")
    explained = found["explain"]
    assert explained["fabric"]["ports"][0] == {
        "ports": "2 egress", "store_gbs": 358.0, "scatter_gbs": 358.0, "reduce_gbs": 358.0,
    }  # fmt: skip
    assert {number["name"] for number in explained["machine"]["numbers"]} >= {"stage.t0", "compute.sms"}
    assert explained["scenario"]["workload"]["producers"] == 8


def test_run_writes_every_op_to_parquet(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "out" / "ops.parquet"
    code, _, _ = command(*SMALL, "--trace", str(file))
    assert code == 0
    assert set(pd.read_parquet(file)["kind"]) == {"store"}
    assert [path.name for path in file.parent.iterdir()] == ["ops.parquet"]


def test_a_trace_that_cannot_be_written_is_refused_before_the_run(command, tmp_path):
    code, out, err = command(*SMALL, "--trace", str(tmp_path / "ops.csv"))
    assert (code, out) == (2, "")
    assert "allowed: .parquet" in err
    code, _, err = command(*SMALL, "--trace", str(tmp_path / "mistyped" / "ops.parquet"))
    assert (code, f"has no folder: {tmp_path / 'mistyped'} does not exist" in err) == (2, True)
    assert not list(tmp_path.iterdir())


def test_audit_answers_with_the_agreed_fields(answer):
    code, found = answer(*AUDIT)
    assert code == 0
    assert set(found) >= {
        "fits", "t_iss_us", "stall_us", "recovery_gap_us", "missing_gap_us", "peak_bytes", "rate_margin_gbs",
        "capacity_margin_bytes", "phase", "advice", "reason",
    }  # fmt: skip
    assert (found["fits"], found["advice"], found["phase"]) == (False, "reshape", "drain_limited")
    assert found["recovery_gap_us"] == pytest.approx(6.0, abs=0.05)  # as reported in arXiv 2607.23264


def test_audit_says_null_where_no_gap_helps(answer):
    _, found = answer(*AUDIT[:-3], "64 KiB", "--gap", "90 us", "--synchronised")
    assert found["recovery_gap_us"] is None
    assert found["advice"] == "reshape"


def test_audit_follows_changes_of_the_machine(answer, command):
    assert answer(*AUDIT, "--set", "machine.interconnect.drain_rate=1.2 TB/s")[1]["fits"]
    code, _, err = command(*AUDIT, "--set", "workload.burst=3")
    assert code == 2
    assert "is no number of the machine" in err


def test_audit_prints_a_verdict_first(command):
    code, out, _ = command(*AUDIT)
    assert code == 0
    asked = "148 SMs of hgx-b200 store 32 KiB each to the next GPU, while all 8 GPUs do so, then nothing for 4 us"
    assert out.startswith(f"{asked}: stalls.\n")


def test_scenarios_lists_and_shows(command, answer):
    _, listed = answer("scenarios")
    assert "isolated-burst" in [entry["name"] for entry in listed["scenarios"]]
    assert "hgx-b200" in [entry["name"] for entry in listed["machines"]]
    code, out, _ = command("scenarios")
    assert code == 0 and "isolated-burst" in out and "hgx-b200" in out
    _, shown, _ = command("scenarios", "show", "isolated-burst")
    assert shown.startswith("question: ")
    assert answer("scenarios", "show", "isolated-burst")[1]["data"]["machine"] == "hgx-b200"


def test_what_scenarios_show_prints_runs_as_a_file(command, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(command("scenarios", "show", "isolated-burst")[1], encoding="utf-8")
    code, out, _ = command("run", str(file), *SMALL[2:])
    assert code == 0 and out.startswith("mine, as written: ")


def test_the_schema_is_json_with_and_without_the_flag(command):
    assert set(json.loads(command("scenarios", "schema")[1])) == {"scenario", "study", "machine"}


def test_doctor_finds_all_that_xstage_needs(answer, command):
    code, found = answer("doctor")
    assert code == 0 and found["ok"]
    names = {check["name"] for check in found["checks"]}
    assert names >= {"xstage", "Python", "numba", "CPU", "processors", "compiled engine", "GPU"}
    assert "GPU" in command("doctor")[1]


def test_doctor_says_how_to_install_what_a_gpu_needs(command, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'cupy-cuda13x[ctk]' or 'cupy-cuda12x[ctk]'" in command("doctor")[1]


@pytest.mark.parametrize(
    "words, said",
    [
        (["run", "isolated-brust"], "did you mean 'isolated-burst'?"),
        (["run", "nope.yaml"], "nope.yaml: no such file"),
        (["run", "isolated-burst", "--set", "workload.producers=149"], "--set workload.producers = 149"),
        (["run", "isolated-burst", "--set", "workload.producers"], "has no '='"),
        (["run", "isolated-burst", "--engine", "fast"], "allowed: simpy, compiled"),
        (["run"], "Missing argument"),
        (["run", "isolated-burst", "--frob"], "--frob"),
        (["frob"], "frob"),
        (["audit", "--machine", "hgx-b200"], "--producers"),
        ([*AUDIT[:-1], "4 KiB"], "--gap = '4 KiB': is not a time"),
        ([*AUDIT, "--set", "machine.stage.t0=3"], "--set machine.stage.t0 = 3: is not a time"),
        ([*AUDIT, "--producers", "149"], "producers = 149"),
        ([*AUDIT, "--producers", "x"], "--producers"),
        ([*AUDIT, "--machine", "hgx-b20"], "did you mean 'hgx-b200'?"),
        (["scenarios", "show", "nothing"], "'nothing': is not in the catalogue"),
        (["layer", "llama3-70b", "--policies", "fused,,serial"], "has an empty name: 'fused,,serial'"),
        (["layer", "llama3-70b", "--policies", ","], "has an empty name: ','"),
        (["compare", "isolated-burst", "--policies", "a,"], "has an empty name: 'a,'"),
        (["figures", "--only", ""], "has an empty name: ''"),
        (["import", "buffer.npy", "--event-names", "a,"], "has an empty name: 'a,'"),
    ],
)
def test_bad_input_is_exit_code_2_in_text_and_in_json(command, answer, words, said):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert said in err and err.startswith("xstage: ")
    code, found = answer(*words)
    assert code == 2
    assert set(found) == {"error"}
    assert said in found["error"]["message"]


def test_an_error_in_a_file_comes_with_file_line_field_and_value(answer, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "question: q?\nmachine: hgx-b200\nworkload:\n  kind: burst_train\n  producers: -1\n  burst: 1 KiB\n"
    )
    code, found = answer("run", str(file))
    assert code == 2
    error = found["error"]
    assert (error["type"], error["file"], error["line"]) == ("InputError", str(file), 5)
    assert (error["field"], error["value"]) == ("workload.producers", "-1")


def test_a_run_that_leaves_the_range_of_times_is_a_failure(answer):
    code, found = answer(*SMALL, "--set", "workload.gap=1000000 s", "--set", "workload.bursts=10")
    assert code == 1
    assert found["error"]["type"] == "LimitError"


def test_help_and_version_are_no_errors(command):
    assert command("--version")[:2] == (0, f"xstage {xs.__version__}\n")
    for words in ([], ["--help"], ["run", "--help"], ["scenarios", "--help"]):
        code, out, _ = command(*words)
        assert code == 0 and "Usage" in out


def test_a_group_of_commands_alone_lists_them(command):
    code, out, error = command("paper")
    assert code == 0 and "speedups" in out and not error


def test_the_installed_command_prints_json_and_nothing_else():
    done = subprocess.run(
        [sys.executable, "-m", "xstage", *AUDIT, "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["advice"] == "reshape"
    assert done.stderr == ""


def test_a_reader_that_leaves_early_is_no_crash():
    line = f"{sys.executable} -m xstage scenarios schema | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", ["scenarios", "scenarios --json", "run no-such-scenario --json"])
def test_output_that_finds_no_room_is_a_sentence(words):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "xstage", *words.split()]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "xstage: the answer cannot be written: No space left on device\n"


def test_ctrl_c_inside_a_serializer_is_an_interrupt_too(monkeypatch, capsys):
    def wrapped(*words, **more):
        raise ValueError("Error calling function") from KeyboardInterrupt()

    monkeypatch.setattr("xstage.cli.app", wrapped)
    assert main(["doctor", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "Interrupted"


def test_a_file_that_ends_too_early_is_no_interrupt(monkeypatch, capsys):
    def reads_a_file_that_is_empty(*words, **more):
        raise EOFError("Ran out of input")

    monkeypatch.setattr("xstage.answers.diagnosis.doctor", reads_a_file_that_is_empty)
    assert main(["doctor", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"type": "EOFError", "message": "unexpected: Ran out of input"}


@pytest.mark.parametrize("words", [AUDIT, ["scenarios", "show", "hgx-h100"], ["run", "FILE.yaml"]])
def test_a_working_folder_that_was_deleted_is_no_crash(tmp_path, monkeypatch, command, words):
    (tmp_path / "FILE.yaml").write_text("question: q?")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, out, err = command(*(str(tmp_path / word) if word == "FILE.yaml" else word for word in words))
    assert (code, bool(out)) == (0, True) or (code == 2 and str(tmp_path / "FILE.yaml") in err)
    assert "Traceback" not in err
