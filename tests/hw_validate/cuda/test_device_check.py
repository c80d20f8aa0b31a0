"""The check of one GPU in a few minutes: what it leaves behind when all goes well, and when it does not."""

import json

import pytest
from xstage.hw_validate.cuda.container import load
from xstage.hw_validate.cuda.device_check import LARGEST_FILE_BYTES, DeviceCheck, main
from xstage.hw_validate.cuda.errors import DeviceLostError, NoGpuError
from xstage.hw_validate.cuda.parts import Extent

from .modelled_devices import ModelledDevices, stage

EXTENT = Extent(sizes=16, rounds=4, train_rounds=2, train_bursts=9, sweep_rounds=1)


def check(folder, devices, budget_s=600.0):
    made = DeviceCheck(devices, folder, budget_s, extent=EXTENT)
    good = made.run()
    return good, json.loads((folder / "check.json").read_text())


@pytest.mark.slow
def test_all_steps_leave_eight_files_that_others_can_read(tmp_path):
    good, report = check(tmp_path, ModelledDevices(stage(), sms=4))
    assert good
    assert {told["state"] for told in report["steps"].values()} == {"done"}
    assert report["replay"]["programs"] == 12
    assert report["replay"]["verdict"] == "agrees"
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["check.json", "host.npz", "local.npz", "machine.yaml", "ops.parquet", "programs.parquet",
                     "report.html", "start.json"]  # fmt: skip
    assert all(path.stat().st_size < LARGEST_FILE_BYTES for path in tmp_path.iterdir())
    parts = load(tmp_path / "host.npz", "results").header["parts"]
    assert {"bursts", "trains", "producers", "programs", "bulk", "feed", "drift"} <= set(parts)


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
    assert steps == {"start": "done", "host": "done", "programs": "failed", "local": "done", "later": "done",
                     "analysis": "failed"}  # fmt: skip
    assert "show no knee" in report["steps"]["programs"]["why"]


def test_nothing_begins_when_the_time_is_over(tmp_path):
    _, report = check(tmp_path, ModelledDevices(stage(), sms=4), budget_s=0.0)
    assert report["steps"]["host"] == {"state": "not run", "why": "the time was over"}


def test_exit_codes(tmp_path, capsys):
    def none():
        raise NoGpuError("there is no GPU")

    assert main(["-o", str(tmp_path / "a")], none) == 1
    assert "there is no GPU" in capsys.readouterr().err
    assert main(["-o", str(tmp_path / "a"), "--budget", "0"], none) == 2
    (tmp_path / "file").write_text("")
    assert main(["-o", str(tmp_path / "file")], none) == 2
    assert main([], none) == 2
