"""The one loop that runs on a core: it stores, spins, signals and waits as a list of steps says, and notes the time.

Everything that numba compiles for the validator stands in this file, so that a cache on disk can never mix two versions.
Calibration and replay run the same loop, so what the loop itself costs is the same in both.

A list of steps is an integer array [n, 4] of (code, a, b, c):

    SPIN     a = ticks since the last time noted
    AT       a = ticks since the start of all lanes
    STORE    a = lines: non-temporal stores to the next lines of the lane's buffer
    CACHED   a = lines: ordinary stores, over and over to the same few lines
    FENCE    wait until all stores of this core have left it
    SIGNAL   a = address of a counter, b = how much to add
    WAIT     a = address of a counter, b = value to wait for
    ACQUIRE  a = address of a slot, b = how many to take
    RELEASE  a = address of a slot, b = how many to give

Time is noted after every step, so step i took `stamps[i + 1] - stamps[i]` ticks.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

from .architecture import LINE_BYTES, Architecture, detect

SPIN, AT, STORE, CACHED, FENCE, SIGNAL, WAIT, ACQUIRE, RELEASE = range(9)
DONE, ABORTED, TIMED_OUT = range(3)
"""What `run_lane` returns."""

ABORT, ARRIVED, START_TICK = 0, 8, 16
"""Places of the words that all lanes share, each on a cache line of its own."""
N_SHARED = 24

ARCHITECTURE = detect()
I64, I32 = ir.IntType(64), ir.IntType(32)

binding.initialize_native_asmparser()  # numba does not, and inline assembly needs it


def build_line_store(builder: ir.IRBuilder, address: ir.Value, bits: int, nontemporal: bool) -> None:
    """Code that stores a line at `address`, in pieces of `bits`."""
    vector = ir.VectorType(I32, bits // 32)
    for offset in range(0, LINE_BYTES, bits // 8):
        place = builder.inttoptr(builder.add(address, ir.Constant(I64, offset)), vector.as_pointer())
        store = builder.store(ir.Constant(vector, [7] * (bits // 32)), place, align=bits // 8)
        if nontemporal:
            store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


def build_counter(builder: ir.IRBuilder, architecture: Architecture) -> ir.Value:
    """Code that reads the time-stamp counter when everything before it is done, and before anything after it starts."""
    return builder.asm(ir.FunctionType(I64, []), architecture.counter, architecture.counter_outputs, [], True)


def build_fence(builder: ir.IRBuilder, architecture: Architecture) -> None:
    """Code that waits until all stores have left the core."""
    builder.asm(ir.FunctionType(ir.VoidType(), []), architecture.fence, "~{memory}", [], True)


@intrinsic
def _store_line(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        build_line_store(builder, arguments[0], ARCHITECTURE.store_bits, nontemporal=True)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _store_line_cached(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        build_line_store(builder, arguments[0], ARCHITECTURE.store_bits, nontemporal=False)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def _ticks(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return build_counter(builder, ARCHITECTURE)

    return types.int64(), generate


@intrinsic
def _fence(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        build_fence(builder, ARCHITECTURE)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _load(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _add(typing_context: Any, address: Any, amount: Any) -> Any:
    """The value before the addition."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], I64.as_pointer())
        return builder.atomic_rmw("add", place, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _swap_if(typing_context: Any, address: Any, expected: Any, value: Any) -> Any:
    """The value that was there; it has been replaced if it is the expected one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], I64.as_pointer())
        result = builder.cmpxchg(place, arguments[1], arguments[2], "seq_cst", "seq_cst")
        return builder.extract_value(result, 0)

    return types.int64(types.int64, types.int64, types.int64), generate


_compiled = njit(cache=True, nogil=True, error_model="numpy")


@_compiled
def ticks() -> Any:
    """The time-stamp counter."""
    return _ticks()


@_compiled
def next_offset(offset: Any, lines: Any, size: Any) -> Any:
    """Where a burst of `lines` starts in a buffer of `size` bytes: at `offset`, or at 0 if it would leave the buffer.

    Bursts larger than the buffer are refused before anything runs.
    """
    if offset + lines * LINE_BYTES > size:
        return 0
    return offset


@_compiled
def run_lane(steps, first, stamps, shared, n_lanes, buffer, size, cached, cached_size, patience) -> Any:
    """Run the steps of one lane when all `n_lanes` have arrived; fills `stamps` (one more than steps).

    `shared` is the address of the shared words, `buffer` and `cached` those of memory of `size` and `cached_size` bytes;
    `first` is where in the buffer to begin (bytes). No wait lasts longer than `patience` ticks after the start.
    Returns the outcome and the offset in the buffer after the last store.
    """
    offset, line_in_cache = first, 0
    if _add(shared + 8 * ARRIVED, 1) == n_lanes - 1:
        _add(shared + 8 * START_TICK, _ticks() + 20000)
    give_up = _ticks() + patience
    while _load(shared + 8 * START_TICK) == 0:
        if _load(shared + 8 * ABORT) != 0:
            return ABORTED, offset
        if _ticks() > give_up:
            return TIMED_OUT, offset
    start = _load(shared + 8 * START_TICK)
    now = _ticks()
    while now < start:
        now = _ticks()
    give_up = now + patience
    last = now
    stamps[0] = last
    for i in range(len(steps)):
        code, a, b = steps[i, 0], steps[i, 1], steps[i, 2]
        if code == STORE:
            offset = next_offset(offset, a, size)
            address = buffer + offset
            for _ in range(a):
                _store_line(address)
                address += LINE_BYTES
            offset += a * LINE_BYTES
            last = _ticks()
        elif code in (SPIN, AT):
            until = last + a if code == SPIN else start + a
            last = _ticks()
            while last < until:
                last = _ticks()
        elif code == CACHED:
            for _ in range(a):
                _store_line_cached(cached + line_in_cache)
                line_in_cache += LINE_BYTES
                if line_in_cache >= cached_size:
                    line_in_cache = 0
            last = _ticks()
        elif code == FENCE:
            _fence()
            last = _ticks()
        elif code in (SIGNAL, RELEASE):
            _add(a, b)
            last = _ticks()
        else:
            while True:
                value = _load(a)
                if value >= b and (code == WAIT or _swap_if(a, value, value - b) == value):
                    break
                if _load(shared + 8 * ABORT) != 0:
                    return ABORTED, offset
                if _ticks() > give_up:
                    return TIMED_OUT, offset
            last = _ticks()
        stamps[i + 1] = last
        if last > give_up:
            return TIMED_OUT, offset
        if code == SPIN and _load(shared + 8 * ABORT) != 0:
            return ABORTED, offset
    return DONE, offset


@_compiled
def timed_work(turns: Any, value: Any) -> Any:
    """Ticks that a chain of `turns` dependent shifts takes, and its result, without which it would be optimised away."""
    begun: Any = _ticks()
    for _ in range(turns):
        value ^= (value << 13) & 0xFFFFFFFF
        value ^= value >> 17
        value ^= (value << 5) & 0xFFFFFFFF
    return _ticks() - begun, value


@_compiled
def watch_counter(duration: Any, pause: Any) -> Any:
    """Read the counter again and again for `duration` ticks.

    Returns the ticks lost in steps longer than `pause`, in which something else ran on this core, and the shortest step
    above 0.
    """
    begun: Any = _ticks()
    last, lost, shortest = begun, 0, duration
    while last < begun + duration:
        now = _ticks()
        if now - last > pause:
            lost += now - last
        if now > last:
            shortest = min(shortest, now - last)
        last = now
    return lost, shortest
