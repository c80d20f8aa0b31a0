"""The fused MegaMoE kernel on the emulated device: right numbers under every policy and schedule, and every planted fault
caught."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from xstage.hw_validate.cuda import emulate
from xstage.hw_validate.cuda.bf16 import to_float
from xstage.hw_validate.cuda.emulate import RaceError
from xstage.hw_validate.cuda.fused_costs import with_measured_costs
from xstage.hw_validate.cuda.fused_megamoe import FusedMegaMoe, lower_megamoe
from xstage.hw_validate.cuda.fused_megamoe_job import megamoe_job, megamoe_reference, random_megamoe
from xstage.hw_validate.cuda.fused_times import l2_tile_times, pull_times
from xstage.hw_validate.cuda.lane_tables import OWN_LOADS
from xstage.hw_validate.cuda.replay_job import Settings
from xstage.scenarios.machine_files import load_machine
from xstage.sim import program as p
from xstage.sim import routing
from xstage.sim.errors import DeadlockError, InputError, ProgramError
from xstage.sim.execute import simulate
from xstage.sim.schedules import megamoe

from .emulated import BUILDS, check, needs_compiler

pytestmark = needs_compiler

FEW_WARPS = {"mma": 8, "epilogue": 1, "dispatch": 1, "combine": 1, "comm": 1}
POLICIES = {
    "wave": megamoe.ExpertWave(experts_per_wave=1),
    "wave by k-blocks": megamoe.ExpertWave(experts_per_wave=2, readiness="k_block"),
    "interleaved": megamoe.Interleaved(lead_rows=0, ring_m_blocks=2),
    "interleaved, guarded by inputs": megamoe.Interleaved(lead_rows=64, ready=True),
    "alternating": megamoe.Alternating(),
    "lag": megamoe.Lag(lag=1, group=1, unit=1, ring_m_blocks=2),
    "lag with batches": megamoe.Lag(lag=1, group=1, unit=2, ring_m_blocks=0, publish_rows=4),
}
SIZES = {"tokens": 70, "hidden": 128, "intermediate": 256, "experts": 4, "topk": 2, "ranks": 2}


def machine(sms):
    return load_machine("hgx-h100", {"compute.kernels": "portable", "compute.sms": sms})


@cache
def case(policy, sms=2, routes="balanced", seed=0, **sizes):
    """(Program, routing, shape) of a small call."""
    shape = megamoe.MegaMoe(numbers="bf16", **(SIZES | sizes))
    size = shape.ranks, shape.tokens, shape.topk, shape.experts
    if routes == "one rank":  # all experts in use are on rank 0, and one expert has no rows
        topk = np.broadcast_to(np.arange(shape.topk, dtype=np.int32), size[:3]).copy()
        rows = routing.Routing(topk, shape.experts)
    elif routes == "masked":
        topk = routing.balanced(*size, np.random.default_rng(seed)).topk.copy()
        topk[:, ::3, 0] = -1
        topk[:, 4, :] = -1
        rows = routing.Routing(topk, shape.experts)
    else:
        rows = routing.balanced(*size, np.random.default_rng(seed))
    return megamoe.build(machine(sms), shape, policy, rows), rows


def run(
    policy,
    transport="host",
    seeds=(0,),
    sanitizer=None,
    defines=None,
    spoil=None,
    warps=None,
    shared_bytes=227 << 10,
    source="megamoe.cu",
    **sizes,
):
    """(Program, FusedMegaMoe, data, outcomes). `spoil` changes the table of ops in place."""
    program, rows = case(policy, **sizes)
    options = {"warps": warps} if warps else {}
    fused = lower_megamoe(program, rows, is_one_gpu=transport != "peer", shared_bytes=shared_bytes, **options)
    if spoil:
        ops = fused.lowered.tables["ops"].copy()
        spoil(program, ops)
        fused = replace(fused, lowered=replace(fused.lowered, tables=fused.lowered.tables | {"ops": ops}))
    data = random_megamoe(fused.shape, np.random.default_rng(7))
    job = megamoe_job(fused, data, transport, Settings(patience_ticks=10**12, lead_ns=100))
    kernel = emulate.build(source, BUILDS, sanitizer, defines)
    return program, fused, data, emulate.run(kernel, job, seeds)


def results_of(fused: FusedMegaMoe, outcome):
    return np.stack([outcome.buffers[f"results@{rank}"] for rank in range(fused.shape.ranks)])


def check_numbers(fused, data, outcome, exact):
    """Within what the roundings to bf16 cost: of the middle, of each returned row, and of the result. Each is 2^-9 of a
    number of the order of the result's, at most; the sums are as long as top-k."""
    error = np.abs(to_float(results_of(fused, outcome)) - exact)
    scale = np.sqrt(np.mean(exact**2))
    assert np.sqrt(np.mean(error**2)) < 0.005 * scale
    assert (error < 0.01 * np.abs(exact) + 0.03 * scale).all()


def check_returns(fused, outcome):
    """Every pair came back once, to the memory that its owner writes to; nothing else was written."""
    pools, shape = fused.pools, fused.shape
    owner = pools.placement.rank_of_replica[pools.replica]
    for rank in range(shape.ranks):
        came = pools.source_rank == rank
        for name, mine in (("landing", came & (owner != rank)), ("own_landing", came & (owner == rank))):
            expected = np.zeros((shape.tokens, shape.topk), dtype=bool)
            expected[pools.source_token[mine], pools.slot[mine]] = True
            written = (outcome.buffers[f"{name}@{rank}"] != 0).reshape(shape.tokens, shape.topk, -1, 128)
            assert (written.mean(axis=3) > 0.9)[expected].all()
            assert not written[~expected].any()


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_gives_the_right_numbers_and_the_same_to_the_last_bit(name):
    first = run(POLICIES["wave"])
    expected = results_of(first[1], first[3][0])
    for transport in ("host", "peer"):
        program, fused, data, outcomes = run(POLICIES[name], transport, seeds=range(2))
        exact = megamoe_reference(fused.shape, fused.pools, data)
        for outcome in outcomes:
            check_numbers(fused, data, outcome, exact)
            check_returns(fused, outcome)
            assert (results_of(fused, outcome) == expected).all()
        check(program, fused.lowered, outcomes[0])  # as for any replay: once and in order, counters, guards


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"routes": "one rank"}, id="one rank has all rows"),
        pytest.param({"routes": "masked", "topk": 3}, id="masked pairs and a token without experts"),
        pytest.param({"tokens": 1, "topk": 1}, id="one token a rank, most experts empty"),
        pytest.param({"tokens": 129, "topk": 4, "intermediate": 128}, id="blocks of 64, 64 and 1 row for each expert"),
        pytest.param({"ranks": 4, "experts": 8, "topk": 3, "hidden": 256, "tokens": 30, "sms": 1}, id="four ranks"),
        pytest.param({"hidden": 256, "intermediate": 64 * 6, "sms": 3}, id="sizes that are no powers of two"),
    ],
)
def test_uneven_shapes(sizes):
    for name in ("wave", "lag"):
        _, fused, data, [outcome] = run(POLICIES[name], **sizes)
        check_numbers(fused, data, outcome, megamoe_reference(fused.shape, fused.pools, data))
        check_returns(fused, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_many_schedules(name, ranks):
    for transport in ("host", "peer"):
        sizes = {"ranks": ranks, "experts": 2 * ranks, "tokens": 150 // ranks, "sms": 2 if ranks < 8 else 1}
        _, fused, data, outcomes = run(POLICIES[name], transport, seeds=range(12 // ranks + 1), **sizes)
        exact = megamoe_reference(fused.shape, fused.pools, data)
        for outcome in outcomes:
            check_numbers(fused, data, outcome, exact)
            assert (results_of(fused, outcome) == results_of(fused, outcomes[0])).all()


def test_the_kernel_without_instrumentation_computes_the_same_and_notes_nothing():
    _, fused, _, [with_records] = run(POLICIES["wave"])
    _, _, _, [without] = run(POLICIES["wave"], source="megamoe_bare.cu")
    assert (results_of(fused, with_records) == results_of(fused, without)).all()
    assert with_records.buffers["n_records@0"][0] == fused.lowered.n_records
    assert without.buffers["n_records@0"][0] == 0


SLOW = 10**7
"""Ticks of a release beyond its CTA: longer than everything else together, as behind a full stage."""


@pytest.mark.parametrize("name", ["wave", "interleaved"])
def test_no_lane_stands_still_for_a_release(name):
    """Only who waits for what others did may wait for the release in between: never a pull for its row."""
    program, fused, _, [outcome] = run(POLICIES[name], defines={"XSTAGE_RELEASE_TICKS": SLOW})
    records, times = outcome.buffers["records@0"], outcome.buffers["times@0"]
    kind = program.ops["kind"][records["op"]]
    own = fused.lowered.tables["ops"]["flags"][records["op"]] & OWN_LOADS > 0
    took = records["end"] - records["start"]
    assert own.any() and took[own].max() < SLOW / 2
    assert took[np.isin(kind, (p.COMPUTE, p.STORE, p.SIGNAL, p.LOAD))].max() < SLOW / 2
    assert took[(kind == p.WAIT) & ~own].max() > SLOW / 2
    assert times["post_ticks"].sum() == 0


# --- sanitisers


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_the_kernel_is_clean_under_the_sanitisers(sanitizer):
    sizes = {"sms": 1, "tokens": 40, "intermediate": 128}
    _, fused, data, [outcome] = run(POLICIES["interleaved"], "peer", sanitizer=sanitizer, warps=FEW_WARPS, **sizes)
    check_numbers(fused, data, outcome, megamoe_reference(fused.shape, fused.pools, data))


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_clean_under_the_sanitisers(name, sanitizer):
    for transport, seed in (("host", 1), ("peer", 2)):
        _, fused, data, [outcome] = run(
            POLICIES[name], transport, seeds=[seed], sanitizer=sanitizer, warps=FEW_WARPS, sms=2, intermediate=128
        )
        check_numbers(fused, data, outcome, megamoe_reference(fused.shape, fused.pools, data))


# --- planted faults


def waits_of(program, phase, cause):
    """Which ops are WAITs of a phase for counters of a cause."""
    tasks = program.tasks[program.tasks["phase"] == program.phases.index(phase)]
    runs = program.runs[np.concatenate([task["first_run"] + np.arange(task["n_runs"]) for task in tasks])]
    mine = np.zeros(len(program.ops), dtype=bool)
    for run_ in runs:
        mine[run_["first_op"] : run_["first_op"] + run_["n_ops"]] = True
    causes = program.counters["cause"][np.maximum(program.ops["counter"], 0)]
    return mine & (program.ops["kind"] == p.WAIT) & (causes == p.COUNTER_CAUSES.index(cause))


def without_waits(phase, cause):
    def spoil(program, ops):
        missing = waits_of(program, phase, cause)
        assert missing.any()
        ops["count"][missing] = 0

    return spoil


RACES = {
    "L1 does not wait for its rows": (POLICIES["wave"], {"spoil": without_waits("l1", "inputs")}),
    "L2 does not wait for L1": (POLICIES["wave"], {"spoil": without_waits("l2", "inputs")}),
    "the pull does not wait for a free slot": (POLICIES["lag"], {"spoil": without_waits("dispatch", "ring")}),
    "a relaxed signal": (POLICIES["wave"], {"defines": {"XSTAGE_FAULT_RELAXED_SIGNAL": 1}}),
    "a relaxed wait": (POLICIES["wave"], {"defines": {"XSTAGE_FAULT_RELAXED_WAIT": 1}}),
}


@pytest.mark.parametrize("fault", ["L2 does not wait for L1", pytest.param("a relaxed signal", marks=pytest.mark.slow)])
def test_a_missing_order_is_a_race(fault):
    policy, options = RACES[fault]
    sizes = {} if policy is POLICIES["lag"] else {"tokens": 24, "intermediate": 128}
    with pytest.raises(RaceError, match="data race"):
        run(policy, sanitizer="thread", warps=FEW_WARPS, **sizes, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [name for name in RACES if name not in ("L2 does not wait for L1", "a relaxed signal")]
)
def test_a_missing_order_is_a_race_wherever_it_is(fault):
    test_a_missing_order_is_a_race(fault)


def test_a_missing_wait_gives_wrong_numbers_in_some_schedule():
    _, fused, data, outcomes = run(POLICIES["wave"], seeds=range(4), spoil=without_waits("l2", "inputs"))
    exact = megamoe_reference(fused.shape, fused.pools, data)
    with pytest.raises(AssertionError):
        for outcome in outcomes:
            check_numbers(fused, data, outcome, exact)


def test_a_buffer_that_is_never_given_back_is_a_deadlock():
    def spoil(_, ops):
        ops["count"][(ops["kind"] == p.RELEASE) & (ops["counter"] == 0)] = 0

    with pytest.raises(DeadlockError, match=r"megamoe GPU 0 CTA \d thread 0: spins on shared memory"):
        run(POLICIES["wave"], spoil=spoil, tokens=130)


def test_a_lost_signal_is_a_deadlock_that_names_its_counter():
    with pytest.raises(DeadlockError, match=r"spins on counters@\d\[\d+\] = 0, needs 1"):
        run(POLICIES["wave"], defines={"XSTAGE_FAULT_LOST_SIGNAL": 1})


def test_a_warm_up_that_can_never_end_is_refused_before_it_hangs_a_gpu():
    with pytest.raises(InputError, match=r"warm_up = 1: is too small: every group would wait.*allowed: 2 or more"):
        run(megamoe.Alternating(warm_up=1, readiness="block"), intermediate=128, tokens=24)


# --- what is measured


def test_times_of_tiles_and_pulls_come_out_of_measured_and_simulated_runs_alike():
    program, fused, _, [outcome] = run(POLICIES["wave"])
    tables = check(program, fused.lowered, outcome), simulate(program, machine(2).fabric(2, 4096), trace="full").ops()
    n_l2 = int((program.tasks["phase"] == program.phases.index("l2")).sum())
    for table in tables:
        tiles, pulls = l2_tile_times(table), pull_times(table)
        assert len(tiles) == n_l2 and len(pulls) == len(fused.pools.slot)
        assert (tiles["span_us"] >= tiles["stores_us"] - 1e-9).all() and (tiles["stores_us"] > 0).all()
        assert (tiles["main_loop_us"] > 0).all() and (tiles[["inputs_us", "stall_us"]] >= 0).all(axis=None)
        assert (pulls["pull_us"] > 0).all() and pulls.groupby(
            "gpu"
        ).size().tolist() == fused.pools.rows_per_rank.tolist()


def test_the_simulator_sees_the_same_stall_as_its_own_view_of_tiles():
    program, _ = case(POLICIES["wave"])
    trace = simulate(program, machine(2).fabric(2, 4096), trace="full")
    mine, theirs = l2_tile_times(trace.ops()), megamoe.l2_tiles(trace)
    assert np.allclose(mine["stall_us"], theirs.stall_us, atol=1e-5)
    assert np.allclose(mine["span_us"], theirs.span_us[:, 0], atol=1e-5)


# --- what is refused


@pytest.mark.parametrize(
    ("family", "policy", "options", "message"),
    [
        ("sm90", megamoe.ExpertWave(), {}, "cannot run kernels of the family sm90"),
        ("portable", megamoe.Unfused(), {}, "cannot run the policy unfused, which has several launches"),
        ("portable", megamoe.ExpertWave(), {"shared_experts": 1}, "cannot run shared experts"),
    ],
)
def test_a_program_of_another_kernel_is_refused(family, policy, options, message):
    shape = megamoe.MegaMoe(numbers="bf16", **(SIZES | {"intermediate": 256, "hidden": 256} | options))
    rows = routing.balanced(shape.ranks, shape.tokens, shape.topk, shape.experts, np.random.default_rng(0))
    program = megamoe.build(load_machine("hgx-h100", {"compute.kernels": family}), shape, policy, rows)
    with pytest.raises(ProgramError, match=message):
        lower_megamoe(program, rows)


def test_shared_memory_that_is_too_small_is_refused_with_what_it_takes():
    program, rows = case(POLICIES["wave"])
    with pytest.raises(
        InputError, match=r"shared_bytes = 101376: is too little for the tiles \(allowed: \d+ or more\)"
    ):
        lower_megamoe(program, rows, shared_bytes=99 << 10)


def test_with_less_shared_memory_the_main_loop_has_two_stages():
    _, fused, data, [outcome] = run(POLICIES["wave"], shared_bytes=163 << 10)
    assert fused.stages == 2
    check_numbers(fused, data, outcome, megamoe_reference(fused.shape, fused.pools, data))


# --- costs of the control


def test_costs_of_the_control_are_those_of_the_simulated_program():
    program, fused, _, [outcome] = run(POLICIES["wave"], "local")
    control = check(program, fused.lowered, outcome)
    costed = with_measured_costs(program, control)
    simulated = simulate(costed, machine(2).fabric(2, 4096), trace="full").ops()
    measured, mine = l2_tile_times(control), l2_tile_times(simulated)
    by_block = measured.groupby(program.tasks["m_block"][measured.index])["main_loop_us"].size()
    assert (by_block == fused.shape.hidden // 128 * fused.shape.ranks).all()
    assert np.allclose(mine["main_loop_us"].sum(), measured["main_loop_us"].sum(), rtol=0.02)
    assert (mine["stores_us"] >= 0).all() and np.array_equal(costed.runs, program.runs)
