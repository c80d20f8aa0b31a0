"""The commands that measure hardware, on made-up hardware: fields, files and exit codes."""

import json

import pytest
from xstage.hw_validate import validate as module
from xstage.scenarios.machine_files import load_machine
from xstage.sim.calibrate import NoLawError

from xstage.cli import main
from xstage.terminal.progress import step_lines

from .made_up_hardware import MadeUpHardware


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command line on made-up hardware; gives its exit code and standard output."""
    monkeypatch.setattr(module, "open_backend", lambda *asked: MadeUpHardware())

    def run(*words):
        code = main(list(words))
        return code, capsys.readouterr().out

    return run


def test_validate_answers_with_the_agreed_fields(command, tmp_path):
    report, ops = tmp_path / "report.html", tmp_path / "ops.parquet"
    code, out = command("validate", "--programs", "4", "--report", str(report), "--ops", str(ops), "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["schema_version"] == 1
    assert answer["seed"] == 0
    assert set(answer["calibration"]) >= {"t_iss0_ns", "drain_gbs", "capacity_bytes", "intervals"}
    assert answer["replay"]["programs"] == 4
    assert answer["replay"]["verdict"] == "agrees"
    assert report.exists()
    assert ops.exists()


def test_validate_prints_the_verdict_and_numbers_with_units(command):
    code, out = command("validate", "--programs", "4")
    assert code == 0
    for said in ("agrees", "GB/s", "KiB", "ns a store", "noise"):
        assert said in out


def test_calibrate_writes_a_machine_that_can_be_used(command, tmp_path):
    code, out = command("calibrate", "-o", str(tmp_path / "cpu.yaml"), "--json")
    answer = json.loads(out)
    assert code == 0
    found = load_machine(tmp_path / "cpu.yaml")
    assert found.x_stage().drain_kbs == pytest.approx(1e6 * answer["calibration"]["drain_gbs"], abs=1)


@pytest.mark.parametrize(
    "words",
    [
        ("validate", "--report", "report.pdf"),
        ("validate", "--ops", "ops.csv"),
        ("calibrate", "-o", "cpu.txt"),
        ("validate", "--programs", "0"),
        ("calibrate", "--backend", "cuda", "--plan", "p.npz", "-o", "m.yaml"),
        *(("validate", "--backend", "cuda", "--machine", "hgx-h200", "--plan", "p.npz", *more)
          for more in (("--report", "r.html"), ("--ops", "o.parquet"), ("--repeat", "2"), ("--busy",))),
        *((name, "--backend", "cuda", "--results", "r.npz", *more)
          for name in ("calibrate", "validate") for more in (("--quick",), ("--seed", "1"))),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_measured(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out = command(*words, "--json")
    assert code == 2
    assert json.loads(out)["error"]["type"] == "InputError"
    assert list(tmp_path.iterdir()) == []


def test_a_refused_fit_is_a_failure_with_its_reason(command, monkeypatch):
    def refuse(*asked):
        raise NoLawError("no knee: made up")

    monkeypatch.setattr(module, "open_backend", refuse)
    code, out = command("calibrate", "--json")
    assert code == 1
    assert json.loads(out)["error"] == {"type": "NoLawError", "message": "no knee: made up"}


def test_a_log_is_told_after_two_seconds_and_then_now_and_then(capsys):
    """What is measured again because other programs disturbed it can make a run take four times as long."""
    now = iter([0.0, 1.0, 3.0, 5.0, 14.0])
    tell = step_lines(lambda: next(now))
    for share in (0.1, 0.2, 0.3, 0.4):
        tell("calibrating with 2 producers", share)
    assert capsys.readouterr().err.splitlines() == [
        "Calibrating with 2 producers: 20 %",
        "Calibrating with 2 producers: 40 %",
    ]
