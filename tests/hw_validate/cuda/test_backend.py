"""The whole path with the GPU modelled: calibrate, draw, replay, simulate, compare; here and by files."""

import json

import pytest
from xstage.hw_validate import validate as module
from xstage.hw_validate.cuda import backend
from xstage.hw_validate.cuda.backend import GpuBackend, How
from xstage.hw_validate.cuda.collect import main as collect_main
from xstage.hw_validate.cuda.command import write_plan
from xstage.hw_validate.cuda.options import NOTHING_SAID
from xstage.hw_validate.cuda.parts import Extent
from xstage.hw_validate.validate import calibrate, validate
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError

from xstage.cli import main

from .modelled_devices import ModelledDevices, stage

EXTENT = Extent(sizes=20, rounds=5, train_rounds=3, train_bursts=12, sweep_rounds=3)
HOW = How(extent=EXTENT, quick=True, repeats=(4, 3))


class OtherStage(ModelledDevices):
    """Calibration sees `stage`, Programs run on another."""

    def __init__(self, seen, runs_on, **more):
        super().__init__(seen, **more)
        self.runs_on = runs_on

    def machine(self, **changes):
        seen, self.stage = self.stage, self.runs_on
        try:
            return super().machine(**changes)
        finally:
            self.stage = seen


def on(devices, keep=None):
    """Puts these GPUs in the place of every backend."""
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "open_backend", lambda *asked: GpuBackend(HOW, devices, keep))
    return patch


def validated(devices, programs, keep=None, **more):
    patch = on(devices, keep)
    try:
        return validate("cuda", programs=programs, **more)
    finally:
        patch.undo()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    path = tmp_path_factory.mktemp("cuda") / "results.npz"
    return validated(ModelledDevices(stage(), sms=4), 6, path), path


def test_a_gpu_that_obeys_the_law_agrees_with_the_simulator(found):
    summary = found[0].summary
    assert summary.programs == 6
    assert summary.programs_with_stall == 3
    assert summary.median_abs_error_pct < 2
    assert summary.verdict == "agrees"


def test_what_the_replay_kernel_adds_is_told_apart_from_the_stage(found):
    """The modelled kernel takes 60 ns more for each pause, and nothing for a store."""
    adds = found[0].as_dict()["replay"]["kernel_adds"]
    assert adds["compute_ns"] == pytest.approx(60, abs=3)
    assert adds["store_ns"] == pytest.approx(0, abs=2)


def test_stall_is_the_span_beyond_that_of_the_control(found):
    ops = found[0].ops()
    stores = ops[ops["kind"] == "store"]
    assert (stores["measured_stall_us"] - stores["simulated_stall_us"]).abs().median() < 0.02
    assert stores["measured_stall_us"].max() > 1


@pytest.mark.slow
def test_a_stage_that_is_not_the_calibrated_one_does_not_agree():
    devices = OtherStage(stage(), stage("30 GB/s"), sms=4)
    wrong = validated(devices, 4).summary
    assert wrong.verdict == "disagrees"
    assert wrong.stalled_median_abs_error_pct > 20


@pytest.mark.slow
def test_a_gpu_agrees_with_itself():
    [again] = validated(ModelledDevices(stage(), sms=4), 2, repeat=2).again
    assert again.agrees and again.same_verdict, again.moved


def test_schedules_of_two_ranks_are_among_the_programs(found):
    kinds = found[0].schedules
    assert kinds.count("unseen train") == 2
    assert {"megamoe", "attention_a2a"} & set(kinds) and any("ranks" in kind for kind in kinds)


def test_results_from_a_file_say_the_same(found):
    again = validate("cuda", results=found[1])
    assert again.summary == found[0].summary
    assert again.calibrated.calibration == found[0].calibrated.calibration
    assert again.as_dict() == found[0].as_dict()
    assert calibrate("cuda", results=found[1]).calibration == found[0].calibrated.calibration


def plan_file(path, machine, programs):
    """A plan as `--plan` writes it, of a small extent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xstage.hw_validate.cuda.planning.QUICK", EXTENT)
        return write_plan(path, NOTHING_SAID, quick=True, machine=machine, programs=programs)


@pytest.mark.slow
def test_plan_collect_and_compare_by_files(tmp_path):
    """Programs are drawn for a machine known beforehand, and judged on the one that was measured."""
    devices = ModelledDevices(stage(), sms=4)
    prior = devices.machine(drain="60 GB/s")
    plan_file(tmp_path / "plan.npz", prior, 4)
    assert collect_main([str(tmp_path / "plan.npz"), "-o", str(tmp_path / "r.npz")], lambda: devices) == 0
    found = validate("cuda", results=tmp_path / "r.npz")
    assert found.summary.verdict == "agrees"
    assert found.calibrated.calibration.drain_gbs.value == pytest.approx(52, rel=0.02)
    assert found.drift_pct is not None


def test_programs_that_do_not_fit_are_skipped_and_counted(tmp_path):
    prior = ModelledDevices(stage(), sms=12).machine()
    plan_file(tmp_path / "plan.npz", prior, 2)
    devices = ModelledDevices(stage(), sms=4)
    assert collect_main([str(tmp_path / "plan.npz"), "-o", str(tmp_path / "r.npz")], lambda: devices) == 0
    with pytest.raises(InputError, match="needs 12 SMs at once, and there are 4"):
        validate("cuda", results=tmp_path / "r.npz")


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(backend, "gpus_here", lambda: ModelledDevices(stage(), sms=4))
    monkeypatch.setattr(backend, "QUICK", EXTENT)
    monkeypatch.setattr("xstage.hw_validate.cuda.planning.QUICK", EXTENT)


@pytest.mark.slow
def test_the_commands_answer_with_the_agreed_fields(on_gpu, tmp_path, capsys):
    report, ops, kept = (str(tmp_path / name) for name in ("report.html", "ops.parquet", "kept.npz"))
    words = ["validate", "--backend", "cuda", "--quick", "--programs", "2", "--json"]
    assert main([*words, "--report", report, "--ops", ops, "--keep", kept]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["calibration"]) >= {"t_iss0_ns", "drain_gbs", "capacity_bytes", "intervals", "costs"}
    assert answer["replay"]["programs"] == 2
    assert main(["validate", "--backend", "cuda", "--results", kept, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replay"] == answer["replay"]
    assert main(["calibrate", "--backend", "cuda", "--results", kept, "-o", str(tmp_path / "m.yaml")]) == 0
    assert load_machine(tmp_path / "m.yaml").sms == 4


def test_a_plan_is_written_and_the_next_step_told(tmp_path, capsys):
    path = str(tmp_path / "plan.npz")
    words = ["validate", "--backend", "cuda", "--plan", path, "--machine", "hgx-h200", "--quick", "--programs", "2"]
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["programs"] == 2
    assert path in answer["next"]


@pytest.mark.parametrize(
    "words",
    [
        ["calibrate", "--transport", "host"],
        ["calibrate", "--backend", "cuda", "--transport", "pigeon"],
        ["calibrate", "--backend", "cuda", "--plan", "p.txt"],
        ["calibrate", "--backend", "cuda", "--plan", "p.npz", "--results", "r.npz"],
        ["calibrate", "--backend", "cuda", "--producers", "4"],
        ["calibrate", "--backend", "cuda", "--results", "not-there.npz"],
        ["validate", "--backend", "cuda", "--plan", "p.npz"],
        ["validate", "--backend", "cuda", "--results", "r.npz", "--repeat", "2"],
        ["validate", "--backend", "cuda", "--results", "r.npz", "--programs", "2"],
        ["calibrate", "--plan", "p.npz"],
        ["validate", "--backend", "cuda", "--busy"],
        ["validate", "--backend", "cuda", "--machine", "hgx-h200"],
        ["validate", "--backend", "cuda", "--results", "r.npz", "--transport", "host"],
    ],
)
def test_options_that_do_not_go_together_are_bad_input(words, capsys):
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "InputError"
