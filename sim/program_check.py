"""What makes a Program valid. Every check looks at whole tables at once; the message names the first offending row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import program as p
from .errors import ProgramError
from .program_index import Index, distinct, expand, gpu_of_queue, tasks_of_queues, visits

if TYPE_CHECKING:
    from .program import Program

Mask = np.ndarray[Any, np.dtype[np.bool_]]

MAX_STORE_BYTES = 2**31
"""Largest single STORE: the share of its issue time that falls on a granule must not overflow 64 bits."""


def validate(program: Program) -> None:
    """Raise `ProgramError` if a reference leads nowhere, a number has no meaning, or two tables disagree."""
    if not isinstance(program.n_gpus, int) or program.n_gpus < 1:
        raise ProgramError(f"n_gpus is {program.n_gpus!r} (allowed: whole numbers from 1 on)")
    for name in ("roles", "phases"):
        names = getattr(program, name)
        if not all(isinstance(one, str) for one in names):
            raise ProgramError(f"{name}: a name is no text ({', '.join(map(repr, names))})")
        if len(set(names)) != len(names):
            raise ProgramError(f"{name}: a name stands there twice ({', '.join(names)})")
    _check_shares(program)
    _check_ops(program)
    _check_slices(program)
    _check_groups(program)
    _check_use(program)


def _refuse(bad: Mask, table: str, reason: str, values: Any = None) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        shown = "" if values is None else f" ({np.asarray(values)[row]})"
        raise ProgramError(f"{table}[{row}]: {reason}{shown}")


def _outside(values: Any, size: int) -> Mask:
    values = np.asarray(values)
    return np.asarray((values < 0) | (values >= size))


def _check_shares(program: Program) -> None:
    shares, rows = program.shares, program.destinations
    _refuse(_outside(shares["gpu"], program.n_gpus), "shares", "the GPU does not exist", shares["gpu"])
    _refuse(shares["bytes"] < 1, "shares", "a share needs at least one byte", shares["bytes"])
    _check_range(program, "destinations", "first", "n_shares", "shares")
    _refuse(rows["replicate"] > 1, "destinations", "replicate must be 0 or 1", rows["replicate"])
    owner, index = expand(rows["first"], rows["n_shares"])
    key = owner * program.n_gpus + shares["gpu"][index]
    unique, counts = np.unique(key, return_counts=True)
    if (counts > 1).any():
        row, gpu = divmod(int(unique[np.argmax(counts > 1)]), program.n_gpus)
        raise ProgramError(f"destinations[{row}]: GPU {gpu} is listed twice")
    first_bytes = shares["bytes"][rows["first"][owner]] if len(owner) else np.zeros(0)
    uneven = (rows["replicate"][owner] == 1) & (shares["bytes"][index] != first_bytes)
    if uneven.any():
        raise ProgramError(f"destinations[{int(owner[np.argmax(uneven)])}]: a multicast has one size for every GPU")


def _check_ops(program: Program) -> None:
    ops = program.ops
    kind = ops["kind"]
    store, load, signal = kind == p.STORE, kind == p.LOAD, kind == p.SIGNAL
    counted = signal | (kind == p.WAIT)
    slot = (kind == p.ACQUIRE) | (kind == p.RELEASE)
    _refuse(kind >= len(p.KIND_NAMES), "ops", "unknown kind", kind)
    known = np.uint8(p.REDUCE | p.UNDIVIDED | p.WITH_NEXT | p.FROM_MEMORY)
    _refuse(ops["flags"] & ~known > 0, "ops", "unknown flags", ops["flags"])
    _refuse(ops["duration_ps"] < 0, "ops", "negative duration", ops["duration_ps"])
    _refuse(
        store & _outside(ops["target"], len(program.destinations)), "ops", "no such destinations row", ops["target"]
    )
    _refuse(load & _outside(ops["target"], program.n_gpus), "ops", "the owner GPU does not exist", ops["target"])
    _refuse(load & (ops["bytes"] < 1), "ops", "a LOAD needs at least one byte", ops["bytes"])
    _refuse((store | load) & (ops["bytes"] >= MAX_STORE_BYTES), "ops", "too large for one op: split it", ops["bytes"])
    _refuse(counted & _outside(ops["counter"], len(program.counters)), "ops", "no such counter", ops["counter"])
    _refuse((signal | slot) & (ops["count"] < 1), "ops", "count must be 1 or more", ops["count"])
    _refuse((kind == p.WAIT) & (ops["count"] < 0), "ops", "count must be 0 or more", ops["count"])
    has_counter = (store | load) & (ops["counter"] != p.NO_COUNTER)
    _refuse(has_counter & (ops["counter"] < 0), "ops", "no such counter", ops["counter"])
    _check_kept_ports(program, store & (ops["bytes"] > 0))
    _check_from_memory(program, store)
    _check_store_bytes(program, store)
    _check_store_counters(program, store & has_counter)


def _check_kept_ports(program: Program, issues: Mask) -> None:
    """A STORE that keeps the issue port must be followed by one that has something to issue: else nobody gives it back.

    `issues` are the STOREs with bytes.
    """
    kept = program.ops["flags"] & p.WITH_NEXT > 0
    followed = np.append(issues[1:], False)
    _refuse(
        kept & ~(issues & followed), "ops", "WITH_NEXT needs bytes, and a STORE with bytes next", program.ops["flags"]
    )
    last = program.runs["first_op"] + program.runs["n_ops"] - 1
    kept_last = np.append(kept, False)[np.clip(last, 0, len(kept))]  # whether it exists is checked elsewhere
    _refuse((program.runs["n_ops"] > 0) & kept_last, "runs", "ends with an op that goes WITH_NEXT, last op", last)


def _check_from_memory(program: Program, store: Mask) -> None:
    rows, ops = program.destinations, program.ops
    marked = ops["flags"] & p.FROM_MEMORY > 0
    _refuse(marked & ~store, "ops", "FROM_MEMORY is a flag of a STORE", ops["flags"])
    multicast = store.copy()
    multicast[store] = rows["replicate"][ops["target"][store]] == 1
    _refuse(marked & multicast, "ops", "a multicast cannot go FROM_MEMORY", ops["flags"])


def _check_store_bytes(program: Program, store: Mask) -> None:
    rows, shares, ops = program.destinations, program.shares, program.ops
    owner, index = expand(rows["first"], rows["n_shares"])
    dealt = np.zeros(len(rows), dtype=np.int64)
    np.add.at(dealt, owner, shares["bytes"][index])
    single = shares["bytes"][np.minimum(rows["first"], max(0, len(shares) - 1))] if len(shares) else dealt
    issued = np.where((rows["replicate"] == 1) & (rows["n_shares"] > 0), single, dealt)
    expected = np.zeros(len(ops), dtype=np.int64)
    expected[store] = issued[ops["target"][store]]
    _refuse(
        store & (ops["bytes"] != expected), "ops", "bytes differ from the sum of the destinations row", ops["bytes"]
    )
    _refuse(store & (ops["bytes"] == 0) & (ops["duration_ps"] > 0), "ops", "a STORE of nothing takes no time")


def _check_store_counters(program: Program, counted: Mask) -> None:
    rows, ops = program.destinations, program.ops[counted]
    owner, index = expand(rows["first"][ops["target"]], rows["n_shares"][ops["target"]])
    gpu = program.shares["gpu"][index].astype(np.int64)
    counter = ops["counter"][owner] + ops["stride"][owner].astype(np.int64) * gpu
    missing = _outside(counter, len(program.counters))
    home = program.counters["home"][np.where(missing, 0, counter)] if len(program.counters) else np.full(len(gpu), -1)
    bad = missing | (home != gpu)
    if bad.any():
        row, at = int(np.flatnonzero(counted)[owner[np.argmax(bad)]]), int(np.argmax(bad))
        raise ProgramError(f"ops[{row}]: counter {counter[at]} of the STORE to GPU {gpu[at]} has its home elsewhere")


def _check_slices(program: Program) -> None:
    counters = program.counters
    _refuse(_outside(counters["home"], program.n_gpus), "counters", "the home GPU does not exist", counters["home"])
    _refuse(_outside(counters["cause"], len(p.COUNTER_CAUSES)), "counters", "unknown cause", counters["cause"])
    _refuse(program.slots < 0, "slots", "a slot starts with zero or more", program.slots)
    _check_range(program, "runs", "first_op", "n_ops", "ops")
    _check_range(program, "tasks", "first_run", "n_runs", "runs")
    _check_range(program, "queues", "first", "n_tasks", "queue_tasks")
    _refuse(_outside(program.queue_tasks, len(program.tasks)), "queue_tasks", "no such task", program.queue_tasks)
    listed = np.bincount(program.queue_tasks, minlength=len(program.tasks)) if len(program.queue_tasks) else np.zeros(0)
    _refuse(np.asarray(listed > 1), "tasks", "the task stands in more than one place of the queues")
    _, index = expand(program.queues["first"], program.queues["n_tasks"])
    covered = np.bincount(index, minlength=len(program.queue_tasks)) if len(index) else np.zeros(0)
    _refuse(np.asarray(covered > 1), "queue_tasks", "the place belongs to more than one queue")
    _refuse(np.asarray(covered < 1), "queue_tasks", "the place belongs to no queue")
    _refuse(_outside(program.tasks["phase"], len(program.phases)), "tasks", "no such phase", program.tasks["phase"])
    for column in range(2):
        guard = program.tasks["guard_counter"][:, column]
        _refuse((guard != p.NO_COUNTER) & _outside(guard, len(counters)), "tasks", "no such guard counter", guard)
    _refuse(_outside(program.steps["queue"], len(program.queues)), "steps", "no such queue", program.steps["queue"])
    other = program.steps["otherwise"]
    _refuse((other != p.NO_QUEUE) & _outside(other, len(program.queues)), "steps", "no such queue", other)
    _refuse(program.steps["times"] < 0, "steps", "times must be 0 (until exhausted) or more", program.steps["times"])
    plans = program.plans
    _refuse((plans["n_prefix"] < 0) | (plans["n_repeat"] < 0), "plans", "negative number of steps")
    end = plans["first_step"].astype(np.int64) + plans["n_prefix"] + plans["n_repeat"]
    _refuse((plans["first_step"] < 0) | (end > len(program.steps)), "plans", "the steps do not exist")


def _check_range(program: Program, table: str, first: str, count: str, into: str) -> None:
    rows, size = getattr(program, table), len(getattr(program, into))
    start, number = rows[first].astype(np.int64), rows[count].astype(np.int64)
    _refuse((start < 0) | (number < 0) | (start + number > size), table, f"reaches beyond the {size} rows of {into}")


def _check_groups(program: Program) -> None:
    groups, lanes = program.groups, program.lanes
    _refuse(_outside(groups["gpu"], program.n_gpus), "groups", "the GPU does not exist", groups["gpu"])
    _refuse(_outside(groups["plan"], len(program.plans)), "groups", "no such plan", groups["plan"])
    _refuse(groups["n_lanes"] < 1, "groups", "a group needs at least one lane")
    _refuse(groups["ahead"] < 0, "groups", "ahead must be 0 or more", groups["ahead"])
    for first, count, size in (("first_lane", "n_lanes", len(lanes)), ("first_slot", "n_slots", len(program.slots))):
        expected = np.cumsum(groups[count]) - groups[count]
        _refuse(groups[first] != expected, "groups", f"{first} must follow the group before", groups[first])
        if groups[count].sum() != size:
            raise ProgramError(f"groups: {count} add up to {groups[count].sum()}, but there are {size} rows")
    group_of_lane = np.repeat(np.arange(len(groups)), groups["n_lanes"])
    _refuse(lanes["group"] != group_of_lane, "lanes", "lanes must be contiguous by group", lanes["group"])
    _refuse(lanes["gpu"] != groups["gpu"][group_of_lane], "lanes", "the lane is on another GPU than its group")
    _refuse(_outside(lanes["role"], len(program.roles)), "lanes", "no such role", lanes["role"])
    _refuse(lanes["sm"] < 0, "lanes", "negative SM", lanes["sm"])
    _refuse(lanes["window"] < 0, "lanes", "negative window", lanes["window"])
    _refuse(lanes["start_ps"] < 0, "lanes", "starts before time 0", lanes["start_ps"])


def _check_use(program: Program) -> None:
    """Checks that need to know who runs what: queues by groups, tasks by queues, runs by seats."""
    groups, queues, tasks = program.groups, program.queues, program.tasks
    group, queue = visits(program)
    gpu_of = gpu_of_queue(program, (group, queue))
    _refuse((queues["n_tasks"] > 0) & (gpu_of < 0), "queues", "has tasks, but no group's plan visits it")

    crossing = gpu_of[queue] != groups["gpu"][group]
    if crossing.any():
        raise ProgramError(f"queues[{int(queue[np.argmax(crossing)])}]: shared by groups of different GPUs")

    in_queue, task = tasks_of_queues(program)
    lanes_needed = np.full(len(queues), -1, dtype=np.int64)
    lanes_needed[queue] = groups["n_lanes"][group]
    uneven = lanes_needed[queue] != groups["n_lanes"][group]
    if uneven.any():
        raise ProgramError(f"queues[{int(queue[np.argmax(uneven)])}]: shared by groups with different numbers of lanes")
    wrong = tasks["n_runs"][task] != lanes_needed[in_queue]
    if wrong.any():
        t = int(task[np.argmax(wrong)])
        raise ProgramError(
            f"tasks[{t}]: {tasks['n_runs'][t]} runs, but its group has {lanes_needed[in_queue][np.argmax(wrong)]} lanes"
        )

    home = program.counters["home"]
    for column in range(2):
        guard = tasks["guard_counter"][task, column]
        used = guard != p.NO_COUNTER
        _refuse_pairs(used, task, "tasks", "guard counter of another GPU", home, guard, gpu_of[in_queue])

    # A run is looked at once for each (queue, seat) it serves, an op once for each run.
    seat_owner, run = expand(tasks["first_run"][task], tasks["n_runs"][task])
    seat = run - tasks["first_run"][task][seat_owner]
    run, of_queue, seat = distinct(run, in_queue[seat_owner], seat)
    owner, op = expand(program.runs["first_op"][run], program.runs["n_ops"][run])
    kind, counter, gpu = program.ops["kind"][op], program.ops["counter"][op], gpu_of[of_queue][owner]
    local = (kind == p.WAIT) | ((kind == p.LOAD) & (counter != p.NO_COUNTER))
    _refuse_pairs(local, op, "ops", "waits for or loads into a counter of another GPU", home, counter, gpu)

    slots = np.full(len(queues), 2**31, dtype=np.int64)
    np.minimum.at(slots, queue, groups["n_slots"][group])
    slot = (kind == p.ACQUIRE) | (kind == p.RELEASE)
    bad = slot & ((counter < 0) | (counter >= slots[of_queue][owner]))
    _refuse_first(bad, op, "the group has no such slot")

    most_seats = int(groups["n_lanes"].max(initial=1))
    window = np.full((len(queues), most_seats), 2**31, dtype=np.int64)
    visitor, lane = expand(groups["first_lane"][group], groups["n_lanes"][group])
    lane_seat = lane - groups["first_lane"][group][visitor]
    np.minimum.at(window, (queue[visitor], lane_seat), program.lanes["window"][lane])
    bad = (kind == p.LOAD) & (window[of_queue, seat][owner] < 1)
    _refuse_first(bad, op, "a LOAD needs a lane with a window of at least 1")


def _refuse_pairs(used: Mask, row: Index, table: str, reason: str, home: Any, counter: Any, gpu: Any) -> None:
    bad = used.copy()
    bad[used] = home[counter[used]] != gpu[used]
    if bad.any():
        at = int(np.argmax(bad))
        raise ProgramError(f"{table}[{int(row[at])}]: {reason} (counter {int(counter[at])}, GPU {int(gpu[at])})")


def _refuse_first(bad: Mask, op: Index, reason: str) -> None:
    if bad.any():
        raise ProgramError(f"ops[{int(op[np.argmax(bad)])}]: {reason}")
