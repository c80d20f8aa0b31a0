"""Programs as tables for the replay kernel: who sits where, what is shared, what is refused."""

import numpy as np
import pytest
from xstage.hw_validate.cuda import lane_tables as low
from xstage.hw_validate.cuda.fused_lower import with_warps
from xstage.hw_validate.cuda.lower import Target, lower
from xstage.sim import program as p
from xstage.sim.errors import InputError, ProgramError
from xstage.sim.program_builder import ProgramBuilder, Seat

STORER = Seat("store", window=2)


def build(ops, gpus=2, seats=(STORER,), groups=1, shared=False):
    """Groups on SMs 0, 1, ... of GPU 0 that run one task each, from queues of their own or a shared one."""
    builder = ProgramBuilder(gpus)
    by_seat = ops if isinstance(ops, list) else [ops] * len(seats)
    runs = [builder.op_list(each(builder)) for each in by_seat]
    tasks = [builder.tasks(runs[0], len(seats)) for _ in range(groups)]
    plans = [builder.plan(repeat=[builder.queue(tasks)])] * groups if shared else None
    for number in range(groups):
        placed = [Seat(seat.role, sm=number, window=seat.window, start_ps=seat.start_ps) for seat in seats]
        plan = plans[number] if plans else builder.plan(repeat=[builder.queue([tasks[number]])])
        builder.groups(gpu=0, plan=plan, seats=placed, slots=(5, 7))
    return builder.build()


def compute(builder):
    return [{"kind": p.COMPUTE, "duration_ps": 1500}]


def store(size=64, shares=None, **columns):
    def ops(builder):
        row = builder.destination(shares or {1: size}, columns.pop("replicate", False))
        return [{"kind": p.STORE, "target": row, "bytes": size, **columns}]

    return ops


def test_lanes_that_move_bytes_get_several_warps_and_others_one():
    ops = [compute, store(), store()]
    lowered = lower(build(ops, seats=(Seat("mma"), Seat("store"), Seat("store"))), Target(store_warps=4))
    assert lowered.tables["lanes"]["n_warps"].tolist() == [1, 4, 4]
    assert lowered.tables["lanes"]["first_warp"].tolist() == [0, 1, 5]
    assert lowered.n_threads == 32 * (9 + 1)  # and the courier


def test_a_lane_that_only_loads_is_one_warp_unless_asked_otherwise():
    program = build(lambda b: [{"kind": p.LOAD, "target": 1, "bytes": 64}])
    assert lower(program, Target(store_warps=4)).tables["lanes"]["n_warps"].tolist() == [1]
    assert lower(program, Target(load_warps=2)).tables["lanes"]["n_warps"].tolist() == [2]


def test_an_sm_is_a_cta_and_a_rank_a_range_of_them():
    builder = ProgramBuilder(3)
    run = builder.op_list(compute(builder))
    for gpu, sm in ((2, 5), (0, 9), (2, 1), (0, 3)):
        plan = builder.plan(repeat=[builder.queue([builder.tasks(run, 1)])])
        builder.groups(gpu=gpu, plan=plan, seats=[Seat("mma", sm=sm)])
    lowered = lower(builder.build())
    assert lowered.tables["ctas"]["gpu"].tolist() == [0, 0, 2, 2]
    assert lowered.tables["lanes"]["number"].tolist() == [3, 1, 2, 0]
    assert [lowered.ctas_of(gpu) for gpu in range(3)] == [range(0, 2), range(2, 2), range(2, 4)]


def test_a_queue_of_one_group_has_its_cursor_there_and_a_shared_one_its_own():
    own = lower(build(compute, groups=3))
    assert own.tables["queues"]["is_shared"].tolist() == [0, 0, 0]
    both = lower(build(compute, groups=3, shared=True))
    assert both.tables["queues"][["is_shared", "n_entries"]].tolist() == [(1, 3)]


def test_the_state_of_a_group_begins_with_its_slots():
    lowered = lower(build(compute, groups=2))
    # lock, number taken, step, visits, one lane, two slots, one cursor
    assert lowered.group_words.tolist() == [0, 0, 0, 0, 0, 5, 7, 0] * 2
    assert lowered.tables["groups"]["first_word"].tolist() == [0, 8]
    assert lowered.tables["ctas"][["first_word", "n_words"]].tolist() == [(0, 8), (8, 8)]


def test_durations_become_ticks_of_the_clock_that_is_given():
    lowered = lower(build(compute)).at_clock(2.0)
    assert lowered.tables["ops"]["ticks"].tolist() == [3]
    assert lower(build(compute)).tables["ops"]["ticks"].tolist() == [1500]


def test_shares_are_rounded_up_to_what_a_thread_stores():
    lowered = lower(build(store(100, {0: 70, 1: 30})))
    assert lowered.tables["shares"].tolist() == [(0, 80), (1, 32)]


@pytest.mark.parametrize("is_one_gpu", [False, True])
def test_only_counters_that_other_ranks_bump_are_system_wide(is_one_gpu):
    builder = ProgramBuilder(2)
    here, there = builder.counters(home=0, cause="barrier"), builder.counters(home=1, cause="peer")
    run = builder.op_list([{"kind": p.SIGNAL, "counter": counter, "count": 1} for counter in (here, there)])
    other = builder.op_list([{"kind": p.WAIT, "counter": there, "count": 1}])
    guarded = builder.tasks(other, 1, guards=[(there, 1)])
    for gpu, task in ((0, builder.tasks(run, 1)), (1, guarded)):
        builder.groups(gpu=gpu, plan=builder.plan(repeat=[builder.queue([task])]), seats=[Seat("any")])
    program = builder.build()
    tables = lower(program, Target(is_one_gpu=is_one_gpu)).tables
    assert tables["ops"]["flags"].tolist() == [0, low.SYSTEM_WIDE, low.SYSTEM_WIDE]
    assert tables["entries"]["guard_is_system_wide"].tolist() == [0, 1]


def loading(*lanes, signal=None, initial=0, guard=False):
    """GPU 0 with an SM for each of `lanes`, which are (counters of its loads, counters of its waits)."""
    builder = ProgramBuilder(2)
    builder.counters(home=[0, 0, 0], cause="inputs", initial=initial)
    for sm, (loads, waits) in enumerate(lanes):
        ops = [{"kind": p.LOAD, "target": 1, "bytes": 64, "counter": counter} for counter in loads]
        ops += [{"kind": p.WAIT, "counter": counter, "count": 1} for counter in waits]
        ops += [{"kind": p.SIGNAL, "counter": signal, "count": 1}] if signal is not None else []
        task = builder.tasks(builder.op_list(ops), 1, guards=[(0, 1)] if guard else [])
        plan = builder.plan(repeat=[builder.queue([task])])
        builder.groups(gpu=0, plan=plan, seats=[Seat("any", sm=sm, window=2)])
    return builder.build()


def test_a_wait_for_loads_of_its_own_lane_is_marked():
    ops = lower(loading(([0, 0], [0, 2]), ([1], [1]), signal=2)).tables["ops"]
    own = ops["flags"] & low.OWN_LOADS > 0
    assert own.tolist() == [False, False, True, False, False, False, True, False]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda: loading(([0], []), ([], [0])), id="another lane waits for it"),
        pytest.param(lambda: loading(([0], []), ([0], [])), id="two lanes bump it"),
        pytest.param(lambda: loading(([1, 0], [0])), id="a lane has two of them"),
        pytest.param(lambda: loading(([0, -1], [0])), id="not every load bumps it"),
        pytest.param(lambda: loading(([0], [0]), signal=0), id="a signal bumps it, too"),
        pytest.param(lambda: loading(([0], [0]), initial=1), id="it does not begin at 0"),
        pytest.param(lambda: loading(([0], [0]), guard=True), id="a guard looks at it"),
    ],
)
def test_a_load_that_others_wait_for_is_refused(program):
    with pytest.raises(ProgramError, match=r"cannot run a LOAD that bumps counters\[0\]: the loads of a lane bump one"):
        lower(program())


def test_the_fused_kernels_refuse_a_group_that_spans_sms():
    builder = ProgramBuilder(1)
    run = builder.op_list(compute(builder))
    builder.op_list(compute(builder))
    plan = builder.plan(repeat=[builder.queue([builder.tasks(run, 2)])])
    builder.groups(gpu=0, plan=plan, seats=[Seat("mma", sm=0), Seat("epilogue", sm=1)])
    program = builder.build()
    with pytest.raises(ProgramError, match="the fused kernels have no groups that span SMs"):
        with_warps(program, lower(program), {"mma": 1, "epilogue": 1}, 16, 1 << 16, 1 << 17)


def test_every_lane_has_its_own_part_of_a_buffer():
    lowered = lower(build(store(64), groups=3), Target(landing_bytes=1000))
    assert lowered.store_slice == 320
    assert lowered.tables["lanes"]["store_first"].tolist() == [0, 320, 640]


@pytest.mark.parametrize(
    "program, target, error, message",
    [
        (lambda: build(store(64, replicate=True)), {}, ProgramError, r"ops\[0\], a multicast STORE"),
        (lambda: build(store(64, flags=p.FROM_MEMORY)), {}, ProgramError, r"ops\[0\], a STORE that goes FROM_MEMORY"),
        (lambda: build(compute, seats=[STORER] * 16), {}, ProgramError, "to 15 lanes on an SM, but SM 0 of GPU 0 has 16"),
        (lambda: build(store(), seats=[Seat("any")] * 3), {}, ProgramError, "24 warps an SM, the lanes of one need 25"),
        (
            lambda: build(lambda b: [{"kind": p.LOAD, "target": 1, "bytes": 64}], seats=[Seat("any", window=17)]),
            {},
            ProgramError,
            r"up to 16 loads in flight, but lanes\[0\] has 17",
        ),
        (
            lambda: build(store(4096)),
            {"landing_bytes": 4000},
            InputError,
            r"landing_bytes = 4000: is too small for 1 lanes with pieces of 4096 bytes \(allowed: 4096 or more\)",
        ),
        (lambda: build(compute), {"shared_bytes": 3000}, InputError, r"shared_bytes = 3000: is too little"),
        (lambda: build(compute), {"store_warps": 24}, InputError, r"store_warps = 24: is out of range \(allowed: 1 to 23\)"),
        (lambda: build(compute), {"store_width": 8}, InputError, r"store_width = 8: is unknown \(allowed: 16, 32\)"),
        (lambda: build(compute), {"granule_bytes": 24}, InputError, r"granule_bytes = 24: is no size of a granule"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_replayed_is_refused_by_name(program, target, error, message):
    with pytest.raises(error, match=message):
        lower(program(), Target(**target))


def test_the_structs_have_the_sizes_that_the_kernel_has():
    sizes = {name: np.dtype(getattr(low, name)).itemsize for name in ("OP", "SHARE", "ENTRY", "RUN", "QUEUE", "STEP")}
    assert sizes == {"OP": 32, "SHARE": 8, "ENTRY": 32, "RUN": 8, "QUEUE": 16, "STEP": 16}
    assert [low.GROUP.itemsize, low.LANE.itemsize, low.CTA.itemsize] == [40, 48, 24]
