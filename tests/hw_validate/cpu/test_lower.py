"""Programs as steps for cores: what becomes what, and what is refused."""

import pytest
from xstage.hw_validate.cpu import lane
from xstage.hw_validate.cpu.bench import Costs
from xstage.hw_validate.cpu.clock import Clock
from xstage.hw_validate.cpu.lower import WORDS_APART, lower
from xstage.sim import program as p
from xstage.sim.errors import ProgramError
from xstage.sim.execute import simulate
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.topology import StageParameters, switch

CLOCK = Clock(ticks_per_ns=2.0, step_ticks=1)
COSTS = Costs(store_ticks=50, overshoot_ticks=4)
FABRIC = switch(2, 45_000_000, StageParameters(64, 14_000, 14_000))


PRODUCER = Seat("producer")


def traced(build, seats=(PRODUCER,), slots=(), guards=False):
    """The trace of one task whose ops `build` gives for each seat."""
    builder = ProgramBuilder(n_gpus=2)
    counter = builder.counters(home=0, cause="inputs", initial=3)
    runs = [builder.op_list(build(builder, counter, seat)) for seat in range(len(seats))]
    task = builder.tasks(runs[0], len(runs), guards=[(counter, 2)] if guards else ())
    builder.groups(gpu=0, plan=builder.plan(repeat=[builder.queue([task])]), seats=list(seats), slots=slots)
    return simulate(builder.build(), FABRIC, trace="full")


def steps_of(trace):
    lowered = lower(trace, CLOCK, COSTS)
    [only] = lowered.lanes
    return lowered, only


def test_each_op_becomes_its_step():
    def ops(builder, counter, seat):
        return [
            {"kind": p.COMPUTE, "duration_ps": 100_000},
            {"kind": p.STORE, "target": builder.destination({1: 130}), "bytes": 130, "duration_ps": 1},
            {"kind": p.COMPUTE, "duration_ps": 100_000},
            {"kind": p.SIGNAL, "counter": counter, "count": 2},
            {"kind": p.WAIT, "counter": counter, "count": 5},
            {"kind": p.ACQUIRE, "counter": 0, "count": 1},
            {"kind": p.RELEASE, "counter": 0, "count": 1},
        ]

    lowered, only = steps_of(traced(ops, slots=(4,)))
    counter = lowered.words.ctypes.data
    slot = counter + 8 * WORDS_APART
    assert only.steps[:, :3].tolist() == [
        [lane.AT, -4, 0],
        [lane.SPIN, 200 - 4, 0],
        [lane.STORE, 3, 0],
        [lane.SPIN, 200 - 4 - 50, 0],
        [lane.SIGNAL, counter, 2],
        [lane.WAIT, counter, 5],
        [lane.ACQUIRE, slot, 1],
        [lane.RELEASE, slot, 1],
    ]
    assert only.first.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert only.last.tolist() == [2, 3, 4, 5, 6, 7, 8]


def test_counters_and_slots_are_set_before_each_run():
    lowered, _ = steps_of(traced(lambda *_: [{"kind": p.COMPUTE, "duration_ps": 1}], slots=(4,)))
    lowered.words[:] = 99
    lowered.reset()
    assert lowered.words[[0, WORDS_APART]].tolist() == [3, 4]


def test_the_share_of_the_own_gpu_is_stored_into_the_cache():
    def ops(builder, counter, seat):
        return [{"kind": p.STORE, "target": builder.destination({0: 64, 1: 128}), "bytes": 192, "duration_ps": 1}]

    _, only = steps_of(traced(ops))
    assert only.steps[1:, :2].tolist() == [[lane.CACHED, 1], [lane.STORE, 2]]
    assert (only.first.tolist(), only.last.tolist()) == ([1], [3])


def test_a_guard_becomes_a_wait_before_the_task():
    lowered, only = steps_of(traced(lambda *_: [{"kind": p.COMPUTE, "duration_ps": 1}], guards=True))
    assert only.steps[1, :3].tolist() == [lane.WAIT, lowered.words.ctypes.data, 2]
    assert only.first.tolist() == [2]


def store(shares, size, replicate=False, bumps=False, **columns):
    def ops(builder, counter, seat):
        row = builder.destination(shares, replicate)
        given = {"counter": builder.counters(home=1, cause="peer")} if bumps else {}
        return [{"kind": p.STORE, "target": row, "bytes": size, "duration_ps": 1, **given, **columns}]

    return ops


def remote_signal(builder, counter, seat):
    return [{"kind": p.SIGNAL, "counter": builder.counters(home=1, cause="peer"), "count": 1}]


@pytest.mark.parametrize(
    "ops, named",
    [
        (lambda b, c, s: [{"kind": p.LOAD, "target": 1, "bytes": 64, "counter": c}], r"ops\[0\], a LOAD"),
        (store({1: 64}, 64, bumps=True), "STORE that bumps a counter"),
        (store({1: 64}, 64, flags=p.REDUCE), "STORE that adds"),
        (store({1: 64}, 64, flags=p.FROM_MEMORY), r"ops\[0\], a STORE that goes FROM_MEMORY"),
        (store({1: 64}, 64, replicate=True), "multicast STORE"),
        (remote_signal, "SIGNAL to another GPU"),
    ],
)
def test_what_a_core_cannot_do_is_refused_by_name(ops, named):
    with pytest.raises(ProgramError, match=named):
        steps_of(traced(ops, seats=(Seat("producer", window=1),)))


def test_two_lanes_of_one_sm_are_refused():
    seats = (Seat("mma", sm=3), Seat("store", sm=3))
    with pytest.raises(ProgramError, match="2 lanes on SM 3 of GPU 0"):
        steps_of(traced(lambda *_: [{"kind": p.COMPUTE, "duration_ps": 1}], seats=seats))
