"""What goes wrong with GPUs, as a person meets it: through the command, with its message, exit code and kept results."""

import json

import numpy as np
import pytest
from xstage.hw_validate.cuda import backend
from xstage.hw_validate.cuda.container import load
from xstage.hw_validate.cuda.errors import (
    DeviceLostError,
    KernelTimeoutError,
    MemoryTooSmallError,
    NoGpuError,
    NoPeerAccessError,
)
from xstage.hw_validate.cuda.fused_calls import MegaMoeCall
from xstage.hw_validate.cuda.fused_run import ready
from xstage.hw_validate.cuda.parts import Extent
from xstage.hw_validate.cuda.transport import MiB
from xstage.hw_validate.validate import calibrate
from xstage.sim.schedules.megamoe import MegaMoe

from xstage.cli import main

from .modelled_devices import ModelledDevices, stage

EXTENT = Extent(sizes=20, rounds=5, train_rounds=3, train_bursts=12, sweep_rounds=3)
RUNS = {"scout": 1, "clock": 5, "bursts": 8, "trains": 11, "producers": 14, "costs": 17}
"""Which run of a kernel each part is, with two before it to wake the GPU; then come warm places, drift and the clock, two
scouts, clock and bursts, and the replays."""
FIRST_REPLAY = 26 + 2 + 6 + 2 + 1
LOST = DeviceLostError("running bursts on GPU 0: the GPU is lost to this process (an illegal memory access)")


@pytest.fixture
def fails(monkeypatch, capsys, tmp_path):
    """Runs a command on devices (or with an error in their place); gives its exit code, and the error as JSON has it."""
    monkeypatch.setattr(backend, "QUICK", EXTENT)
    monkeypatch.setattr("xstage.hw_validate.cuda.planning.QUICK", EXTENT)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(devices, *words):
        def here():
            if isinstance(devices, Exception):
                raise devices
            return devices

        monkeypatch.setattr(backend, "gpus_here", here)
        command, *more = words or ("validate",)
        quick = [] if "--results" in more else ["--quick"]
        code = main([command, "--backend", "cuda", *quick, "--json", *more])
        return code, json.loads(capsys.readouterr().out).get("error")

    return run


@pytest.mark.parametrize("command", ["calibrate", "validate"])
def test_no_gpu_is_a_failure_with_its_reason(fails, command):
    code, error = fails(NoGpuError("looking for GPUs: there is no GPU that this process may use"), command)
    assert code == 1
    assert error == {"type": "NoGpuError", "message": "looking for GPUs: there is no GPU that this process may use"}


def test_too_little_memory_of_the_gpu(fails, tmp_path):
    code, error = fails(ModelledDevices(stage(), sms=4, free_bytes=100 * MiB))
    assert (code, error["type"]) == (1, "MemoryTooSmallError")
    assert error["message"] == "GPU 0 has no 64 MiB free, which a measurement needs at least"
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_of_the_host(fails):
    devices = ModelledDevices(stage(), sms=4, fails={("host_memory", "always"): MemoryTooSmallError("no")})
    code, error = fails(devices, "calibrate", "--transport", "host")
    assert (code, error["type"]) == (1, "MemoryTooSmallError")
    assert "host memory has no 64 MiB free" in error["message"]


def test_peers_that_cannot_reach_each_other(fails):
    code, error = fails(ModelledDevices(stage(), sms=4, gpus=2, reachable=False), "validate", "--transport", "peer")
    assert (code, error["type"]) == (1, "NoPeerAccessError")
    assert "GPU 0 cannot store into the memory of GPU 1" in error["message"]
    assert error["message"].endswith("use transport host")


@pytest.mark.slow
def test_peers_without_native_atomics_are_calibrated_but_nothing_is_replayed(fails, tmp_path):
    devices = ModelledDevices(stage(), sms=4, gpus=2, atomics=False)
    kept = tmp_path / "kept.npz"
    code, error = fails(devices, "validate", "--transport", "peer", "--keep", str(kept))
    assert (code, error["type"]) == (1, "NoPeerAccessError")
    assert "GPU 0 can store to GPU 1, but not add to its counters" in error["message"]
    assert load(kept, "results").header["failed"]["part"] == "programs"
    code, error = fails(devices, "calibrate", "--results", str(kept))
    assert (code, error) == (0, None)


def test_more_gpus_than_there_are_is_bad_input(fails):
    code, error = fails(ModelledDevices(stage(), sms=4, gpus=2), "calibrate", "--transport", "peer", "--gpus", "3")
    assert (code, error["type"]) == (2, "InputError")
    assert "gpus = 3" in error["message"]


@pytest.mark.parametrize(
    ("error", "later"),
    [
        (LOST, "not run"),
        (KernelTimeoutError("bursts on GPU 0 did not end before its deadline and was told to give up"), "done"),
    ],
)
def test_what_was_measured_beside_a_failure_is_kept_and_the_message_says_where(fails, tmp_path, error, later):
    devices = ModelledDevices(stage(), sms=4, fails={("run", RUNS["producers"]): error})
    code, told = fails(devices)
    (folder,) = tmp_path.iterdir()
    assert (code, told["type"]) == (1, type(error).__name__)
    assert told["message"] == f"{error}; what was measured until then is in {folder / 'results.npz'}"
    kept = load(folder / "results.npz", "results").header
    assert [kept["parts"][name]["state"] for name in ("bursts", "trains", "producers", "costs")] == [
        "done", "done", "failed", later
    ]  # fmt: skip
    assert not kept["complete"]


def test_partial_results_are_still_a_calibration_and_say_that_they_are_partial(fails, tmp_path):
    kept = tmp_path / "kept.npz"
    devices = ModelledDevices(stage(), sms=4, fails={("run", RUNS["producers"]): LOST})
    assert fails(devices, "calibrate", "--keep", str(kept))[0] == 1
    found = calibrate("cuda", results=kept)
    assert found.calibration.drain_gbs.value == pytest.approx(52, rel=0.05)
    assert any("partial results: part producers failed" in text for text in found.warnings)
    code, error = fails(devices, "validate", "--results", str(kept))
    assert (code, error["type"]) == (2, "InputError")
    assert "hold no replayed program" in error["message"]


@pytest.mark.slow
def test_a_program_that_hangs_does_not_keep_the_others_from_running(fails, tmp_path):
    kept = tmp_path / "kept.npz"
    hang = KernelTimeoutError("replay: a lane waited for more than 5 s and gave up")
    devices = ModelledDevices(stage(), sms=4, fails={("run", FIRST_REPLAY): hang})
    code, error = fails(devices, "validate", "--programs", "4", "--keep", str(kept))
    assert (code, error["type"]) == (1, "KernelTimeoutError")
    told = load(kept, "results").header["parts"]
    assert (told["programs"]["state"], told["drift"]["state"]) == ("failed", "done")
    assert sorted("skipped" in one for one in told["programs"]["programs"]) == [False, False, False, True]
    assert fails(devices, "validate", "--results", str(kept)) == (0, None)


@pytest.mark.slow
def test_a_gpu_that_disappears_during_the_replays_leaves_the_repeats_until_then(fails, tmp_path):
    kept = tmp_path / "kept.npz"
    devices = ModelledDevices(stage(), sms=4, fails={("run", FIRST_REPLAY + 20): LOST})
    code, error = fails(devices, "validate", "--programs", "4", "--keep", str(kept))
    assert (code, error["type"]) == (1, "DeviceLostError")
    assert str(kept) in error["message"]
    results = load(kept, "results")
    assert results.header["parts"]["programs"]["state"] == "failed"
    assert results.header["parts"]["costs"]["state"] == "done"
    repeats = [len(results.arrays[f"replay/{n}/far/start"]) for n in range(4)]
    assert 0 < sum(repeats) < 4 * 11
    code, error = fails(devices, "validate", "--results", str(kept))
    assert (code, error) == (0, None)


def test_nothing_is_left_behind_when_all_goes_well(fails, tmp_path):
    assert fails(ModelledDevices(stage(), sms=4), "calibrate") == (0, None)
    assert list(tmp_path.iterdir()) == []


def test_results_cut_short_are_bad_input(fails, tmp_path):
    path = tmp_path / "cut.npz"
    np.savez(path, header=np.array("{}"))
    code, error = fails(ModelledDevices(), "calibrate", "--results", str(path))
    assert (code, error["type"]) == (2, "InputError")


def test_fused_kernels_are_not_run_on_gpus_whose_signals_could_be_lost():
    shape = MegaMoe(tokens=20, hidden=128, intermediate=128, experts=4, topk=2, ranks=2, numbers="bf16")
    devices = ModelledDevices(gpus=2, atomics=False)
    with (
        pytest.raises(NoPeerAccessError, match=r"not add to its counters.*use transport host"),
        ready(MegaMoeCall(shape), None, devices, "peer", "megamoe.cu"),
    ):
        pass
