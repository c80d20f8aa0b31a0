"""The collector: parts in turn, results after each, what ends it early, and how little it needs to run."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from xstage.hw_validate.cuda import collect as module
from xstage.hw_validate.cuda import steady
from xstage.hw_validate.cuda.collect import Settings, collect, collect_more, main
from xstage.hw_validate.cuda.container import load, save
from xstage.hw_validate.cuda.errors import (
    DeviceLostError,
    KernelTimeoutError,
    MemoryTooSmallError,
    NoGpuError,
    NoPeerAccessError,
)
from xstage.hw_validate.cuda.parts import PARTS, Extent
from xstage.hw_validate.cuda.planning import plan
from xstage.hw_validate.cuda.run_bursts import scout_table
from xstage.hw_validate.cuda.transport import MiB
from xstage.hw_validate.trains import Phases, train
from xstage.sim.errors import InputError
from xstage.sim.program import COMPUTE

from .modelled_devices import CYCLES_PER_NS, ModelledDevices, stage

TINY = Extent(sizes=9, rounds=3, train_rounds=2, train_bursts=6, sweep_rounds=1)
FEW = ("clock", "bursts", "costs")


def tiny(parts=FEW, **more):
    return plan(extent=TINY, parts=parts, **more)


def states(results):
    return {name: told["state"] for name, told in results.header["parts"].items()}


def test_every_part_runs_and_tells_what_ran(tmp_path):
    results = collect(tiny(tuple(PARTS)), ModelledDevices(stage(), sms=8), tmp_path / "r.npz")
    found = states(results)
    assert found.pop("incast") == "skipped"
    assert "needs two GPUs" in results.header["parts"]["incast"]["why"]
    assert set(found.values()) == {"done"}
    assert results.header["complete"]
    assert results.header["machine"]["devices"][0]["sms"] == 8
    assert results.header["machine"]["peer_matrix"] == [[True]]


def test_all_parts_run_between_gpus(tmp_path):
    results = collect(tiny(tuple(PARTS)), ModelledDevices(stage(), sms=8, gpus=2), tmp_path / "r.npz")
    assert results.header["transport"]["name"] == "peer"
    assert set(states(results).values()) == {"done"}


def test_what_is_written_is_what_was_collected(tmp_path):
    results = collect(tiny(), ModelledDevices(stage(), sms=8), tmp_path / "r.npz")
    again = load(tmp_path / "r.npz", "results")
    assert again.header == json.loads(json.dumps(results.header))
    assert all(np.array_equal(again.arrays[name], array) for name, array in results.arrays.items())


def test_old_gpus_have_no_bulk_stores(tmp_path):
    results = collect(tiny(("clock", "bulk")), ModelledDevices(sms=8, compute_capability="80"), tmp_path / "r.npz")
    assert "need compute capability 90, this GPU has 80" in results.header["parts"]["bulk"]["why"]


@pytest.mark.parametrize(
    ("error", "later"),
    [(DeviceLostError("gone"), "not run"), (KeyboardInterrupt(), "not run"), (KernelTimeoutError("too long"), "done"),
     (MemoryTooSmallError("full"), "done"), (IndexError("a fault of ours"), "done")],
)  # fmt: skip
def test_what_was_measured_beside_a_failure_is_kept_and_marked(tmp_path, error, later):
    """Parts behind it run as well, unless the GPU is lost or a person wants to stop."""
    devices = ModelledDevices(
        stage(), sms=8, fails={("run", 11): error}
    )  # scout twice, then three times a part: twice to wake the GPU, and this
    with pytest.raises(type(error)):
        collect(tiny(), devices, tmp_path / "r.npz")
    kept = load(tmp_path / "r.npz", "results")
    found = states(kept)
    assert [found[name] for name in FEW] == ["done", "done", "failed"]
    assert found["drift"] == found["clock after"] == later
    assert kept.header["failed"]["part"] == "costs"
    assert not kept.header["complete"]
    assert "part/bursts/marks" in kept.arrays
    assert "part/costs/marks" not in kept.arrays
    assert devices.live == {}


def test_a_failure_before_anything_ran_is_kept_too(tmp_path):
    devices = ModelledDevices(gpus=2, reachable=False)
    with pytest.raises(NoPeerAccessError):
        collect(tiny(), devices, tmp_path / "r.npz", Settings("peer"))
    kept = load(tmp_path / "r.npz", "results")
    assert set(states(kept).values()) == {"not run"}
    assert "peer access is missing" in kept.header["failed"]["why"]


def test_a_gpu_lost_before_the_transport_is_known_leaves_the_results_from_before(tmp_path):
    before = collect(tiny(), ModelledDevices(stage(), sms=8), tmp_path / "r.npz")
    lost = ModelledDevices(stage(), sms=8, fails={("device_memory", 1): DeviceLostError("the GPU is lost")})
    with pytest.raises(DeviceLostError):
        collect_more(before, tiny(), lost, tmp_path / "r.npz")
    assert states(load(tmp_path / "r.npz", "results")) == states(before)
    assert [path.name for path in tmp_path.iterdir()] == ["r.npz"]


def test_what_a_killed_process_left_is_taken_in_before_more_is_measured(tmp_path):
    """It had measured the costs, and these are kept; what it had not come to is measured now."""
    before = collect(tiny(("clock", "bursts")), ModelledDevices(stage(), sms=8), tmp_path / "r.npz")
    stopped = ModelledDevices(stage("40 GB/s"), sms=8, fails={("run", 9): KeyboardInterrupt()})  # its times are others
    more = tiny(("clock", "costs", "width"))
    with pytest.raises(KeyboardInterrupt):
        collect(more, stopped, tmp_path / "added-r.npz")
    left = load(tmp_path / "added-r.npz", "results")
    for told in left.header["parts"].values():  # killed, and not interrupted: nobody noted it
        told |= {"state": "not run"} if told["state"] == "failed" else {}
    del left.header["failed"]
    save(left, tmp_path / "added-r.npz")
    after = collect_more(before, more, ModelledDevices(stage(), sms=8), tmp_path / "r.npz")
    assert set(states(after).values()) == {"done"} and after.header["complete"]
    assert np.array_equal(after.arrays["part/costs/marks"], left.arrays["part/costs/marks"])
    assert [path.name for path in tmp_path.iterdir()] == ["r.npz"]


def test_what_was_taken_in_is_not_measured_again(tmp_path):
    before = collect(tiny(("clock", "bursts")), ModelledDevices(stage(), sms=8), tmp_path / "r.npz")
    left = collect(tiny(("clock", "costs")), ModelledDevices(stage(), sms=8), tmp_path / "added-r.npz")
    devices = Asked(stage(), sms=8)
    after = collect_more(before, tiny(("clock", "costs", "width")), devices, tmp_path / "r.npz")
    rows = {name: told["rows"] for name, told in after.header["parts"].items()}
    assert [n for n in devices.log if n not in ("now", len(scout_table()))] == [
        rows["clock"],
        rows["width"],
        rows["clock after"],
    ]
    assert np.array_equal(after.arrays["part/costs/marks"], left.arrays["part/costs/marks"])


def test_new_results_delete_what_a_killed_process_left_beside_older_ones(tmp_path):
    collect(tiny(("clock", "costs")), ModelledDevices(stage("26 GB/s"), sms=8), tmp_path / "added-r.npz")
    devices = ModelledDevices(stage(), sms=8, fails={("run", 12): KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        collect(tiny(("clock", "bursts", "trains")), devices, tmp_path / "r.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["r.npz"]


@pytest.mark.parametrize("what", ["cut", "of another transport"])
def test_what_was_left_and_cannot_be_taken_in_is_put_aside_and_told(tmp_path, what, capsys):
    before = collect(tiny(("clock", "bursts")), ModelledDevices(stage(), sms=8), tmp_path / "r.npz")
    if what == "cut":
        (tmp_path / "added-r.npz").write_bytes(b"PK\x03\x04")
    else:
        local = Settings(transport="local")
        collect(tiny(("clock", "width")), ModelledDevices(stage(), sms=8), tmp_path / "added-r.npz", local)
    content = (tmp_path / "added-r.npz").read_bytes()
    after = collect_more(before, tiny(("clock", "width")), ModelledDevices(stage(), sms=8), tmp_path / "r.npz")
    assert states(after)["width"] == "done"
    (said,) = after.header["warnings"]
    assert "what an earlier run left was not taken in, and is now in not-added-r.npz" in said
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["not-added-r.npz", "r.npz"]
    assert (tmp_path / "not-added-r.npz").read_bytes() == content


def test_a_part_that_failed_is_measured_again(tmp_path):
    failing = ModelledDevices(stage(), sms=8, fails={("run", 11): KernelTimeoutError("too long")})
    with pytest.raises(KernelTimeoutError):
        collect(tiny(), failing, tmp_path / "r.npz")
    before = load(tmp_path / "r.npz", "results")
    after = collect_more(before, tiny(("clock", "costs")), ModelledDevices(stage(), sms=8), tmp_path / "r.npz")
    assert (states(before)["costs"], states(after)["costs"]) == ("failed", "done")
    assert "failed" in before.header and "failed" not in after.header


def test_no_part_begins_when_the_budget_is_spent(tmp_path):
    results = collect(tiny(), ModelledDevices(stage(), sms=8), tmp_path / "r.npz", Settings(budget_s=0.0))
    assert set(states(results).values()) == {"not run"}
    assert "budget of 0 s was spent" in results.header["parts"]["bursts"]["why"]


def test_a_kernel_that_gave_up_is_an_error_even_if_it_ended(tmp_path):
    class GivesUp(ModelledDevices):
        def run(self, launches, abort, deadline_s):
            super().run(launches, abort, deadline_s)
            self.live[abort[0].address].data[0] = 1
            return 0.1

    with pytest.raises(KernelTimeoutError, match="waited for another for more than 10 s"):
        collect(tiny(), GivesUp(stage(), sms=8), tmp_path / "r.npz")


def test_it_is_said_when_no_knee_shows_and_when_the_clock_moved(tmp_path):
    results = collect(tiny(), ModelledDevices(None, sms=8, clock_moves=0.1), tmp_path / "r.npz")
    said = " ".join(results.header["warnings"])
    assert "Q cannot be seen" in said
    assert "the SM clock moved by" in said
    quiet = collect(tiny(), ModelledDevices(stage(), sms=8), tmp_path / "r.npz")
    assert quiet.header["warnings"] == []


class WakesUp(ModelledDevices):
    """Its clock goes at `asleep` until `awake_after` runs have been, then at the usual one."""

    def __init__(self, *given, asleep, awake_after, **more):
        super().__init__(*given, **more)
        self.asleep, self.awake_after = asleep, awake_after

    def cycles_per_ns(self):
        is_awake = self._calls.get("run", 0) > self.awake_after
        return super().cycles_per_ns() if is_awake else self.asleep


PAUSES_NS = [1000, 3000, 2000]


def replayed(tmp_path, devices):
    """Results with one train, and how long its pauses took in the last repeat, in ns; a modelled GPU adds no more."""
    program = train(Phases([2048] * 3, [1000 * pause for pause in PAUSES_NS]), 2, lambda size: size)
    made = tiny(("clock", "bursts"), programs=[program], repeats=(3, 2))
    results = collect(made, devices, tmp_path / "r.npz")
    far = {name: results.arrays[f"replay/0/far/{name}"] for name in ("keys", "start", "end")}
    pauses = program.ops["kind"][far["keys"][0][:, 2]] == COMPUTE
    ticks = (far["end"].astype(int) - far["start"])[-1][pauses]
    return results, np.unique(np.round(ticks / CYCLES_PER_NS, -2)).tolist()


@pytest.mark.parametrize("awake_after", [0, 1, 2, 3, 6, 7, 8, 9])
def test_pauses_of_replays_last_as_asked_whenever_the_gpu_wakes_up(tmp_path, awake_after):
    """Runs are: scout until the clock is steady, then two before each part to wake the GPU: clock, bursts, the programs."""
    devices = WakesUp(stage(), sms=8, noise=0.0, asleep=0.345, awake_after=awake_after)
    results, pauses = replayed(tmp_path, devices)
    told = results.header["parts"]["programs"]
    assert told["cycles_per_ns"] == pytest.approx(CYCLES_PER_NS, rel=1e-3)
    assert pauses == [1000, 2000, 3000]
    assert told["clock_moved_pct"] < 0.1 and results.header["warnings"] == []


def test_a_clock_that_never_rests_is_told(tmp_path):
    class Restless(ModelledDevices):
        def cycles_per_ns(self):
            return 1.0 + 0.1 * (self._calls.get("run", 0) % 3)

    results, _ = replayed(tmp_path, Restless(stage(), sms=8))
    assert results.header["parts"]["programs"]["clock_moved_pct"] > 2
    assert any("every pause is wrong by as much" in warning for warning in results.header["warnings"])


class Asked(ModelledDevices):
    """Counts what asks nvidia-smi, a process each time, in which the GPU idles; and notes what ran in between."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.log = []

    def now(self, device):
        self.log.append("now")
        return {}

    def run(self, launches, abort, deadline_s):
        self.log.append(int(launches[0].parameters["n_rows"][0]))
        return super().run(launches, abort, deadline_s)


def test_each_part_runs_right_behind_one_that_wakes_the_gpu(tmp_path):
    devices = Asked(stage(), sms=8)
    results = collect(tiny(), devices, tmp_path / "r.npz")
    rows = [told["rows"] for told in results.header["parts"].values()]
    scout = len(scout_table())
    assert devices.log == [scout, scout] + [one for n in rows for one in (scout, scout, n, "now")]


class Dozes(ModelledDevices):
    """Falls back to its idle clock for the next `runs` runs whenever it is asked how it is."""

    def __init__(self, *given, runs, **more):
        super().__init__(*given, **more)
        self.runs = self.asleep = runs

    def now(self, device):
        self.asleep = self.runs
        return {}

    def run(self, *given):
        self.asleep -= 1
        return super().run(*given)

    def cycles_per_ns(self):
        return 0.345 if self.asleep >= 0 else super().cycles_per_ns()


@pytest.mark.parametrize("runs", [0, 1, 3, 20])
def test_no_part_begins_at_the_clock_of_an_idle_gpu(tmp_path, monkeypatch, runs):
    """However long it takes to wake up; nvidia-smi is asked after every part."""
    monkeypatch.setattr(steady, "LONGEST_S", float("inf"))
    results = collect(tiny(), Dozes(stage(), sms=8, runs=runs), tmp_path / "r.npz")
    clocks = [told["cycles_per_ns"] for told in results.header["parts"].values()]
    assert clocks == pytest.approx([CYCLES_PER_NS] * 5, rel=1e-3)
    assert results.header["warnings"] == []


def test_a_gpu_that_does_not_wake_up_is_told(tmp_path):
    results = collect(tiny(("clock",)), Dozes(stage(), sms=8, runs=1000), tmp_path / "r.npz")
    assert results.header["warnings"][0].startswith(
        "clock: the SM clock was not steady before it, or below half of the"
    )


def test_groups_whose_bursts_do_not_fit_into_memory_are_named(tmp_path):
    few = Settings(most_bytes=64 * MiB)
    devices = ModelledDevices(stage(), sms=132, free_bytes=1 << 32)
    results = collect(tiny(("clock", "bursts", "trains")), devices, tmp_path / "r.npz", few)
    (said,) = [text for text in results.header["warnings"] if "too little memory" in text and "trains" in text]
    assert "long run (from 1048576 B on)" in said and "train (" not in said


def test_an_unknown_part_of_a_plan_is_refused(tmp_path):
    made = tiny()
    made.header["parts"]["dance"] = made.header["parts"]["costs"]
    with pytest.raises(InputError, match="dance"):
        collect(made, ModelledDevices(), tmp_path / "r.npz")


def run_main(tmp_path, devices, *more):
    save(tiny(), tmp_path / "plan.npz")
    return main([str(tmp_path / "plan.npz"), "-o", str(tmp_path / "r.npz"), *more], lambda: devices)


def test_the_command_prints_one_object(tmp_path, capsys):
    assert run_main(tmp_path, ModelledDevices(stage(), sms=8)) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["complete"] and answer["parts"]["bursts"] == "done"


def test_exit_codes_tell_bad_input_from_failure(tmp_path, capsys):
    lost = ModelledDevices(stage(), sms=8, fails={("run", 2): DeviceLostError("the GPU is lost")})
    assert run_main(tmp_path, lost) == 1
    assert "the GPU is lost" in capsys.readouterr().err
    assert run_main(tmp_path, ModelledDevices(gpus=2), "--gpus", "9") == 2
    assert run_main(tmp_path, ModelledDevices(), "--transport", "smoke") == 2
    assert main([str(tmp_path / "none.npz"), "-o", str(tmp_path / "r.npz")]) == 2
    assert main([str(tmp_path / "plan.npz"), "-o", str(tmp_path / "r.txt")]) == 2
    assert main([str(tmp_path / "plan.npz"), "-o", str(tmp_path / "plan.npz")]) == 2
    assert "plan.npz: is the file that is read" in capsys.readouterr().err.replace("'", "")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "plan.npz").read_bytes()[:100])
    assert main([str(tmp_path / "cut.npz"), "-o", str(tmp_path / "r.npz")]) == 2
    assert "cut.npz: is not a whole plan file" in capsys.readouterr().err


def test_results_are_not_taken_for_a_plan(tmp_path, capsys):
    assert run_main(tmp_path, ModelledDevices(stage(), sms=8)) == 0
    assert main([str(tmp_path / "r.npz"), "-o", str(tmp_path / "again.npz")]) == 2
    assert "kind = 'results'" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_measured(tmp_path, capsys):
    stopped = ModelledDevices(stage(), sms=8, fails={("run", 8): KeyboardInterrupt()})
    assert run_main(tmp_path, stopped) == 1
    assert "interrupted; what was measured is kept" in capsys.readouterr().err
    assert states(load(tmp_path / "r.npz", "results"))["clock"] == "done"


def test_no_gpu_is_a_failure_with_its_reason(tmp_path, capsys, monkeypatch):
    def none():
        raise NoGpuError("there is no GPU")

    monkeypatch.setattr(module, "cupy_devices", none)
    save(tiny(), tmp_path / "plan.npz")
    assert main([str(tmp_path / "plan.npz"), "-o", str(tmp_path / "r.npz")]) == 1
    assert "there is no GPU" in capsys.readouterr().err


BARE = """
import sys

class OnlyNumPy:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {refused}:
            raise ImportError(f"the collector may not import {{name}}", name=name)
        return None

sys.meta_path.insert(0, OnlyNumPy())
sys.argv = ["run_here.py", *{words}]
import runpy
runpy.run_path({script!r}, run_name="__main__")
"""
REFUSED = ("pandas", "numba", "scipy", "pydantic", "simpy", "networkx", "matplotlib", "pyarrow", "yaml", "typer", "rich",
           "jinja2", "llvmlite", "cupy", "dask", "distributed")  # fmt: skip


@pytest.mark.parametrize("words", [["collect", "{plan}", "-o", "{out}"], ["device_check", "-o", "{folder}"]])
def test_a_bare_node_needs_numpy_and_cupy_alone(tmp_path, words):
    """In a process that can import nothing else, out of a source tree, it gets as far as CuPy, and says so."""
    save(tiny(), tmp_path / "plan.npz")
    names = {"plan": tmp_path / "plan.npz", "out": tmp_path / "r.npz", "folder": tmp_path / "check"}
    script = Path(module.__file__).with_name("run_here.py")
    code = BARE.format(refused=set(REFUSED), words=[word.format(**names) for word in words], script=str(script))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "CuPy is" in done.stderr and "install the one wheel that fits the driver" in done.stderr


EVERYTHING = """
import sys
sys.path.insert(0, {root!r})
import pathlib
from tests.hw_validate.cuda.emulated_devices import EmulatedDevices
{trap}
from xstage.hw_validate.cuda.collect import Settings, collect
from xstage.hw_validate.cuda.container import load
devices = EmulatedDevices(pathlib.Path({builds!r}))
results = collect(load({plan!r}, "plan"), devices, {out!r}, Settings(most_bytes=1 << 20, threads=64))
assert results.header["complete"], results.header
assert not [name for name in sys.modules if name.partition(".")[0] in {refused}]
"""


def test_collecting_and_replaying_import_numpy_alone(tmp_path):
    from .emulated import BUILDS, needs_compiler

    if needs_compiler.args[0]:
        pytest.skip(needs_compiler.kwargs["reason"])
    program = train(Phases([1024, 512], [1000, 2000]), 2, lambda size: size)
    save(tiny(("clock", "bursts"), programs=[program], repeats=(2, 1)), tmp_path / "plan.npz")
    root = Path(__file__).parents[3]
    code = EVERYTHING.format(root=str(root), trap="", builds=str(BUILDS), plan=str(tmp_path / "plan.npz"),
                             out=str(tmp_path / "r.npz"), refused=set(REFUSED))  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "r.npz", "results").arrays["replay/0/far/start"].shape == (2, 8)
