"""Whether a validation agrees with itself: run again, with another core busy, and on hardware that changes meanwhile."""

import json
import os

import pytest
from xstage.hw_validate import again as again_module
from xstage.hw_validate import validate as module
from xstage.hw_validate.again import busy_core, overlap
from xstage.hw_validate.validate import validate
from xstage.sim.calibrate import Estimate, NoLawError
from xstage.sim.errors import InputError

from xstage.cli import main

from .made_up_hardware import MadeUpHardware, made_up_machine


@pytest.fixture
def hardware(monkeypatch):
    """Made-up hardware in the place of the backend: one for each run, the last one for all further runs."""

    def put(*runs):
        left = list(runs)

        def open_backend(*asked):
            made = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(made, Exception):
                raise made
            return made

        monkeypatch.setattr(module, "open_backend", open_backend)

    return put


def test_the_same_hardware_agrees_with_itself(hardware):
    hardware(MadeUpHardware())
    found = validate(programs=4, repeat=3)
    assert [run.what for run in found.again] == ["run 2", "run 3"]
    assert all(run.agrees and run.same_verdict for run in found.again)
    assert all(run.numbers["drain_gbs"][1] < run.numbers["drain_gbs"][2] for run in found.again)


def test_hardware_that_has_changed_is_told_by_the_number_that_moved(hardware):
    hardware(MadeUpHardware(), MadeUpHardware(made_up_machine("70 GB/s")))
    [run] = validate(programs=4, repeat=2).again
    assert not run.agrees
    assert run.moved[0].startswith("R moved by +")
    assert "0.5 %" in run.moved[-1]  # the drift that made-up hardware reports


def test_a_later_run_that_is_refused_says_why(hardware):
    hardware(MadeUpHardware(), NoLawError("no knee: made up"))
    [run] = validate(programs=4, repeat=2).again
    assert (run.agrees, run.verdict, run.refused) == (False, None, "no knee: made up")


def test_once_more_with_another_core_busy(hardware, monkeypatch):
    kept_busy = []

    class Busy:
        def __init__(self, free):
            kept_busy.append(free)

        def __enter__(self):
            return 1

        def __exit__(self, *error):
            kept_busy.append("ended")

    monkeypatch.setattr(module, "busy_core", Busy)
    hardware(MadeUpHardware())
    [run] = validate(programs=4, busy=True).again
    assert run.what == "another core busy"
    assert run.agrees
    assert kept_busy == [[0], "ended"]


def test_where_there_is_no_other_core_it_is_said(hardware, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    hardware(MadeUpHardware())
    [run] = validate(programs=4, busy=True).again
    assert run.refused == "there is no other core to keep busy"


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores and Linux"
)
def test_the_process_that_keeps_a_core_busy_ends_with_its_block(monkeypatch):
    started = []
    popen = again_module.subprocess.Popen
    monkeypatch.setattr(again_module.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    with pytest.raises(KeyboardInterrupt), busy_core([0]) as core:
        assert core not in (0, None)
        raise KeyboardInterrupt
    assert started[0].poll() is not None


@pytest.mark.parametrize("other, expected", [((2.0, 4.0), True), ((3.1, 4.0), False), ((0.0, 9.0), True)])
def test_intervals_that_have_a_value_in_common_agree(other, expected):
    assert overlap(Estimate(2, 1, 3), Estimate(3, *other)) is expected


def test_answer_report_and_screen_tell_of_every_run(hardware, tmp_path, capsys):
    hardware(MadeUpHardware(), MadeUpHardware(made_up_machine("70 GB/s")))
    report = tmp_path / "report.html"
    assert main(["validate", "--programs", "4", "--repeat", "2", "--report", str(report), "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["again"]
    assert run["agrees"] is False
    assert any("R moved" in reason for reason in run["why_not"])
    assert "R moved" in report.read_text(encoding="utf-8")
    hardware(MadeUpHardware())
    assert main(["validate", "--programs", "4", "--repeat", "2"]) == 0
    assert "run 2: agrees with the first run" in capsys.readouterr().out


def test_no_runs_are_refused():
    with pytest.raises(InputError, match="repeat = 0"):
        validate(repeat=0)
