"""L2 tiles as the X-Stage paper measures them: given main loops, spans, stalls, and the room that a row lead takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xstage.scenarios.machine_files import load_machine
from xstage.sim import program as p
from xstage.sim import routing
from xstage.sim.activity import store_spans_us
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.schedules.megamoe import (
    Alternating,
    ExpertWave,
    Interleaved,
    MegaMoe,
    Policy,
    build,
    l2_tiles,
    ring_of_lead,
)
from xstage.sim.trace import Trace

MACHINE = load_machine("hgx-b200")
SHAPE = MegaMoe(1024, 512, 16, 3, 2048, ranks=4, numbers="w8a8")
TIMED = replace(SHAPE, l1_main_loop_ps=9_000_000, l2_main_loop_ps=2_000_000)


def run(shape: MegaMoe, policy: Policy, **options: Any) -> Trace:
    rng = np.random.default_rng(1)
    rows = routing.zipf(shape.ranks, shape.tokens, shape.topk, shape.experts, rng, exponent=1.0)
    program = build(MACHINE, shape, policy, rows, release="pr304")
    return simulate(program, MACHINE.fabric(shape.ranks, 4096), **options)


def test_given_main_loops_are_those_of_full_tiles() -> None:
    """Other tiles take their share of the bytes: 128 weight columns, and half of the rows that two CTAs exchange."""
    program = run(TIMED, ExpertWave()).program
    ops = program.ops[(program.ops["kind"] == p.COMPUTE)]
    mma = set(ops["duration_ps"].tolist())
    assert {9_000_000, 2_000_000} <= mma
    role = program.roles.index("mma")
    groups = np.unique(program.lanes["group"][program.lanes["role"] == role])
    assert len(groups) == SHAPE.ranks * MACHINE.sms // 2


def test_a_partial_tile_takes_less_than_a_full_one() -> None:
    tasks = run(TIMED, ExpertWave()).program
    l2 = tasks.tasks["phase"] == tasks.phases.index("l2")
    first = tasks.runs["first_op"][tasks.tasks["first_run"][l2]]
    count = tasks.runs["n_ops"][tasks.tasks["first_run"][l2]]
    loops = [int(tasks.ops["duration_ps"][a : a + n].sum()) for a, n in zip(first, count, strict=True)]
    assert max(loops) == 2_000_000
    assert 2_000_000 * 128 / (128 + 96) < min(loops) < 2_000_000


def test_one_main_loop_without_the_other_is_refused() -> None:
    with pytest.raises(InputError, match="l1_main_loop_ps"):
        replace(SHAPE, l2_main_loop_ps=1)


@pytest.mark.parametrize("policy", [ExpertWave(), Interleaved()], ids=str)
def test_spans_are_the_same_from_a_summary_as_from_every_op(policy: Policy) -> None:
    trace = run(TIMED, policy, trace="full")
    spans = l2_tiles(trace).span_us.ravel()
    assert np.sort(spans) == pytest.approx(np.sort(store_spans_us(trace, "l2")), abs=1e-6)


def test_stalls_and_waits_of_l2_tasks_are_those_of_the_mma_lanes() -> None:
    trace = run(TIMED, ExpertWave(), trace="full")
    tiles = l2_tiles(trace)
    records = trace.outcome.op_records
    kind = trace.program.ops["kind"][records["op"]]
    mma = trace.program.lanes["role"][records["lane"]] == trace.program.roles.index("mma")
    l2 = trace.program.tasks["phase"][records["task"]] == trace.program.phases.index("l2")
    for waited, name in ((tiles.stall_us, p.ACQUIRE), (tiles.inputs_us, p.WAIT)):
        mine = records["wait_ps"][mma & l2 & (kind == name)]
        assert waited.sum() == pytest.approx(mine.sum() / 1e6, rel=1e-9)
    assert tiles.stall_us.sum() > 0


def test_spans_under_backpressure_are_what_the_stage_drains() -> None:
    """A long L2 phase with main loops shorter than V/R: every tile takes the time in which the GPU drains one tile a SM."""
    shape = replace(TIMED, experts=4, topk=1, tokens=24576)
    tiles = l2_tiles(run(shape, ExpertWave(experts_per_wave=1)))
    drained_us = MACHINE.sms * 192 * 128 * 2 * 3 / 4 / (MACHINE.drain_kbs() * 1e3) * 1e6
    busiest = tiles.of(int(np.bincount(tiles.gpu).argmax()))
    assert float(np.median(busiest.span_us)) == pytest.approx(drained_us, rel=0.05)
    assert float(np.median(busiest.stall_us)) == pytest.approx(drained_us - 2.0, abs=0.5)


def test_what_is_no_fused_sm100_run_has_no_l2_tiles() -> None:
    for policy, options in ((Alternating(), {}), (ExpertWave(), {"trace": "off"})):
        with pytest.raises(InputError):
            l2_tiles(run(SHAPE, policy, **options))


@given(
    lead=st.integers(0, 6),
    more=st.integers(0, 3),
    ready=st.booleans(),
    seed=st.integers(0, 3),
    sizes=st.sampled_from([(1024, 512), (512, 1024), (2048, 256)]),
)
@settings(max_examples=15, deadline=None)
def test_an_interleaved_order_never_locks_up_in_the_smallest_ring_it_is_allowed(
    lead: int, more: int, ready: bool, seed: int, sizes: tuple[int, int]
) -> None:
    shape = replace(SHAPE, hidden=sizes[0], intermediate=sizes[1])
    rng = np.random.default_rng(seed)
    rows = routing.zipf(shape.ranks, shape.tokens, shape.topk, shape.experts, rng, exponent=1.0)
    for ring in range(ring_of_lead(lead), 400):
        policy = Interleaved(lead_rows=192 * lead, ready=ready, ring_m_blocks=ring)
        try:
            program = build(MACHINE, shape, policy, rows, release="pr304")
        except InputError:
            continue
        break
    assert ready or ring == ring_of_lead(lead)
    policy = replace(policy, ring_m_blocks=ring + more)
    program = build(MACHINE, shape, policy, rows, release="pr304")
    trace = simulate(program, MACHINE.fabric(shape.ranks, 4096))
    assert trace.makespan_ps > 0


def test_a_lead_needs_a_ring_in_proportion() -> None:
    with pytest.raises(InputError, match="ring_m_blocks"):
        run(SHAPE, Interleaved(lead_rows=192 * 8, ring_m_blocks=8))
    assert run(SHAPE, Interleaved(lead_rows=192 * 8, ring_m_blocks=9)).makespan_ps > 0


def test_engines_agree_on_given_main_loops_and_a_ring() -> None:
    shape = replace(TIMED, tokens=96)
    for policy in (Interleaved(lead_rows=192, ring_m_blocks=3), ExpertWave()):
        traces = [run(shape, policy, engine=engine, trace="full") for engine in ("compiled", "simpy")]
        assert traces[0].outcome.same_as(traces[1].outcome) == []


def test_crossing_experts_can_lose_weights_from_l2() -> None:
    """An expert whose L1 weights fit into L2 and whose L1 and L2 weights together do not: only its waves find them again."""
    shape = MegaMoe(7168, 6144, 32, 2, 8192, ranks=8, numbers="w4a8")
    rows = routing.balanced(8, 8192, 2, 32, np.random.default_rng(0))
    wave, interleaved = (
        build(MACHINE, shape, policy, rows, ranks="symmetric", release="pr304").meta["weight_hits_pct"][0]
        for policy in (ExpertWave(), Interleaved())
    )
    assert interleaved < wave - 5
