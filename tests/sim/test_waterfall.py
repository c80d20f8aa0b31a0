"""Limits removed from a fabric cost nothing any more, and what is left adds up to the makespan."""

import pytest
from xstage.sim import waterfall
from xstage.sim.execute import simulate
from xstage.sim.program_builder import ProgramBuilder
from xstage.sim.schedules.burst_train import BurstTrain, build
from xstage.sim.units import PS_PER_US

KIB = 2**10


@pytest.fixture(scope="module")
def train(b200):
    """A burst of 64 KiB from all SMs, far beyond the knee."""
    return build(b200, BurstTrain(148, 64 * KIB, mode="isolated")), b200.fabric(2)


def test_without_capacity_limit_nothing_stalls(train):
    program, fabric = train
    assert simulate(program, fabric).outcome.lanes["stall_ps"].sum() > 0
    freed = simulate(program, waterfall.without_capacity_limit(fabric))
    assert freed.outcome.lanes["stall_ps"].sum() == 0
    assert freed.outcome.arrived_ps == pytest.approx(148 * 64 * KIB * 1e9 / 717e6, rel=0.05)  # it still has to drain


def test_without_rate_limit_a_burst_takes_its_issue_time(train, b200):
    program, fabric = train
    freed = simulate(program, waterfall.without_rate_limit(fabric))
    assert freed.outcome.lanes_end_ps == pytest.approx(b200.issue_time_ps(64 * KIB), rel=0.01)


def test_without_latency_stores_are_visible_once_drained(train):
    program, fabric = train
    slow, fast = (simulate(program, f) for f in (fabric, waterfall.without_latency(fabric)))
    assert slow.outcome.arrived_ps - fast.outcome.arrived_ps == fabric.latency_ps[0, 1] - 1


def test_the_remainder_adds_up_to_the_picosecond(train):
    trace = simulate(*train)
    parts = waterfall.remainder(trace, trace.makespan_ps)
    assert sum(part.ps for part in parts) == trace.makespan_ps
    assert [part.what for part in parts] == ["busy", "stall", "after"]
    assert all(part.ps > 0 for part in parts)
    assert trace.makespan_ps > PS_PER_US


def test_an_empty_program_has_no_remainder(b200):
    assert waterfall.remainder(simulate(ProgramBuilder(n_gpus=1).build(), b200.fabric(1)), 0) == []
