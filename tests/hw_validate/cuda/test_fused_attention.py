"""The fused attention kernel on the emulated device: right numbers under every policy and schedule, and every planted fault
caught."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from xstage.hw_validate.cuda import emulate
from xstage.hw_validate.cuda.bf16 import to_float
from xstage.hw_validate.cuda.emulate import RaceError
from xstage.hw_validate.cuda.fused_attention import (
    attention_job,
    attention_reference,
    lower_attention,
    random_attention,
    returned,
)
from xstage.hw_validate.cuda.fused_times import attention_summary, attention_tile_times
from xstage.hw_validate.cuda.replay_job import Settings
from xstage.scenarios.machine_files import load_machine
from xstage.sim import program as p
from xstage.sim.errors import DeadlockError, InputError, ProgramError
from xstage.sim.execute import simulate
from xstage.sim.schedules.attention_a2a import Attention, Policy, build

from .emulated import BUILDS, check, needs_compiler

pytestmark = needs_compiler

POLICIES = {
    "serial": Policy("serial"),
    "comm_warp": Policy("comm_warp"),
    "reserved_sms": Policy("reserved_sms", reserved_sms=1),
    "piggyback": Policy("piggyback"),
    "piggyback, ranks begin with each other's rows": Policy("piggyback", rotation=True),
}
SIZES = {"tokens": 144, "heads": 4, "head_dim": 64, "ranks": 2}
"""Tiles of 128 and 16 rows; the first has rows of both ranks."""


def machine(sms):
    return load_machine("hgx-h100", {"compute.kernels": "portable", "compute.sms": sms})


@cache
def case(name, sms=2, seed=0, **sizes):
    """(Program, shape, data, exact result) of a small call."""
    shape = Attention(**(SIZES | sizes))
    data = random_attention(shape, np.random.default_rng(seed))
    return build(machine(sms), shape, POLICIES[name]), shape, data, attention_reference(shape, data)


def run(
    name,
    transport="host",
    seeds=(0,),
    sanitizer=None,
    defines=None,
    spoil=None,
    shared_bytes=227 << 10,
    source="attention_a2a.cu",
    **sizes,
):
    """(Program, FusedAttention, exact result, outcomes). `spoil` changes the table of ops in place."""
    program, _, data, exact = case(name, **sizes)
    fused = lower_attention(program, is_one_gpu=transport != "peer", shared_bytes=shared_bytes)
    if spoil:
        ops = fused.lowered.tables["ops"].copy()
        spoil(program, ops)
        fused = replace(fused, lowered=replace(fused.lowered, tables=fused.lowered.tables | {"ops": ops}))
    job = attention_job(fused, data, transport, Settings(patience_ticks=10**12, lead_ns=100))
    kernel = emulate.build(source, BUILDS, sanitizer, defines)
    return program, fused, exact, emulate.run(kernel, job, seeds)


def check_numbers(fused, outcome, exact):
    """Within what the roundings to bf16 cost, of the weights and of the result: 2^-9 of a number of its order each, and the
    errors of the weights average out."""
    error = np.abs(to_float(returned(fused.shape, outcome.buffers)) - exact)
    scale = np.sqrt(np.mean(exact**2))
    assert np.sqrt(np.mean(error**2)) < 0.004 * scale
    assert (error < 0.008 * np.abs(exact) + 0.02 * scale).all()


def check_landings(fused, outcome):
    """A rank's own heads came to its own memory and all others to where others write; nothing else was written."""
    shape = fused.shape
    for rank in range(shape.ranks):
        own = np.arange(shape.heads) // shape.local_heads == rank
        for name, expected in (("landing", ~own), ("own_landing", own)):
            written = (outcome.buffers[f"{name}@{rank}"] != 0).mean(axis=3)
            assert (written[:, :, expected] > 0.9).all() and not written[:, :, ~expected].any()


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_gives_the_right_numbers_and_the_same_to_the_last_bit(name):
    _, fused, _, [first] = run("piggyback")
    expected = returned(fused.shape, first.buffers)
    for transport in ("host", "peer"):
        program, fused, exact, outcomes = run(name, transport, seeds=range(2))
        for outcome in outcomes:
            check_numbers(fused, outcome, exact)
            check_landings(fused, outcome)
            assert (returned(fused.shape, outcome.buffers) == expected).all()
        check(program, fused.lowered, outcomes[0])  # as for any replay: once and in order, counters, guards


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"causal": True}, id="causal"),
        pytest.param({"head_dim": 128, "heads": 2}, id="head dim 128"),
        pytest.param({"head_dim": 128, "heads": 2, "causal": True, "tokens": 258, "sms": 1}, id="head dim 128, causal"),
        pytest.param({"heads": 8, "kv_heads": 2, "tokens": 40, "batch": 2}, id="four queries a key, two sequences"),
        pytest.param({"heads": 4, "kv_heads": 1, "ranks": 4, "tokens": 36}, id="ranks that have the same keys"),
        pytest.param({"ranks": 3, "heads": 3, "tokens": 3}, id="one token a rank"),
        pytest.param({"ranks": 8, "heads": 8, "tokens": 136, "sms": 1}, id="tiles of eight ranks' rows"),
    ],
)
def test_shapes(sizes):
    for name in ("serial", "piggyback"):
        _, fused, exact, [outcome] = run(name, **sizes)
        check_numbers(fused, outcome, exact)
        check_landings(fused, outcome)


def test_with_less_shared_memory_stages_are_shorter():
    sizes = {"head_dim": 128, "heads": 2, "causal": True}
    _, fused, exact, [outcome] = run("piggyback", shared_bytes=99 << 10, **sizes)
    assert fused.variant.kernel == "attention_128_short"
    check_numbers(fused, outcome, exact)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("name", POLICIES)
def test_many_schedules(name, ranks, causal):
    sizes = {"ranks": ranks, "heads": 2 * ranks, "kv_heads": ranks, "tokens": 150 // ranks * ranks, "causal": causal}
    sizes["sms"] = 2 if ranks < 8 or name == "reserved_sms" else 1
    for transport in ("host", "peer"):
        _, fused, exact, outcomes = run(name, transport, seeds=range(12 // ranks + 1), **sizes)
        for outcome in outcomes:
            check_numbers(fused, outcome, exact)
            check_landings(fused, outcome)
            mine, first = (returned(fused.shape, one.buffers) for one in (outcome, outcomes[0]))
            assert (mine == first).all()


def test_the_kernel_without_instrumentation_computes_the_same_and_notes_nothing():
    _, fused, _, [with_records] = run("reserved_sms")
    _, _, _, [without] = run("reserved_sms", source="attention_a2a_bare.cu")
    assert (returned(fused.shape, with_records.buffers) == returned(fused.shape, without.buffers)).all()
    assert with_records.buffers["n_records@0"][0] == fused.lowered.n_records
    assert without.buffers["n_records@0"][0] == 0


# --- sanitisers

SMALL = {"tokens": 40, "heads": 2, "sms": 2}


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_the_kernel_is_clean_under_the_sanitisers(sanitizer):
    _, fused, exact, [outcome] = run("reserved_sms", "peer", sanitizer=sanitizer, **SMALL)
    check_numbers(fused, outcome, exact)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_clean_under_the_sanitisers(name, sanitizer):
    for transport, seed, causal in (("host", 1, False), ("peer", 2, True)):
        sizes = {"heads": 4, "tokens": 72, "causal": causal, "sms": 2 if name == "reserved_sms" else 1}
        _, fused, exact, [outcome] = run(name, transport, seeds=[seed], sanitizer=sanitizer, **sizes)
        check_numbers(fused, outcome, exact)


# --- planted faults


def without(kind, counter):
    """Takes the count out of ops of a kind: of an ACQUIRE or RELEASE with this slot, 0 the buffer and 1 the tile."""

    def spoil(_, ops):
        mine = (ops["kind"] == kind) & (ops["counter"] == counter)
        assert mine.any()
        ops["count"][mine] = 0

    return spoil


MANY_TILES = {"tokens": 24, "heads": 12, "sms": 1}
ONE_SM = SMALL | {"sms": 1}
RACES = {
    "a tile is stored before it is there": ("piggyback", {"spoil": without(p.ACQUIRE, 1)} | MANY_TILES),
    "rows are copied before they are there": ("serial", {"defines": {"XSTAGE_FAULT_NO_GUARDS": 1}} | ONE_SM),
    "a relaxed signal": ("serial", {"defines": {"XSTAGE_FAULT_RELAXED_SIGNAL": 1}} | ONE_SM),
}


@pytest.mark.parametrize("fault", ["a tile is stored before it is there"])
def test_a_missing_order_is_a_race(fault):
    name, options = RACES[fault]
    with pytest.raises(RaceError, match="data race"):
        run(name, seeds=range(3), sanitizer="thread", **options)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in RACES if fault != "a tile is stored before it is there"])
def test_a_missing_order_is_a_race_wherever_it_is(fault):
    test_a_missing_order_is_a_race(fault)


@pytest.mark.parametrize("fault", ["a tile is stored before it is there", "rows are copied before they are there"])
def test_a_missing_order_gives_wrong_numbers_in_some_schedule(fault):
    name, options = RACES[fault]
    _, fused, exact, outcomes = run(name, seeds=range(4), **options)
    with pytest.raises(AssertionError):
        for outcome in outcomes:
            check_numbers(fused, outcome, exact)


def test_a_buffer_that_is_never_given_back_is_a_deadlock():
    with pytest.raises(DeadlockError, match=r"attention_64 GPU 0 CTA \d thread \d+: spins on shared memory"):
        run("piggyback", spoil=without(p.RELEASE, 0), **MANY_TILES)


@pytest.mark.parametrize("name", ["serial", "reserved_sms"])
def test_a_lost_signal_is_a_deadlock_that_names_its_counter(name):
    with pytest.raises(DeadlockError, match=r"spins on counters@\d\[\d+\] = 0, needs \d"):
        run(name, defines={"XSTAGE_FAULT_LOST_SIGNAL": 1}, **SMALL)


# --- what is measured


@pytest.mark.parametrize("name", ["serial", "piggyback"])
def test_a_measured_run_has_the_columns_of_a_simulated_one_and_the_times_of_its_tiles(name):
    program, fused, _, [outcome] = run(name)
    measured = check(program, fused.lowered, outcome)
    simulated = simulate(program, machine(2).fabric(2), trace="full").ops()
    assert list(measured.columns) == list(simulated.columns)
    n_tiles = int((program.tasks["phase"] == program.phases.index("attention")).sum())
    for table in (measured, simulated):
        tiles, told = attention_tile_times(table), attention_summary(table)
        assert len(tiles) == n_tiles and (tiles["main_loop_us"] > 0).all() and (tiles["stores_us"] > 0).all()
        assert (tiles[["inputs_us", "stall_us"]] >= 0).all(axis=None)
        assert told["makespan_us"] >= told["attention_us"] > told["main_loop_us"]
        assert (told["copy_us"] > 0) == (name == "serial")


# --- what is refused


@pytest.mark.parametrize(
    ("family", "policy", "changes", "message"),
    [
        ("sm90", "piggyback", {}, "cannot run kernels of the family fa3; build it for a machine with 'portable'"),
        ("portable", "piggyback", {"head_dim": 96}, r"cannot run head dim 96, only \(64, 128\)"),
        ("portable", "piggyback", {"value_dim": 128}, "cannot run values of 128 columns beside 64 of the keys"),
        ("portable", "compute_only", {}, "cannot run attention alone: nobody gets the output"),
        ("portable", "piggyback", {"ranks": 1}, "cannot run attention alone: nobody gets the output"),
    ],
)
def test_a_program_of_another_kernel_is_refused(family, policy, changes, message):
    made = load_machine("hgx-h100", {"compute.kernels": family})
    with pytest.raises(ProgramError, match=message):
        lower_attention(build(made, Attention(**(SIZES | changes)), Policy(policy)))


def test_ranks_that_start_at_different_times_are_refused():
    program = build(machine(2), Attention(**SIZES), Policy("piggyback"), starts_ps=[0, 10])
    with pytest.raises(ProgramError, match="start all ranks at once"):
        lower_attention(program)


def test_shared_memory_that_is_too_small_is_refused_with_what_it_takes():
    program, *_ = case("piggyback")
    with pytest.raises(InputError, match=r"shared_bytes = 49152: is too little for the tiles \(allowed: \d+ or more\)"):
        lower_attention(program, shared_bytes=48 << 10)
