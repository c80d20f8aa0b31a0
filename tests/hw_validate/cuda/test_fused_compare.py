"""Measured against simulated fused kernels. Where the hardware is itself a simulation, the prediction must be exact."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from xstage.hw_validate.cuda.fused_compare import Compared, compared, predict, ranked_alike, without_arrivals
from xstage.hw_validate.cuda.fused_run import machine_for
from xstage.hw_validate.cuda.fused_times import summary
from xstage.hw_validate.cuda.one_gpu import folded
from xstage.scenarios.machine_files import load_machine
from xstage.sim import program as p
from xstage.sim import routing
from xstage.sim.execute import simulate
from xstage.sim.schedules import megamoe

SHAPE = megamoe.MegaMoe(tokens=300, hidden=1024, intermediate=512, experts=4, topk=2, ranks=2, numbers="bf16")
POLICIES = {
    "wave": megamoe.ExpertWave(experts_per_wave=1),
    "lag": megamoe.Lag(lag=1, group=1, unit=2),
    "interleaved": megamoe.Interleaved(lead_rows=64),
}


@cache
def program_of(policy, sms=4):
    rows = routing.balanced(SHAPE.ranks, SHAPE.tokens, SHAPE.topk, SHAPE.experts, np.random.default_rng(0))
    return megamoe.build(machine_for("hgx-h100", sms), SHAPE, policy, rows)


def with_rate(rate):
    return load_machine("hgx-h100", {"interconnect.drain_rate": rate})


def ran_on(machine, policy):
    return simulate(program_of(policy), machine.fabric(SHAPE.ranks), trace="full").ops()


@pytest.fixture(scope="module")
def machine():
    """One whose stores stall: its way out is slow, next to four SMs."""
    return with_rate("20 GB/s")


@pytest.mark.parametrize("name", POLICIES)
def test_the_prediction_from_the_control_is_exact_where_the_hardware_obeys_the_model(name, machine):
    policy = POLICIES[name]
    far, control = (
        ran_on(machine, policy),
        ran_on(with_rate("100000 GB/s"), policy),
    )
    row = compared(name, program_of(policy), far, control, machine, "peer")
    assert row.measured["makespan_us"] > 1.05 * row.control["makespan_us"]  # there is something to predict
    for quantity in ("makespan_us", "span_us", "stores_us", "mma_stall_us"):
        assert row.simulated[quantity] == pytest.approx(row.measured[quantity], rel=1e-3, abs=1e-3)
    assert set(row.as_dict()["error_pct"]) == {"makespan_us", "span_us", "mma_stall_us"}


@pytest.mark.parametrize("name", POLICIES)
def test_ranks_on_one_gpu_share_its_way_out(name, machine):
    program = program_of(POLICIES[name])
    control = ran_on(machine, POLICIES[name])
    one = predict(program, control, machine, "host")
    several = predict(program, control, machine, "peer")
    for table in (one, several):
        assert np.array_equal(table["kind"].value_counts().sort_index().loc[["load", "store"]],
                              control["kind"].value_counts().sort_index().loc[["load", "store"]])  # fmt: skip
    assert summary(one)["makespan_us"] > summary(several)["makespan_us"]


def test_without_arrivals_nothing_crosses_and_everything_else_stands():
    program = program_of(POLICIES["wave"])
    alone = without_arrivals(program)
    folded(alone, 4)  # which refuses what crosses
    for kind in (p.STORE, p.LOAD, p.ACQUIRE, p.RELEASE):
        mine = program.ops["kind"] == kind
        assert np.array_equal(program.ops["bytes"][mine], alone.ops["bytes"][mine])
    assert (alone.ops["kind"] == p.WAIT).sum() == (program.ops["kind"] == p.WAIT).sum()


def test_policies_are_ranked_alike_unless_the_measured_difference_is_noise():
    def row(name, measured, simulated):
        return Compared(name, {"makespan_us": measured}, {}, {"makespan_us": simulated})

    assert ranked_alike([row("a", 10.0, 11.0), row("b", 12.0, 12.5), row("c", 12.05, 12.4)])
    assert not ranked_alike([row("a", 10.0, 13.0), row("b", 12.0, 12.5)])
    assert replace(row("a", 10.0, 11.0)).error_pct("makespan_us") == pytest.approx(10.0)
