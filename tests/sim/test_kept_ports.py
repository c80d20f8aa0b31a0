"""A STORE that keeps the issue port of its SM: between its granules, and for the STORE that follows."""

from __future__ import annotations

import pytest
from xstage.sim import program as p
from xstage.sim.errors import ProgramError
from xstage.sim.execute import simulate
from xstage.sim.program import Program
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.topology import StageParameters, switch
from xstage.sim.trace import Trace

FABRIC = switch(2, 1_000_000_000, StageParameters(64, 10**6, 10**6))

both_engines = pytest.mark.parametrize("engine", ["simpy", "compiled"])


def two_lanes(*flags: int) -> Program:
    """Two lanes of an SM with the same stores of 256 bytes in 400 ps, one with each of `flags`."""
    builder = ProgramBuilder(n_gpus=2)
    row = builder.destination({1: 256})
    store = {"kind": p.STORE, "target": row, "bytes": 256, "duration_ps": 400}
    for _ in range(2):
        task = builder.tasks(builder.op_list([{**store, "flags": flag} for flag in flags]), 1)
        builder.groups(0, builder.plan(repeat=[builder.queue([task])]), [Seat("lane", sm=0)])
    return builder.build()


def ran(program: Program, engine: str) -> Trace:
    return simulate(program, FABRIC, engine=engine, trace="full")


def order(trace: Trace) -> list[int]:
    """Lanes of the granules, in the order in which they were admitted."""
    return [int(lane) for lane in trace.granules().sort_values("admitted_us", kind="stable")["lane"]]


@both_engines
def test_granules_of_lanes_of_an_sm_alternate(engine: str) -> None:
    assert order(ran(two_lanes(0), engine)) == [0, 1] * 4


@both_engines
def test_an_undivided_store_is_issued_before_that_of_another_lane(engine: str) -> None:
    trace = ran(two_lanes(p.UNDIVIDED), engine)
    assert order(trace) == [0] * 4 + [1] * 4
    assert (1e6 * trace.ops()["end_us"]).round().tolist() == [400, 800]
    assert (1e6 * trace.ops()["wait_us"]).round().tolist() == [0, 400]


@both_engines
def test_a_store_that_goes_with_the_next_lets_no_other_lane_come_between(engine: str) -> None:
    kept = p.UNDIVIDED | p.WITH_NEXT
    assert order(ran(two_lanes(kept, p.UNDIVIDED), engine)) == [0] * 8 + [1] * 8
    assert order(ran(two_lanes(p.UNDIVIDED, p.UNDIVIDED), engine)) == ([0] * 4 + [1] * 4) * 2


@both_engines
def test_a_store_that_goes_with_the_next_may_itself_be_divided(engine: str) -> None:
    found = order(ran(two_lanes(p.WITH_NEXT, p.UNDIVIDED), engine))
    assert found == [0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "runs, refused",
    [
        ([["kept", "compute"]], r"ops\[0\]: WITH_NEXT needs bytes, and a STORE with bytes next"),
        ([["plain", "kept"]], r"ops\[1\]: WITH_NEXT needs bytes, and a STORE with bytes next"),
        ([["kept"], ["plain"]], r"runs\[0\]: ends with an op that goes WITH_NEXT"),
    ],
)
def test_whoever_keeps_the_port_must_have_a_store_next(runs: list[list[str]], refused: str) -> None:
    builder = ProgramBuilder(n_gpus=2)
    plain = {"kind": p.STORE, "target": builder.destination({1: 64}), "bytes": 64}
    ops = {"plain": plain, "kept": {**plain, "flags": p.WITH_NEXT}, "compute": {"kind": p.COMPUTE}}
    for run in runs:
        task = builder.tasks(builder.op_list([ops[name] for name in run]), 1)
        builder.groups(0, builder.plan(repeat=[builder.queue([task])]), [Seat("lane")])
    with pytest.raises(ProgramError, match=refused):
        builder.build()
