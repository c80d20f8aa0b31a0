"""The replay kernel itself, emulated, through collector and analysis: every op comes back under its name.

Emulated time is a count of steps and obeys no law, so nothing here asks how far measured and simulated times are apart.
"""

import numpy as np
import pytest
from xstage.hw_validate.compare import compare
from xstage.hw_validate.cuda import calibration
from xstage.hw_validate.cuda.collect import Settings, collect
from xstage.hw_validate.cuda.parts import Extent
from xstage.hw_validate.cuda.planning import plan
from xstage.hw_validate.cuda.replayed import Overheads, judged_programs, priced
from xstage.hw_validate.cuda.schedules import attention_program, megamoe_program
from xstage.hw_validate.trains import Phases, train
from xstage.sim.errors import InputError
from xstage.sim.program import COMPUTE, SIGNAL, STORE
from xstage.sim.program_index import op_repeats

from .emulated import BUILDS, needs_compiler
from .emulated_devices import EmulatedDevices
from .modelled_devices import ModelledDevices, stage
from .test_ranks import all_to_next

EXTENT = Extent(sizes=20, rounds=4, train_rounds=3, train_bursts=9, sweep_rounds=3)
SMALL = Settings(most_bytes=1 << 20, threads=64)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The calibration of a modelled GPU, to simulate with."""
    path = tmp_path_factory.mktemp("cuda") / "r.npz"
    return calibration.calibrate(collect(plan(extent=EXTENT), ModelledDevices(stage(), sms=4), path))


def emulated(tmp_path, programs, gpus=1, transport="auto"):
    made = plan(extent=EXTENT, parts=("clock",), programs=programs, repeats=(3, 2))
    settings = Settings(transport, most_bytes=SMALL.most_bytes, threads=SMALL.threads)
    return collect(made, EmulatedDevices(BUILDS, gpus=gpus), tmp_path / "r.npz", settings)


@needs_compiler
@pytest.mark.parametrize(("gpus", "transport"), [(1, "host"), (1, "local"), (2, "peer")])
def test_every_op_of_a_train_comes_back_as_often_as_it_ran(tmp_path, found, gpus, transport):
    program = train(Phases([1024, 2048, 512], [3_000_000, 2_000_000, 9_000_000]), 3, lambda size: size)
    results = emulated(tmp_path, [program], gpus, transport)
    [one] = judged_programs(results, found)
    comparison, adds = compare(one.simulated, one.measured), one.overheads
    assert comparison.repeats == 3
    assert len(comparison.ops) == 3 * 6
    assert (comparison.ops["measured_issue_us"] > 0).all()
    assert adds.compute_ns > 0


@needs_compiler
def test_ranks_on_one_gpu_are_compared_with_ranks_that_share_its_egress_and_q(tmp_path, found):
    results = emulated(tmp_path, [all_to_next(2, 2048, sms=2, own=512)])
    [one] = judged_programs(results, found)
    comparison = compare(one.simulated, one.measured)
    assert sorted(comparison.ops["lane"]) == [0, 1, 2, 3]
    assert set(comparison.ops["bytes"]) == {2048 + 512}


@needs_compiler
def test_ranks_on_two_gpus_are_compared_as_they_ran(tmp_path, found):
    results = emulated(tmp_path, [all_to_next(2, 2048, sms=2)], gpus=2)
    before, after = results.header["parts"]["programs"]["offsets"]["1"]
    assert abs(before["ahead_ns"]) <= before["trip_ns"] / 2  # the timer of an emulated run begins anew
    assert abs(after["ahead_ns"]) <= after["trip_ns"] / 2
    [one] = judged_programs(results, found)
    comparison = compare(one.simulated, one.measured)
    assert len(comparison.ops) == 4


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "transport"), [(1, "host"), (2, "peer")])
@pytest.mark.parametrize("make", [attention_program, megamoe_program])
def test_a_schedule_of_two_ranks_runs_to_its_end_op_by_op(tmp_path, found, make, gpus, transport):
    """Signals, flags and guards between ranks included: of GPUs, and of ranges of one GPU's SMs."""
    program = make(found.machine, 2, np.random.default_rng(3))
    made = plan(extent=EXTENT, parts=("clock",), programs=[program], repeats=(1, 1))
    settings = Settings(transport, most_bytes=1 << 22, threads=64)
    devices = EmulatedDevices(BUILDS, gpus=gpus, shared_per_block_bytes=64 << 10, shared_per_sm_bytes=100 << 10)
    [one] = judged_programs(collect(made, devices, tmp_path / "r.npz", settings), found)
    comparison = compare(one.simulated, one.measured)
    assert len(comparison.ops) == op_repeats(program).sum()
    assert comparison.ops["gpu"].nunique() == 2


def test_durations_are_those_of_the_machine_and_of_the_kernel(found):
    program = train(Phases([1024], [5_000]), 1, lambda size: size)
    made = priced(program, found.machine, Overheads(store_ns=7, compute_ns=60, signal_ns=9))
    kind = made.ops["kind"]
    assert made.ops["duration_ps"][kind == COMPUTE].tolist() == [65_000]
    assert made.ops["duration_ps"][kind == STORE].tolist() == [found.machine.issue_time_ps(1024) + 7_000]
    assert not (kind == SIGNAL).any()
    assert program.ops["duration_ps"][program.ops["kind"] == STORE].tolist() == [1024]


def test_results_without_a_replay_say_why(tmp_path, found):
    devices = ModelledDevices(stage(), sms=2)
    program = train(Phases([1024], [5_000]), 3, lambda size: size)
    results = collect(plan(extent=EXTENT, parts=("clock",), programs=[program]), devices, tmp_path / "r.npz")
    with pytest.raises(InputError, match="the program needs 3 SMs at once, and there are 2"):
        judged_programs(results, found)
    assert np.isfinite(found.costs.noting_ns)
