"""The emulated device: each instruction does what the device does, each broken rule is caught, schedules come from seeds."""

from pathlib import Path

import numpy as np
import pytest
from xstage.hw_validate.cuda import emulate
from xstage.hw_validate.cuda.compile import CompileError
from xstage.hw_validate.cuda.emulate import EmulationError, MemoryFaultError, RaceError
from xstage.hw_validate.cuda.job import HOST, Buffer, Grid, Job, Pointer
from xstage.sim.errors import DeadlockError, InputError

from .emulated import BUILDS, needs_compiler

pytestmark = needs_compiler

SOURCE = Path(__file__).parent / "kernels" / "instructions.cu"
PARAMETERS = np.dtype(
    [(name, "u8") for name in ("input", "output", "flags", "abort", "patience")] + [("fault", "u4"), ("padding", "u4")]
)


def run(kernel, given, output, *, ctas=1, threads=64, fault=0, seeds=range(6), sanitizer=None, gpus=1, **options):
    """Outputs of a kernel of instructions.cu by seed, and its abort words."""
    parameters = np.zeros(1, PARAMETERS)
    parameters["patience"], parameters["fault"] = 10**9, fault
    buffers = {
        "input": Buffer(given),
        "output": Buffer(output, HOST, output=True),
        "flags": Buffer(np.zeros(4, "u4"), gpus - 1),
        "abort": Buffer(np.zeros(1, "u4"), HOST, output=True),
    }
    pointers = {name: Pointer(name) for name in buffers}
    grids = [Grid(kernel, gpu, ctas, threads, 8192, parameters, pointers) for gpu in range(gpus)]
    defines = options.pop("defines", None)
    program = emulate.build(SOURCE, BUILDS, sanitizer, defines)
    outcomes = emulate.run(program, Job(buffers, tuple(grids)), seeds, **options)
    return [outcome.buffers["output"] for outcome in outcomes], [int(o.buffers["abort"][0]) for o in outcomes]


# --- instructions


def collectives(fault=0, **options):
    values = np.arange(64, dtype="u4") * 7 % 61
    outputs, _ = run("collectives", values, np.zeros((8, 64), "u4"), fault=fault, **options)
    return values.reshape(2, 32), [output.reshape(8, 2, 32) for output in outputs]


def test_lanes_of_a_warp_vote_exchange_and_add():
    values, outputs = collectives()
    lane = np.arange(32)
    for out in outputs:
        votes = ((values % 3 == 0) << lane).sum(axis=1)
        assert (out[0] == votes[:, None]).all()
        assert (out[1] == values[:, (lane + 5) % 32]).all()
        assert (out[2] == values.sum(axis=1)[:, None]).all()
        assert (out[3] == 1).all() and (out[4] == 0).all()
        assert (out[5] == values[:, 3:4] + np.array([[3], [35]])).all()
        assert (out[6][:, :16] == ((values[:, :16] & 1) << lane[:16]).sum(axis=1)[:, None]).all()
        assert (out[7] == values[:, lane ^ 1]).all()


def bf16(values):
    """Nearest bf16 of floats, as bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def as_float(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def matrix(fault=0):
    rng = np.random.default_rng(1)
    a, b = bf16(rng.normal(size=(16, 16))), bf16(rng.normal(size=(16, 8)))
    c = rng.normal(size=(16, 8)).astype(np.float32)
    given = np.concatenate([a.ravel().view("u4"), b.ravel().view("u4"), c.ravel().view("u4")])
    outputs, _ = run("matrix", given, np.zeros(128 + 128 + 128, "u4"), threads=32, fault=fault)
    return a, b, c, outputs


def test_the_tensor_core_multiplies_what_ldmatrix_loads():
    a, b, c, outputs = matrix()
    exact = as_float(a).astype(float) @ as_float(b).astype(float) + c
    for out in outputs:
        assert np.allclose(out[:128].view("f4").reshape(16, 8), exact, atol=1e-5)
        assert (out[256:].view("u2") == a.ravel()).all()


def test_ldmatrix_transposes_each_of_its_four_matrices():
    a, _, _, outputs = matrix()
    words = outputs[0][128:256].reshape(4, 32).view("u2").reshape(4, 32, 2)
    for j in range(4):
        # lane 8 j + i gave row i of matrix j: rows 8 (j % 2) + i, columns from 8 (j // 2)
        block = a[8 * (j % 2) : 8 * (j % 2) + 8, 8 * (j // 2) : 8 * (j // 2) + 8]
        for t in range(32):
            assert words[j, t].tolist() == block[2 * (t % 4) : 2 * (t % 4) + 2, t // 4].tolist()


def test_bf16_rounds_to_nearest_even():
    values = np.random.default_rng(2).normal(size=64).astype("f4") * 10.0 ** np.arange(-30, 34).astype("f4")
    values[:4] = np.array([0x3F808000, 0x3F818000, 0x7F800000, 0xFF800000], "u4").view("f4")  # two ties, +-infinity
    outputs, _ = run("rounding", values, np.zeros(64, "u4"))
    assert outputs[0].tolist() == bf16(values).tolist()
    assert outputs[0][:4].tolist() == [0x3F80, 0x3F82, 0x7F80, 0xFF80]


def bulk_pipeline(**options):
    given = np.arange(2048, dtype="u4")
    outputs, _ = run("bulk_pipeline", given, np.zeros(2048, "u4"), **options)
    return [bool((output == given + 1).all()) for output in outputs]


def async_copy(**options):
    given = np.arange(512, dtype="u4").reshape(2, 64, 4)
    outputs, _ = run("async_copy", given, np.zeros((2, 64, 4), "u4"), **options)
    return [bool((output == np.roll(given, -1, axis=1)).all()) for output in outputs]


@pytest.mark.parametrize("kernel", [bulk_pipeline, async_copy])
def test_copies_that_are_waited_for_bring_the_data_in_every_schedule(kernel):
    assert all(kernel(seeds=range(24)))


def test_before_hopper_a_thread_copies_by_itself_with_the_same_result():
    assert all(bulk_pipeline(defines={"XSTAGE_ARCH": 800}))


def test_all_ctas_meet_at_a_grid_barrier_round_after_round():
    outputs, aborts = run("rounds", np.zeros(1, "u4"), np.zeros(4, "u4"), ctas=5)
    assert [output.tolist() for output in outputs] == [[0, 320, 320, 320]] * 6
    assert aborts == [0] * 6


# --- two CTAs, and two GPUs


def handshake(**options):
    outputs, aborts = run("handshake", np.zeros(1, "u4"), np.zeros((128, 4), "u4"), ctas=2, **options)
    return [bool((out[64:, 0] == (np.arange(64) + 1) % 64 + 100).all()) for out in outputs], aborts


def test_what_is_signalled_is_seen():
    seen, aborts = handshake(seeds=range(12))
    assert all(seen) and not any(aborts)


def fenced_handshake(**options):
    outputs, _ = run("fenced_handshake", np.zeros(1, "u4"), np.zeros((192, 4), "u4"), ctas=3, **options)
    return [bool((out[64:, 0].reshape(2, 64) == (np.arange(64) + 1) % 64 + 100).all()) for out in outputs]


def test_signals_behind_one_fence_tell_what_came_before_it():
    assert all(fenced_handshake(seeds=range(12)))
    for fault in (1, 3):
        with pytest.raises(EmulationError, match=r"a signal at flags\[0\] without a fence as wide before it"):
            fenced_handshake(fault=fault)


def test_a_missing_signal_is_a_deadlock_that_names_who_waits_for_what():
    with pytest.raises(DeadlockError) as error:
        handshake(fault=1)
    assert "handshake GPU 0 CTA 1 thread 0: spins on flags[0] = 0, needs 1" in str(error.value)
    assert "threads 1 to 63: at barrier 0 of the CTA, where 63 of 64 threads have come" in str(error.value)


def test_a_cta_that_stays_away_is_a_deadlock():
    with pytest.raises(DeadlockError, match=r"CTA 1 thread 0: spins on flags\[0\] = 5, needs 6"):
        run("rounds", np.zeros(1, "u4"), np.zeros(4, "u4"), ctas=3, fault=1)


def test_where_deadlines_may_pass_a_deadlock_ends_with_the_abort_word_set():
    _, aborts = handshake(fault=1, deadlines=True)
    assert aborts == [1] * 6


def test_a_wait_that_is_left_out_reads_too_early_in_some_schedule():
    assert not all(handshake(fault=2, seeds=range(12))[0])
    assert not all(async_copy(fault=1, seeds=range(12)))
    assert not all(bulk_pipeline(fault=1, seeds=range(12)))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: collectives(fault=1), "lanes of a warp come to different collectives"),
        (lambda: handshake(fault=4, gpus=2), r"GPU scope on flags\[0\], which lies on GPU 1, by GPU 0"),
        (lambda: handshake(fault=9), "a scope beyond the CTA on shared memory"),
        (lambda: handshake(fault=7), "an mbarrier at shared memory . 0 that was never initialised"),
        (lambda: matrix(fault=1), "a row of ldmatrix at shared memory .* is not aligned to 16 bytes"),
    ],
)
def test_a_broken_rule_of_the_device_is_named(call, message):
    with pytest.raises(EmulationError, match=message):
        call()


def test_a_barrier_that_a_warp_never_reaches_is_a_deadlock():
    with pytest.raises(DeadlockError, match="at barrier 9 of the CTA, where 32 of 64 threads have come"):
        collectives(fault=3)


# --- sanitisers


def test_thread_sanitizer_accepts_what_is_ordered():
    assert all(handshake(sanitizer="thread", seeds=range(2))[0])
    assert all(bulk_pipeline(sanitizer="thread", seeds=range(3)))
    assert all(async_copy(sanitizer="thread", seeds=range(3)))
    assert all(fenced_handshake(sanitizer="thread", seeds=range(2)))
    collectives(sanitizer="thread", seeds=range(2))


@pytest.mark.parametrize(
    "kernel, fault",
    [
        pytest.param(handshake, 2, id="no wait for the flag"),
        pytest.param(handshake, 3, id="the flag before the stores"),
        pytest.param(fenced_handshake, 2, id="stores after the fence"),
        pytest.param(bulk_pipeline, 1, id="no wait for a bulk load"),
        pytest.param(bulk_pipeline, 2, id="no proxy fence"),
        pytest.param(bulk_pipeline, 3, id="source of a bulk store written too early"),
        pytest.param(async_copy, 1, id="no wait for cp.async"),
        pytest.param(async_copy, 2, id="no barrier after cp.async"),
        pytest.param(collectives, 2, id="no barrier between write and read"),
    ],
)
def test_thread_sanitizer_catches(kernel, fault):
    with pytest.raises(RaceError, match="data race"):
        kernel(fault=fault, sanitizer="thread", seeds=range(3))


@pytest.mark.parametrize(
    "fault, message",
    [(5, "heap-buffer-overflow"), (6, "overflow|use-after-poison"), (8, "misaligned address")],
    ids=["beyond a buffer", "beyond shared memory", "misaligned"],
)
def test_address_sanitizer_catches_an_access(fault, message):
    with pytest.raises(MemoryFaultError, match=message):
        handshake(fault=fault, sanitizer="address", seeds=[0])


def test_address_sanitizer_catches_a_copy_beyond_its_buffer():
    given = np.arange(2048, dtype="u4")
    with pytest.raises(EmulationError, match="a copy writes beyond its buffer"):
        run("bulk_pipeline", given, np.zeros(2044, "u4"), sanitizer="address", seeds=[0])


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["RELAXED_SIGNAL", "RELAXED_WAIT"])
def test_thread_sanitizer_catches_a_flag_without_order(fault):
    with pytest.raises(RaceError, match="data race"):
        handshake(sanitizer="thread", seeds=range(3), defines={f"XSTAGE_FAULT_{fault}": 1})


# --- the emulator itself


def test_a_seed_is_a_schedule():
    _, first = collectives(seeds=[3, 4, 3])
    assert (first[0] == first[2]).all()
    job = Job({"a": Buffer(np.zeros(1, "u4"))}, ())
    assert emulate.run(emulate.build(SOURCE, BUILDS), job, [1]) == [emulate.Outcome(1, 1000, {})]


def test_what_cannot_be_built_or_run_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"sanitizer = 'memory': is unknown \(allowed: None, thread, address\)"):
        emulate.build(SOURCE, BUILDS, "memory")
    with pytest.raises(InputError, match=r"kernel = 'no.cu': no such source"):
        emulate.build("no.cu", BUILDS)
    broken = tmp_path / "broken.cu"
    broken.write_text('#include "device.cuh"\nint x = "text";\n')
    with pytest.raises(CompileError, match=r"broken.cu:2:9: error"):
        emulate.build(broken, BUILDS)
    program = emulate.build(SOURCE, BUILDS)
    grid = Grid("collectives", 0, 1, 96, 0, np.zeros(1, PARAMETERS), {})
    with pytest.raises(EmulationError, match="collectives runs whole warps of up to 64 threads, not 96"):
        emulate.run(program, Job({}, (grid,)))
    with pytest.raises(InputError, match="no such buffer"):
        emulate.run(program, Job({"a": Buffer(np.zeros(1, "u8"), pointers={0: Pointer("b")})}, ()))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match=r"no g\+\+ on this machine"):
        emulate.build(SOURCE, tmp_path)
