"""What MegaMoE kernels do around their tiles: bytes of every type, batches of arrivals, launches, combine, last barrier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xstage.sim import program as p
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.machine import Machine
from xstage.sim.mirror import mirrored
from xstage.sim.placement import Placement
from xstage.sim.pools import pools
from xstage.sim.program import Program
from xstage.sim.program_builder import ProgramBuilder
from xstage.sim.schedules.megamoe import ExpertWave, Lag, MegaMoe, Policy, Split, Unfused, build
from xstage.sim.schedules.megamoe import rules_sm90 as rules
from xstage.sim.schedules.megamoe.combine import Done, add_early_combine, rows_to_combine
from xstage.sim.schedules.megamoe.kernel import choose
from xstage.sim.schedules.megamoe.pull import ARRIVED, ASK, KEEP, PUBLISH, PUBLISH_FIRST, steps_of_warp
from xstage.sim.trace import Trace

from .test_megamoe import (
    EACH_CASE,
    MACHINES,
    SM90,
    SM100,
    check_conservation,
    check_waits,
    combine_busy_ps,
    routed,
    run,
    shape_for,
    table_of_moves,
)


@EACH_CASE
def test_every_token_is_combined_once(name: str, policy: Policy) -> None:
    """k rows read and one written a token, at the HBM rate of all SMs together, whoever does it and when."""
    shape, machine = shape_for(name, 3000), MACHINES[name]
    program = build(machine, shape, policy, routed(shape))
    trace = run(machine, shape, program)
    moved = shape.tokens * (shape.topk * shape.return_bytes(shape.hidden) + 2 * shape.hidden)
    assert combine_busy_ps(program, trace) == pytest.approx(moved / hbm_bytes_a_ps(machine) * machine.sms, rel=0.01)


def hbm_bytes_a_ps(machine: Machine) -> float:
    compute = machine.compute
    assert compute.hbm_rate is not None and compute.hbm_efficiency is not None
    return compute.hbm_rate.value * 1e3 / 1e12 * compute.hbm_efficiency.value


@pytest.mark.parametrize("shared", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "policy"), [(SM100, ExpertWave()), (SM100, Unfused()), (SM90, Lag(lag=1, group=1, early_combine=True))]
)
def test_masked_slots_are_not_combined_and_shared_experts_are_one_row(name: str, policy: Policy, shared: int) -> None:
    shape, machine = shape_for(name, 3000, hidden=2048, shared_experts=shared), MACHINES[name]
    rows = routed(shape).masked(0.5, np.random.default_rng(0))
    program = build(machine, shape, policy, rows)
    added = np.count_nonzero(rows.topk >= 0, axis=(1, 2)) + shape.tokens * (shared > 0)
    moved = added * shape.return_bytes(shape.hidden) + shape.tokens * 2 * shape.hidden
    assert [rank["hbm_combine"] for rank in program.meta["memory_bytes"]] == moved.tolist()
    busy = combine_busy_ps(program, run(machine, shape, program))
    assert busy == pytest.approx(moved / hbm_bytes_a_ps(machine) * machine.sms, rel=0.01)


@pytest.mark.parametrize("tokens", [30, 150, 1500])
def test_a_return_of_its_own_deals_rows_over_all_sms(tokens: int) -> None:
    """So that it lasts as long as its bytes take to drain or an SM's share to be issued, however few m-blocks there are."""
    shape, machine = shape_for(SM100, tokens, hidden=4096, experts=8), MACHINES[SM100]
    rows = routed(shape)
    program = build(machine, shape, Unfused(), rows)
    trace = run(machine, shape, program, trace="full")
    received = pools(rows, Placement(np.arange(8), 8, 4)).rows_between.sum(axis=1)
    store = program.lanes["role"] == program.roles.index("store")
    lanes = np.bincount(program.lanes["gpu"][store], minlength=4)
    assert lanes.tolist() == np.minimum(received, machine.sms).tolist()
    spans = trace.outcome.spans[trace.layout.span_first]
    phase = program.tasks["phase"]
    returned, launched = (spans[phase == program.phases.index(name)] for name in ("return", "launch"))
    lasts = returned["end_ps"].max() - launched["end_ps"].max()
    share = received.max() * shape.return_bytes(shape.hidden)
    drains = share * 1e9 / machine.drain_kbs("all", shape.ranks)
    assert lasts < 1.2 * max(drains, machine.issue_time_ps(-(-share // machine.sms))) + 1_000_000


@pytest.mark.parametrize(("name", "numbers"), [(SM100, "w4a8"), (SM100, "bf16"), (SM100, "fp4"), (SM90, "bf16")])
@pytest.mark.parametrize("combine", ["bf16", "fp8", "fp4"])
def test_rows_have_the_bytes_of_their_types(name: str, numbers: Any, combine: Any) -> None:
    """Pulled as activations with scales and the 4 B weight, returned as the type of the combine with its scales."""
    shape = MegaMoe(1024, 512, 16, 3, 90, ranks=4, numbers=numbers, combine=combine)
    machine, rows = MACHINES[name], routed(shape)
    program = build(machine, shape, ExpertWave(), rows)
    trace = run(machine, shape, program, trace="full")
    check_conservation(shape, rows, Placement(np.arange(16), 16, 4), program, trace)
    pulled = {"w4a8": 1024 + 32, "bf16": 2048, "fp4": 512 + 64}[numbers] + 4
    returned = {"bf16": 2048, "fp8": 1024 + 8, "fp4": 512 + 64}[combine]
    between = pools(rows, Placement(np.arange(16), 16, 4)).rows_between
    assert table_of_moves(program, trace, p.LOAD).sum() == between.sum() * pulled
    away = ~np.eye(4, dtype=bool)
    assert table_of_moves(program, trace, p.STORE)[away].sum() == between[away].sum() * returned


def test_fewer_bytes_make_a_call_that_moves_much_shorter() -> None:
    """DSv4-Pro's widths, L2 bound by the link: FP8 and FP4 returns save time, as measured (1849, 1841, 1685 us on B200)."""
    machine, times = MACHINES[SM100], []
    for combine in ("bf16", "fp8", "fp4"):
        shape = MegaMoe(7168, 256, 16, 6, 512, ranks=4, numbers="fp4", combine=combine)  # type: ignore[arg-type]
        times.append(run(machine, shape, build(machine, shape, ExpertWave(), routed(shape))).makespan_ps)
    assert times[0] > times[1] > times[2]


def ends(program: Program, trace: Trace, phase: str) -> np.ndarray:
    """End of every task of a phase, ps."""
    tasks = np.flatnonzero(program.tasks["phase"] == program.phases.index(phase))
    return np.asarray(trace.outcome.spans["end_ps"][trace.layout.span_first[tasks]])


@pytest.mark.parametrize("name", [SM100, SM90])
def test_cleanup_and_barrier_3_overlap_the_combine(name: str) -> None:
    """A long combine ends the kernel alone; after a short one the last barrier does."""
    machine = MACHINES[name]
    for tokens, combine_is_last in ((1, False), (4000, True)):
        shape = shape_for(name, tokens)
        program = build(machine, shape, ExpertWave(), routed(shape))
        trace = run(machine, shape, program)
        combined, barrier = ends(program, trace, "combine").max(), ends(program, trace, "barrier").max()
        assert max(combined, barrier) == trace.makespan_ps
        assert (combined > barrier) == combine_is_last
        assert (ends(program, trace, "cleanup") < trace.makespan_ps).all()


def test_two_launches_have_a_gap_between_them() -> None:
    shape, machine = shape_for(SM90, 400), MACHINES[SM90]
    gap = machine.compute.kernel_gap
    assert gap is not None
    makespans = {}
    for asked in (None, 0):
        program = build(machine, shape, Split(launch_gap_ps=asked), routed(shape))
        trace = run(machine, shape, program)
        gpu = program.groups["gpu"][trace.outcome.spans["group"]]
        rows = {
            phase: trace.layout.span_first[program.tasks["phase"] == program.phases.index(phase)]
            for phase in ("l1", "l2")
        }
        for rank in range(shape.ranks):
            l1, l2 = (spans[gpu[spans] == rank] for spans in rows.values())
            first_store = trace.outcome.spans["end_ps"][l2].min()
            assert first_store > trace.outcome.spans["end_ps"][l1].max() + (gap.value if asked is None else 0)
        makespans[asked] = trace.makespan_ps
    assert makespans[None] - makespans[0] == pytest.approx(gap.value, rel=0.1)


def test_each_launch_begins_on_the_first_sm() -> None:
    shape, machine = shape_for(SM90, 150), MACHINES[SM90]
    program = build(machine, shape, Split(), routed(shape))
    for queue in program.queues[:2]:
        tasks = program.tasks[program.queue_tasks[queue["first"] :][: queue["n_tasks"]]]
        l2 = tasks[tasks["phase"] == program.phases.index("l2")]
        assert l2[0]["n_block"] == tasks[0]["n_block"]


def test_rows_kept_back_are_published_a_little_later_and_for_less() -> None:
    """A batch saves releases; its rows arrive with the next ones."""
    shape, machine = shape_for(SM90, 9000, topk=4, hidden=512), MACHINES[SM90]
    rows, ends_ps = routed(shape), {}
    for batch in (1, 16):
        program = build(machine, shape, Lag(ring_m_blocks=0, publish_rows=batch), rows, ranks="symmetric")
        fabric = mirrored(machine.fabric(shape.ranks, 4096))
        trace = simulate(program, fabric)
        dispatch = program.lanes["role"] == program.roles.index("dispatch")
        ends_ps[batch] = trace.outcome.lanes["end_ps"][dispatch].max()
        check_waits(program, trace)
    release = 2 * machine.interconnect.local_latency.value
    turns = -(-rows.expert_rows[:4].sum() // (2 * machine.sms))
    assert 0 < ends_ps[1] - ends_ps[16] <= turns * release


def test_more_rows_than_a_ring_can_do_without_are_refused_or_not_kept_back() -> None:
    shape, machine = shape_for(SM90, 8192, experts=8, topk=4, hidden=512, intermediate=256, ranks=2), MACHINES[SM90]
    rows = routed(shape)
    with pytest.raises(InputError, match=r"publish_rows = 16: .* \(allowed: 1 to \d+, or a larger ring\)"):
        build(machine, shape, Lag(lag=1, group=1, ring_m_blocks=20, publish_rows=16), rows, ranks="symmetric")
    for ring, batch in ((20, 1), (0, 16), (100, 16)):
        policy = Lag(lag=1, group=1, ring_m_blocks=ring)
        program = build(machine, shape, policy, rows, ranks="symmetric")
        assert program.meta["kernel"]["publish_rows"] == batch
    with pytest.raises(InputError, match="publish_rows = 0: must be at least 1"):
        build(machine, shape, Lag(publish_rows=0), rows, ranks="symmetric")


@pytest.mark.parametrize("ranks", ["all", "symmetric"])
def test_early_combine_is_never_slower(ranks: Any) -> None:
    shape, machine = shape_for(SM90, 2048, hidden=2048, intermediate=1024, experts=32, topk=4), MACHINES[SM90]
    rows, times = routed(shape), []
    for early in (False, True):
        program = build(machine, shape, Lag(early_combine=early), rows, ranks=ranks)
        fabric = machine.fabric(shape.ranks, 4096)
        times.append(simulate(program, mirrored(fabric) if ranks == "symmetric" else fabric).makespan_ps)
    assert 0.9 * times[0] < times[1] <= times[0]


@pytest.mark.parametrize("rows", [0, 1, 8, 9, 40, 200])
@pytest.mark.parametrize("batch", [2, 16])
def test_a_warp_publishes_every_row_once_and_after_it_has_come(rows: int, batch: int) -> None:
    steps = steps_of_warp(rows, batch, has_ring=False)
    published = [row for step, row in steps if step in (PUBLISH, PUBLISH_FIRST)]
    assert published == list(range(rows))
    for kind in (ASK, ARRIVED, KEEP):
        assert [row for step, row in steps if step == kind] == list(range(rows))
    place = {pair: index for index, pair in enumerate(steps)}
    for step, row in steps:
        if step in (PUBLISH, PUBLISH_FIRST):
            assert place[step, row] > place[KEEP, row]
            assert row == rows - 1 or place[step, row] > place[ASK, row + 1]
    starts = [row for step, row in steps if step == PUBLISH_FIRST]
    sizes = np.diff([*starts, rows])
    assert all(size <= rules.publish_limit(first + size, batch) for first, size in zip(starts, sizes, strict=True))
    assert rows < 200 or (sizes.max() == batch and sizes[0] == 1)


def test_a_token_waits_for_its_experts_and_those_ready_first_go_first() -> None:
    """Two SMs, four tokens, three experts that end in the order 1, 2, 0; nobody sends rows of expert 3."""
    machine = MACHINES[SM90]
    shape = MegaMoe(1024, 512, 4, 2, 4, ranks=1, numbers="w8a8")
    builder = ProgramBuilder(1)
    counter = builder.counters(home=np.zeros(6, dtype=np.int64), cause="barrier") + np.arange(6)
    flags = np.array([[0, 1], [2, 3], [1, 2], [1, -1]])
    arrivals = np.array([4, 5, 6, 0])
    done = Done(counter[4:], 1, flags, counter[:4], arrivals, last=np.array([30, 10, 20, 0]))
    add_early_combine(builder, machine, shape, 0, done, rows_to_combine(flags.astype(np.int32), shape))
    program = builder.build()
    seen = []
    for task in program.tasks[program.tasks["phase"] == program.phases.index("combine")]:
        run_ = program.runs[task["first_run"]]
        ops = program.ops[run_["first_op"] : run_["first_op"] + run_["n_ops"]]
        seen.append([(int(op["counter"]), int(op["count"])) if op["kind"] == p.WAIT else "add" for op in ops])
    assert seen == [
        [(1, 5), (2, 6), "add", (0, 4), "add"],  # SM 0: token 2 and then token 0
        [(1, 5), "add", (2, 6), "add"],  # SM 1: token 3 and then token 1
    ]
    idle = program.ops[program.ops["counter"] >= 4]
    assert idle["count"].tolist() == [1, 0]  # only the first SM has tiles to end


def test_no_token_is_combined_before_all_its_rows_are_there() -> None:
    """From the trace: the last combine of a GPU ends after the last row of another rank has become visible there."""
    shape, machine = shape_for(SM90, 700, topk=2), MACHINES[SM90]
    program = build(machine, shape, Lag(lag=1, group=1, early_combine=True), routed(shape))
    trace = run(machine, shape, program, trace="full")
    granules = trace.outcome.granule_records
    stores = granules[program.ops["kind"][granules["op"]] == p.STORE]
    combined = np.flatnonzero(program.tasks["phase"] == program.phases.index("combine"))
    spans = trace.outcome.spans[trace.layout.span_first[combined]]
    for gpu in range(shape.ranks):
        last_row = stores["visible_ps"][stores["destination"] == gpu].max()
        assert spans["end_ps"][program.groups["gpu"][spans["group"]] == gpu].max() > last_row


@pytest.mark.parametrize(
    ("policy", "tokens", "shared", "flop_per_byte"),
    [(ExpertWave(), 512, False, 102.4), (Lag(), 8192, False, 170.7), (Lag(), 8192, True, 256.0)],
)
def test_flops_that_a_byte_into_an_sm_feeds(policy: Policy, tokens: int, shared: bool, flop_per_byte: float) -> None:
    """2 BM BN / (BM + BN) for the 64 x 256 tile, 2 BM BN / (BM + BN / 2) where a cluster of two shares the weights."""
    shape = MegaMoe(4096, 2048, 256, 6, tokens, numbers="w8a8")
    kernel = choose(MACHINES[SM90], shape, policy, "june")
    l2, full = np.zeros(1, dtype=bool), np.array([kernel.block_m])
    fed = kernel.feed_bytes(shape, l2, full, np.array([shared]))[0]
    assert 2 * kernel.block_m * kernel.block_n * shape.hidden / fed == pytest.approx(flop_per_byte, abs=0.1)


@pytest.mark.parametrize(("shape", "tile_bytes"), [((4096, 2048), 128 * 4096 // 2), ((7168, 3072), 128 * 7168 // 2)])
def test_weights_of_an_l1_tile_on_sm100(shape: tuple[int, int], tile_bytes: int) -> None:
    """128 columns of H four-bit weights."""
    call = MegaMoe(*shape, 256, 6, 8192)
    kernel = choose(MACHINES[SM100], call, ExpertWave(), "june")
    assert kernel.weight_bytes(call, np.array([False])).tolist() == [tile_bytes]
