"""Running a Program: what is refused before, what is said when it can never finish, what a trace tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from xstage.sim import engine_compiled, engine_simpy
from xstage.sim import program as p
from xstage.sim.errors import DeadlockError, InputError, LimitError, ProgramError
from xstage.sim.execute import simulate, worst_case_finish_ps
from xstage.sim.metrics import summarise
from xstage.sim.program import Program
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.topology import Fabric, StageParameters, direct, switch

from .random_programs import random_case

STAGE = StageParameters(granule_bytes=1000, capacity_sm_bytes=4000, capacity_gpu_bytes=8000, latency_ps=50)
FABRIC = switch(2, 1_000_000, STAGE)  # 1 GB/s: a byte takes 1000 ps
ENGINES = ("compiled", "simpy")


def one_lane(ops: list[dict[str, Any]], guards: list[tuple[int, int]] | None = None) -> Program:
    """GPU 0 runs `ops`; counters 0 and 1 are at home on GPU 0, destinations row 0 is 10 000 bytes for GPU 1."""
    b = ProgramBuilder(n_gpus=2)
    b.counters(home=[0, 0], cause="inputs")
    b.destination({1: 10_000})
    task = b.tasks(b.op_list(ops), 1, guards=guards or (), phase="tile", expert=4)
    b.groups(gpu=0, plan=b.plan(repeat=[b.queue([task])]), seats=[Seat("epilogue", sm=7)], slots=[0])
    return b.build()


STORE = {"kind": p.STORE, "target": 0, "bytes": 10_000, "duration_ps": 2_000_000}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_burst_larger_than_the_stage_waits_for_its_own_overflow(engine: Any) -> None:
    """(V - Q) / R: 10 000 bytes through a stage of 4000 at 1 byte a ns take 6000 ns to issue, 2000 of them anyway."""
    trace = simulate(one_lane([STORE]), FABRIC, engine=engine)
    lane = trace.lanes().iloc[0]
    assert (lane["end_us"], lane["busy_us"], lane["stall_us"]) == (6.0, 2.0, 4.0)
    assert trace.outcome.arrived_ps == 10_000_000 + 50
    assert trace.outcome.peak_sm_bytes.tolist() == [4000]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_program_takes_no_time(engine: Any) -> None:
    trace = simulate(ProgramBuilder(3).build(), switch(3, 1000, STAGE), engine=engine, trace="full")
    assert trace.makespan_ps == 0
    assert trace.ops().empty
    assert summarise(trace)["stall_total_us"] == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deadlock_names_the_lane_the_counter_and_what_is_missing(engine: Any) -> None:
    program = one_lane([{"kind": p.SIGNAL, "counter": 0, "count": 1}, {"kind": p.WAIT, "counter": 0, "count": 3}])
    with pytest.raises(DeadlockError) as caught:
        simulate(program, FABRIC, engine=engine)
    text = str(caught.value)
    assert text.startswith("1 lane can never go on:\n")
    assert "lane 0 (GPU 0, SM 7, epilogue)" in text
    assert "counter 0 (inputs) is 1, needs 3: 2 missing" in text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_deadlock_at_a_guard_names_the_task(engine: Any) -> None:
    with pytest.raises(DeadlockError, match=r"task 0 is guarded: counter 1 \(inputs\) is 0, needs 2: 2 missing"):
        simulate(one_lane([], guards=[(1, 2)]), FABRIC, engine=engine)


def test_a_deadlock_at_a_slot_names_the_slot() -> None:
    with pytest.raises(DeadlockError, match="needs 1 of slot 0 of its group"):
        simulate(one_lane([{"kind": p.ACQUIRE, "counter": 0, "count": 1}]), FABRIC)


def test_only_some_of_many_stuck_lanes_are_listed() -> None:
    b = ProgramBuilder(1)
    never = b.counters(home=0, cause="barrier")
    run = b.op_list([{"kind": p.WAIT, "counter": never, "count": 1}])
    queues = b.queues(b.tasks(np.full(9, run), 1) + np.arange(9), np.ones(9, int))
    b.groups(gpu=0, plan=b.private_plans(queues, 9) + np.arange(9), seats=[Seat("mma", sm=np.arange(9))])
    with pytest.raises(DeadlockError, match=r"9 lanes can never go on(.|\n)*and 4 more lanes"):
        simulate(b.build(), switch(1, 1000, STAGE))


def test_a_plan_that_ends_before_its_queue_is_empty_is_an_error() -> None:
    b = ProgramBuilder(1)
    tasks = b.tasks(np.full(3, b.op_list([])), 1)
    b.groups(gpu=0, plan=b.plan(prefix=[b.queue(tasks + np.arange(3))]), seats=[Seat("mma")])
    with pytest.raises(ProgramError, match=r"2 tasks were never taken, the first is tasks\[1\]"):
        simulate(b.build(), switch(1, 1000, STAGE))


def test_a_run_that_could_leave_64_bits_is_refused_before_it_starts() -> None:
    with pytest.raises(LimitError, match="below 2\\^62"):
        simulate(one_lane([{"kind": p.COMPUTE, "duration_ps": 2**61}] * 3), FABRIC)
    with pytest.raises(LimitError):
        simulate(one_lane([STORE]), switch(2, 1000, replace(STAGE, latency_ps=2**61)))


def test_the_worst_case_bounds_every_run() -> None:
    for seed in range(200):
        program, fabric = random_case(seed)
        try:
            trace = simulate(program, fabric)
        except DeadlockError:
            continue
        assert trace.makespan_ps <= worst_case_finish_ps(program, fabric)


def test_a_program_needs_a_fabric_with_its_gpus_and_routes() -> None:
    with pytest.raises(ProgramError, match="uses 2 GPUs, the fabric has 1"):
        simulate(one_lane([STORE]), switch(1, 1000, STAGE))
    cut = replace(FABRIC, route_first=np.array([0, 0, 0, 2, 2], np.int32), route_ports=np.array([1, 2], np.int32))
    with pytest.raises(ProgramError, match="GPU 1 cannot be reached from GPU 0"):
        simulate(one_lane([STORE]), cut)


@pytest.mark.parametrize(("field", "value"), [("engine", "fast"), ("trace", "some")])
def test_unknown_engines_and_levels_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field} = '{value}'.*allowed"):
        simulate(one_lane([]), FABRIC, **{field: value})


@pytest.mark.parametrize(
    "change",
    [{"granule_bytes": 0}, {"granule_bytes": 4001}, {"capacity_sm_bytes": 0}, {"capacity_gpu_bytes": -1},
     {"fan_out_efficiency": 0.0}, {"fan_out_efficiency": float("nan")}, {"latency_ps": -1}, {"signal_bytes": 5000}],
)  # fmt: skip
def test_a_fabric_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(change)).removesuffix("_bytes")):
        switch(2, 1000, replace(STAGE, **change))


@pytest.mark.parametrize("rate", [0, -5])
def test_a_rate_must_be_above_zero(rate: int) -> None:
    with pytest.raises(InputError, match="rates_kbs"):
        switch(2, rate, STAGE)


def test_direct_links_are_as_wide_as_one_link_towards_one_peer_and_as_all_towards_all() -> None:
    def time_of(shares: dict[int, int], fabric: Fabric) -> int:
        b = ProgramBuilder(4)
        row = b.destination(shares)
        run = b.op_list([{"kind": p.STORE, "target": row, "bytes": sum(shares.values())}])
        b.groups(gpu=0, plan=b.plan(repeat=[b.queue([b.tasks(run, 1)])]), seats=[Seat("store")])
        return simulate(b.build(), fabric).outcome.arrived_ps

    fabric = direct(4, 1_000_000, STAGE)
    assert time_of({1: 90_000}, fabric) == pytest.approx(90e6, rel=0.02)
    assert time_of({1: 30_000, 2: 30_000, 3: 30_000}, fabric) == pytest.approx(30e6, rel=0.05)


def test_a_store_at_home_and_to_one_peer_is_no_scatter() -> None:
    """The rate of a scatter is for stores that are dealt over several other GPUs."""

    def drained_after(shares: dict[int, int]) -> int:
        b = ProgramBuilder(3)
        row = b.destination(shares)
        run = b.op_list([{"kind": p.STORE, "target": row, "bytes": sum(shares.values())}])
        b.groups(gpu=0, plan=b.plan(repeat=[b.queue([b.tasks(run, 1)])]), seats=[Seat("store")])
        fabric = switch(3, 1_000_000, replace(STAGE, fan_out_efficiency=0.5, latency_ps=0))
        return simulate(b.build(), fabric).outcome.arrived_ps

    assert drained_after({1: 1000}) == drained_after({0: 1000, 1: 1000}) == 1_000_000
    assert drained_after({1: 500, 2: 500}) == 2_000_000


def test_a_full_trace_that_cannot_fit_into_memory_is_refused() -> None:
    b = ProgramBuilder(2)
    row = b.destination({1: 2**31 - 1})
    run = b.op_list([{"kind": p.STORE, "target": row, "bytes": 2**31 - 1}] * 3)
    b.groups(gpu=0, plan=b.plan(repeat=[b.queue([b.tasks(run, 1)])]), seats=[Seat("store")])
    fine = switch(2, 10**9, replace(STAGE, granule_bytes=1))
    with pytest.raises(LimitError, match=r"full trace of .* needs"):
        simulate(b.build(), fine, trace="full")


def test_a_sum_of_times_may_leave_64_bits() -> None:
    """Ten lanes that stall for over 10^18 ps each."""
    size = 140_000_000
    b = ProgramBuilder(2)
    row = b.destination({1: size})
    run = b.op_list([{"kind": p.STORE, "target": row, "bytes": size}])
    queues = b.queues(b.tasks(np.full(10, run), 1) + np.arange(10), np.ones(10, int))
    b.groups(gpu=0, plan=b.private_plans(queues, 10) + np.arange(10), seats=[Seat("store", sm=np.arange(10))])
    stage = StageParameters(granule_bytes=10_000_000, capacity_sm_bytes=10_000_000, capacity_gpu_bytes=20_000_000)
    trace = simulate(b.build(), switch(2, 1, stage))
    assert summarise(trace)["stall_total_us"] > 2**63 / 1e6
    assert summarise(trace)["stall_total_us"] == pytest.approx(trace.lanes()["stall_us"].sum())


# --- the trace


def full_trace() -> Any:
    ops = [{"kind": p.COMPUTE, "duration_ps": 1_000_000}, STORE, {"kind": p.SIGNAL, "counter": 0, "count": 1}]
    return simulate(one_lane(ops), FABRIC, trace="full")


def test_ops_have_names_tags_and_microseconds() -> None:
    ops = full_trace().ops()
    assert ops["kind"].tolist() == ["compute", "store", "signal"]
    assert ops["end_us"].tolist() == [1.0, 7.0, 7.0]
    assert ops["stall_us"].tolist() == [0.0, 4.0, 0.0]
    assert set(ops["phase"]) == {"tile"}
    assert set(ops["expert"]) == {4}
    assert set(ops["role"]) == {"epilogue"}


def test_occupancy_rises_at_admission_and_falls_when_drained() -> None:
    occupancy = full_trace().occupancy(gpu=0)
    assert occupancy["held_bytes"].max() == 4000
    assert occupancy["held_bytes"].iloc[-1] == 0
    assert occupancy["time_us"].iloc[-1] == 11.0


def test_spans_lanes_ports_and_granules_agree() -> None:
    trace = full_trace()
    assert trace.spans()[["start_us", "end_us", "span_us", "stall_us"]].to_numpy().tolist() == [[0.0, 7.0, 7.0, 4.0]]
    assert trace.lanes()["stored_bytes"].tolist() == [10_000]
    assert trace.granules()["bytes"].sum() == 10_000
    assert trace.ports()["bytes"].tolist() == [10_000, 0, 0, 10_000]


def test_a_lower_level_refuses_what_it_has_not_kept() -> None:
    with pytest.raises(InputError, match="ops need a full trace"):
        simulate(one_lane([STORE]), FABRIC).ops()
    with pytest.raises(InputError, match="spans need a summary trace"):
        simulate(one_lane([STORE]), FABRIC, trace="off").spans()


def test_the_level_of_the_trace_changes_nothing_else() -> None:
    for seed in range(40):
        program, fabric = random_case(seed)
        try:
            off, full = (simulate(program, fabric, trace=level) for level in ("off", "full"))  # type: ignore[arg-type]
        except DeadlockError:
            continue
        assert off.outcome.events == full.outcome.events
        assert (off.outcome.lanes == full.outcome.lanes).all()


@pytest.mark.parametrize("engine", ["compiled", "simpy"])
def test_progress_is_told_the_share_that_is_done(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_compiled, "EVENTS_AT_A_TIME", 50)
    monkeypatch.setattr(engine_simpy, "STEPS_AT_A_TIME", 50)
    program = one_lane([{"kind": p.COMPUTE, "duration_ps": 10}, STORE] * 40)
    shares: list[float] = []
    quiet, told = simulate(program, FABRIC, engine), simulate(program, FABRIC, engine, progress=shares.append)
    assert quiet.outcome.same_as(told.outcome) == []
    assert len(shares) > 5
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5 < shares[-1] <= 1


def test_the_summary_adds_up() -> None:
    summary = summarise(full_trace())
    assert summary["makespan_us"] == 11.00005
    assert summary["sender_visible_us"] == 7.0
    assert summary["stall_total_us"] == 4.0
    assert summary["bytes_stored"] == 10_000
    assert summary["occupancy_peak_bytes"] == 4000
    assert summary["roles"]["epilogue"]["busy_mean_us"] == 3.0
    assert summary["spans"]["tile"] == {"median_us": 7.0, "p95_us": 7.0, "tasks": 1}


def test_the_use_of_ports_is_a_mean_over_those_that_carried_something() -> None:
    builder = ProgramBuilder(4)
    op = {"kind": p.STORE, "target": builder.destination({1: 10_000}), "bytes": 10_000, "duration_ps": 10}
    task = builder.tasks(builder.op_list([op]), 1)
    builder.groups(gpu=0, plan=builder.plan(repeat=[builder.queue([task])]), seats=[Seat("store")])
    fabric = switch(4, 10_000_000, StageParameters(1000, 4000, 4000))
    found = summarise(simulate(builder.build(), fabric))
    assert found["egress_use_pct"] == pytest.approx(100, abs=1)
    assert found["ingress_use_pct"] == pytest.approx(100, abs=1)


def test_waits_are_split_by_cause() -> None:
    b = ProgramBuilder(1)
    ready = b.counters(home=0, cause="inputs")
    producer = b.op_list([{"kind": p.COMPUTE, "duration_ps": 300}, {"kind": p.SIGNAL, "counter": ready, "count": 1}])
    consumer = b.op_list(
        [{"kind": p.ACQUIRE, "counter": 0, "count": 1}, {"kind": p.WAIT, "counter": ready, "count": 1}]
    )
    giver = b.op_list([{"kind": p.COMPUTE, "duration_ps": 100}, {"kind": p.RELEASE, "counter": 0, "count": 1}])
    b.groups(gpu=0, plan=b.plan(repeat=[b.queue([b.tasks(producer, 1)])]), seats=[Seat("load")])
    task = b.tasks(consumer, 2)
    assert giver == consumer + 1
    b.groups(gpu=0, plan=b.plan(repeat=[b.queue([task])]), seats=[Seat("mma"), Seat("epilogue")], slots=[0])
    mma = simulate(b.build(), switch(1, 1000, STAGE)).lanes().set_index("role").loc["mma"]
    assert (mma["wait_slot_us"], mma["wait_inputs_us"], mma["end_us"]) == (1e-4, 2e-4, 3e-4)


# --- plans, guards and queues


def order_of_tasks(program: Program, fabric: Fabric | None = None) -> list[int]:
    spans = simulate(program, fabric or switch(program.n_gpus, 1000, STAGE)).spans()
    return spans.sort_values(["start_us", "task"])["task"].tolist()


def workers(b: ProgramBuilder, plan: int, count: int = 1, **options: Any) -> None:
    b.groups(gpu=0, plan=plan, seats=[Seat("mma", sm=np.arange(count))], **options)


def timed_tasks(b: ProgramBuilder, count: int, **columns: Any) -> np.ndarray:
    run = b.op_list([{"kind": p.COMPUTE, "duration_ps": 10}])
    return b.tasks(np.full(count, run), 1, **columns) + np.arange(count)


def test_a_plan_visits_its_prefix_then_repeats() -> None:
    """Two of the first queue, then one of each in turn, then what is left: an exhausted queue is skipped."""
    b = ProgramBuilder(1)
    one, two = timed_tasks(b, 4), timed_tasks(b, 4)
    q1, q2 = b.queue(one), b.queue(two)
    workers(b, b.plan(prefix=[(q1, p.NO_QUEUE, 2)], repeat=[q2, q1]))
    assert order_of_tasks(b.build()) == [0, 1, 4, 2, 5, 3, 6, 7]


def test_a_step_takes_the_other_queue_while_its_guard_does_not_hold() -> None:
    b = ProgramBuilder(1)
    done = b.counters(home=0, cause="inputs")
    first = b.op_list([{"kind": p.COMPUTE, "duration_ps": 10}, {"kind": p.SIGNAL, "counter": done, "count": 1}])
    l1 = b.tasks(np.full(3, first), 1) + np.arange(3)
    l2 = timed_tasks(b, 2, guards=[(done, np.array([2, 3]))])
    workers(b, b.plan(repeat=[(b.queue(l2), b.queue(l1), 1)]))
    assert order_of_tasks(b.build()) == [0, 1, 3, 2, 4]


def test_a_private_queue_first_and_a_shared_tail_after_it() -> None:
    b = ProgramBuilder(1)
    private = [b.queue(timed_tasks(b, n)) for n in (1, 3)]
    shared = b.queue(timed_tasks(b, 4))
    for sm, queue in enumerate(private):
        plan = b.plan(prefix=[(queue, p.NO_QUEUE, p.UNTIL_EXHAUSTED)], repeat=[shared])
        b.groups(gpu=0, plan=plan, seats=[Seat("mma", sm=sm)])
    spans = simulate(b.build(), switch(1, 1000, STAGE)).spans()
    assert spans.groupby("sm")["task"].apply(sorted).tolist() == [[0, 4, 5, 6], [1, 2, 3, 7]]


def test_a_group_takes_no_more_tasks_ahead_than_it_may() -> None:
    """The first lane does nothing and could run ahead: it may be one task ahead of the slow second one."""

    def begins(ahead: int) -> list[float]:
        b = ProgramBuilder(1)
        idle = b.op_list([])
        slow = b.op_list([{"kind": p.COMPUTE, "duration_ps": 10}])
        tasks = b.tasks(np.full(3, idle), 2) + np.arange(3)
        assert slow == idle + 1
        plan = b.plan(repeat=[b.queue(tasks)])
        b.groups(gpu=0, plan=plan, seats=[Seat("scheduler"), Seat("mma")], ahead=ahead)
        spans = simulate(b.build(), switch(1, 1000, STAGE)).spans()
        return (spans.query("role == 'scheduler'")["start_us"] * 1e6).round().tolist()

    assert begins(0) == [0, 10, 20]
    assert begins(1) == [0, 0, 10]
    assert begins(p.UNLIMITED_AHEAD) == [0, 0, 0]
