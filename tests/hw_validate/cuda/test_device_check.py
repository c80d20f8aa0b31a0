"""The check of one GPU in a few minutes: what it leaves behind when all goes well, and when it does not."""

import json

import pytest
from xstage.hw_validate.cuda.container import load
from xstage.hw_validate.cuda.device_check import LARGEST_FILE_BYTES, DeviceCheck, main
from xstage.hw_validate.cuda.device_check_fused import FusedCheck, FusedExtent
from xstage.hw_validate.cuda.errors import DeviceLostError, KernelTimeoutError, NoGpuError
from xstage.hw_validate.cuda.fused_calls import ATTENTION_POLICIES, MEGAMOE_POLICIES
from xstage.hw_validate.cuda.parts import Extent
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
    megamoe={"tokens": 20, "hidden": 128, "experts": 4, "topk": 2, "ranks": 2}, usual_width=256, most_width=384,
    ratios=(1.0, 0.5), attention=Attention(tokens=20, heads=2, head_dim=64, ranks=2), pilot_sms=2, repeats=1,
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
    assert files == ["check.json", "fused.json", "fused.parquet", "host.npz", "local.npz", "machine.yaml", "ops.parquet",
                     "programs.parquet", "report.html", "start.json"]  # fmt: skip
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
    assert "attention" in fused["ranked_alike"] and fused["speedup"]["attention"]["serial"]["measured"] == 1.0


def test_the_start_is_written_before_anything_runs(tmp_path):
    devices = ModelledDevices(stage(), sms=4, fails={("run", 1): DeviceLostError("the GPU is lost")})
    good, report = check(tmp_path, devices)
    assert not good
    assert json.loads((tmp_path / "start.json").read_text())["devices"][0]["name"] == "emulated"
    steps = report["steps"]
    assert (steps["start"]["state"], steps["host"]["state"]) == ("done", "failed")
    assert steps["host"]["why"] == "the GPU is lost"
    assert steps["local"] == {"state": "not run", "why": "the GPU was lost before"}


def test_a_step_that_fails_does_not_take_the_others_with_it(tmp_path):
    """Without a knee no Programs can be drawn around it; everything else is still measured."""
    good, report = check(tmp_path, ModelledDevices(None, sms=4))
    steps = {name: told["state"] for name, told in report["steps"].items()}
    assert not good
    assert steps == {"start": "done", "host": "done", "programs": "failed", "local": "done", "analysis": "failed",
                     "fused": "failed", "later": "done"}  # fmt: skip
    assert "no calibrated machine" in report["steps"]["fused"]["why"]
    assert "show no knee" in report["steps"]["programs"]["why"]


def test_nothing_begins_when_the_time_is_over(tmp_path):
    _, report = check(tmp_path, ModelledDevices(stage(), sms=4), budget_s=0.0)
    assert report["steps"]["host"] == {"state": "not run", "why": "the time was over"}


def control(main_loop_us, stores_us):
    return {"main_loop_us": main_loop_us, "stores_us": stores_us}


def test_sms_and_widths_are_chosen_so_that_the_way_out_takes_as_long_as_the_tiles():
    """A tile of 16 KiB, half of it far: at 52 GB/s an SM's part takes 0.158 us. 2 x 16 SMs fill the 5.04 us of a tile."""
    machine = ModelledDevices(stage(), sms=4).machine()
    sweep = FusedCheck(None, None, machine, 0.0, FusedExtent(ratios=(1.0, 0.5, 2.0)))
    per_sm_us = 8192 / 52_000
    sms, widths = sweep._choose(control(4.8, 0.24), 66)
    assert sms == round(5.04 / per_sm_us / 2)
    for ratio, width in widths.items():
        took_us = 4.8 * width / 1024 + 0.24
        assert 2 * sms * per_sm_us / took_us == pytest.approx(float(ratio), rel=0.1)


def test_a_gpu_with_too_few_sms_takes_narrower_experts():
    machine = ModelledDevices(stage("10 GB/s"), sms=4).machine()
    sms, widths = FusedCheck(None, None, machine, 0.0)._choose(control(40.0, 0.24), 8)
    assert sms == 8
    assert widths["1.0"] < 1024


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
    ("error", "raised", "not_run"),
    [
        (DeviceLostError("the GPU is lost"), DeviceLostError, 1),
        (KernelTimeoutError("a lane gave up"), MeasurementError, 1),
    ],
)
def test_what_fused_kernels_told_before_a_failure_is_kept(tmp_path, error, raised, not_run):
    """The pilot takes three runs; the second one after fails. A lost GPU ends it all, a kernel that gave up does not."""
    devices = Fails(BUILDS, sms=4, number=5, error=error, shared_per_block_bytes=227 << 10)
    with pytest.raises(raised):
        fused(tmp_path, devices).run()
    kept = json.loads((tmp_path / "fused.json").read_text())
    assert kept["runs"][0]["policy"] == "expert_wave"
    assert len(kept["not_run"]) == not_run
    assert str(error) in kept["not_run"][0]["why"]
    assert (len(kept["runs"]) > 1) == (raised is MeasurementError)
    assert devices.live == {}


def test_no_fused_kernel_begins_when_the_time_is_over(tmp_path):
    with pytest.raises(MeasurementError, match="gave nothing to plan the others by"):
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
