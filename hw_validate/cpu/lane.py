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

`run_core` is the other loop: it runs several lanes on one core, as a Program says (`tables.py` has its arrays). A lane has a
time of its own, its clock. What needs the core (STORE, LOAD) moves the clock to when the core has done it; a COMPUTE moves
it on by its duration, and a wait to when what it waited for happened. A lane whose clock lies ahead of the core's time is
left alone until then. So the lanes of a core compute side by side and store one after the other, each in its turn, like
those of an SM.

Taking a task and doing an op cost the core some time, and lanes queue for it (`costs`, see `op_costs.py`). Clocks count it,
whatever the core needed this time, and a store or load begins when it is over; so it is the same as in the simulation. A
COMPUTE, or the duration of a SIGNAL, goes on meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from ...sim.jit import cached_njit
from .architecture import LINE_BYTES, Architecture, detect

SPIN, AT, STORE, CACHED, FENCE, SIGNAL, WAIT, ACQUIRE, RELEASE = range(9)
DONE, ABORTED, TIMED_OUT = range(3)
"""What `run_lane` and `run_core` return."""

# Ops of `run_core`: (code, a, b, c, d), and columns of its other arrays. Of the state of a lane and of a group:
OP_COMPUTE, OP_STORE, OP_LOAD, OP_SIGNAL, OP_REMOTE_SIGNAL, OP_WAIT, OP_ACQUIRE, OP_RELEASE, TAKE_TASK = range(9)
N_COSTS = 9
"""Things that have a cost: the ops, and taking a task."""
CLOCK, BEGUN, FINISHED, TASK, OP, OP_END, PAID, ENDED, SINCE = range(9)
STEP, VISITS, N_TAKEN, FINISH_TICK = range(4)
# Of the tables, which stay as they are (tables.py):
LANE_GROUP, LANE_SEAT, LANE_START = range(3)
GROUP_FIRST_STEP, GROUP_N_PREFIX, GROUP_N_STEPS, GROUP_AHEAD, GROUP_FIRST_LANE, GROUP_N_LANES, GROUP_FIRST_SLOT = range(
    7
)
STEP_QUEUE, STEP_OTHERWISE, STEP_TIMES = range(3)
QUEUE_FIRST, QUEUE_N_TASKS, QUEUE_CURSOR, QUEUE_IS_SHARED = range(4)
TASK_FIRST_RUN, TASK_GUARD_COUNTER, TASK_GUARD_COUNT = 0, 1, 3  # two guards each
RUN_FIRST_OP, RUN_N_OPS = range(2)
PIECE_AREA, PIECE_LINES = range(2)
# Of what groups have taken, of notices to give, and of the records:
TAKEN_TASK, TAKEN_TICK = range(2)
NOTICE_COUNTER, NOTICE_END = range(2)
RECORD_LANE, RECORD_TASK, RECORD_OP, RECORD_START, RECORD_END, RECORD_BEGUN = range(6)
STATE_COLUMNS = 16
"""A row of state fills two cache lines, so that cores do not pull each other's lanes away."""
NOTHING_LEFT, NOT_YET = -1, -2
BLOCKED, OVER = 1 << 61, 1 << 62
"""When a lane is due that waits for something to change, or has ended."""
WORDS_APART = 8
"""Counters, slots and cursors are words on cache lines of their own: the value, then when it was last added to (ticks).
A counter has a word for each core, which alone writes it, and its value is their sum: a locked addition would make the core
wait until all of its stores have left it, and so would never let it run ahead of them."""
DEALT_LINES = 8
"""Lines of a store to one area before it goes on to the next."""
MOST_PENDING = 4096
LONG_STORE = 20
"""A store that took this many times what counts as late was interrupted."""

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


@intrinsic
def _load_line(typing_context: Any, address: Any) -> Any:
    """One word of a line, which brings in the line; it cannot be optimised away."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], I64.as_pointer()), "monotonic", 8)

    return types.int64(types.int64), generate


@intrinsic
def _put(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], builder.inttoptr(arguments[0], I64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


_compiled = cached_njit(nogil=True, error_model="numpy")
_inlined = cached_njit(nogil=True, error_model="numpy", inline="always")
"""For parts of `run_core`: a call costs some nanoseconds, and an op some fifty. They are given whole arrays: a row of one as
an argument costs 30 ns."""


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
def _start_together(shared, n_lanes, patience) -> Any:
    """Wait until all `n_lanes` are here. Returns the outcome and the tick at which they start."""
    if _add(shared + 8 * ARRIVED, 1) == n_lanes - 1:
        _add(shared + 8 * START_TICK, _ticks() + 20000)
    give_up = _ticks() + patience
    while _load(shared + 8 * START_TICK) == 0:
        if _load(shared + 8 * ABORT) != 0:
            return ABORTED, 0
        if _ticks() > give_up:
            return TIMED_OUT, 0
    start = _load(shared + 8 * START_TICK)
    while _ticks() < start:
        pass
    return DONE, start


@_compiled
def _bring(table: Any) -> Any:
    """Read all of a table, so that it is in the core's cache; the sum keeps this from being optimised away."""
    total = 0
    for value in table.flat:
        total += value
    return total


@_compiled
def run_lane(steps, first, stamps, shared, n_lanes, buffer, size, cached, cached_size, patience) -> Any:
    """Run the steps of one lane when all `n_lanes` have arrived; fills `stamps` (one more than steps).

    Steps and stamps are brought into the core's cache first: fetching one would count as time of a burst.

    `shared` is the address of the shared words, `buffer` and `cached` those of memory of `size` and `cached_size` bytes;
    `first` is where in the buffer to begin (bytes). No wait lasts longer than `patience` ticks after the start.
    Returns the outcome and the offset in the buffer after the last store.
    """
    offset, line_in_cache = first, 0
    stamps[:] = _bring(steps) & 1
    outcome, start = _start_together(shared, n_lanes, patience)
    if outcome != DONE:
        return outcome, offset
    last: Any = _ticks()
    give_up = last + patience
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
            if _load(shared + 8 * ABORT) != 0:  # before the spin: after it, what this takes would be time of a burst
                return ABORTED, offset
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
    return DONE, offset


@_compiled
def _bump(word: Any, amount: Any, tick: Any) -> None:
    """Add to a word that no other core writes, and note when: first the time, so that whoever sees the value sees a time."""
    _put(word + 8, tick)
    _put(word, _load(word) + amount)


@_compiled
def _counted(words: Any, counter: Any, n_cores: Any) -> Any:
    """Value of a counter, and when it was last added to."""
    value, tick = 0, 0
    for core in range(n_cores):
        word = words + 8 * WORDS_APART * (counter * n_cores + core)
        value += _load(word)
        tick = max(tick, _load(word + 8))
    return value, tick


@_compiled
def _next_task(
    lane, lanes, lane_state, groups, group_state, taken, steps, queues, queue_tasks, tasks, words, n_cores
) -> Any:  # fmt: skip
    """The next task of a lane, as the plan of its group says. NOT_YET if it has to wait, NOTHING_LEFT if that was all.

    The lane's clock moves to when the task could be taken.
    """
    g = lanes[lane, LANE_GROUP]
    group, state = groups[g], group_state[g]
    begun = lane_state[lane, BEGUN]
    if begun < state[N_TAKEN]:
        lane_state[lane, BEGUN] += 1
        lane_state[lane, CLOCK] = max(lane_state[lane, CLOCK], taken[g, begun, TAKEN_TICK])
        return taken[g, begun, TAKEN_TASK]
    first_step, n_prefix, n_steps = group[GROUP_FIRST_STEP], group[GROUP_N_PREFIX], group[GROUP_N_STEPS]
    ahead, first_lane, n_lanes = group[GROUP_AHEAD], group[GROUP_FIRST_LANE], group[GROUP_N_LANES]
    skipped = 0
    while True:
        if state[STEP] == n_steps:
            state[STEP] = n_prefix
        if state[STEP] >= n_prefix and skipped >= n_steps - n_prefix:
            return NOTHING_LEFT
        is_open = False
        for column in range(STEP_QUEUE, STEP_OTHERWISE + 1):
            q = steps[first_step + state[STEP], column]
            if q >= 0 and _load(words + 8 * WORDS_APART * queues[q, QUEUE_CURSOR]) < queues[q, QUEUE_N_TASKS]:
                is_open = True
        if is_open:
            break
        if state[STEP] >= n_prefix:
            skipped += 1
        state[STEP] += 1
        state[VISITS] = 0
    slowest = lane_state[first_lane, FINISHED]
    for other in range(first_lane, first_lane + n_lanes):
        slowest = min(slowest, lane_state[other, FINISHED])
    if state[N_TAKEN] - slowest > ahead:
        return NOT_YET
    for column in range(STEP_QUEUE, STEP_OTHERWISE + 1):
        q = steps[first_step + state[STEP], column]
        if q < 0:
            continue
        cursor = words + 8 * WORDS_APART * queues[q, QUEUE_CURSOR]
        head: Any = _load(cursor)
        if head >= queues[q, QUEUE_N_TASKS]:
            continue
        task = queue_tasks[queues[q, QUEUE_FIRST] + head]
        clock, holds = lane_state[lane, CLOCK], True
        for guard in range(2):
            counter = tasks[task, TASK_GUARD_COUNTER + guard]
            if counter >= 0:
                value, tick = _counted(words, counter, n_cores)
                clock = max(clock, tick)
                if value < tasks[task, TASK_GUARD_COUNT + guard]:
                    holds = False
        if not holds:
            continue
        if queues[q, QUEUE_IS_SHARED] == 0:
            _put(cursor, head + 1)
        elif _swap_if(cursor, head, head + 1) != head:
            return NOT_YET  # another core was faster: look again
        if ahead < taken.shape[1]:  # a limit: the last lane that ended a task let this one begin
            clock = max(clock, state[FINISH_TICK])
        taken[g, state[N_TAKEN], TAKEN_TASK], taken[g, state[N_TAKEN], TAKEN_TICK] = task, clock
        state[N_TAKEN] += 1
        state[VISITS] += 1
        times = steps[first_step + state[STEP], STEP_TIMES]
        if times != 0 and state[VISITS] >= times:
            state[STEP] += 1
            state[VISITS] = 0
        lane_state[lane, BEGUN] += 1
        lane_state[lane, CLOCK] = clock
        return task
    return NOT_YET


@_compiled
def _store_dealt(first, count, pieces, left, stores, area_bytes, offsets, cached, cached_size, line_in_cache) -> Any:
    """One STORE: its pieces (area, lines) dealt in turn, area -1 being the core's cache. Returns the place in the cache, and
    when the last line was stored.

    Nothing is loaded between the last line and that moment: a load waits for an older store that still lies in the core if
    their addresses end alike (in the lowest 12 bits), and with a page's worth of lines in there one always does.
    """
    remaining = 0
    for i in range(count):
        area, lines = pieces[first + i, PIECE_AREA], pieces[first + i, PIECE_LINES]
        left[i] = lines
        remaining += lines
        if area >= 0:
            offsets[area] = next_offset(offsets[area], lines, area_bytes)
    ended: Any = _ticks()
    while remaining > 0:
        for i in range(count):
            lines = min(DEALT_LINES, left[i]) if count > 1 else left[i]
            area = pieces[first + i, PIECE_AREA]
            left[i] -= lines
            remaining -= lines
            if area >= 0:
                address = stores + area * area_bytes + offsets[area]
                offsets[area] += lines * LINE_BYTES
                for _ in range(lines):
                    _store_line(address)
                    address += LINE_BYTES
            else:
                for _ in range(lines):
                    _store_line_cached(cached + line_in_cache)
                    line_in_cache += LINE_BYTES
                    if line_in_cache >= cached_size:
                        line_in_cache = 0
            if remaining == 0:
                ended = _ticks()
                break
    return line_in_cache, ended


@_compiled
def _make_ready(mine, tables, lane_state, group_state, lanes, taken, words, n_words, records) -> Any:
    """Reset what a run changes, and touch all that it uses, so that no page or table is fetched in it."""
    brought = 0
    for table in tables:
        brought += _bring(table)
    taken[:] = 0
    for word in range(n_words):
        _add(words + 8 * WORDS_APART * word, 0)
    records[:] = 0
    for lane in mine:
        lane_state[lane, PAID] = 0
        group_state[lanes[lane, LANE_GROUP], STEP] = 0
    return brought


@_inlined
def _wake(due, awaited, needed, words, n_cores, now) -> None:
    """Make due the blocked lanes whose counter has come far enough, or that wait for something else."""
    for i in range(len(due)):
        if due[i] == BLOCKED and (awaited[i] < 0 or _counted(words, awaited[i], n_cores)[0] >= needed[i]):
            due[i], awaited[i] = now, -1


@_inlined
def _changed_so_far(changes, n_cores) -> Any:
    """How often all cores have changed what lanes may wait for."""
    value = 0
    for core in range(n_cores):
        value += _load(changes + 8 * WORDS_APART * core)
    return value


@_inlined
def _give_notices(pending, n_pending, words, n_cores, me, now) -> None:
    """Bump the counters of stores that have left the core."""
    for i in range(n_pending):
        _bump(words + 8 * WORDS_APART * (pending[i, NOTICE_COUNTER] * n_cores + me), 1, now)


@_inlined
def _begin_at(ready) -> Any:
    """Wait until the core is to begin. Returns when it did."""
    began: Any = _ticks()
    while began < ready:
        began = _ticks()
    return began


@_inlined
def _load_lines(area, lines, loads, load_bytes, load_offsets) -> Any:
    """One LOAD: the next lines of an area. Returns something of them."""
    brought = 0
    load_offsets[area] = next_offset(load_offsets[area], lines, load_bytes)
    address = loads + area * load_bytes + load_offsets[area]
    for _ in range(lines):
        brought += _load_line(address)
        address += LINE_BYTES
    load_offsets[area] += lines * LINE_BYTES
    return brought


@_compiled
def run_core(
    me, mine, ops, costs, pieces, notices, runs, tasks, queues, queue_tasks, steps, groups, lanes, lane_state,
    group_state, taken, words, n_words, records, shared, n_cores, stores, loads, area_bytes, load_bytes, offsets,
    load_offsets, cached, cached_size, drain_ticks, patience, late,
) -> Any:  # fmt: skip
    """Run the lanes `mine` of core `me` until they have ended, together with `n_cores - 1` other cores.

    Fills `records`, a row an op in the order in which they ended: (lane, task, op, start, end, when the core began it), in
    ticks after the common start. `words` is the address of `n_words` words and one for each core; `stores` and `loads`
    those of the areas of `area_bytes` and `load_bytes`, with the places where to go on in `offsets` and `load_offsets`.
    `costs` are ticks by op code. A notice of a store is given when `drain_ticks` have passed since the core's last store.
    Returns the outcome, the number of records, the ticks lost to whatever else ran on the core, and the lane that waited
    too long (-1: none, or the core itself for the others).
    """
    # Counter to bump, and end of the store; ones, so that its memory is touched.
    pending = np.ones((MOST_PENDING, 2), dtype=np.int64)
    left = np.zeros(64, dtype=np.int64)
    n_pending, n_records, lost, line_in_cache, last_store, done = 0, 0, 0, 0, 0, 0
    tables = (ops, pieces, runs, tasks, queues, steps, groups, lanes)
    brought = _make_ready(mine, tables, lane_state, group_state, lanes, taken, words, n_words + n_cores, records)
    outcome, start = _start_together(shared, n_cores, patience)
    if outcome != DONE:
        return outcome, 0, 0, -1
    live = len(mine)
    due = np.empty(live, dtype=np.int64)  # when to look at a lane again: all that an idle lane costs is a comparison
    for i in range(live):
        lane_state[mine[i], CLOCK] = due[i] = start + lanes[mine[i], LANE_START]
    awaited, needed = np.full(live, -1, dtype=np.int64), np.zeros(live, dtype=np.int64)  # the counter of a blocked WAIT
    changes = words + 8 * WORDS_APART * n_words  # a word for each core: how often it changed what lanes may wait for
    seen = 0
    now: Any = _ticks()
    core_free = start
    give_up = now + patience
    while live > 0 or n_pending > 0:
        before = now
        now = _ticks()
        if now - before > late + done * (late // 4):
            lost += now - before
        done, changed = 0, 0
        if n_pending > 0 and (now > last_store + drain_ticks or now > pending[0, NOTICE_END] + 10 * drain_ticks):
            _fence()
            now = _ticks()
            _give_notices(pending, n_pending, words, n_cores, me, now)
            n_pending, changed = 0, 1
        if _load(shared + 8 * ABORT) != 0:
            return ABORTED, n_records, lost, -1
        if now > give_up:
            _add(shared + 8 * ABORT, 1)
            for lane in mine:
                if lane_state[lane, ENDED] == 0:
                    return TIMED_OUT, n_records, lost, lane
        value = _changed_so_far(changes, n_cores)
        if value != seen:
            seen = value
            _wake(due, awaited, needed, words, n_cores, now)
        for turn in range(len(due)):
            if due[turn] > now:
                continue
            due[turn] = BLOCKED
            lane = mine[turn]
            state = lane_state[lane]
            if state[OP] == state[OP_END]:
                if state[TASK] >= 0:
                    state[FINISHED] += 1
                    state[TASK] = -1
                    group_state[lanes[lane, LANE_GROUP], FINISH_TICK] = state[CLOCK]
                    changed = 1
                task = _next_task(
                    lane, lanes, lane_state, groups, group_state, taken, steps, queues, queue_tasks, tasks, words, n_cores,
                )  # fmt: skip
                if task == NOTHING_LEFT:
                    state[ENDED] = 1
                    due[turn] = OVER
                    live -= 1
                    changed = 1
                if task < 0:
                    continue
                run = tasks[task, TASK_FIRST_RUN] + lanes[lane, LANE_SEAT]
                first_op, n_ops = runs[run, RUN_FIRST_OP], runs[run, RUN_N_OPS]
                state[TASK], state[OP], state[OP_END] = task, first_op, first_op + n_ops
                state[SINCE] = state[CLOCK]
                if n_ops > 0:
                    state[CLOCK] = core_free = max(state[CLOCK], core_free) + costs[TAKE_TASK]
                due[turn] = state[CLOCK]
                done += 1
                changed = 1
                continue
            number = state[OP]
            code, a, b, c = ops[number, 0], ops[number, 1], ops[number, 2], ops[number, 3]
            began = state[CLOCK]
            cost = costs[code]
            ready = max(state[CLOCK], core_free) + cost
            if code == OP_COMPUTE:
                core_free = ready
                state[CLOCK] = ready + max(0, a - cost)
            elif code == OP_STORE:
                for i in range(a, a + b):
                    # What the store reads shall be in the cache when its time begins.
                    brought += pieces[i, PIECE_AREA] + left[i - a] + offsets[max(0, pieces[i, PIECE_AREA])]
                    if pieces[i, PIECE_AREA] < 0:
                        for place in range(0, min(cached_size, pieces[i, PIECE_LINES] * LINE_BYTES), LINE_BYTES):
                            brought += _load_line(cached + (line_in_cache + place) % cached_size)
                began = _begin_at(ready)
                line_in_cache, now = _store_dealt(
                    a, b, pieces, left, stores, area_bytes, offsets, cached, cached_size, line_in_cache
                )
                state[CLOCK] = core_free = last_store = now
                if now - began > LONG_STORE * late:
                    lost += now - began
                for i in range(c, ops[number, 4]):
                    pending[n_pending, NOTICE_COUNTER], pending[n_pending, NOTICE_END] = notices[i], now
                    n_pending += 1
            elif code == OP_LOAD:
                began = _begin_at(ready)
                brought += _load_lines(a, b, loads, load_bytes, load_offsets)
                now = _ticks()
                state[CLOCK] = core_free = now
            elif code in (OP_SIGNAL, OP_REMOTE_SIGNAL):
                if c > 0 and state[PAID] == 0:
                    state[PAID] = 1
                    core_free = ready
                    state[CLOCK] = due[turn] = ready + max(0, c - cost)
                    done += 1
                    continue
                if c == 0:
                    state[CLOCK] = core_free = ready
                state[PAID] = 0
                if code == OP_REMOTE_SIGNAL:
                    _fence()
                    now = _ticks()
                    core_free = max(core_free, now)
                    state[CLOCK] = max(state[CLOCK], now)
                    _give_notices(pending, n_pending, words, n_cores, me, now)
                    n_pending = 0
                _bump(words + 8 * WORDS_APART * (a * n_cores + me), b, state[CLOCK])
                changed = 1
            elif code == OP_RELEASE:
                state[CLOCK] = core_free = ready
                _bump(words + 8 * WORDS_APART * (groups[lanes[lane, LANE_GROUP], GROUP_FIRST_SLOT] + a), b, ready)
                changed = 1
            elif code == OP_WAIT:
                value, tick = _counted(words, a, n_cores)
                if value < b:
                    awaited[turn], needed[turn] = a, b
                    continue
                state[CLOCK] = core_free = max(state[CLOCK], tick, core_free) + cost
            else:
                word = words + 8 * WORDS_APART * (groups[lanes[lane, LANE_GROUP], GROUP_FIRST_SLOT] + a)
                value = _load(word)
                if value < b:
                    continue
                _put(word, value - b)
                state[CLOCK] = core_free = max(state[CLOCK], _load(word + 8), core_free) + cost
            records[n_records, RECORD_LANE], records[n_records, RECORD_TASK] = lane, state[TASK]
            records[n_records, RECORD_OP], records[n_records, RECORD_BEGUN] = number, began - start
            records[n_records, RECORD_START] = state[SINCE] - start
            records[n_records, RECORD_END] = state[CLOCK] - start
            n_records += 1
            done += 1
            state[OP] += 1
            state[SINCE] = state[CLOCK]
            due[turn] = state[CLOCK]
        if changed != 0:
            _put(changes + 8 * WORDS_APART * me, _load(changes + 8 * WORDS_APART * me) + 1)
    if brought == 0x7FFFFFFFFFFFFFF:  # never: what was loaded has to be used for something
        lost += 1
    return DONE, n_records, lost, -1


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
