"""`xstage run --estimate` says what a run will take without running it, and a long run says how far it is."""

import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from xstage.scenarios.loader import Resolved, load_scenario
from xstage.sim.outcome import OP_RECORD

import xstage as xs
from xstage.answers.built import Built
from xstage.answers.run_estimate import estimate_run, expected_s
from xstage.cli import main
from xstage.terminal.progress import _tell_elapsed, elapsed, share_lines

BURST = load_scenario("isolated-burst")
MOE = {
    "question": "q?",
    "machine": "hgx-b200",
    "workload": {"kind": "megamoe", "model": "dsv4-flash", "tokens": 64, "policy": "alternating"},
    "granule": "4 KiB",
}


@pytest.mark.parametrize(
    "scenario",
    [
        "isolated-burst",
        "islands-all-to-all",
        "gemm-ar-lamport",
        "gemm-rs-llama-serial",
        "attention-wan-serial",
        "megamoe-large-experts",
    ],
)
def test_ops_are_exact_and_events_about_right(scenario):
    built = Built.of(load_scenario(scenario))
    found, ran = estimate_run(built), xs.run(built).as_dict()
    assert found.ops == ran["ops"]
    assert ran["events"] / 1.15 < found.events < 1.15 * ran["events"]


def test_an_estimate_is_printed_in_place_of_a_run(answer):
    found, ran = (answer("run", "isolated-burst", *option)[1] for option in (["--estimate"], []))
    assert "makespan_us" not in found and found["estimate"]["ops"] == ran["ops"]
    assert found["estimate"]["memory_bytes"] > 2**20 and found["estimate"]["wall_s"] > 0
    assert ran["timing"]["peak_memory_bytes"] > 2**20


def test_a_full_trace_needs_more_memory():
    resolved = load_scenario(MOE)
    off, full = (estimate_run(resolved, trace=level) for level in ("off", "full"))
    assert full.memory_bytes - off.memory_bytes > full.ops * OP_RECORD.itemsize


def test_what_was_built_for_an_estimate_is_not_built_again_for_the_run(monkeypatch):
    resolved = load_scenario(MOE)
    ran, built = xs.run(resolved).makespan_us, Built.of(resolved)
    monkeypatch.delattr(Resolved, "program")
    monkeypatch.delattr(Resolved, "fabric")
    assert estimate_run(built).ops > 0
    assert xs.run(built).makespan_us == ran


@pytest.mark.parametrize("given", ["isolated-burst", BURST.scenario, BURST])
def test_a_scenario_is_given_as_everywhere(given):
    assert estimate_run(given).ops == 148


def test_overrides_are_those_of_a_run():
    assert estimate_run("isolated-burst", overrides={"workload.producers": 8}).ops == 8


def test_both_engines_can_be_asked(answer):
    built = Built.of(load_scenario("isolated-burst"))
    assert expected_s(built, "simpy") > expected_s(built, "compiled")
    code, found = answer("run", "isolated-burst", "--estimate", "--engine", "fast")
    assert code == 2 and "engine = 'fast': is unknown" in found["error"]["message"]


@pytest.fixture
def passing(monkeypatch):
    """A run on a clock of its own: it tells its share at some times, and may end."""
    now, built = [0.0], Built.of(load_scenario("isolated-burst"))

    def run(told, end_s):
        def simulate(program, fabric, engine, trace, progress):
            for at_s, share in told:
                now[0] = 100.0 + at_s
                progress(share)
            now[0] = 100.0 + end_s

        def load_engine():
            now[0] = 100.0

        monkeypatch.setattr("xstage.answers.run_estimate.time", SimpleNamespace(perf_counter=lambda: now[0]))
        monkeypatch.setattr("xstage.sim.compilation.warm_up", load_engine)
        monkeypatch.setattr("xstage.sim.execute.simulate", simulate)
        return expected_s(built)

    return run


def test_a_run_of_a_few_seconds_takes_what_it_took_without_loading_the_engine(passing):
    assert passing([(1.0, 0.25), (3.5, 0.75)], end_s=3.9) == pytest.approx(3.9)


def test_a_longer_run_is_watched_for_a_while_and_goes_on_as_it_went_then(passing):
    """1 s until a tenth is done, then 8 s for each whole."""
    assert passing([(1.0, 0.1), (2.0, 0.2), (4.2, 0.5), (8.2, 1.0)], end_s=999.0) == pytest.approx(8.2)


def test_a_run_that_tells_no_more_than_at_first_is_watched_on(passing):
    assert passing([(1.0, 0.5), (9.0, 0.5), (11.0, 0.75)], end_s=999.0) == pytest.approx(21.0)


def test_the_estimate_is_a_table_for_a_person(capsys):
    assert main(["run", "isolated-burst", "--estimate"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ops     148, and 7104 granules")
    assert "makespan" not in out


def test_an_estimate_explains_nothing(answer):
    code, found = answer("run", "isolated-burst", "--estimate", "--explain")
    assert code == 2 and "--parts: does not go with --estimate" in found["error"]["message"]


def test_a_long_run_says_how_far_it_is_and_how_long_it_will_take_yet(capsys):
    times = iter([100.0, 101.0, 104.0, 105.0, 140.0])
    tell = share_lines("Simulating mine", lambda: next(times))
    for share in (0.1, 0.25, 0.3, 0.8):  # after 1 s nobody wants to know, nor 1 s after the last line
        tell(share)
    assert capsys.readouterr().err == (
        "Simulating mine: 4 s, 25% done, about 12 s left\nSimulating mine: 40 s, 80% done, about 10 s left\n"
    )


def test_what_cannot_say_how_far_it_is_says_how_long_it_takes_already(capsys):
    pauses = []

    def is_over_in(pause):
        pauses.append(pause)
        return len(pauses) > 3

    _tell_elapsed("Building mine", is_over_in)
    assert capsys.readouterr().err == "Building mine: 2 s\nBuilding mine: 12 s\nBuilding mine: 22 s\n"


def test_what_is_over_at_once_says_nothing(capsys):
    with elapsed("Building mine"):
        pass
    assert capsys.readouterr().err == ""


LONG = ("isolated-burst", "--set", "workload.burst=4MiB", "--set", "workload.bursts=1000", "--set", "granule=4KiB")
INTERRUPTED = """
import sys
import xstage.terminal.progress as progress
progress.PATIENCE_S = progress.BETWEEN_LINES_S = 0.01
from xstage.entry import main
sys.argv = ["xstage", *sys.argv[1:]]
sys.exit(main())
"""


@pytest.mark.parametrize("engine", ["compiled", "simpy"])
def test_ctrl_c_stops_a_run_that_would_take_very_long(engine):
    words = [sys.executable, "-c", INTERRUPTED, "run", *LONG, "--engine", engine, "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        line = next(line for line in running.stderr if "left" in line)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate()
    assert line.startswith("Simulating isolated-burst: ")
    assert running.returncode == -signal.SIGINT
    assert json.loads(out) == {"error": {"type": "Interrupted", "message": "interrupted"}}


@pytest.mark.slow
def test_a_rack_of_72_ranks_is_estimated_and_runs():
    """DSv4-Pro over all GPUs of an NVL72, with few tokens."""
    workload = MOE["workload"] | {
        "model": "dsv4-pro", "gpus": 72, "tokens": 32, "placement": {"kind": "eplb", "redundant": 48},
    }  # fmt: skip
    built = Built.of(load_scenario(MOE | {"machine": "gb200-nvl72", "workload": workload}))
    found = estimate_run(built)
    ran = xs.run(built)
    assert found.ops == ran.metrics["ops"]
    assert ran.metrics["events"] / 1.1 < found.events < 1.1 * ran.metrics["events"]
