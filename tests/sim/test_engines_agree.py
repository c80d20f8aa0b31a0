"""Two engines, identical integers: for every lane, span, port, stage, counter, op and granule."""

from __future__ import annotations

import pytest
from xstage.sim import engine_compiled, engine_simpy
from xstage.sim import program as p
from xstage.sim.granule_counts import total_granules
from xstage.sim.layout import Layout
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.topology import StageParameters, switch

from .random_programs import random_case

CHUNK = 100


def disagreements(seed: int) -> list[str]:
    """What the engines disagree on for one random Program, also where it can never finish."""
    program, fabric = random_case(seed)
    layout = Layout.of(program, fabric)
    reference, stuck_reference = engine_simpy.run(program, fabric, layout, full=True)
    outcome, stuck = engine_compiled.run(program, fabric, layout, full=True)
    return [f"{seed}: {name}" for name in reference.same_as(outcome)] + [f"{seed}: stuck"] * (stuck != stuck_reference)


@pytest.mark.parametrize(
    "first_seed",
    [
        *range(0, 200, CHUNK),
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(200, 3000, CHUNK)),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3000, 23_000, CHUNK)),
    ],
)
def test_a_hundred_random_programs(first_seed: int) -> None:
    assert [line for seed in range(first_seed, first_seed + CHUNK) for line in disagreements(seed)] == []


def test_a_group_that_moves_on_no_longer_looks_at_the_guards_it_waited_for() -> None:
    """It waits for either of two guards; when one holds, the other must not wake it later."""
    b = ProgramBuilder(1)
    counters = b.counters(home=[0, 0, 0], cause="inputs")
    work = b.op_list([{"kind": p.COMPUTE, "duration_ps": 1}])
    queues = [b.queue([b.tasks(work, 1, guards=[(counters + i, 1)])]) for i in range(3)]
    plan = b.plan(repeat=[(queues[0], queues[1], 1), (queues[2], p.NO_QUEUE, 1), queues[1]])
    b.groups(gpu=0, plan=plan, seats=[Seat("mma")])
    steps = [[{"kind": p.COMPUTE, "duration_ps": 100}, {"kind": p.SIGNAL, "counter": i, "count": 1}] for i in range(3)]
    signals = b.op_list([op for step in steps for op in step])
    b.groups(gpu=0, plan=b.plan(repeat=[b.queue([b.tasks(signals, 1)])]), seats=[Seat("load", sm=1)])
    program, fabric = b.build(), switch(1, 10**9, StageParameters(8, 64, 64, signal_bytes=8))
    layout = Layout.of(program, fabric)
    reference, _ = engine_simpy.run(program, fabric, layout, full=True)
    outcome, _ = engine_compiled.run(program, fabric, layout, full=True)
    assert reference.same_as(outcome) == []


@pytest.mark.parametrize(("first_pool", "events_at_a_time"), [(1, 1), (1, 1000), (2, 10), (1 << 14, 3)])
def test_breaks_and_a_pool_that_grows_change_nothing(
    first_pool: int, events_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled engine may break off after any event, and within a lane's turn to make room for granules in flight."""
    most = 0
    for seed in range(60):
        program, fabric = random_case(seed)
        layout = Layout.of(program, fabric)
        expected, stuck = engine_compiled.run(program, fabric, layout, full=True)
        with monkeypatch.context() as often:
            often.setattr(engine_compiled, "EVENTS_AT_A_TIME", events_at_a_time)
            outcome, also_stuck = engine_compiled.run(program, fabric, layout, full=True, first_pool=first_pool)
        assert expected.same_as(outcome) == []
        assert stuck == also_stuck
        most = max(most, outcome.granules)
    assert most > 100


@pytest.mark.parametrize(("width", "buckets"), [(0, 64), (4, 2), (12, 1), (16, 8), (24, 2), (40, 64)])
def test_the_wheel_of_later_events_changes_nothing(width: int, buckets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide its buckets are at first (2^width ps), and however few: they become narrower and wider on the way."""
    for seed in range(100):
        program, fabric = random_case(seed)
        layout = Layout.of(program, fabric)
        expected, stuck = engine_compiled.run(program, fabric, layout, full=True)
        with monkeypatch.context() as other:
            other.setattr(engine_compiled, "FIRST_WIDTH", width)
            other.setattr(engine_compiled, "LEAST_BUCKETS", buckets)
            other.setattr(engine_compiled, "MOST_BUCKETS", buckets)
            outcome, also_stuck = engine_compiled.run(program, fabric, layout, full=True)
        assert expected.same_as(outcome) == []
        assert stuck == also_stuck


def test_granules_are_counted_before_the_run() -> None:
    for seed in range(200):
        program, fabric = random_case(seed)
        layout = Layout.of(program, fabric)
        outcome, stuck = engine_compiled.run(program, fabric, layout, full=False)
        if not stuck:
            assert outcome.granules == total_granules(program, fabric) <= layout.max_granules
