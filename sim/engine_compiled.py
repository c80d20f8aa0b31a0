"""The compiled engine: the rules of `engine_simpy`, to the same integers, a few hundred times faster.

Everything that numba compiles stands in this file, so that a cache on disk can never mix two versions of the rules.
State is kept in structured arrays, one record a lane, group, SM, port, counter or granule. Read `_lane_turn` beside
`engine_simpy.Lane`: the steps have the same names.

Three shortcuts make it fast without changing a number:
- A first come, first served port needs no queue: its next start is known as soon as a granule reaches it.
- Events of one port are in order already, so only the first of them stands in the event queue.
- Only events before a horizon stand in a heap, a few at a time. Later ones wait unsorted in a wheel of buckets, by time
  modulo its round (Varghese and Lauck, Hashed and hierarchical timing wheels, SOSP 1987), until the horizon comes to
  theirs. Buckets become narrower or wider with the rate of events (as in Brown's calendar queues, CACM 31(10), 1988).

The engine comes back to Python every `EVENTS_AT_A_TIME` events, so that Ctrl-C is heard and progress told, and whenever
there are few granules left, to make room for more. It goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import program as p
from .jit import cached_njit
from .outcome import GRANULE_RECORD, LANE_TOTAL, OP_RECORD, PORT_TOTAL, SPAN, Outcome, Stuck

if TYPE_CHECKING:
    from .layout import Layout
    from .program import Program
    from .topology import Fabric

Array = np.ndarray[Any, np.dtype[Any]]

EVENTS_AT_A_TIME = 1_000_000  # some tenths of a second

# Classes of events at one instant, in the order in which they run. A turn that was broken off comes before everything.
RESUMED_CLASS = -1
RELEASE_CLASS, PORT_CLASS, GRANULE_CLASS, LANE_CLASS = range(4)
CLASS_SHIFT = 60

# What a lane does at its next turn.
(
    NEXT_TASK,
    NEXT_OP,
    SIGNAL_NOW,
    OP_DONE,
    WAITED,
    NEXT_GRANULE,
    HAS_PORT,
    HAS_SM_ROOM,
    HAS_GPU_ROOM,
    ISSUED,
    LOAD_NOW,
    ENDED,
) = range(12)

# What a granule is, and what happens at its next event.
STORED, REPLY, REQUEST = range(3)
REACH, REQUEST_ARRIVES, VISIBLE = range(3)

TAKEN, AHEAD_LIMIT, GUARDED, EXHAUSTED = range(4)
CAUSE_SLOT, CAUSE_ISSUE, CAUSE_WINDOW, CAUSE_TASK = (p.CAUSES.index(c) for c in ("slot", "issue", "window", "task"))

# Named indices into the array of scalars.
(
    HEAP_SIZE,
    WHEEL_SIZE,
    HORIZON,
    WIDTH,
    BUCKETS_PASSED,
    EVENTS_BEFORE,
    EVENTS,
    PAUSE_AT,
    TICKETS,
    FREE_GRANULE,
    N_FREE,
    OP_RECORDS,
    LANES_END,
    ARRIVED,
) = range(14)
N_SCALARS = 14

NONE = -1

HEAP = np.dtype([("time", "i8"), ("key", "i8"), ("item", "i8")])
PLACE = np.dtype([("time", "i8"), ("key", "i8"), ("item", "i8"), ("next", "i8")])
"""An event in the wheel. A lane, a port and a granule have at most one event to come each, and so a place of their own."""
LANE_STATE = np.dtype(
    [
        ("resume", "i4"),
        ("waiting", "i4"),
        ("woken", "i4"),
        ("cause", "i4"),
        ("next", "i4"),
        ("tokens", "i4"),
        ("task", "i4"),
        ("begun", "i4"),
        ("finished", "i4"),
        ("op", "i4"),
        ("op_end", "i4"),
        ("row", "i4"),
        ("share", "i4"),
        ("last_of_share", "i4"),
        ("to", "i4"),
        ("at_home", "i4"),
        ("scatter", "i4"),
        ("number", "i4"),
        ("granule", "i8"),
        ("round", "i8"),
        ("issued", "i8"),
        ("issued_ps", "i8"),
        ("issue", "i8"),
        ("since", "i8"),
        ("mark", "i8"),
        ("op_start", "i8"),
        ("op_stall", "i8"),
        ("op_wait", "i8"),
        ("span", "i8"),
        ("span_stall", "i8"),
    ]
)
GROUP_STATE = np.dtype(
    [("first_task", "i4"), ("last_task", "i4"), ("n_taken", "i4"), ("step", "i4"), ("visits", "i4"), ("watching", "i4")]
)
SM_STATE = np.dtype(
    [
        ("holder", "i4"),
        ("head", "i4"),
        ("tail", "i4"),
        ("room_waiter", "i4"),
        ("room", "i8"),
        ("held", "i8"),
        ("peak", "i8"),
        ("stalled_since", "i8"),
        ("stalled_total", "i8"),
    ]
)
GPU_STATE = np.dtype([("head", "i4"), ("tail", "i4"), ("room", "i8"), ("held", "i8"), ("peak", "i8")])
PORT_STATE = np.dtype(
    [
        ("free", "i8"),
        ("head", "i8"),
        ("tail", "i8"),
        ("store_head", "i8"),
        ("store_tail", "i8"),
        ("reply_head", "i8"),
        ("reply_tail", "i8"),
        ("served", "i4"),
        ("busy", "i4"),
    ]
)
COUNTER_STATE = np.dtype([("value", "i8"), ("least", "i8"), ("head", "i8")])
SLOT_STATE = np.dtype([("value", "i8"), ("head", "i4"), ("tail", "i4")])
WATCHER = np.dtype([("counter", "i8"), ("needed", "i8"), ("next", "i8"), ("previous", "i8")])
GRANULE = np.dtype(
    [
        ("ticket", "i8"),
        ("bytes", "i8"),
        ("finish", "i8"),
        ("time", "i8"),
        ("next", "i8"),
        ("parent", "i8"),
        ("admitted", "i8"),
        ("port", "i4"),
        ("op", "i4"),
        ("hop", "i4"),
        ("hops_end", "i4"),
        ("copies", "i4"),
        ("kind", "i4"),
        ("event", "i4"),
        ("lane", "i4"),
        ("source", "i4"),
        ("to", "i4"),
        ("counter", "i4"),
        ("amount", "i4"),
        ("scatter", "i4"),
        ("reduce", "i4"),
        ("last", "i4"),
        ("multicast", "i4"),
    ],
    align=True,
)

_compiled = cached_njit(error_model="numpy", forceinline=True, _nrt=False)
"""Nothing in here allocates, so numba need not count references to the arrays that the functions hand to each other: with
`_nrt` on, the engine is thirty times slower. Divisors are rates and sizes that have been checked to be above 0."""

FIRST_POOL = 1 << 14
FIRST_WIDTH, MOST_WIDTH = 8, 40  # of a bucket: 2^8 ps, 2^40 ps
LEAST_BUCKETS, MOST_BUCKETS = 1 << 6, 1 << 16  # as many as lanes: each round of too few goes over every waiting event
LEAST_EVENTS, MOST_EVENTS = 1, 8  # by bucket: enough to pass few empty ones, so few that the heap stays flat
GUARD_WATCHERS = 4  # a group waits for at most two guards of each of two queues
FAR = 2**62


class Tables(NamedTuple):
    """The Program and the Fabric, read only."""

    lanes: Any
    groups: Any
    plans: Any
    steps: Any
    queues: Any
    queue_tasks: Any
    tasks: Any
    runs: Any
    ops: Any
    destinations: Any
    shares: Any
    counters: Any
    lane_sm: Any
    sm_gpu: Any
    span_first: Any
    stage_of_gpu: Any
    rates: Any
    route_first: Any
    route_ports: Any
    latency: Any


class State(NamedTuple):
    """What changes while a Program runs."""

    lanes: Any
    groups: Any
    sms: Any
    gpus: Any
    ports: Any
    counters: Any
    slots: Any
    watchers: Any
    granules: Any
    heap: Any
    wheel: Any
    places: Any
    scalars: Any
    queue_heads: Any
    next_taken: Any
    lane_totals: Any
    spans: Any
    port_totals: Any
    op_records: Any
    granule_records: Any


class Settings(NamedTuple):
    """Numbers that are the same for the whole run."""

    granule_bytes: int
    signal_bytes: int
    request_permille: int
    fair: bool
    n_gpus: int
    scatter_from: int
    full: bool
    reserve: int  # more granules than that one event, or one step of a lane, may need


def run(
    program: Program,
    fabric: Fabric,
    layout: Layout,
    full: bool,
    progress: Callable[[int, int], None] | None = None,
    first_pool: int = FIRST_POOL,
) -> tuple[Outcome, list[Stuck]]:
    """Run a Program. Returns the outcome and the lanes that could not finish.

    `progress` is told every `EVENTS_AT_A_TIME` how many tasks lanes have finished and how many granules have got their
    tickets. `first_pool` is how many granules in flight there is room for at first.
    """
    state = _initial_state(program, fabric, layout, full, first_pool)
    tables = Tables(
        program.lanes, program.groups, program.plans, program.steps, program.queues, program.queue_tasks,
        program.tasks, program.runs, program.ops, program.destinations, program.shares, program.counters,
        layout.lane_sm, layout.sm_gpu, layout.span_first,
        fabric.stages, fabric.rates_kbs, *_routes(fabric), fabric.latency_ps,
    )  # fmt: skip
    settings = Settings(
        fabric.granule_bytes, fabric.signal_bytes, fabric.request_permille, fabric.fair_replies, fabric.n_gpus,
        fabric.scatter_from, full,
        _reserve(program, fabric),
    )  # fmt: skip
    scalars = state.scalars
    while scalars[HEAP_SIZE] + scalars[WHEEL_SIZE] > 0:
        while scalars[N_FREE] < settings.reserve:
            state = _with_more_granules(state)
        scalars[PAUSE_AT] = scalars[EVENTS] + EVENTS_AT_A_TIME
        _run(tables, state, settings)
        if progress is not None:
            progress(int(state.lanes["finished"].sum()), int(scalars[TICKETS]))
    return _outcome(state, fabric.stages[: program.n_gpus]), _stuck(state.lanes)


def _reserve(program: Program, fabric: Fabric) -> int:
    """One granule, and the most replies to one load or the most copies of a multicast."""
    loads = program.ops["bytes"][program.ops["kind"] == p.LOAD].max(initial=0)
    copies = program.destinations["n_shares"][program.destinations["replicate"] == 1].max(initial=0)
    return 1 + max(-int(-loads // fabric.granule_bytes), int(copies))


def _with_more_granules(state: State) -> State:
    """The same state with room for twice as many granules in flight."""
    old = len(state.granules)
    granules, heap = np.zeros(2 * old, GRANULE), np.zeros(len(state.heap) + old, HEAP)
    places = np.zeros(len(state.places) + old, PLACE)
    granules[:old], heap[: len(state.heap)], places[: len(state.places)] = state.granules, state.heap, state.places
    granules["next"][old:] = [*range(old + 1, 2 * old), state.scalars[FREE_GRANULE]]
    state.scalars[FREE_GRANULE] = old
    state.scalars[N_FREE] += old
    return state._replace(granules=granules, heap=heap, places=places)


def _routes(fabric: Fabric) -> tuple[Array, Array]:
    """Offsets and ports of all routes: those of stores, then those of replies."""
    reply_first, reply_ports = fabric.reply_routes
    first = np.concatenate([fabric.route_first[:-1], len(fabric.route_ports) + reply_first])
    return first.astype(np.int32), np.concatenate([fabric.route_ports, reply_ports])


def _initial_state(program: Program, fabric: Fabric, layout: Layout, full: bool, pool: int) -> State:
    def blank(size: int, dtype: Any, *none: str) -> Array:
        rows = np.zeros(size, dtype)
        for name in none:
            rows[name] = NONE
        return rows

    n_lanes, n_groups = len(program.lanes), len(program.groups)
    lanes = blank(n_lanes, LANE_STATE, "next", "task")
    lanes["tokens"] = program.lanes["window"]
    lanes["number"] = np.arange(n_lanes)
    lanes["woken"] = 1
    heap = blank(n_lanes + 2 * fabric.n_ports + pool + 1, HEAP)
    first_turns = heap[:n_lanes]  # in order of time and number, which is a heap
    first_turns["item"] = np.argsort(program.lanes["start_ps"], kind="stable")
    first_turns["time"] = program.lanes["start_ps"][first_turns["item"]]
    first_turns["key"] = (LANE_CLASS << CLASS_SHIFT) | first_turns["item"]
    scalars = np.zeros(N_SCALARS, np.int64)
    scalars[HEAP_SIZE], scalars[N_FREE] = n_lanes, pool
    scalars[HORIZON], scalars[WIDTH] = int(program.lanes["start_ps"].max(initial=0)) + 1, FIRST_WIDTH
    sms = blank(len(layout.sm_gpu), SM_STATE, "holder", "head", "tail", "room_waiter", "stalled_since")
    sms["room"] = fabric.capacity_sm[layout.sm_gpu]
    gpus = blank(fabric.n_gpus, GPU_STATE, "head", "tail")
    gpus["room"] = fabric.capacity_gpu
    ports = blank(fabric.n_ports, PORT_STATE, "head", "tail", "store_head", "store_tail", "reply_head", "reply_tail")
    ports["served"] = REPLY
    counters = blank(len(program.counters), COUNTER_STATE, "head")
    counters["value"] = program.counters["initial"]
    counters["least"] = FAR
    slots = blank(len(program.slots), SLOT_STATE, "head", "tail")
    slots["value"] = program.slots
    granules = blank(pool, GRANULE)
    granules["next"] = np.append(np.arange(1, pool), NONE)
    return State(
        lanes=lanes,
        groups=blank(n_groups, GROUP_STATE, "first_task", "last_task"),
        sms=sms,
        gpus=gpus,
        ports=ports,
        counters=counters,
        slots=slots,
        watchers=blank(n_lanes + GUARD_WATCHERS * n_groups, WATCHER, "counter"),
        granules=granules,
        heap=heap,
        wheel=np.full(min(MOST_BUCKETS, max(LEAST_BUCKETS, 1 << n_lanes.bit_length())), NONE, np.int32),
        places=np.zeros(n_lanes + fabric.n_ports + pool, PLACE),
        scalars=scalars,
        queue_heads=program.queues["first"].astype(np.int64),
        next_taken=np.full(len(program.tasks), NONE, np.int64),
        lane_totals=blank(n_lanes, LANE_TOTAL),
        spans=blank(layout.n_spans, SPAN, "group"),
        port_totals=blank(fabric.n_ports, PORT_TOTAL),
        op_records=blank(layout.max_op_records if full else 0, OP_RECORD),
        granule_records=blank(layout.max_granules if full else 0, GRANULE_RECORD),
    )


def _stuck(lanes: Array) -> list[Stuck]:
    unfinished = np.flatnonzero(lanes["resume"] != ENDED)
    at_op = lanes["resume"] != NEXT_TASK
    return [
        Stuck(
            int(lane),
            int(lanes["task"][lane]) if at_op[lane] else NONE,
            int(lanes["op"][lane]) if at_op[lane] else NONE,
        )
        for lane in unfinished
    ]


def _outcome(state: State, stages: Array) -> Outcome:
    scalars = state.scalars
    return Outcome(
        lanes=state.lane_totals,
        spans=state.spans,
        ports=state.port_totals,
        peak_sm_bytes=state.sms["peak"].copy(),
        peak_gpu_bytes=state.gpus["peak"][stages],
        counters=state.counters["value"].copy(),
        events=int(scalars[EVENTS]),
        granules=int(scalars[TICKETS]),
        lanes_end_ps=int(scalars[LANES_END]),
        arrived_ps=int(scalars[ARRIVED]),
        op_records=state.op_records[: scalars[OP_RECORDS]],
        granule_records=state.granule_records[: scalars[TICKETS]],
    )


@_compiled
def _run(tables, state, settings):
    """Go on until the end, until `PAUSE_AT`, or until granules become scarce."""
    heap, scalars = state.heap, state.scalars
    while scalars[EVENTS] < scalars[PAUSE_AT] and scalars[N_FREE] >= settings.reserve:
        if scalars[HEAP_SIZE] == 0:
            if scalars[WHEEL_SIZE] == 0:
                return
            _turn_wheel(state)
        now, item = heap[0].time, heap[0].item
        event_class = heap[0].key >> CLASS_SHIFT
        _remove_first(heap, scalars)
        if event_class == GRANULE_CLASS:
            _granule_event(tables, state, settings, item, now)
        elif event_class == RELEASE_CLASS:
            _drained(tables, state, settings, item, now)
        elif event_class == PORT_CLASS:
            _port_free(tables, state, settings, item, now)
        else:
            if event_class == LANE_CLASS:
                state.lanes[item].woken = 0
                scalars[EVENTS] += 1
            _lane_turn(tables, state, settings, item, now)


# --- the event queue -------------------------------------------------------------------------------------------------


@_compiled
def _push(state, time, event_class, number, item):
    """Add an event, to the heap if it comes before the horizon, as one at the present does, else to the wheel."""
    scalars = state.scalars
    key = (event_class << CLASS_SHIFT) | number
    if time < scalars[HORIZON]:
        _push_near(state.heap, scalars, time, key, item)
        return
    index = item
    if event_class != LANE_CLASS:
        index += len(state.lanes)
        if event_class != PORT_CLASS:
            index += len(state.ports)
    place = state.places[index]
    place.time = time
    place.key = key
    place.item = item
    _hang(state, index)
    scalars[WHEEL_SIZE] += 1


@_compiled
def _push_near(heap, scalars, time, key, item):
    """Add an event to the heap. Rows are copied column by column: a whole one, which the processor reads wider than its
    columns were written, has to wait until they have left the store buffer."""
    at = scalars[HEAP_SIZE]
    scalars[HEAP_SIZE] = at + 1
    while at > 0:
        up = (at - 1) >> 1
        if heap[up].time < time or (heap[up].time == time and heap[up].key < key):
            break
        heap[at].time, heap[at].key, heap[at].item = heap[up].time, heap[up].key, heap[up].item
        at = up
    heap[at].time = time
    heap[at].key = key
    heap[at].item = item


@_compiled
def _remove_first(heap, scalars):
    size = scalars[HEAP_SIZE] - 1
    scalars[HEAP_SIZE] = size
    time, key, item = heap[size].time, heap[size].key, heap[size].item
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            heap[right].time < heap[child].time
            or (heap[right].time == heap[child].time and heap[right].key < heap[child].key)
        ):
            child = right
        if time < heap[child].time or (time == heap[child].time and key < heap[child].key):
            break
        heap[at].time, heap[at].key, heap[at].item = heap[child].time, heap[child].key, heap[child].item
        at = child
    heap[at].time = time
    heap[at].key = key
    heap[at].item = item


@_compiled
def _hang(state, index):
    """Put a place into the bucket of its time."""
    bucket = (state.places[index].time >> state.scalars[WIDTH]) & (len(state.wheel) - 1)
    state.places[index].next = state.wheel[bucket]
    state.wheel[bucket] = index


@_compiled
def _turn_wheel(state):
    """Move the horizon on, bucket by bucket, until the heap, which is empty, gets an event."""
    scalars, wheel, places = state.scalars, state.wheel, state.places
    while scalars[HEAP_SIZE] == 0:
        _fit_width(state)
        number = scalars[HORIZON] >> scalars[WIDTH]
        horizon = (number + 1) << scalars[WIDTH]
        scalars[HORIZON] = horizon
        scalars[BUCKETS_PASSED] += 1
        bucket = number & (len(wheel) - 1)
        index = wheel[bucket]
        wheel[bucket] = NONE
        while index != NONE:
            following = places[index].next
            if places[index].time < horizon:
                _push_near(state.heap, scalars, places[index].time, places[index].key, places[index].item)
                scalars[WHEEL_SIZE] -= 1
            else:  # of a later round
                places[index].next = wheel[bucket]
                wheel[bucket] = index
            index = following


@_compiled
def _fit_width(state):
    """Halve the width of buckets once they held too many events for one round, double it after a round with too few."""
    scalars, n_buckets = state.scalars, len(state.wheel)
    events = scalars[EVENTS] - scalars[EVENTS_BEFORE]
    change = 0
    if events > MOST_EVENTS * n_buckets:
        change = -1
    elif scalars[BUCKETS_PASSED] < n_buckets:
        return
    elif events < LEAST_EVENTS * n_buckets:
        change = 1
    scalars[EVENTS_BEFORE] = scalars[EVENTS]
    scalars[BUCKETS_PASSED] = 0
    if change != 0 and 0 <= scalars[WIDTH] + change <= MOST_WIDTH:
        _change_width(state, change)


@_compiled
def _change_width(state, change):
    """Take all places off the wheel, and hang them up by the new width."""
    wheel, places = state.wheel, state.places
    chain = NONE
    for bucket in range(len(wheel)):
        index = wheel[bucket]
        wheel[bucket] = NONE
        while index != NONE:
            following = places[index].next
            places[index].next = chain
            chain = index
            index = following
    state.scalars[WIDTH] += change
    while chain != NONE:
        following = places[chain].next
        _hang(state, chain)
        chain = following


@_compiled
def _turn(state, lane, time):
    """Give a lane its next turn at `time`, unless it has one coming already."""
    if not state.lanes[lane].woken:
        state.lanes[lane].woken = 1
        _push(state, time, LANE_CLASS, lane, lane)


# --- a lane ----------------------------------------------------------------------------------------------------------


@_compiled
def _lane_turn(tables, state, settings, number, now):
    """A lane goes on until it must wait or spend time."""
    lane = state.lanes[number]
    totals = state.lane_totals[number]
    gpu = tables.lanes[number].gpu
    sm_number = tables.lane_sm[number]
    sm = state.sms[sm_number]
    while True:
        resume = lane.resume

        if resume == NEXT_TASK:
            if not _next_task(tables, state, settings, number, now):
                return

        elif resume == NEXT_OP:
            if lane.op == lane.op_end:
                _finish_task(tables, state, number, now)
                continue
            if not _start_op(tables, state, settings, number, now):
                return

        elif resume == WAITED:
            _account_wait(state, number, now)
            lane.resume = OP_DONE

        elif resume == SIGNAL_NOW:
            op = tables.ops[lane.op]
            _bump(tables, state, op.counter, op.count, now)
            lane.resume = OP_DONE

        elif resume == LOAD_NOW:
            if _granules_are_scarce(state, settings, number, now):
                return
            if lane.waiting:
                lane.waiting = 0
                _account_wait(state, number, now)
            _load(tables, state, settings, number, now)
            lane.resume = OP_DONE

        elif resume == NEXT_GRANULE:
            if not _choose_granule(tables, lane, settings.granule_bytes, settings.signal_bytes):
                lane.resume = OP_DONE
                continue
            lane.resume = HAS_PORT
            lane.waiting = 0
            if sm.holder == number:  # kept, see ISSUED
                pass
            elif sm.holder == NONE:
                sm.holder = number
            else:
                lane.waiting = 1
                lane.since = now
                lane.mark = _stall_clock(sm, now)
                _line_up(state, sm, number)
                return

        elif resume == HAS_PORT:
            if lane.waiting:  # behind a stalled granule of another lane: that part of the waiting is stall
                lane.waiting = 0
                stall = _stall_clock(sm, now) - lane.mark
                wait = now - lane.since - stall
                lane.op_stall += stall
                lane.op_wait += wait
                totals.stall_ps += stall
                totals.wait_ps[CAUSE_ISSUE] += wait
                if wait > 0:
                    lane.cause = CAUSE_ISSUE
            lane.issue = _issue_share(tables.ops[lane.op], lane, settings.signal_bytes)
            lane.since = now
            if lane.to == gpu or tables.ops[lane.op].flags & p.FROM_MEMORY:  # no stage
                lane.resume = HAS_GPU_ROOM
                continue
            lane.resume = HAS_SM_ROOM
            if sm.room >= lane.granule:
                sm.room -= lane.granule
            else:
                sm.room_waiter = number
                _begin_stall(lane, sm)
                return

        elif resume == HAS_SM_ROOM:
            lane.resume = HAS_GPU_ROOM
            stage = state.gpus[tables.stage_of_gpu[gpu]]
            if stage.head == NONE and stage.room >= lane.granule:
                stage.room -= lane.granule
            else:
                _begin_stall(lane, sm)
                _line_up(state, stage, number)
                return

        elif resume == HAS_GPU_ROOM:
            if lane.to != gpu and _granules_are_scarce(state, settings, number, now):
                return
            waited = now - lane.since
            stall = max(0, waited - lane.issue)  # what the granule waited beyond its own issue time
            sm.stalled_total += stall
            sm.stalled_since = NONE
            lane.op_stall += stall
            totals.stall_ps += stall
            totals.busy_ps += lane.issue
            if lane.to != gpu:
                _admit(tables, state, settings, number, now)
            lane.resume = ISSUED
            if lane.issue > waited:
                _turn(state, number, lane.since + lane.issue)
                return

        elif resume == ISSUED:
            op = tables.ops[lane.op]
            keeps_port = p.WITH_NEXT if lane.issued == op.bytes else p.UNDIVIDED
            if op.kind != p.STORE or not op.flags & keeps_port:
                following = sm.head
                sm.holder = following
                if following != NONE:
                    sm.head = state.lanes[following].next
                    _turn(state, following, now)
            if op.kind == p.STORE:
                totals.stored_bytes += lane.granule
            if lane.at_home and lane.last_of_share and op.counter != NONE:
                _bump(tables, state, op.counter + op.stride * gpu, 1, now)
            lane.resume = NEXT_GRANULE

        elif resume == OP_DONE:
            if settings.full:
                _record_op(state, number, lane.task, lane.op, lane.op_start, now)
            lane.op += 1
            lane.resume = NEXT_OP


@_compiled
def _line_up(state, queue, number):
    """Put a lane at the end of a queue of lanes: those who wait for a slot, an issue port, or room in a GPU's stage."""
    state.lanes[number].next = NONE
    if queue.head == NONE:
        queue.head = number
    else:
        state.lanes[queue.tail].next = number
    queue.tail = number


@_compiled
def _start_op(tables, state, settings, number, now):
    """Begin the op at which the lane stands. False: the lane waits, or spends time."""
    lane = state.lanes[number]
    totals = state.lane_totals[number]
    gpu = tables.lanes[number].gpu
    op = tables.ops[lane.op]
    lane.op_start = now
    lane.op_stall = 0
    lane.op_wait = 0
    lane.cause = NONE
    kind = op.kind
    if kind == p.COMPUTE:
        totals.busy_ps += op.duration_ps
        lane.resume = OP_DONE
        if op.duration_ps > 0:
            _turn(state, number, now + op.duration_ps)
            return False
    elif kind == p.STORE:
        lane.resume = NEXT_GRANULE
        lane.row = op.target
        lane.scatter = _deals_over_several(tables, op.target, gpu, settings.scatter_from)
        lane.share = 0
        lane.round = 0
        lane.issued = 0
        lane.issued_ps = 0
    elif kind == p.LOAD:
        lane.resume = LOAD_NOW
        if lane.tokens == 0:
            lane.waiting = 1
            lane.since = now
            lane.cause = CAUSE_WINDOW
            return False
        lane.tokens -= 1
    elif kind == p.SIGNAL:
        if tables.counters[op.counter].home == gpu:
            totals.busy_ps += op.duration_ps
            lane.resume = SIGNAL_NOW
            if op.duration_ps > 0:
                _turn(state, number, now + op.duration_ps)
                return False
        else:
            lane.resume = NEXT_GRANULE
            lane.issued = 0
            lane.issued_ps = 0
    elif kind == p.WAIT:
        lane.resume = OP_DONE
        if state.counters[op.counter].value < op.count:
            lane.resume = WAITED
            lane.since = now
            lane.cause = tables.counters[op.counter].cause
            _watch(state, number, op.counter, op.count)
            return False
    elif kind == p.ACQUIRE:
        lane.resume = OP_DONE
        slot = state.slots[tables.groups[tables.lanes[number].group].first_slot + op.counter]
        if slot.head == NONE and slot.value >= op.count:
            slot.value -= op.count
        else:
            lane.resume = WAITED
            lane.since = now
            lane.cause = CAUSE_SLOT
            _line_up(state, slot, number)
            return False
    else:
        _release_slot(tables, state, number, op.counter, op.count, now)
        lane.resume = OP_DONE
    return True


@_compiled
def _next_task(tables, state, settings, number, now):
    """Go to the lane's next task, taking one for the group if needed. False: the lane waits, or has ended."""
    lane = state.lanes[number]
    group_number = tables.lanes[number].group
    group = state.groups[group_number]
    if lane.begun == group.n_taken:
        answer, cause = _take(tables, state, group_number)
        if answer == EXHAUSTED:
            if lane.waiting:
                lane.waiting = 0
                _account_wait(state, number, now)
                if settings.full and now > lane.since:
                    lane.op_stall = 0
                    _record_op(state, number, NONE, NONE, lane.since, now)
            lane.resume = ENDED
            state.lane_totals[number].end_ps = now
            state.scalars[LANES_END] = max(state.scalars[LANES_END], now)
            return False
        if answer != TAKEN:
            if not lane.waiting:
                lane.waiting = 1
                lane.since = now
                lane.op_wait = 0
            lane.cause = cause
            return False
        _wake_group(tables, state, group_number, now, number)
    task = group.first_task if lane.begun == 0 else state.next_taken[lane.task]
    if lane.waiting:
        lane.waiting = 0
        _account_wait(state, number, now)
        if settings.full and now > lane.since:
            lane.op_stall = 0
            _record_op(state, number, task, NONE, lane.since, now)
    lane.task = task
    lane.begun += 1
    seat = number - tables.groups[group_number].first_lane
    row = tables.runs[tables.tasks[task].first_run + seat]
    lane.op = row.first_op
    lane.op_end = row.first_op + row.n_ops
    lane.span = tables.span_first[task] + seat
    state.spans[lane.span].group = group_number
    state.spans[lane.span].start_ps = now
    lane.span_stall = state.lane_totals[number].stall_ps
    lane.resume = NEXT_OP
    return True


@_compiled
def _finish_task(tables, state, number, now):
    lane = state.lanes[number]
    state.spans[lane.span].end_ps = now
    state.spans[lane.span].stall_ps = state.lane_totals[number].stall_ps - lane.span_stall
    lane.resume = NEXT_TASK
    group_number = tables.lanes[number].group
    if tables.groups[group_number].ahead == p.UNLIMITED_AHEAD:
        lane.finished += 1
        return
    before = _slowest(tables, state, group_number)
    lane.finished += 1
    if _slowest(tables, state, group_number) > before:
        _wake_group(tables, state, group_number, now, number)


@_compiled
def _account_wait(state, number, now):
    lane = state.lanes[number]
    lane.op_wait += now - lane.since
    state.lane_totals[number].wait_ps[lane.cause] += now - lane.since


@_compiled
def _record_op(state, number, task, op, start, end):
    lane = state.lanes[number]
    at = state.scalars[OP_RECORDS]
    state.scalars[OP_RECORDS] = at + 1
    record = state.op_records[at]
    record.lane = number
    record.task = task
    record.op = op
    record.cause = lane.cause if lane.op_wait > 0 else NONE
    record.start_ps = start
    record.end_ps = end
    record.stall_ps = lane.op_stall
    record.wait_ps = lane.op_wait


@_compiled
def _stall_clock(sm, now):
    """How long granules of this SM have been stalled so far, the present stall included."""
    return sm.stalled_total + (max(0, now - sm.stalled_since) if sm.stalled_since != NONE else 0)


@_compiled
def _begin_stall(lane, sm):
    """The granule in hand has no room: once its issue time is over, its SM is stalled."""
    sm.stalled_since = lane.since + lane.issue


@_compiled
def _choose_granule(tables, lane, granule_bytes, signal_bytes):
    """Size and destination of the op's next granule: one from each share in turn. False if all is issued."""
    op = tables.ops[lane.op]
    lane.at_home = 0
    lane.last_of_share = 1
    if op.kind == p.SIGNAL:
        if lane.issued:
            return False
        lane.granule = signal_bytes
        lane.to = tables.counters[op.counter].home
        return True
    if lane.issued == op.bytes:
        return False
    row = tables.destinations[lane.row]
    gpu = tables.lanes[lane.number].gpu
    if row.replicate:
        lane.granule = min(granule_bytes, op.bytes - lane.issued)
        lane.last_of_share = lane.issued + lane.granule == op.bytes
        lane.to = gpu
        for index in range(row.first, row.first + row.n_shares):
            if tables.shares[index].gpu == gpu:
                lane.at_home = 1
            else:
                lane.to = tables.shares[index].gpu
        return True
    while True:
        if lane.share == row.n_shares:
            lane.share = 0
            lane.round += 1
        share = tables.shares[row.first + lane.share]
        lane.share += 1
        left = share.bytes - lane.round * granule_bytes
        if left > 0:
            lane.granule = min(granule_bytes, left)
            lane.to = share.gpu
            lane.at_home = lane.to == gpu
            lane.last_of_share = left <= granule_bytes
            return True


@_compiled
def _deals_over_several(tables, row_number, gpu, least):
    """Whether a store is dealt over more than one other GPU, so that it drains at the rate of a scatter."""
    row = tables.destinations[row_number]
    others = 0
    for index in range(row.first, row.first + row.n_shares):
        others += tables.shares[index].gpu != gpu
    return others >= least and row.replicate == 0


@_compiled
def _issue_share(op, lane, signal_bytes):
    """Part of the op's issue time that falls on the granule in hand; the parts add up to the whole exactly."""
    total = signal_bytes if op.kind == p.SIGNAL else op.bytes
    before = lane.issued_ps
    lane.issued += lane.granule
    lane.issued_ps = op.duration_ps
    if lane.issued < total:
        whole, rest = op.duration_ps // total, op.duration_ps % total
        lane.issued_ps = whole * lane.issued + rest * lane.issued // total
    return lane.issued_ps - before


@_compiled
def _release_slot(tables, state, number, slot_number, amount, now):
    slot = state.slots[tables.groups[tables.lanes[number].group].first_slot + slot_number]
    slot.value += amount
    while slot.head != NONE:
        first = slot.head
        needed = tables.ops[state.lanes[first].op].count
        if slot.value < needed:
            return
        slot.value -= needed
        slot.head = state.lanes[first].next
        _turn(state, first, now)


# --- taking a task ---------------------------------------------------------------------------------------------------


@_compiled
def _take(tables, state, group_number):
    """Take the group's next task by its plan. Returns (TAKEN, NONE), or why not and the cause of the waiting."""
    group = state.groups[group_number]
    plan = tables.plans[tables.groups[group_number].plan]
    n_steps = plan.n_prefix + plan.n_repeat
    skipped = 0
    while True:
        if group.step == n_steps:
            group.step = plan.n_prefix
        if group.step >= plan.n_prefix and skipped >= plan.n_repeat:
            return EXHAUSTED, NONE
        step = tables.steps[plan.first_step + group.step]
        if _is_open(tables, state, step.queue) or _is_open(tables, state, step.otherwise):
            break
        if group.step >= plan.n_prefix:
            skipped += 1
        group.step += 1
        group.visits = 0
    if group.n_taken - _slowest(tables, state, group_number) > tables.groups[group_number].ahead:
        return AHEAD_LIMIT, CAUSE_TASK
    cause = NONE
    queue = step.queue
    for _ in range(2):
        if _is_open(tables, state, queue):
            task = tables.queue_tasks[state.queue_heads[queue]]
            column = _open_guard(tables, state, task)
            if column == NONE:
                state.queue_heads[queue] += 1
                if group.n_taken == 0:
                    group.first_task = task
                else:
                    state.next_taken[group.last_task] = task
                group.last_task = task
                group.n_taken += 1
                group.visits += 1
                if step.times != p.UNTIL_EXHAUSTED and group.visits >= step.times:
                    group.step += 1
                    group.visits = 0
                return TAKEN, NONE
            if cause == NONE:
                cause = tables.counters[tables.tasks[task].guard_counter[column]].cause
        queue = step.otherwise
    if not group.watching:
        group.watching = 1
        watcher = len(state.lanes) + group_number * GUARD_WATCHERS
        queue = step.queue
        for _ in range(2):
            if _is_open(tables, state, queue):
                task = tables.tasks[tables.queue_tasks[state.queue_heads[queue]]]
                for column in range(2):
                    counter, needed = task.guard_counter[column], task.guard_count[column]
                    if counter != NONE and state.counters[counter].value < needed:
                        _watch(state, watcher, counter, needed)
                        watcher += 1
            queue = step.otherwise
    return GUARDED, cause


@_compiled
def _is_open(tables, state, queue):
    return queue != NONE and state.queue_heads[queue] < tables.queues[queue].first + tables.queues[queue].n_tasks


@_compiled
def _open_guard(tables, state, task):
    """Column of the first guard of a task that does not hold yet, or NONE."""
    for column in range(2):
        counter = tables.tasks[task].guard_counter[column]
        if counter != NONE and state.counters[counter].value < tables.tasks[task].guard_count[column]:
            return column
    return NONE


@_compiled
def _slowest(tables, state, group):
    first = tables.groups[group].first_lane
    least = state.lanes[first].finished
    for lane in range(first + 1, first + tables.groups[group].n_lanes):
        least = min(least, state.lanes[lane].finished)
    return least


@_compiled
def _wake_group(tables, state, group, now, but):
    """A turn for every lane of the group that waits for a task."""
    first = tables.groups[group].first_lane
    for lane in range(first, first + tables.groups[group].n_lanes):
        if lane != but and state.lanes[lane].resume == NEXT_TASK and state.lanes[lane].waiting:
            _turn(state, lane, now)


# --- counters and those who watch them -------------------------------------------------------------------------------


@_compiled
def _watch(state, watcher, counter, needed):
    head = state.counters[counter].head
    state.watchers[watcher].counter = counter
    state.watchers[watcher].needed = needed
    state.watchers[watcher].next = head
    state.watchers[watcher].previous = NONE
    if head != NONE:
        state.watchers[head].previous = watcher
    state.counters[counter].head = watcher
    state.counters[counter].least = min(state.counters[counter].least, needed)


@_compiled
def _unwatch(state, watcher):
    counter = state.watchers[watcher].counter
    if counter == NONE:
        return
    following, previous = state.watchers[watcher].next, state.watchers[watcher].previous
    if previous == NONE:
        state.counters[counter].head = following
    else:
        state.watchers[previous].next = following
    if following != NONE:
        state.watchers[following].previous = previous
    state.watchers[watcher].counter = NONE


@_compiled
def _bump(tables, state, counter, amount, now):
    """Raise a counter and give a turn to everyone whose wait or guard it satisfies."""
    state.counters[counter].value += amount
    if state.counters[counter].value >= state.counters[counter].least:
        _notify(tables, state, counter, now)


@_compiled
def _notify(tables, state, counter, now):
    value = state.counters[counter].value
    n_lanes = len(state.lanes)
    least = FAR
    watcher = state.counters[counter].head
    while watcher != NONE:
        following = state.watchers[watcher].next
        if state.watchers[watcher].needed > value:
            least = min(least, state.watchers[watcher].needed)
        elif watcher < n_lanes:
            _unwatch(state, watcher)
            _turn(state, watcher, now)
        else:
            group = (watcher - n_lanes) // GUARD_WATCHERS
            first = n_lanes + group * GUARD_WATCHERS
            while first <= following < first + GUARD_WATCHERS:  # the same group's: about to go as well
                following = state.watchers[following].next
            for other in range(first, first + GUARD_WATCHERS):
                _unwatch(state, other)
            state.groups[group].watching = 0
            _wake_group(tables, state, group, now, NONE)
        watcher = following
    state.counters[counter].least = least


# --- granules: admission, ports, arrival -----------------------------------------------------------------------------


@_compiled
def _granules_are_scarce(state, settings, number, now):
    """Break a lane's turn off where it is, so that `run` can make room. Nothing else happens before it goes on."""
    if state.scalars[N_FREE] >= settings.reserve:
        return False
    _push(state, now, RESUMED_CLASS, number, number)
    return True


@_compiled
def _new_granule(tables, state, number, kind, ticket, size):
    scalars = state.scalars
    index = scalars[FREE_GRANULE]
    granule = state.granules[index]
    scalars[FREE_GRANULE] = granule.next
    scalars[N_FREE] -= 1
    granule.ticket = ticket
    granule.bytes = size
    granule.kind = kind
    granule.lane = number
    granule.op = state.lanes[number].op
    granule.source = tables.lanes[number].gpu
    granule.next = NONE
    granule.parent = index
    granule.copies = 1
    granule.finish = 0
    granule.counter = NONE
    granule.amount = 1
    granule.port = NONE
    granule.scatter = 0
    granule.reduce = 0
    granule.last = 0
    granule.multicast = 0
    return index


@_compiled
def _free_granule(state, index):
    state.granules[index].next = state.scalars[FREE_GRANULE]
    state.scalars[FREE_GRANULE] = index
    state.scalars[N_FREE] += 1


@_compiled
def _tickets(state, count):
    ticket = state.scalars[TICKETS]
    state.scalars[TICKETS] = ticket + count
    return ticket


@_compiled
def _route(tables, settings, granule, source, to):
    pair = source * settings.n_gpus + to
    if granule.kind == REPLY:
        pair += settings.n_gpus * settings.n_gpus
    granule.to = to
    granule.hop = tables.route_first[pair]
    granule.hops_end = tables.route_first[pair + 1]


@_compiled
def _admit(tables, state, settings, number, now):
    """The granule in the lane's hand enters the stage, unless it goes FROM_MEMORY, and starts to drain."""
    lane = state.lanes[number]
    op = tables.ops[lane.op]
    source = tables.lanes[number].gpu
    if not op.flags & p.FROM_MEMORY:
        sm, stage = state.sms[tables.lane_sm[number]], state.gpus[tables.stage_of_gpu[source]]
        sm.held += lane.granule
        sm.peak = max(sm.peak, sm.held)
        stage.held += lane.granule
        stage.peak = max(stage.peak, stage.held)

    copies = 1
    multicast = False
    if op.kind == p.STORE:
        row = tables.destinations[lane.row]
        multicast = row.replicate == 1
        if multicast:
            copies = row.n_shares - lane.at_home
    index = _new_granule(tables, state, number, STORED, _tickets(state, copies), lane.granule)
    granule = state.granules[index]
    granule.copies = copies
    granule.admitted = now
    granule.last = lane.last_of_share
    if op.kind == p.SIGNAL:
        granule.counter = op.counter
        granule.amount = op.count
    else:
        granule.scatter = lane.scatter
        granule.reduce = op.flags & p.REDUCE
        if lane.last_of_share and op.counter != NONE and not multicast:
            granule.counter = op.counter + op.stride * lane.to
    granule.multicast = multicast
    _route(tables, settings, granule, source, lane.to)
    if op.flags & p.FROM_MEMORY and granule.hops_end - granule.hop > 2:
        granule.hop += 1
        granule.hops_end -= 1
        granule.event = REACH  # after those that come to the link from an egress now, with smaller tickets
        _push(state, now, GRANULE_CLASS, granule.ticket, index)
        return
    _reach_port(tables, state, settings, index, now)


@_compiled
def _load(tables, state, settings, number, now):
    """Send the request of a LOAD on its way."""
    op = tables.ops[state.lanes[number].op]
    source = tables.lanes[number].gpu
    state.lane_totals[number].loaded_bytes += op.bytes
    replies = 1
    if op.target != source:
        replies = (op.bytes + settings.granule_bytes - 1) // settings.granule_bytes
    size = 0
    if op.target != source:
        size = (op.bytes * settings.request_permille + 999) // 1000
    index = _new_granule(tables, state, number, REQUEST, _tickets(state, 1 + replies), size)
    granule = state.granules[index]
    granule.admitted = now
    granule.counter = op.counter
    _route(tables, settings, granule, source, op.target)
    if size > 0:
        _reach_port(tables, state, settings, index, now)
    else:
        granule.finish = now
        _request_drained(tables, state, index)


@_compiled
def _request_drained(tables, state, index):
    granule = state.granules[index]
    arrival = granule.finish + tables.latency[granule.source, granule.to]
    granule.event = REQUEST_ARRIVES
    _push(state, arrival, GRANULE_CLASS, granule.ticket, index)


@_compiled
def _granule_event(tables, state, settings, index, now):
    granule = state.granules[index]
    if granule.port != NONE:
        _leave_port(state, index)
    if granule.event == REACH:
        _reach_port(tables, state, settings, index, now)
    elif granule.event == REQUEST_ARRIVES:
        state.scalars[EVENTS] += 1
        _reply(tables, state, settings, index, now)
    else:
        state.scalars[EVENTS] += 1
        if granule.counter != NONE:
            _bump(tables, state, granule.counter, granule.amount, now)
        if granule.kind == REPLY:
            lane = state.lanes[granule.lane]
            if lane.resume == LOAD_NOW and lane.waiting and not lane.woken:
                _turn(state, granule.lane, now)
            else:
                lane.tokens += 1
        _free_granule(state, index)


@_compiled
def _reply(tables, state, settings, request_index, now):
    """The owner of the data answers a request, granule by granule."""
    request = state.granules[request_index]
    number, owner, puller = request.lane, request.to, request.source
    left = tables.ops[request.op].bytes
    if settings.full:
        _record_granule(state, request, puller, owner, request.finish, now)
    ticket = request.ticket
    while left > 0:
        ticket += 1
        size = left if owner == puller else min(left, settings.granule_bytes)
        left -= size
        index = _new_granule(tables, state, number, REPLY, ticket, size)
        granule = state.granules[index]
        granule.op = request.op
        granule.admitted = now
        granule.last = left == 0
        if left == 0:
            granule.counter = request.counter
        granule.source = owner
        _route(tables, settings, granule, owner, puller)
        if owner == puller:
            granule.finish = now
            _reply_drained(tables, state, settings, index)
        else:
            _reach_port(tables, state, settings, index, now)
    _free_granule(state, request_index)


@_compiled
def _reply_drained(tables, state, settings, index):
    granule = state.granules[index]
    visible = granule.finish + tables.latency[granule.source, granule.to]
    state.scalars[ARRIVED] = max(state.scalars[ARRIVED], visible)
    if settings.full:
        _record_granule(state, granule, granule.source, granule.to, granule.finish, visible)
    if granule.last:
        granule.event = VISIBLE
        _push(state, visible, GRANULE_CLASS, granule.ticket, index)
    else:
        _free_granule(state, index)


@_compiled
def _reach_port(tables, state, settings, index, now):
    """A granule reaches the next port of its route: it is served at once, or when those before it are through."""
    granule = state.granules[index]
    number = tables.route_ports[granule.hop]
    port = state.ports[number]
    if not settings.fair or number >= settings.n_gpus:
        _pass_port(tables, state, settings, index, number, max(now, port.free))
    elif not port.busy:
        _pass_port(tables, state, settings, index, number, now)
    elif granule.kind == REPLY:
        if port.reply_head == NONE:
            port.reply_head = index
        else:
            state.granules[port.reply_tail].next = index
        port.reply_tail = index
    else:
        if port.store_head == NONE:
            port.store_head = index
        else:
            state.granules[port.store_tail].next = index
        port.store_tail = index


@_compiled
def _port_free(tables, state, settings, number, now):
    """A fair egress is free: serve stores and replies in turn."""
    port = state.ports[number]
    port.busy = 0
    if port.store_head == NONE and port.reply_head == NONE:
        return
    reply = port.reply_head != NONE and (port.served == STORED or port.store_head == NONE)
    index = port.reply_head if reply else port.store_head
    if reply:
        port.reply_head = state.granules[index].next
    else:
        port.store_head = state.granules[index].next
    state.granules[index].next = NONE
    _pass_port(tables, state, settings, index, number, now)


@_compiled
def _pass_port(tables, state, settings, index, number, start):
    """Serve a granule from `start` on, cut through: it may leave while it still comes in, but not be through before."""
    granule = state.granules[index]
    port = state.ports[number]
    egress = number < settings.n_gpus
    ingress = settings.n_gpus <= number < 2 * settings.n_gpus
    use = 0
    if egress and granule.scatter:
        use = 1
    elif ingress and granule.reduce:
        use = 2
    rate = tables.rates[number, use]
    service = max(1, (granule.bytes * 1_000_000_000 + rate - 1) // rate)
    granule.finish = max(granule.finish, start + service)
    port.free = granule.finish
    state.port_totals[number].busy_ps += service
    state.port_totals[number].bytes += granule.bytes
    state.scalars[EVENTS] += 1
    granule.hop += 1
    if settings.fair and egress:
        port.busy = 1
        port.served = REPLY if granule.kind == REPLY else STORED
        _push(state, granule.finish, PORT_CLASS, number, number)

    if granule.kind == REQUEST and granule.hop + 1 == granule.hops_end:
        _request_drained(tables, state, index)
    elif granule.hop == granule.hops_end:
        if granule.kind == STORED:
            _schedule_at_port(state, index, number, granule.finish, RELEASE_CLASS)
        else:
            _reply_drained(tables, state, settings, index)
    elif granule.multicast and egress:
        _fork(tables, state, settings, index, number, start)
    else:
        granule.event = REACH
        _schedule_at_port(state, index, number, start, GRANULE_CLASS)


@_compiled
def _fork(tables, state, settings, parent_index, egress, start):
    """A multicast leaves the egress once and goes on as one copy a receiver."""
    parent = state.granules[parent_index]
    op = tables.ops[parent.op]
    row = tables.destinations[op.target]
    ticket = parent.ticket
    source, last, finish, admitted = parent.source, parent.last, parent.finish, parent.admitted
    for share in range(row.first, row.first + row.n_shares):
        to = tables.shares[share].gpu
        if to == source:
            continue
        index = _new_granule(tables, state, parent.lane, STORED, ticket, parent.bytes)
        ticket += 1
        granule = state.granules[index]
        granule.op = parent.op
        granule.parent = parent_index
        granule.finish = finish
        granule.admitted = admitted
        granule.reduce = parent.reduce
        if last and op.counter != NONE:
            granule.counter = op.counter + op.stride * to
        _route(tables, settings, granule, source, to)
        granule.hop += 1
        granule.event = REACH
        _schedule_at_port(state, index, egress, start, GRANULE_CLASS)


@_compiled
def _schedule_at_port(state, index, number, time, event_class):
    """An event of a port. They come in order, so only the first of a port stands in the heap."""
    granule = state.granules[index]
    port = state.ports[number]
    granule.time = time
    granule.port = number
    granule.next = NONE
    if port.head == NONE:
        port.head = index
        _push(state, time, event_class, granule.ticket, index)
    else:
        state.granules[port.tail].next = index
    port.tail = index


@_compiled
def _leave_port(state, index):
    """The event of `index` has come: its successor at the port takes its place in the heap.

    A link may be the last port of one granule, which ends there, and not of the next, which goes on.
    """
    granule = state.granules[index]
    following = granule.next
    state.ports[granule.port].head = following
    granule.port = NONE
    granule.next = NONE
    if following != NONE:
        waiting = state.granules[following]
        event_class = RELEASE_CLASS if waiting.hop == waiting.hops_end else GRANULE_CLASS
        _push(state, waiting.time, event_class, waiting.ticket, following)


@_compiled
def _drained(tables, state, settings, index, now):
    """The last port is through with a stored granule: give its room back and hand it to who waits."""
    granule = state.granules[index]
    _leave_port(state, index)
    state.scalars[EVENTS] += 1
    visible = now + tables.latency[granule.source, granule.to]
    state.scalars[ARRIVED] = max(state.scalars[ARRIVED], visible)
    if settings.full:
        _record_granule(state, granule, granule.source, granule.to, now, visible)
    parent = state.granules[granule.parent]
    parent.copies -= 1
    if parent.copies == 0:
        if not tables.ops[parent.op].flags & p.FROM_MEMORY:
            _give_room(tables, state, parent.lane, parent.source, parent.bytes, now)
        if granule.parent != index:
            _free_granule(state, granule.parent)
    if granule.counter != NONE:
        granule.event = VISIBLE
        _push(state, visible, GRANULE_CLASS, granule.ticket, index)
    else:
        _free_granule(state, index)


@_compiled
def _give_room(tables, state, number, gpu, size, now):
    stage = state.gpus[tables.stage_of_gpu[gpu]]
    stage.held -= size
    stage.room += size
    while stage.head != NONE:
        first = stage.head
        if stage.room < state.lanes[first].granule:
            break
        stage.room -= state.lanes[first].granule
        stage.head = state.lanes[first].next
        _turn(state, first, now)
    sm = state.sms[tables.lane_sm[number]]
    sm.held -= size
    sm.room += size
    waiter = sm.room_waiter
    if waiter != NONE and sm.room >= state.lanes[waiter].granule:
        sm.room -= state.lanes[waiter].granule
        sm.room_waiter = NONE
        _turn(state, waiter, now)


@_compiled
def _record_granule(state, granule, source, to, drained, visible):
    record = state.granule_records[granule.ticket]
    record.ticket = granule.ticket
    record.parcel = state.granules[granule.parent].ticket
    record.lane = granule.lane
    record.op = granule.op
    record.source = source
    record.destination = to
    record.bytes = granule.bytes
    record.admitted_ps = granule.admitted
    record.drained_ps = drained
    record.visible_ps = visible
