"""A Program of several ranks mapped onto cores: same dependencies, same bytes, and counters that say the same."""

import numpy as np
import pytest
from xstage.hw_validate.cpu.onto_cores import (
    NOTICE,
    AccessTime,
    AccessTimes,
    core_of_group,
    judged_ops,
    machine_for,
    onto_cores,
)
from xstage.hw_validate.cpu.op_costs import KINDS, OpCosts
from xstage.sim import program as p
from xstage.sim.errors import InputError, ProgramError
from xstage.sim.execute import simulate
from xstage.sim.program_builder import ProgramBuilder, Seat

from ..made_up_hardware import made_up_machine

TIMES = AccessTimes(load=AccessTime(10, 100), own_store=AccessTime(5, 200))


def two_ranks(ops_of_rank, window=1, sms=1):
    """A lane a rank, which runs the ops that `ops_of_rank(builder, counters, rank)` gives."""
    builder = ProgramBuilder(n_gpus=2)
    counters = builder.counters(home=[0, 1], cause="peer")
    for rank in range(2):
        task = builder.tasks(builder.op_list(ops_of_rank(builder, counters, rank)), 1, phase="only")
        plan = builder.plan(repeat=[builder.queue([task])])
        builder.groups(rank, plan, [Seat("core", sm=sms - 1, window=window)])
    return builder.build(schedule="test")


def exchange(builder, counters, rank):
    """Each rank stores to both, and waits until its own part and the other's have arrived."""
    return [
        {"kind": p.COMPUTE, "duration_ps": 1000},
        {"kind": p.STORE, "target": builder.destination({0: 640, 1: 1280}), "bytes": 1920, "duration_ps": 9000,
         "counter": counters, "stride": 1},
        {"kind": p.WAIT, "counter": counters + rank, "count": 2},
    ]  # fmt: skip


def ran(program, cores=1):
    mapped = onto_cores(program, cores, TIMES)
    return mapped, simulate(mapped, machine_for(made_up_machine(), program.n_gpus).fabric(), trace="full")


def test_the_program_still_ends_and_its_own_counters_count_the_same():
    program = two_ranks(exchange)
    mapped, trace = ran(program)
    before = simulate(program, machine_for(made_up_machine(), 2).fabric(), trace="full")
    assert trace.outcome.counters[: len(program.counters)].tolist() == before.outcome.counters.tolist() == [2, 2]
    assert mapped.n_gpus == 3


def test_only_bytes_for_other_ranks_leave_the_core():
    _, trace = ran(two_ranks(exchange))
    ops = judged_ops(trace)
    assert sorted(ops.loc[ops["kind"] == "store", "bytes"]) == [640, 640, 1280, 1280]
    leaving = trace.granules()
    stored = leaving[(leaving["kind"] == "store") & (leaving["source"] == 0)]
    assert stored.groupby("destination")["bytes"].sum().to_dict() == {1: 640, 2: 1280}


def test_a_store_to_the_own_memory_takes_what_was_measured_for_such():
    _, trace = ran(two_ranks(exchange), cores=2)
    ops = judged_ops(trace)
    own = ops[(ops["kind"] == "store") & (ops["lane"] == 0)].iloc[0]
    assert 1000 * (own["end_us"] - own["start_us"] - own["wait_us"]) == pytest.approx(5 + 640 / 200)


def test_a_counter_is_told_when_the_store_is_visible_and_not_before():
    _, trace = ran(two_ranks(exchange), cores=2)
    stored = trace.granules().query("kind == 'store'").groupby("destination")["visible_us"].max()
    ops = judged_ops(trace)
    waits = ops[ops["kind"] == "wait"].set_index("lane")["end_us"]
    assert waits[0] >= stored[1]
    assert waits[1] >= stored[2]


def test_notice_lanes_are_no_part_of_what_is_compared():
    mapped, trace = ran(two_ranks(exchange))
    assert NOTICE in mapped.roles
    assert NOTICE in set(trace.ops()["role"])
    assert NOTICE not in set(judged_ops(trace)["role"])


def test_a_load_takes_the_core_for_as_long_as_was_measured():
    def loads(builder, counters, rank):
        return [
            {"kind": p.LOAD, "target": 1 - rank, "bytes": 1000, "counter": counters + rank},
            {"kind": p.WAIT, "counter": counters + rank, "count": 1},
        ]

    _, trace = ran(two_ranks(loads), cores=2)
    ops = judged_ops(trace)
    assert ops["kind"].tolist().count("load") == 2
    took = ops.loc[ops["kind"] == "load", "end_us"] - ops.loc[ops["kind"] == "load", "start_us"]
    assert took.tolist() == pytest.approx([0.02, 0.02])


def test_a_rank_has_a_core_of_its_own_where_there_are_enough():
    program = two_ranks(exchange)
    assert core_of_group(program, 1) == [0, 0]
    assert core_of_group(program, 2) == [0, 1]
    assert core_of_group(program, 4) == [0, 1]
    assert core_of_group(two_ranks(exchange, sms=2), 4) == [2, 3]


def test_on_one_core_ranks_store_one_after_the_other():
    _, trace = ran(two_ranks(exchange), cores=1)
    assert set(judged_ops(trace)["sm"]) == {0}
    ops = judged_ops(trace).query("kind == 'store'")
    assert ops["wait_us"].sum() > 0


@pytest.mark.parametrize(
    "change, named",
    [
        ({"flags": p.REDUCE}, "a STORE that adds"),
        ({"flags": p.FROM_MEMORY}, r"ops\[0\], a STORE that goes FROM_MEMORY"),
        ({"replicate": True}, "a multicast STORE"),
    ],
)
def test_what_cores_cannot_do_is_refused(change, named):
    replicate = change.pop("replicate", False)

    def ops(builder, counters, rank):
        row = builder.destination({1: 64}, replicate)
        return [{"kind": p.STORE, "target": row, "bytes": 64, **change}]

    with pytest.raises(ProgramError, match=named):
        onto_cores(two_ranks(ops), 1, TIMES)


def test_no_core_is_refused():
    with pytest.raises(InputError, match="cores = 0"):
        onto_cores(two_ranks(exchange), 0, TIMES)


def test_every_op_that_is_run_has_a_row_of_its_own():
    builder = ProgramBuilder(n_gpus=2)
    run = builder.op_list([{"kind": p.STORE, "target": builder.destination({1: 64}), "bytes": 64}])
    tasks = builder.tasks(np.full(3, run), 1, phase="same")
    builder.groups(0, builder.plan(repeat=[builder.queue(tasks + np.arange(3))]), [Seat("core")])
    _, trace = ran(builder.build())
    assert judged_ops(trace)["op"].is_unique
    assert (judged_ops(trace)["kind"] == "store").tolist() == [True] * 3


def test_no_store_of_another_lane_comes_between_the_halves_of_an_own_store_or_a_load():
    def ops(builder, counters, rank):
        if rank == 0:
            return [
                {"kind": p.STORE, "target": builder.destination({1: 64000}), "bytes": 64000, "duration_ps": 640_000}
            ]
        own = {"kind": p.STORE, "target": builder.destination({1: 64000}), "bytes": 64000}
        return [own, {"kind": p.LOAD, "target": 0, "bytes": 64000}]

    _, trace = ran(two_ranks(ops), cores=1)
    done = judged_ops(trace).set_index(["lane", "kind"])
    assert done["bytes"].tolist() == [64000] * 3
    own, load = done.loc[(1, "store")], done.loc[(1, "load")]
    for op, took_ns in ((own, 5 + 64000 / 200), (load, 10 + 64000 / 100)):
        assert 1000 * (op["end_us"] - op["start_us"] - op["wait_us"]) == pytest.approx(took_ns)
    turns = judged_ops(trace).sort_values("begun_us")
    assert (turns["begun_us"].to_numpy()[1:] >= turns["end_us"].to_numpy()[:-1] - 1e-9).all()


COSTS = {"compute": 40, "store": 60, "load": 60, "signal": 50, "remote_signal": 70, "wait": 45, "acquire": 45,
         "release": 45, "task": 150, "note": 20}  # fmt: skip
BESIDE = AccessTimes(TIMES.load, TIMES.own_store, ops=OpCosts((1,), (tuple(float(COSTS[kind]) for kind in KINDS),)))


def with_costs(ops_of_rank, cores=2):
    mapped = onto_cores(two_ranks(ops_of_rank), cores, BESIDE)
    return judged_ops(simulate(mapped, machine_for(made_up_machine(), 2).fabric(), trace="full"))


def test_an_op_costs_its_core_what_was_measured_and_a_compute_goes_on_meanwhile():
    def ops(builder, counters, rank):
        return [
            {"kind": p.COMPUTE, "duration_ps": 1_000_000},
            {"kind": p.COMPUTE, "duration_ps": 10_000},
            {"kind": p.WAIT, "counter": counters + rank, "count": 0},
            {"kind": p.STORE, "target": builder.destination({1 - rank: 640}), "bytes": 640, "duration_ps": 9000},
        ]

    ops_of = with_costs(ops)
    mine = ops_of[ops_of["lane"] == 0]
    assert mine["kind"].tolist() == ["compute", "compute", "wait", "store"]
    took = (1000 * (mine["end_us"] - mine["start_us"])).tolist()
    assert took == pytest.approx([150 + 1000, 40, 45, 60 + 20 + 9])  # the first one bears the cost of taking the task
    store = mine.iloc[-1]
    assert 1000 * (store["begun_us"] - store["start_us"]) == pytest.approx(60 + 20)
    assert 1000 * store["wait_us"] == pytest.approx(60 + 20)


def test_lanes_of_a_core_queue_for_what_their_ops_cost():
    def ops(builder, counters, rank):
        return [{"kind": p.SIGNAL, "counter": counters + rank, "count": 1}]

    apart, together = (with_costs(ops, cores=cores) for cores in (2, 1))
    assert (1000 * apart["end_us"]).tolist() == pytest.approx([150 + 50] * 2)
    assert (1000 * together["end_us"]).tolist() == pytest.approx([2 * 150 + 50, 2 * 150 + 2 * 50])


def test_costs_of_programs_with_loads_are_those_beside_loads():
    def loads(builder, counters, rank):
        return [{"kind": p.LOAD, "target": 1 - rank, "bytes": 1000}]

    cheap, dear = (OpCosts((1,), ((ns,) * len(KINDS),)) for ns in (1.0, 2.0))
    both = AccessTimes(TIMES.load, TIMES.own_store, cheap, dear)
    assert onto_cores(two_ranks(exchange), 1, both).meta["cores"]["costs_ps"]["task"] == 1000
    assert onto_cores(two_ranks(loads), 1, both).meta["cores"]["costs_ps"]["task"] == 2000


def test_costs_lie_between_those_of_the_numbers_of_lanes_that_were_measured():
    costs = OpCosts((2, 6), ((10.0,) * len(KINDS), (30.0,) * len(KINDS)))
    assert [costs.ps(lanes)["wait"] for lanes in (1, 2, 4, 6, 9)] == [10_000, 10_000, 20_000, 30_000, 30_000]


def test_costs_are_told_by_kind_in_the_order_of_the_numbers_of_lanes():
    told = OpCosts((2, 6), (tuple(range(10)), tuple(range(10, 20)))).as_dict()
    assert list(told) == ["lanes", *KINDS]
    assert (told["lanes"], told["compute"], told["note"]) == ([2, 6], [0, 10], [9, 19])
