"""The check of one GPU in a few minutes: what it leaves behind when all goes well, and when it does not."""

import json
import sys

import numpy as np
import pytest
from xstage.hw_validate.cuda import device_check as module
from xstage.hw_validate.cuda import fused_calls
from xstage.hw_validate.cuda.collect import collect
from xstage.hw_validate.cuda.container import load
from xstage.hw_validate.cuda.device_check import LARGEST_FILE_BYTES, MORE_PARTS, DeviceCheck, main
from xstage.hw_validate.cuda.device_check_fused import MOST_OF_LOG, FusedCheck, FusedExtent
from xstage.hw_validate.cuda.errors import DeviceLostError, KernelTimeoutError, NoGpuError
from xstage.hw_validate.cuda.fused_calls import ATTENTION_POLICIES, MEGAMOE_POLICIES
from xstage.hw_validate.cuda.fused_run import lowered_policy
from xstage.hw_validate.cuda.parts import Extent
from xstage.hw_validate.cuda.planning import plan
from xstage.hw_validate.measuring import MeasurementError
from xstage.scenarios.machine_files import load_machine
from xstage.sim.schedules.attention_a2a import Attention

from .emulated import BUILDS, needs_compiler
from .emulated_devices import EmulatedDevices
from .modelled_devices import ModelledDevices, stage

EXTENT = Extent(sizes=16, rounds=4, train_rounds=2, train_bursts=9, sweep_rounds=1)


def check(folder, devices, budget_s=600.0):
    made = DeviceCheck(devices, folder, budget_s, extent=EXTENT)
    good = made.run()
    return good, json.loads((folder / "check.json").read_text())


TINY = FusedExtent(
    megamoe={"tokens": 20, "hidden": 128, "topk": 2, "ranks": 2}, usual_width=256, most_width=384,
    least_tokens=20, ratios=(1.0, 0.5), more_ranks=(4,), attention=Attention(tokens=20, heads=2, head_dim=64, ranks=2),
    pilot_sms=2, repeats=1,
)  # fmt: skip


class RehearsedDevices(ModelledDevices):
    """A modelled GPU on which kernels that compute are emulated: every step of the check runs, only their times are none."""

    def __init__(self, *given, **more):
        super().__init__(*given, shared_bytes=227 << 10, **more)
        self.emulated = EmulatedDevices(BUILDS, sms=self._facts[0].sms)
        self.emulated.live = self.live

    def prepare(self, device, source, kernels):
        return (super() if source in ("bursts.cu", "replay.cu") else self.emulated).prepare(device, source, kernels)

    def run(self, launches, abort, deadline_s):
        is_modelled = launches[0].source in ("bursts.cu", "replay.cu")
        return (super() if is_modelled else self.emulated).run(launches, abort, deadline_s)


@needs_compiler
@pytest.mark.slow
def test_the_whole_check_leaves_files_that_others_can_read(tmp_path):
    check = DeviceCheck(RehearsedDevices(stage(), sms=4), tmp_path, 3600.0, extent=EXTENT, fused_extent=TINY)
    assert check.run(), check.report["steps"]
    report = json.loads((tmp_path / "check.json").read_text())
    assert {told["state"] for told in report["steps"].values()} == {"done"}
    assert report["replay"]["programs"] == 12
    kinds = report["steps"]["programs"]["programs"]
    assert kinds.count("unseen train") == 6 and {"megamoe", "attention_a2a"} & set(kinds)
    assert report["replay"]["verdict"] == "agrees"
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [
        "check.json",
        "fused.json",
        "fused.parquet",
        "host.npz",
        "local.npz",
        "machine.yaml",
        "ops.parquet",
    ]
    assert report["steps"]["reporting"]["page"].endswith("host.npz --report report.html")
    assert len(report["programs"]) == 12 and report["start"]["kernels"]["replay"]["registers"] == 80
    assert all(path.stat().st_size < LARGEST_FILE_BYTES for path in tmp_path.iterdir())
    parts = load(tmp_path / "host.npz", "results").header["parts"]
    assert {"bursts", "trains", "producers", "programs", "bulk", "feed", "drift"} <= set(parts)
    fused = json.loads((tmp_path / "fused.json").read_text())
    ran = [(run["kernel"], run["policy"]) for run in fused["runs"]]
    assert set(ran) == {("megamoe", name) for name in MEGAMOE_POLICIES} | {
        ("attention", name) for name in ATTENTION_POLICIES
    }
    assert all(run["far"]["relative_error"] < 0.005 for run in fused["runs"])
    assert not fused["not_run"]
    assert {run["stall_us"]["verdict"] for run in fused["runs"]} <= {"agrees", "does not"}
    assert "attention" in fused["ranked_alike"] and fused["speedup"]["attention"]["serial"]["measured"] == 1.0


def test_the_start_is_written_before_anything_runs(tmp_path):
    devices = ModelledDevices(stage(), sms=4, fails={("run", 1): DeviceLostError("the GPU is lost")})
    good, report = check(tmp_path, devices)
    assert not good
    assert report["start"]["devices"][0]["name"] == "emulated"
    steps = report["steps"]
    assert (steps["start"]["state"], steps["host"]["state"]) == ("done", "failed")
    assert steps["host"]["why"] == "the GPU is lost"
    assert steps["local"] == {"state": "not run", "why": "the GPU was lost before"}


def states(report):
    return {name: told["state"] for name, told in report["steps"].items()}


class WithoutLaw(RehearsedDevices):
    """Whatever is stored takes the same time a byte: nothing can be calibrated. Replays are as of a machine with a stage."""

    def machine(self, **more):
        return ModelledDevices(stage(), sms=4).machine(**more)


@needs_compiler
@pytest.mark.slow
def test_without_a_law_programs_run_and_the_fused_kernels_tell_their_numbers(tmp_path):
    """No knee to draw around, no machine to simulate on; all else is there."""
    made = DeviceCheck(WithoutLaw(None, sms=4), tmp_path, 3600.0, extent=EXTENT, fused_extent=TINY)
    assert not made.run()
    assert states(made.report) == {"start": "done", "host": "done", "programs": "done", "local": "done",
                                   "analysis": "failed", "more": "done", "fused": "done", "summary": "done",
                                   "reporting": "skipped"}  # fmt: skip
    assert made.report["steps"]["analysis"]["error"] == "NoLawError"
    assert "NoLawError" in made.report["steps"]["programs"]["drawn_by_law_because"]
    fused = json.loads((tmp_path / "fused.json").read_text())
    policies = {(run["kernel"], run["policy"]) for run in fused["runs"]}
    assert len(policies) == len(MEGAMOE_POLICIES) + len(ATTENTION_POLICIES)
    assert all(run[side]["relative_error"] < 0.005 for run in fused["runs"] for side in ("far", "control", "bare"))
    assert all("simulated" not in run for run in fused["runs"])
    assert fused["speedup"]["attention"]["serial"] == {"measured": 1.0}


def test_a_fault_of_ours_in_one_step_does_not_take_the_others_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(DeviceCheck, "analysis", lambda self: {}["no such thing"])
    good, report = check(tmp_path, ModelledDevices(stage(), sms=4))
    assert not good
    assert report["steps"]["analysis"]["error"] == "KeyError"
    assert "no such thing" in report["steps"]["analysis"]["traceback"]
    assert report["steps"]["more"]["state"] == report["steps"]["summary"]["state"] == "done"


def test_a_lost_gpu_is_left_to_a_new_process_with_the_steps_behind(tmp_path):
    asked = []
    devices = ModelledDevices(stage(), sms=4, fails={("run", 1): DeviceLostError("the GPU is lost")})
    made = DeviceCheck(devices, tmp_path, 600.0, extent=EXTENT, renew=lambda steps: bool(asked.append(steps)))
    assert not made.run()
    assert asked == [["programs", "local", "analysis", "more", "fused", "summary", "reporting"]]
    after = DeviceCheck(ModelledDevices(stage(), sms=4), tmp_path, 600.0, extent=EXTENT, steps=["local", "summary"])
    assert not after.run()
    assert states(json.loads((tmp_path / "check.json").read_text())) == {
        "start": "done", "host": "failed", "local": "done", "summary": "done"
    }  # fmt: skip


BEFORE_FUSED = ["start", "host", "more", "summary"]


def left_beside(folder, settings=None):
    """What a check on a slower link had measured of step `more` when it was killed."""
    made = plan(seed=0, transport="host", parts=MORE_PARTS[:3], extent=EXTENT, programs=(), repeats=(9, 4))
    collect(made, ModelledDevices(stage("26 GB/s"), sms=8), folder / "added-host.npz", settings)


def most_gbs(report, part, group):
    rows = [row for row in report["microbenchmarks"]["host"] if (row["part"], row["group"]) == (part, group)]
    return max((row["bytes"], row["gbs"]) for row in rows)[1]


def test_a_check_of_its_own_has_no_times_of_one_that_was_killed(tmp_path):
    left_beside(tmp_path)
    made = DeviceCheck(ModelledDevices(stage(), sms=8), tmp_path, 600.0, extent=EXTENT)
    made.steps = BEFORE_FUSED
    assert made.run()
    for part, group in (("bursts", "isolated"), ("width", "width"), ("completion", "load back")):
        assert most_gbs(made.report, part, group) == pytest.approx(52, rel=0.1)


def test_a_check_that_goes_on_takes_in_what_was_measured_already(tmp_path):
    DeviceCheck(ModelledDevices(stage(), sms=8), tmp_path, 600.0, extent=EXTENT, steps=["start", "host"]).run()
    left_beside(tmp_path)
    made = DeviceCheck(ModelledDevices(stage(), sms=8), tmp_path, 600.0, extent=EXTENT, steps=["more", "summary"])
    assert made.run()
    assert most_gbs(made.report, "width", "width") == pytest.approx(26, rel=0.1)  # which tells where it is from
    assert most_gbs(made.report, "bulk", "bulk") == pytest.approx(52, rel=0.1)


def test_the_check_and_its_calibration_tell_cautions_by_the_same_knee(tmp_path):
    """Bursts to places that were stored to before are faster from 64 KiB on, which is above the knee."""
    devices = ModelledDevices(stage(per_sm_kib=48, gpu_kib=1024), sms=8, warm=0.7, warm_from=64 * 1024)
    steps = ["start", "host", "analysis", "summary"]
    made = DeviceCheck(devices, tmp_path, 600.0, extent=EXTENT, steps=steps)
    made.run()
    told = made.report["calibration"]
    knee, full_ns = made._as_calibrated(made.report["microbenchmarks"]["host"])
    assert knee == told["knee_bytes"] == pytest.approx(58 * 1024, rel=0.1)
    assert full_ns == pytest.approx(8 * 48 * 1024 / 52, rel=0.05)
    assert made.report["cautions"] and made.report["cautions"] == [
        text for text in told["warnings"] if "places that were stored to before" in text
    ]


def test_what_cannot_be_taken_in_costs_no_step(tmp_path):
    DeviceCheck(ModelledDevices(stage(), sms=8), tmp_path, 600.0, extent=EXTENT, steps=["start", "host"]).run()
    (tmp_path / "added-host.npz").write_bytes(b"PK")
    made = DeviceCheck(ModelledDevices(stage(), sms=8), tmp_path, 600.0, extent=EXTENT, steps=["more", "summary"])
    assert made.run() and (tmp_path / "not-added-host.npz").exists()
    assert set(made.report["steps"]["more"]["parts"].values()) == {"done"}


def test_fused_kernels_are_not_simulated_on_the_machine_of_another_check(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(FusedCheck, "run", lambda self: made.append(self.machine) or {})
    known = load_machine("hgx-h100").model_dump(mode="json", exclude_unset=True)
    (tmp_path / "machine.yaml").write_text(json.dumps(known))  # which is YAML as well
    for steps in (None, ["fused"]):
        one = DeviceCheck(ModelledDevices(stage(), sms=4), tmp_path, 600.0, extent=EXTENT, steps=steps)
        one.steps = ["fused"]
        one.run()
    assert made[0] is None and made[1] is not None


def test_a_gpu_that_is_gone_leaves_the_steps_that_need_none(tmp_path, capsys):
    check(tmp_path, ModelledDevices(stage(), sms=4))

    def gone():
        raise NoGpuError("no GPU any more")

    main(["-o", str(tmp_path), "--steps", "more,summary"], gone)
    report = json.loads((tmp_path / "check.json").read_text())
    assert report["steps"]["more"] == {"state": "not run", "why": "the GPU was lost before"}
    assert report["steps"]["summary"]["state"] == "done"
    assert main(["-o", str(tmp_path)], gone) == 1 and "no GPU any more" in capsys.readouterr().err


class Lost(RehearsedDevices):
    """The kernel of attention breaks everything."""

    def run(self, launches, abort, deadline_s):
        if launches[0].source.startswith("attention"):
            raise DeviceLostError("an illegal memory access")
        return super().run(launches, abort, deadline_s)


@needs_compiler
@pytest.mark.slow
def test_a_fused_kernel_that_breaks_everything_is_left_out_by_the_process_that_goes_on(tmp_path):
    """A policy of attention after the other; MegaMoE runs once, and is simulated on the machine of the first process."""
    steps, processes = None, 0
    while steps is None or steps:
        asked = []
        made = DeviceCheck(
            Lost(stage(), sms=4), tmp_path, 3600.0, extent=EXTENT, fused_extent=TINY, steps=steps, renew=asked.append
        )
        made.run()
        steps, processes = (asked or [[]])[0], processes + 1
    assert processes == 1 + len(ATTENTION_POLICIES)
    report = json.loads((tmp_path / "check.json").read_text())
    assert {name: state for name, state in states(report).items() if state != "done"} == {"fused": "failed"}
    fused = json.loads((tmp_path / "fused.json").read_text())
    runs = fused["runs"]
    judged = [run for run in runs if "sms" not in run]  # the others are pilots
    sizes = len(fused["widths"]) + len(TINY.more_ranks)
    assert len(judged) == sizes * len(MEGAMOE_POLICIES) + len(ATTENTION_POLICIES) and len(runs) > len(judged)
    broken = [run for run in runs if run["kernel"] == "attention"]
    assert all(run["failed"] == {"far": "DeviceLostError: an illegal memory access"} for run in broken)
    assert all(("simulated" in run) == (run["kernel"] == "megamoe") for run in runs)
    assert all(
        ("verdict" in run["stall_us"]) for run in runs if run["kernel"] == "megamoe"
    )  # told before the process ends
    assert len(list(tmp_path.iterdir())) == 7


def test_the_new_process_has_the_same_command_and_the_time_that_is_left(monkeypatch):
    calls = []
    monkeypatch.setattr(module.os, "execv", lambda *given: calls.append(given))
    monkeypatch.setattr(sys, "orig_argv", ["python3", "run_here.py", "device_check", "-o", "check"])
    module._in_a_new_process(["more", "summary"], module.time.perf_counter() + 100.4)
    ((program, words),) = calls
    assert program == words[0] == sys.executable
    assert words[1:] == ["run_here.py", "device_check", "-o", "check", "--steps", "more,summary", "--budget", "100"]


def test_packages_that_are_missing_are_said_first_and_end_only_what_needs_them(tmp_path, monkeypatch, capsys):
    """A node without pydantic: trains drawn by the law, and results for elsewhere."""
    monkeypatch.setitem(sys.modules, "pydantic", None)
    for name in ("validate", "cuda.calibration", "cuda.device_check_fused"):
        monkeypatch.setitem(sys.modules, f"xstage.hw_validate.{name}", None)
    good, report = check(tmp_path, ModelledDevices(stage(), sms=4))
    assert not good and list(report["missing"]) == ["pydantic"]
    assert report["missing"]["pydantic"].startswith("ModuleNotFoundError: import of pydantic halted")
    said = capsys.readouterr().err.splitlines()[1]
    assert said.startswith("device check: pydantic does not load, which is needed to fit, to simulate")
    found = states(report)
    assert [found.pop(name) for name in ("analysis", "fused", "reporting")] == ["skipped"] * 3
    assert set(found.values()) == {"done"}
    assert set(report["steps"]["programs"]["programs"]) == {
        f"unseen train{more}" for more in ("", ", 2 ranks", ", 4 ranks")
    }


class RefusesNumPy:
    """An import hook: numba is installed, and refuses the NumPy that is."""

    why = "Numba needs NumPy 2.4 or less. Got NumPy 2.5."

    def find_spec(self, name, path=None, target=None):
        if name == "numba":
            raise ImportError(self.why)
        return None


def test_a_package_that_is_there_but_refuses_another_is_told_with_its_words(tmp_path, monkeypatch):
    """Calibrated all the same; what simulates is left for elsewhere, and the fused kernels run without."""
    made = []
    DeviceCheck(ModelledDevices(stage(), sms=4), tmp_path, 600.0, extent=EXTENT, steps=["host", "programs"]).run()
    for name in [name for name in sys.modules if name.partition(".")[0] == "numba" or name.endswith("_compiled")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "xstage.sim.jit", raising=False)
    monkeypatch.delattr("xstage.sim.engine_compiled", raising=False)
    monkeypatch.setattr(sys, "meta_path", [RefusesNumPy(), *sys.meta_path])
    monkeypatch.setattr(FusedCheck, "run", lambda self: made.append((self.machine, self.drain_gbs)) or {})
    steps = ["start", "analysis", "fused"]
    check = DeviceCheck(ModelledDevices(stage(), sms=4), tmp_path, 600.0, extent=EXTENT, steps=steps)
    assert not check.run()
    assert check.report["missing"] == {"numba": f"ImportError: {RefusesNumPy.why}"}
    told = check.report["steps"]["analysis"]
    assert told["state"] == "skipped"
    assert told["why"].startswith(
        f"a package does not load here ({RefusesNumPy.why}): calibrated, but nothing simulated"
    )
    assert (
        check.report["calibration"]["drain_gbs"] == pytest.approx(52, rel=0.05) and (tmp_path / "machine.yaml").exists()
    )
    assert made == [(None, check.machine.drain_kbs() / 1e6)]  # and not the rough R of the first look


def test_reports_are_json_that_any_reader_takes(tmp_path):
    """NaN and infinity are no JSON; NumPy's numbers are numbers, not text."""
    made = DeviceCheck(None, tmp_path, 600.0)
    made.report |= {
        "a": float("nan"),
        "b": [np.float32("inf"), np.int64(7)],
        "c": {np.int64(3): np.array([1.5, np.nan])},
    }
    made.report |= {"d": np.bool_(True), "e": tmp_path}
    made._write("check.json", made.report)
    found = json.loads((tmp_path / "check.json").read_text(), parse_constant=pytest.fail)
    assert (found["a"], found["b"], found["c"], found["d"]) == (None, [None, 7], {"3": [1.5, None]}, True)
    assert found["e"] == str(tmp_path)


def test_what_was_left_out_for_want_of_a_package_is_a_failure_of_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "xstage.hw_validate.validate", None)
    monkeypatch.setattr(module, "EXTENT", EXTENT)
    assert main(["-o", str(tmp_path), "--steps", "start,analysis"], lambda: ModelledDevices(stage(), sms=4)) == 1
    assert "device check: analysis: xstage.hw_validate.validate is not installed here" in capsys.readouterr().err


def test_without_bursts_the_programs_say_why_there_are_none(tmp_path):
    """The kernel runs twice to wake the GPU, so too before each part, once for the clock, then for the bursts."""
    devices = ModelledDevices(stage(), sms=4, fails={("run", 8): KernelTimeoutError("an SM gave up")})
    made = DeviceCheck(devices, tmp_path, 600.0, extent=EXTENT, steps=["start", "host", "programs"])
    assert not made.run()
    assert made.report["steps"]["programs"]["why"] == "there are no bursts to draw programs around: an SM gave up"
    assert "traceback" not in made.report["steps"]["programs"]


def test_nothing_begins_when_the_time_is_over(tmp_path):
    _, report = check(tmp_path, ModelledDevices(stage(), sms=4), budget_s=0.0)
    assert report["steps"]["host"] == {"state": "not run", "why": "the time was over"}


def test_numbers_that_are_none_stay_none_in_the_process_that_goes_on(tmp_path):
    run = {"kernel": "megamoe", "policy": "lag", "far": {"relative_error": None, "wrong_rows": 1.0}}
    (tmp_path / "fused.json").write_text(json.dumps({"runs": [run], "not_run": []}))
    after = fused(tmp_path, EmulatedDevices(BUILDS, sms=4), until=0.0)
    after.go_on()
    with pytest.raises(MeasurementError, match="results are off by nan"):
        after.run()


class Fails(EmulatedDevices):
    """A run of a kernel, the one with this number, ends in an error."""

    def __init__(self, *given, number, error, **more):
        super().__init__(*given, **more)
        self.number, self.error = number, error

    def run(self, *given):
        if self.runs + 1 == self.number:
            self.runs += 1
            raise self.error
        return super().run(*given)


def fused(folder, devices, until=float("inf")):
    return FusedCheck(devices, folder, load_machine("hgx-h100"), until, TINY)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "raised", "also"),
    [
        (DeviceLostError("the GPU is lost"), DeviceLostError, {"far"}),
        (KernelTimeoutError("a lane gave up"), MeasurementError, {"far", "bare"}),
        (IndexError("a fault of ours"), MeasurementError, {"far", "bare"}),
    ],
)
def test_what_fused_kernels_told_beside_a_failure_is_kept(tmp_path, error, raised, also):
    """The pilot takes three runs; the control of the next policy fails. Only a lost GPU ends more than that."""
    devices = Fails(BUILDS, sms=4, number=5, error=error, shared_per_block_bytes=227 << 10)
    with pytest.raises(raised):
        fused(tmp_path, devices).run()
    pilot, failed, *others = json.loads((tmp_path / "fused.json").read_text())["runs"]
    assert set(pilot) >= {"far", "control", "bare", "simulated"}
    assert failed["failed"]["control"] == f"{type(error).__name__}: {error}"
    assert {side for side in ("far", "control", "bare") if side in failed} == also
    assert bool(others) == (raised is MeasurementError)
    assert devices.live == {}


@needs_compiler
@pytest.mark.slow
def test_a_simulation_that_fails_leaves_what_was_measured(tmp_path, monkeypatch):
    def fails(*given):
        raise ImportError("Numba needs NumPy 2.4 or less")

    monkeypatch.setattr("xstage.hw_validate.cuda.device_check_fused.Prediction.on", fails)
    with pytest.raises(MeasurementError, match=r"simulation of expert_wave: ImportError: Numba needs"):
        fused(tmp_path, EmulatedDevices(BUILDS, sms=4, shared_per_block_bytes=227 << 10)).run()
    runs = json.loads((tmp_path / "fused.json").read_text())["runs"]
    assert all(run["bare"]["relative_error"] < 0.005 and run["bare"]["wrong_rows"] == 0 for run in runs)
    assert (tmp_path / "fused.parquet").exists()


class Hangs(EmulatedDevices):
    """The MegaMoE kernel never ends; everything else is done at once, and wrongly."""

    started = 0

    def prepare(self, *given):
        return {}

    def run(self, launches, abort, deadline_s):
        if launches[0].source.startswith("megamoe"):
            self.started += 1
            raise KernelTimeoutError("a lane gave up")


def test_data_and_the_exact_numbers_are_made_once_for_all_policies_of_attention(tmp_path, monkeypatch):
    made = []
    reference = fused_calls.attention_reference
    monkeypatch.setattr(fused_calls, "attention_reference", lambda *given: made.append(given) or reference(*given))
    with pytest.raises(MeasurementError):
        fused(tmp_path, Hangs(BUILDS, sms=4, shared_per_block_bytes=227 << 10)).run()
    assert len(made) == 1


def test_a_kernel_that_ran_into_its_deadline_twice_is_not_started_again(tmp_path):
    """Each time costs seconds of a GPU that is here for minutes; attention still has its turn."""
    devices = Hangs(BUILDS, sms=4, shared_per_block_bytes=227 << 10)
    with pytest.raises(MeasurementError):
        fused(tmp_path, devices).run()
    told = json.loads((tmp_path / "fused.json").read_text())
    assert devices.started == 2
    assert {run["kernel"] for run in told["not_run"]} == {"megamoe"}
    assert {run["why"] for run in told["not_run"]} == {"this kernel ended in KernelTimeoutError 2 times"}
    assert [run["policy"] for run in told["runs"] if run["kernel"] == "attention"] == list(ATTENTION_POLICIES)
    after = fused(tmp_path, devices)
    after.go_on()
    with pytest.raises(MeasurementError):
        after.run()
    assert devices.started == 2  # nor by the process that goes on


def test_what_a_compilation_took_does_not_keep_later_runs_from_beginning(tmp_path, monkeypatch):
    """The first run of a kernel takes 90 s of 100, for it compiles; the others take one each."""
    now, seen = [0.0], set()

    class Slow(Hangs):
        def run(self, launches, abort, deadline_s):
            pass

        def prepare(self, device, source, kernels):
            now[0] += 1 / 3 if source in seen or "bare" in source else 90 if source.startswith("megamoe") else 1
            seen.add(source)
            return {}

    monkeypatch.setattr("xstage.hw_validate.cuda.device_check_fused.time.perf_counter", lambda: now[0])
    with pytest.raises(MeasurementError):
        fused(tmp_path, Slow(BUILDS, sms=4, shared_per_block_bytes=227 << 10), until=100.0).run()
    told = json.loads((tmp_path / "fused.json").read_text())
    assert len(told["runs"]) > 5 and told["not_run"]


def test_the_runs_that_tell_most_come_first(tmp_path):
    """What stalls for sure, and more of it; then, with more ranks, the width of ratio 1; then what lies about 1."""
    check = fused(tmp_path, EmulatedDevices(BUILDS, sms=4, shared_per_block_bytes=227 << 10), until=0.0)
    check.report |= {"sms_per_rank": 2, "widths": {"1.4": 320, "2.0": 128, "0.5": 256, "1.0": 384}}
    with pytest.raises(MeasurementError):
        check.run()
    rows = json.loads((tmp_path / "fused.json").read_text())["not_run"]
    kinds = [(row["kernel"], row.get("ranks"), row.get("ratio")) for row in rows if "sms" not in row]
    assert list(dict.fromkeys(kinds)) == [
        *(("megamoe", None, 1.4), ("attention", None, None), ("megamoe", None, 2.0)),
        *(("megamoe", 4, 1.5), ("megamoe", None, 0.5), ("megamoe", None, 1.0)),
    ]
    assert {row["width"] for row in rows if row.get("ranks") == 4} == {384}
    assert FusedExtent().ratios == (1.4, 2.0, 0.5, 1.0, 1.2, 0.75)
    assert {row["tokens"] for row in rows if "tokens" in row} == {20, 10}


def test_logs_have_room_for_the_policy_that_notes_most():
    """Ops of alternating and lag are more than those of the others by a fifth."""
    check = FusedCheck(
        EmulatedDevices(BUILDS, sms=132, shared_per_block_bytes=227 << 10), None, None, 0.0, FusedExtent()
    )
    for sms in (10, 18, 36):
        tokens = check._most_tokens(1024, sms, 2)
        call = check._megamoe(1024, tokens)
        shares = [
            lowered_policy(check.devices, call, policy, "host", sms=sms)[1].lowered.log_share()
            for policy in MEGAMOE_POLICIES.values()
        ]
        assert MOST_OF_LOG / 2 < max(shares) <= MOST_OF_LOG
        assert max(shares) > 1.1 * min(shares)


def test_sides_that_ran_at_other_clocks_are_told(tmp_path, monkeypatch):
    """The control of every run at a clock 5 % below."""

    def measured(call, program, fused, devices, transport, repeats, side):
        return {"sm_mhz": 1881.0 if side == "control" else 1980.0, "relative_error": 0.0, "makespan_us": 1.0}, None

    monkeypatch.setattr("xstage.hw_validate.cuda.device_check_fused.measure", measured)
    check = fused(tmp_path, EmulatedDevices(BUILDS, sms=4, shared_per_block_bytes=227 << 10))
    check.drain_gbs = None
    check.run()
    assert {round(run["clock_moved_pct"], 1) for run in check.report["runs"]} == {5.3}


def test_no_fused_kernel_begins_when_the_time_is_over(tmp_path):
    with pytest.raises(MeasurementError, match="no time for any fused kernel"):
        fused(tmp_path, EmulatedDevices(BUILDS, sms=4), until=0.0).run()
    assert json.loads((tmp_path / "fused.json").read_text())["not_run"][0]["why"] == "the time was over"


def test_exit_codes(tmp_path, capsys):
    def none():
        raise NoGpuError("there is no GPU")

    assert main(["-o", str(tmp_path / "a")], none) == 1
    assert "there is no GPU" in capsys.readouterr().err
    assert main(["-o", str(tmp_path / "a"), "--budget", "0"], none) == 2
    (tmp_path / "file").write_text("")
    assert main(["-o", str(tmp_path / "file")], none) == 2
    assert main([], none) == 2
    assert main(["-o", str(tmp_path / "a"), "--steps", "dance"], none) == 2


def test_a_step_that_failed_stays_failed_where_a_later_process_cannot_run_it(tmp_path):
    failed = {"state": "failed", "why": "the GPU is lost"}
    (tmp_path / "check.json").write_text(json.dumps({"steps": {"fused": failed}}))
    after = DeviceCheck(None, tmp_path, steps=["more", "fused"])
    assert not after.run()
    assert after.report["steps"]["fused"] == failed
    assert after.report["steps"]["more"]["state"] == "not run"
