"""MegaMoE schedules: every row is pulled, computed and returned once, whatever the policy, the routing and the machine."""

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
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.machine import Machine
from xstage.sim.mirror import mirrored
from xstage.sim.placement import Placement, contiguous, eplb
from xstage.sim.pools import pools
from xstage.sim.program import Program
from xstage.sim.program_index import op_repeats
from xstage.sim.schedules.megamoe import (
    Alternating,
    ExpertWave,
    Interleaved,
    Lag,
    MegaMoe,
    Policy,
    Split,
    Unfused,
    build,
    hits_as_run_pct,
)
from xstage.sim.trace import Trace

SM100, SM90, PORTABLE = "hgx-b200", "hgx-h100", "portable"
MACHINES = {name: load_machine(name) for name in (SM100, SM90)} | {
    PORTABLE: load_machine(SM90, {"compute.kernels": PORTABLE})
}
NUMBERS = {SM100: "w4a8", SM90: "w8a8", PORTABLE: "bf16"}
CASES: list[tuple[str, Policy]] = [
    (SM100, Unfused()),
    (SM100, ExpertWave(experts_per_wave=1)),
    (SM100, ExpertWave(readiness="k_block")),
    (SM100, Alternating()),
    (SM100, Alternating(warm_up=1, readiness="block")),
    (SM100, Interleaved(lead_rows=0)),
    (SM100, Interleaved(lead_rows=200)),
    (SM100, Interleaved(ready=True)),
    (SM100, Interleaved(lead_rows=0, ring_m_blocks=2)),
    (SM90, Unfused()),
    (SM90, ExpertWave(experts_per_wave=2)),
    (SM90, Lag(lag=1, group=1)),
    (SM90, Split()),
    (SM90, Split(l1_n_major=True, l2_n_major=True, l1_block_n=512)),
    (SM90, Lag(lag=2, group=2, unit=2)),
    (SM90, Lag(lag=1, group=1, early_combine=True)),
    (SM90, Lag(lag=2, group=2, unit=2, ring_m_blocks=0, publish_rows=4, early_combine=True)),
    (SM90, Interleaved(lead_rows=64, ready=True)),
    (PORTABLE, ExpertWave(experts_per_wave=2)),
    (PORTABLE, Alternating()),
    (PORTABLE, Interleaved(lead_rows=64)),
    (PORTABLE, Lag(lag=1, group=1, unit=2)),
]
EACH_CASE = pytest.mark.parametrize(("name", "policy"), CASES, ids=lambda case: str(case))


def shape_for(name: str, tokens: int, **changes: Any) -> MegaMoe:
    sizes = {"hidden": 1024, "intermediate": 512, "experts": 16, "topk": 3, "ranks": 4} | changes
    return MegaMoe(tokens=tokens, numbers=NUMBERS[name], **sizes)


def routed(shape: MegaMoe, seed: int = 0) -> routing.Routing:
    rng = np.random.default_rng(seed)
    return routing.balanced(shape.ranks, shape.tokens, shape.topk, shape.experts, rng)


def run(machine: Machine, shape: MegaMoe, program: Program, **options: Any) -> Trace:
    return simulate(program, machine.fabric(shape.ranks, 4096), **options)


def table_of_moves(program: Program, trace: Trace, kind: int) -> np.ndarray:
    """Bytes of ops of a kind, by GPU of the lane that ran it and GPU at the other end. [gpus, gpus]"""
    records = trace.outcome.op_records
    records = records[(records["op"] >= 0)]
    ops = program.ops[records["op"]]
    mine = ops["kind"] == kind
    gpu, ops = program.lanes["gpu"][records["lane"][mine]], ops[mine]
    table = np.zeros((program.n_gpus, program.n_gpus), dtype=np.int64)
    if kind == p.LOAD:
        np.add.at(table, (gpu, ops["target"]), ops["bytes"])
        return table
    rows = program.destinations[ops["target"]]
    for at in range(program.n_gpus):
        share = rows["first"] + np.minimum(at, rows["n_shares"] - 1)
        used = at < rows["n_shares"]
        shares = program.shares[share[used]]
        np.add.at(table, (gpu[used], shares["gpu"]), shares["bytes"])
    return table


def check_conservation(
    shape: MegaMoe, rows: routing.Routing, placement: Placement, program: Program, trace: Trace
) -> None:
    """Pulled, returned and combined once, at the right rank, and no time is lost or counted twice."""
    between = pools(rows, placement).rows_between
    assert np.array_equal(table_of_moves(program, trace, p.LOAD), between * shape.pull_bytes)
    stored = table_of_moves(program, trace, p.STORE)
    away = ~np.eye(shape.ranks, dtype=bool)
    assert np.array_equal(stored[away], (between * shape.return_bytes(shape.hidden))[away])
    assert np.array_equal(np.diag(stored) > 0, np.diag(between) > 0) or program.meta["policy"]["name"] == "unfused"
    check_waits(program, trace)


@EACH_CASE
def test_ports_carry_the_bytes_of_the_wire_and_nothing_else(name: str, policy: Policy) -> None:
    """Rows, plus requests of loads and the signals of three barriers."""
    shape = shape_for(name, 150)
    machine, rows = MACHINES[name], routed(shape)
    trace = run(machine, shape, build(machine, shape, policy, rows))
    between = pools(rows, Placement(np.arange(16), 16, 4)).rows_between
    returned = shape.return_bytes(shape.hidden)
    pulled, given = between.sum(axis=1) - np.diag(between), between.sum(axis=0) - np.diag(between)
    egress, ingress = (a * shape.pull_bytes + b * returned for a, b in ((given, pulled), (pulled, given)))
    requests = pulled * -(-shape.pull_bytes * trace.fabric.request_permille // 1000)
    signals = 3 * (shape.ranks - 1) * trace.fabric.signal_bytes
    carried = trace.outcome.ports["bytes"]
    assert np.array_equal(carried[:4], egress + requests + signals)
    assert np.array_equal(carried[4:8], ingress + signals)


def check_waits(program: Program, trace: Trace) -> None:
    """Every counter ends where those who wait for it expect, so that nobody went on before everything had come."""
    repeats = op_repeats(program)
    waited = (program.ops["kind"] == p.WAIT) & (repeats > 0)
    most = np.zeros(len(program.counters), dtype=np.int64)
    np.maximum.at(most, program.ops["counter"][waited], program.ops["count"][waited])
    assert np.array_equal(trace.outcome.counters[most > 0], most[most > 0])
    lanes = trace.outcome.lanes
    assert lanes["stall_ps"].sum() + lanes["wait_ps"].sum() <= len(program.lanes) * trace.makespan_ps
    spent = lanes["busy_ps"] + lanes["stall_ps"] + lanes["wait_ps"].sum(axis=1)
    assert np.array_equal(program.lanes["start_ps"] + spent, lanes["end_ps"])


def combine_busy_ps(program: Program, trace: Trace) -> np.ndarray:
    """Time that each GPU's SMs spend on adding rows up, [gpus]."""
    lanes = program.lanes["role"] == program.roles.index("combine")
    return np.bincount(program.lanes["gpu"][lanes], trace.outcome.lanes["busy_ps"][lanes], program.n_gpus)


@EACH_CASE
@settings(max_examples=12)
@given(tokens=st.integers(0, 300), topk=st.integers(1, 4), per_rank=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_row_is_pulled_computed_and_returned_once(
    name: str, policy: Policy, tokens: int, topk: int, per_rank: int, seed: int
) -> None:
    shape = shape_for(name, tokens, topk=topk, experts=4 * per_rank)
    rows = routed(shape, seed)
    machine = MACHINES[name]
    program = build(machine, shape, policy, rows)
    trace = run(machine, shape, program, trace="full")
    placement = Placement(np.arange(shape.experts), shape.experts, shape.ranks)
    check_conservation(shape, rows, placement, program, trace)


@EACH_CASE
def test_tiles_cover_every_block_once(name: str, policy: Policy) -> None:
    shape = shape_for(name, 200)
    rows = routed(shape)
    program = build(MACHINES[name], shape, policy, rows)
    kernel = program.meta["kernel"]
    per_task = kernel["cluster"]
    for phase, n_blocks in (("l1", kernel["l1_n_blocks"]), ("l2", kernel["l2_n_blocks"])):
        tasks = program.tasks[program.tasks["phase"] == program.phases.index(phase)]
        assert len(tasks) * per_task == sum(program.meta["m_blocks"]) * n_blocks
        _, times = np.unique(tasks[["m_block", "n_block"]], return_counts=True)
        assert times.max() <= shape.ranks


@EACH_CASE
def test_both_engines_agree(name: str, policy: Policy) -> None:
    shape = shape_for(name, 70, ranks=2, experts=8)
    machine = MACHINES[name]
    program = build(machine, shape, policy, routed(shape))
    outcomes = [run(machine, shape, program, engine=engine, trace="full").outcome for engine in ("simpy", "compiled")]
    assert outcomes[0].same_as(outcomes[1]) == []


@EACH_CASE
def test_all_tokens_may_go_to_one_rank(name: str, policy: Policy) -> None:
    shape = shape_for(name, 100)
    load = np.where(np.arange(shape.experts) // 4 == 2, 1.0, 0.0)
    rows = routing.from_histogram(load, shape.ranks, shape.tokens, shape.topk, np.random.default_rng(0))
    machine = MACHINES[name]
    program = build(machine, shape, policy, rows)
    trace = run(machine, shape, program, trace="full")
    placement = Placement(np.arange(shape.experts), shape.experts, shape.ranks)
    check_conservation(shape, rows, placement, program, trace)
    assert table_of_moves(program, trace, p.STORE)[[0, 1, 3]].sum() == 0


@EACH_CASE
@pytest.mark.parametrize("tokens", [0, 1])
def test_few_tokens_end_soon(name: str, policy: Policy, tokens: int) -> None:
    shape = shape_for(name, tokens)
    machine = MACHINES[name]
    trace = run(machine, shape, build(machine, shape, policy, routed(shape)))
    assert trace.makespan_ps < 100e6
    assert trace.outcome.lanes["stall_ps"].sum() == 0


def test_one_expert_on_one_rank_moves_nothing() -> None:
    shape = shape_for(SM100, 100, experts=1, topk=1, ranks=1)
    machine = MACHINES[SM100]
    trace = run(machine, shape, build(machine, shape, ExpertWave(), routed(shape)))
    assert trace.outcome.ports["bytes"].sum() == 0


def test_more_ranks_than_experts_need_redundant_ones() -> None:
    shape = shape_for(SM100, 40, experts=2, topk=1)
    machine, rows = MACHINES[SM100], routed(shape)
    with pytest.raises(InputError, match="experts must divide evenly over ranks"):
        build(machine, shape, ExpertWave(), rows)
    placement = eplb(rows.expert_rows, n_replicas=4, n_ranks=4)
    program = build(machine, shape, ExpertWave(), rows, placement)
    check_conservation(shape, rows, placement, program, run(machine, shape, program, trace="full"))


def test_experts_that_do_not_divide_over_ranks_are_refused() -> None:
    shape = shape_for(SM100, 40, experts=18)
    with pytest.raises(InputError, match=r"n_experts = 18: experts must divide evenly over ranks"):
        build(MACHINES[SM100], shape, ExpertWave(), routed(shape))


def smallest_ring(name: str, shape: MegaMoe, policy: Any, rows: routing.Routing) -> int:
    """What the refusal of a ring of one m-block says is needed; 1 if that is enough."""
    try:
        build(MACHINES[name], shape, policy, rows)
    except InputError as error:
        return int(str(error.allowed).split()[0])
    return 1


@pytest.mark.parametrize(
    ("name", "make"),
    [
        (SM100, lambda ring: ExpertWave(experts_per_wave=2, ring_m_blocks=ring)),
        (SM100, lambda ring: Alternating(warm_up=1, ring_m_blocks=ring)),
        (SM90, lambda ring: Lag(lag=2, group=1, unit=1, ring_m_blocks=ring)),
        (SM90, lambda ring: Lag(lag=1, group=2, unit=4, ring_m_blocks=ring)),
    ],
)
@settings(max_examples=25)
@given(tokens=st.integers(100, 1500), seed=st.integers(0, 99))
def test_the_smallest_ring_that_is_allowed_is_large_enough(name: str, make: Any, tokens: int, seed: int) -> None:
    shape = shape_for(name, tokens)
    rows = routed(shape, seed)
    ring = smallest_ring(name, shape, make(1), rows)
    machine = MACHINES[name]
    program = build(machine, shape, make(ring), rows)
    assert run(machine, shape, program).makespan_ps > 0


def test_a_ring_slows_the_pull_down_to_the_pace_of_l2() -> None:
    shape = shape_for(SM90, 1500)
    machine, rows = MACHINES[SM90], routed(shape)
    waits = []
    for ring in (0, 20):
        program = build(machine, shape, Lag(lag=2, group=1, unit=2, ring_m_blocks=ring), rows)
        trace = run(machine, shape, program)
        dispatch = program.lanes["role"] == program.roles.index("dispatch")
        waits.append(int(trace.outcome.lanes["wait_ps"][dispatch, p.CAUSES.index("ring")].sum()))
    assert waits[0] == 0 < waits[1]


def test_a_ring_too_small_is_refused_with_what_it_needs() -> None:
    shape = shape_for(SM90, 1500)
    with pytest.raises(InputError, match=r"ring_m_blocks = 2: cannot hold .* \(allowed: \d+ or more, or 0 for none\)"):
        build(MACHINES[SM90], shape, Lag(lag=4, group=2, unit=2, ring_m_blocks=2), routed(shape))


@pytest.mark.parametrize(("name", "policy"), [(SM100, ExpertWave()), (SM100, Alternating()), (SM90, Lag())])
def test_one_rank_and_its_mirror_stand_for_all(name: str, policy: Policy) -> None:
    """Within 3 % on balanced routing."""
    shape = shape_for(name, 2048, hidden=2048, intermediate=1024, experts=32, topk=4)
    whole, one = whole_and_mirrored_ps(MACHINES[name], shape, policy, routed(shape))
    assert one == pytest.approx(whole, rel=0.03)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("tokens", [1024, 2048])
@pytest.mark.parametrize(("name", "policy"), [(SM100, ExpertWave()), (SM100, Interleaved()), (SM90, ExpertWave())])
def test_one_rank_stands_for_all_where_experts_fill_their_last_m_block_differently(
    name: str, policy: Policy, tokens: int, seed: int
) -> None:
    """With 256 experts ranks differ by up to a fifth in m-blocks, by a twentieth in rows. Within 3 %."""
    shape = shape_for(name, tokens, hidden=2048, intermediate=1024, experts=256, topk=6, ranks=8)
    whole, one = whole_and_mirrored_ps(MACHINES[name], shape, policy, routed(shape, seed))
    assert one == pytest.approx(whole, rel=0.03)


def whole_and_mirrored_ps(machine: Machine, shape: MegaMoe, policy: Policy, rows: routing.Routing) -> tuple[int, int]:
    """Makespans with all ranks, and with one against its mirror."""
    whole = run(machine, shape, build(machine, shape, policy, rows)).makespan_ps
    fabric = mirrored(machine.fabric(shape.ranks, 4096))
    return whole, simulate(build(machine, shape, policy, rows, ranks="symmetric"), fabric).makespan_ps


@pytest.mark.parametrize("policy", [ExpertWave(), Lag(early_combine=True)])
def test_the_rank_with_the_most_m_blocks_and_of_several_the_most_rows_stands_for_all(policy: Policy) -> None:
    """All ranks have equally many m-blocks in the lag kernel, whose blocks are higher."""
    shape = shape_for(SM90, 1024, experts=256, topk=6, ranks=8)
    rows = routed(shape, 2)
    whole = build(MACHINES[SM90], shape, policy, rows)
    program = build(MACHINES[SM90], shape, policy, rows, ranks="symmetric")
    busiest = max(range(shape.ranks), key=lambda rank: (whole.meta["m_blocks"][rank], whole.meta["flops"][rank]))
    assert busiest > 0
    assert program.meta["m_blocks"] == [whole.meta["m_blocks"][busiest]]
    assert program.meta["flops"] == [whole.meta["flops"][busiest]]
    trace = simulate(program, mirrored(MACHINES[SM90].fabric(shape.ranks, 4096)), trace="full")
    between = pools(rows, contiguous(shape.experts, shape.ranks)).rows_between[busiest]
    own = int(between[busiest])
    pulled = table_of_moves(program, trace, p.LOAD)
    assert pulled[0].tolist() == [own * shape.pull_bytes, (int(between.sum()) - own) * shape.pull_bytes]
    stored = table_of_moves(program, trace, p.STORE)
    assert stored[0, 1] == (between.sum() - own) * shape.return_bytes(shape.hidden)
    check_waits(program, trace)


@pytest.mark.parametrize(("name", "policy"), [(SM100, ExpertWave()), (SM100, Alternating()), (SM90, Lag())])
def test_the_order_that_ran_finds_about_as_many_weights_in_l2_as_the_nominal_one(name: str, policy: Policy) -> None:
    shape = shape_for(name, 2048)
    machine = MACHINES[name]
    program = build(machine, shape, policy, routed(shape))
    nominal = program.meta["weight_hits_pct"]
    assert hits_as_run_pct(run(machine, shape, program), machine) == pytest.approx(nominal, abs=2)
    assert min(nominal) > 50


def test_a_mirror_drains_a_scatter_at_the_rate_of_a_scatter() -> None:
    """On a machine whose scatters drain at half of R, and that is bound by them."""
    shape = shape_for(SM90, 2048, hidden=2048, intermediate=1024, experts=32, topk=4)
    machine = load_machine("hgx-h800", {"interconnect.fan_out_efficiency": 0.5})
    whole, one = whole_and_mirrored_ps(machine, shape, Lag(), routed(shape))
    assert one == pytest.approx(whole, rel=0.03)


def test_a_mirror_refuses_ranks_that_start_apart() -> None:
    shape = shape_for(SM100, 512)
    starts = [0] * (shape.ranks - 1) + [300_000_000]
    with pytest.raises(InputError, match="makes ranks differ"):
        build(MACHINES[SM100], shape, ExpertWave(), routed(shape), ranks="symmetric", starts_ps=starts)


def test_a_mirror_refuses_ranks_that_are_not_alike() -> None:
    few = shape_for(SM100, 63)
    with pytest.raises(InputError, match="too few for ranks: symmetric"):
        build(MACHINES[SM100], few, ExpertWave(), routed(few), ranks="symmetric")
    shape = shape_for(SM100, 512)
    rng = np.random.default_rng(0)
    rows = routing.hot_expert(4, 512, 3, 16, rng, max_over_mean=2, n_hot=4)
    with pytest.raises(InputError, match="differ too much for ranks: symmetric"):
        build(MACHINES[SM100], shape, ExpertWave(), rows, ranks="symmetric")


def test_a_rank_that_starts_late_makes_all_wait() -> None:
    shape = shape_for(SM100, 64)
    machine, rows = MACHINES[SM100], routed(shape)
    on_time = run(machine, shape, build(machine, shape, ExpertWave(), rows)).makespan_ps
    late = run(machine, shape, build(machine, shape, ExpertWave(), rows, starts_ps=[0, 50_000_000, 0, 0])).makespan_ps
    assert late == pytest.approx(on_time + 50_000_000, abs=3_000_000)


def test_a_shared_expert_is_neither_pulled_nor_returned() -> None:
    machine, rows = MACHINES[SM100], routed(shape_for(SM100, 200))
    traces = []
    for shared in (0, 1):
        shape = shape_for(SM100, 200, shared_experts=shared)
        program = build(machine, shape, Alternating(), rows)
        trace = run(machine, shape, program, trace="full")
        traces.append([table_of_moves(program, trace, kind) for kind in (p.LOAD, p.STORE)])
    away = ~np.eye(4, dtype=bool)
    assert np.array_equal(traces[0][0], traces[1][0])
    assert np.array_equal(traces[0][1][away], traces[1][1][away])


@pytest.mark.parametrize(
    ("name", "policy", "changes", "message"),
    [
        (SM100, Lag(), {}, "is a schedule of SM90 kernels"),
        (SM100, Split(), {}, "is a schedule of SM90 kernels"),
        (SM90, Split(l1_block_n=384), {}, r"l1_block_n = 384: is no tile of this kernel \(allowed: 256, 512\)"),
        (SM90, Split(launch_gap_ps=-1), {}, "launch_gap_ps = -1: must not be negative"),
        (SM90, Alternating(), {}, "is a schedule of SM100 kernels"),
        (SM90, ExpertWave(), {"numbers": "fp4"}, "needs FP4 Tensor Cores"),
        (
            SM100,
            ExpertWave(),
            {"hidden": 1000},
            r"hidden = 1000: does not divide into tiles \(.* a multiple of 256, 1024 is the next\)",
        ),
        (
            SM100,
            ExpertWave(),
            {"intermediate": 500},
            r"intermediate = 500: .* \(allowed: a multiple of 128, 512 is the next\)",
        ),
        (
            SM100,
            ExpertWave(),
            {"hidden": 2880, "intermediate": 2880},
            r"intermediate = 2880: does not divide into tiles "
            r"\(allowed: a multiple of 128, 2944 is the next; for hidden = 2880 a multiple of 256, 3072 is the next\)",
        ),
        (SM100, ExpertWave(experts_per_wave=0), {}, "must be at least 1"),
        (PORTABLE, ExpertWave(), {}, "numbers = 'w8a8, combine bf16': are not those of the portable kernel"),
        (PORTABLE, Split(), {"numbers": "bf16"}, "is a schedule of SM90 kernels"),
        (PORTABLE, Lag(early_combine=True), {"numbers": "bf16"}, "early_combine = True: is a feature of SM90 kernels"),
        (SM100, Interleaved(lead_rows=-1), {}, "must be 0 or more"),
    ],
)
def test_what_a_kernel_cannot_run_is_refused(name: str, policy: Policy, changes: dict[str, Any], message: str) -> None:
    sizes = {"hidden": 1024, "intermediate": 512, "experts": 16, "topk": 3, "ranks": 4, "numbers": "w8a8"} | changes
    shape = MegaMoe(tokens=64, **sizes)
    with pytest.raises(InputError, match=message):
        build(MACHINES[name], shape, policy, routed(shape))


def test_a_kernel_is_chosen_for_the_experts_and_copies_that_it_is_launched_with() -> None:
    """A few rows of each of many copies are another tile than many rows of a few experts."""
    shape = MegaMoe(hidden=4096, intermediate=2048, experts=256, topk=6, tokens=520, ranks=8, numbers="w4a8")
    rows = routing.zipf(8, 520, 6, 256, np.random.default_rng(0), max_over_mean=4)
    machine = MACHINES[SM100]
    plain = build(machine, shape, ExpertWave(), rows)
    copied = build(machine, shape, ExpertWave(), rows, placement=eplb(rows.expert_rows, n_replicas=288, n_ranks=8))
    launched = build(machine, replace(shape, experts=288), ExpertWave(), routed(replace(shape, experts=288)))
    assert copied.meta["kernel"]["block_m"] == launched.meta["kernel"]["block_m"] != plain.meta["kernel"]["block_m"]


@pytest.mark.parametrize("policy", [Unfused(), ExpertWave(), Alternating(), Interleaved()])
def test_a_machine_with_fewer_sms_than_a_cluster_is_refused(policy: Policy) -> None:
    shape = shape_for(SM100, 64)
    with pytest.raises(InputError, match=r"compute.sms = 1: is less than a cluster .*2 or more"):
        build(load_machine(SM100, {"compute.sms": 1}), shape, policy, routed(shape))
