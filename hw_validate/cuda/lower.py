"""A Program as tables for the interpreter of the kernels (kernels/lanes.cuh), built with vectorised NumPy.

    CTA      an SM that has lanes, of whichever GPU; ranks are ranges of CTAs
    lane     one warp, or several if it stores or loads (`Target.store_warps`, `load_warps`)
    courier  one warp more in each CTA, which bumps counters for the lanes
    ticks    durations stay picoseconds here; `Lowered.at_clock` makes them ticks of an SM's clock

What the kernel cannot do like a GPU of the model is refused by name: a multicast, which needs memory of its own kind; a
STORE that a network interface reads from memory; more lanes on one SM than there are barriers and warps; a store or load
larger than its lane's part of the buffer; a lane that waits for loads of another (own_loads.py).
Shares are rounded up to whole 16 bytes. The kernel claims tasks itself, by the Program's queues, plans and guards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...sim import program as p
from ...sim.errors import InputError, ProgramError
from ...sim.program import Program
from ...sim.program_index import expand, gpu_of_queue, op_repeats, tasks_of_queues, visits
from .job import Array
from .lane_tables import (
    ADDS,
    CTA,
    EDGE_BYTES,
    ENTRY,
    GROUP,
    GROUP_WORDS,
    LANE,
    LANE_BLOCK_BYTES,
    MOST_LANES,
    MOST_LOADS,
    MOST_SHARES,
    MOST_WARPS,
    OP,
    OWN_LOADS,
    QUEUE,
    RECORD_BYTES,
    RUN,
    SHARE,
    STEP,
    SYSTEM_WIDE,
    WARP,
)
from .own_loads import waits_for_own_loads


@dataclass(frozen=True)
class Target:
    """How a Program is to be laid out.

    store_warps: warps of a lane that stores (as in the calibration whose numbers are to be tested).
    store_width: bytes that a thread stores at once, 16 or 32 (two stores before sm_100).
    load_warps: warps of a lane that loads and does not store, as a dispatch warp.
    is_one_gpu: ranks are ranges of CTAs of one grid, and not a grid each.
    granule_bytes: in which pieces a scatter is dealt over its GPUs; a multiple of 16.
    landing_bytes, source_bytes: the buffers of each rank that others store to and load from; every lane has its part.
    shared_bytes: shared memory of a CTA.
    """

    store_warps: int = 8
    store_width: int = 16
    load_warps: int = 1
    is_one_gpu: bool = True
    granule_bytes: int = 4096
    landing_bytes: int = 64 << 20
    source_bytes: int = 64 << 20
    shared_bytes: int = 99 << 10

    def __post_init__(self) -> None:
        for name in ("store_warps", "load_warps"):
            value, allowed = getattr(self, name), f"1 to {MOST_WARPS - 1}"
            if not 1 <= value < MOST_WARPS:
                raise InputError("is out of range", field=name, value=value, allowed=allowed)
        if self.store_width not in (16, 32):
            raise InputError("is unknown", field="store_width", value=self.store_width, allowed=(16, 32))
        if self.granule_bytes < 16 or self.granule_bytes % 16:
            raise InputError(
                "is no size of a granule", field="granule_bytes", value=self.granule_bytes, allowed="multiples of 16"
            )


USUAL = Target()


@dataclass(frozen=True, eq=False)
class Lowered:
    """Tables of the replay kernel for one Program, and the sizes of the memory that it works in."""

    n_gpus: int
    tables: dict[str, Array]
    counters: Array  # initial values
    group_words: Array  # initial state of all groups
    n_taken: int
    n_records: int
    n_threads: int
    shared_bytes: int
    store_slice: int
    load_slice: int
    target: Target

    def at_clock(self, ticks_per_ns: float) -> Lowered:
        """The same with durations and starts in ticks of a clock; before, they are picoseconds."""
        tables = dict(self.tables)
        for name, column in (("ops", "ticks"), ("lanes", "start_ticks")):
            table = tables[name].copy()
            table[column] = np.rint(table[column] * (ticks_per_ns / 1000)).astype(np.uint64)
            tables[name] = table
        return replace(self, tables=tables)

    def log_share(self) -> float:
        """How full the logs of records are in the end, if every SM runs equally many ops; above 1 some do not fit."""
        room = int(self.tables["ctas"]["log_records"].sum())
        return self.n_records / room if room else float("inf")

    def ctas_of(self, gpu: int) -> range:
        """The CTAs of a GPU: rows of the table `ctas`."""
        first, last = np.searchsorted(self.tables["ctas"]["gpu"], [gpu, gpu + 1])
        return range(int(first), int(last))


def lower(program: Program, target: Target = Target()) -> Lowered:
    """Tables for `program`. Raises `ProgramError` for what the kernel cannot replay, `InputError` for memory too small."""
    _refuse_stores(program)
    lanes, ctas = _lanes(program, target)
    groups, group_words, n_taken, cursors, is_shared = _groups(program, lanes, ctas)
    ops, shares, store_piece, load_piece = _ops(program, target)
    tables = {
        "ops": ops,
        "shares": shares,
        "entries": _entries(program),
        "runs": _renamed(program.runs, RUN, first_op="first_op", n_ops="n_ops"),
        "queues": _queues(program, cursors, is_shared),
        "steps": _renamed(program.steps, STEP, queue="queue", otherwise="otherwise", times="times"),
        "groups": groups,
        "lanes": lanes,
        "ctas": ctas,
    }
    store_slice = _slice(lanes, "store_first", target.landing_bytes, store_piece, "landing_bytes")
    load_slice = _slice(lanes, "load_first", target.source_bytes, load_piece, "source_bytes")
    n_warps = int(_by_cta(ctas, lanes["n_warps"]).max(initial=0)) + 1
    if n_warps > MOST_WARPS:
        raise ProgramError(f"the GPU replay has {MOST_WARPS} warps an SM, the lanes of one need {n_warps}")
    shared_bytes = divide_shared(ctas, n_warps * WARP, target.shared_bytes)
    repeats = op_repeats(program)
    return Lowered(
        n_gpus=program.n_gpus,
        tables=tables,
        counters=program.counters["initial"].copy(),
        group_words=group_words,
        n_taken=n_taken,
        n_records=int(repeats.sum()),
        n_threads=n_warps * WARP,
        shared_bytes=shared_bytes,
        store_slice=store_slice,
        load_slice=load_slice,
        target=target,
    )


def _refuse_stores(program: Program) -> None:
    ops = program.ops
    store = np.flatnonzero(ops["kind"] == p.STORE)
    rows = program.destinations[ops["target"][store]]
    for bad, why in (
        (rows["replicate"] == 1, "a multicast STORE: it needs multicast memory"),
        (ops["flags"][store] & p.FROM_MEMORY > 0, "a STORE that goes FROM_MEMORY: an SM issues all stores here"),
        (rows["n_shares"] > MOST_SHARES, f"a STORE to more than {MOST_SHARES} GPUs: a warp deals one share a lane"),
    ):
        if bad.any():
            raise ProgramError(f"the GPU replay cannot run ops[{int(store[np.argmax(bad)])}], {why}")


# --- who: lanes, CTAs, groups


def _lanes(program: Program, target: Target) -> tuple[Array, Array]:
    """Lanes sorted by their CTA, with warps and (0 or 1, for now) a part of each buffer; CTAs sorted by GPU and SM."""
    rows = program.lanes
    key = rows["gpu"].astype(np.int64) * (int(rows["sm"].max(initial=0)) + 1) + rows["sm"]
    _, first, cta = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(cta, kind="stable")
    n_lanes = np.bincount(cta, minlength=len(first))
    if (n_lanes > MOST_LANES).any():
        row = rows[first[np.argmax(n_lanes > MOST_LANES)]]
        raise ProgramError(
            f"the GPU replay runs up to {MOST_LANES} lanes on an SM, "
            f"but SM {row['sm']} of GPU {row['gpu']} has {n_lanes.max()}"
        )
    ctas = np.zeros(len(first), CTA)
    ctas["gpu"], ctas["n_lanes"] = rows["gpu"][first], n_lanes
    ctas["first_lane"] = np.cumsum(n_lanes) - n_lanes

    stores, loads = _has_kind(program, p.STORE), _has_kind(program, p.LOAD)
    lanes = np.zeros(len(rows), LANE)
    lanes["number"], lanes["group"] = order, rows["group"][order]
    lanes["seat"] = order - program.groups["first_lane"][rows["group"][order]]
    lanes["store_first"], lanes["load_first"] = stores[order], loads[order]
    lanes["window"] = np.where(loads[order], rows["window"][order], 0)
    if (lanes["window"] > MOST_LOADS).any():
        number = int(lanes["number"][np.argmax(lanes["window"] > MOST_LOADS)])
        raise ProgramError(
            f"the GPU replay keeps up to {MOST_LOADS} loads in flight, but lanes[{number}] has {rows['window'][number]}"
        )
    lanes["n_warps"] = np.where(stores[order], target.store_warps, np.where(loads[order], target.load_warps, 1))
    before = np.cumsum(lanes["n_warps"]) - lanes["n_warps"]
    lanes["first_warp"] = before - before[ctas["first_lane"]][np.sort(cta)] if len(lanes) else before
    lanes["start_ticks"] = rows["start_ps"][order]
    return lanes, ctas


def _has_kind(program: Program, kind: int) -> Array:
    """Whether each lane has an op of a kind in any task that it may come to run."""
    count = np.concatenate([[0], np.cumsum(program.ops["kind"] == kind)])
    first = program.runs["first_op"]
    run_has = count[first + program.runs["n_ops"]] > count[first]
    in_queue, task = tasks_of_queues(program)
    owner, run = expand(program.tasks["first_run"][task], program.tasks["n_runs"][task])
    seat = run - program.tasks["first_run"][task][owner]
    has = np.zeros((len(program.queues), int(program.groups["n_lanes"].max(initial=1))), dtype=bool)
    np.logical_or.at(has, (in_queue[owner], seat), run_has[run])
    group, queue = visits(program)
    visitor, lane = expand(program.groups["first_lane"][group], program.groups["n_lanes"][group])
    result = np.zeros(len(program.lanes), dtype=bool)
    np.logical_or.at(result, lane, has[queue[visitor], lane - program.groups["first_lane"][group][visitor]])
    return result


def _groups(program: Program, lanes: Array, ctas: Array) -> tuple[Array, Array, int, Array, Array]:
    """Groups and their state, whether each queue is shared, and where its cursor is; fills the words of `ctas` in.

    The state of a group: GROUP_WORDS, tasks finished by lane, slots, heads of its private queues.
    """
    rows, plans = program.groups, program.plans[program.groups["plan"]]
    group, queue = visits(program)
    is_shared = np.bincount(queue, minlength=len(program.queues)) > 1
    private = ~is_shared[queue]
    n_private = np.bincount(group[private], minlength=len(rows))
    cursors = np.zeros(len(program.queues), dtype=np.int64)
    cursors[is_shared] = np.arange(is_shared.sum())
    order = np.lexsort((queue[private], group[private]))
    first_private = np.cumsum(n_private) - n_private
    mine = group[private][order]
    cursors[queue[private][order]] = np.arange(len(order)) - first_private[mine]

    groups = np.zeros(len(rows), GROUP)
    for name in ("gpu", "ahead", "n_lanes", "n_slots"):
        groups[name] = rows[name]
    for name in ("first_step", "n_prefix", "n_repeat"):
        groups[name] = plans[name]
    cta_of_lane = np.zeros(len(lanes), dtype=np.int64)
    cta_of_lane[lanes["number"]] = np.repeat(np.arange(len(ctas)), ctas["n_lanes"])
    first_cta = np.minimum.reduceat(cta_of_lane, rows["first_lane"]) if len(rows) else cta_of_lane
    last_cta = np.maximum.reduceat(cta_of_lane, rows["first_lane"]) if len(rows) else cta_of_lane
    groups["is_in_shared"] = first_cta == last_cta

    # Groups of one CTA lie together, those that span CTAs at the end.
    n_words = GROUP_WORDS + rows["n_lanes"] + rows["n_slots"] + n_private
    place = np.where(groups["is_in_shared"], first_cta, len(ctas))
    by_place = np.argsort(place, kind="stable")
    first_word = np.zeros(len(rows), dtype=np.int64)
    first_word[by_place] = np.cumsum(n_words[by_place]) - n_words[by_place]
    groups["first_word"] = first_word
    words_of_cta = np.bincount(place, weights=n_words, minlength=len(ctas) + 1).astype(np.int64)[: len(ctas)]
    ctas["n_words"], ctas["first_word"] = words_of_cta, np.cumsum(words_of_cta) - words_of_cta
    words = np.zeros(int(n_words.sum()), dtype=np.uint32)
    owner, slot = expand(rows["first_slot"], rows["n_slots"])
    within = slot - rows["first_slot"][owner]
    words[first_word[owner] + GROUP_WORDS + rows["n_lanes"][owner] + within] = program.slots[slot]

    # Only lanes that follow another need what was taken. Groups that span CTAs have three words a task, and for the end.
    most = np.bincount(group, weights=program.queues["n_tasks"][queue], minlength=len(rows)).astype(np.int64)
    most = np.where(rows["n_lanes"] > 1, most, 0)
    most = np.where(groups["is_in_shared"] > 0, most, 3 * (most + 1))
    groups["first_taken"] = np.cumsum(most) - most
    return groups, words, int(most.sum()), cursors, is_shared


def _by_cta(ctas: Array, column: Array) -> Array:
    return np.add.reduceat(column, ctas["first_lane"]) if len(ctas) else column


def _slice(lanes: Array, column: str, buffer_bytes: int, piece_bytes: int, field: str) -> int:
    """Give each lane that has one its part of a buffer: sets its first byte, returns the size of a part."""
    has = lanes[column] > 0
    n = int(has.sum())
    size = buffer_bytes // max(1, n) // 32 * 32
    if n and size < piece_bytes:
        raise InputError(
            f"is too small for {n} lanes with pieces of {piece_bytes} bytes",
            field=field,
            value=buffer_bytes,
            allowed=f"{n * piece_bytes} or more",
        )
    lanes[column] = np.where(has, (np.cumsum(has) - 1) * size, 0)
    return size


def divide_shared(ctas: Array, n_threads: int, available: int) -> int:
    """What the fixed parts of shared memory leave goes to the records of a CTA's lanes. Returns the bytes needed."""
    if not len(ctas):
        return 0
    words = (ctas["n_words"].astype(np.int64) + 3) // 4 * 16
    fixed = ctas["n_lanes"].astype(np.int64) * LANE_BLOCK_BYTES + EDGE_BYTES + 16 * n_threads + words
    if (fixed > available).any():
        worst = int(fixed.max())
        raise InputError("is too little", field="shared_bytes", value=available, allowed=f"{worst} or more")
    ctas["log_records"] = (available - fixed) // RECORD_BYTES
    return available


# --- what: ops, entries of queues


def _ops(program: Program, target: Target) -> tuple[Array, Array, int, int]:
    """Ops and shares, and the largest piece that is stored and loaded at once."""
    rows, kind = program.ops, program.ops["kind"]
    store, load = kind == p.STORE, kind == p.LOAD
    shares = np.zeros(len(program.shares), SHARE)
    shares["gpu"], shares["bytes"] = program.shares["gpu"], _whole_vectors(program.shares["bytes"])
    ops = np.zeros(len(rows), OP)
    ops["kind"], ops["counter"], ops["count"], ops["ticks"] = kind, rows["counter"], rows["count"], rows["duration_ps"]
    ops["target"], ops["bytes"] = rows["target"], _whole_vectors(rows["bytes"])
    destination = program.destinations[rows["target"][store]]
    ops["target"][store], ops["n_shares"][store] = destination["first"], destination["n_shares"]
    ops["count"][store] = rows["stride"][store]
    has_counter = (rows["counter"] >= 0) & ~store & (kind != p.ACQUIRE) & (kind != p.RELEASE)
    ops["home"][has_counter] = program.counters["home"][rows["counter"][has_counter]]
    ops["flags"] = np.where(store & (rows["flags"] & p.REDUCE > 0), ADDS, 0)
    wide = _touched_by_others(program)
    counted = np.where(has_counter, rows["counter"], 0)
    is_wide = (store & (rows["counter"] >= 0)) | (has_counter & wide[counted] if len(wide) else has_counter)
    ops["flags"] |= np.where(is_wide, SYSTEM_WIDE, 0).astype(np.uint8)
    ops["flags"] |= np.where(waits_for_own_loads(program, wide), OWN_LOADS, 0).astype(np.uint8)
    alone = destination["n_shares"] == 1
    whole = int(ops["bytes"][store][alone].max(initial=0))
    dealt = min(target.granule_bytes, int(ops["bytes"][store][~alone].max(initial=0)))
    return ops, shares, max(whole, dealt), int(ops["bytes"][load].max(initial=0))


def _whole_vectors(size: Array) -> Array:
    return (size + 15) // 16 * 16


def _touched_by_others(program: Program) -> Array:
    """Whether each counter may be bumped by another rank: by a STORE, or by a SIGNAL of a lane that is not at home.

    Such a bump has system scope even where all ranks are on one GPU: what was stored lies in host memory then, and only a
    release of that scope waits for it to get there.
    """
    wide = np.zeros(len(program.counters), dtype=bool)
    ops = program.ops
    bumping = np.flatnonzero((ops["kind"] == p.STORE) & (ops["counter"] >= 0))
    rows = program.destinations[ops["target"][bumping]]
    owner, share = expand(rows["first"], rows["n_shares"])
    stride = ops["stride"][bumping].astype(np.int64)
    wide[ops["counter"][bumping][owner] + stride[owner] * program.shares["gpu"][share]] = True

    in_queue, task = tasks_of_queues(program)
    owner, run = expand(program.tasks["first_run"][task], program.tasks["n_runs"][task])
    pairs = np.unique(run * program.n_gpus + gpu_of_queue(program)[in_queue[owner]])
    run, gpu = np.divmod(pairs, program.n_gpus)
    owner, op = expand(program.runs["first_op"][run], program.runs["n_ops"][run])
    signal = ops["kind"][op] == p.SIGNAL
    counter = ops["counter"][op[signal]]
    wide[counter[program.counters["home"][counter] != gpu[owner[signal]]]] = True
    return wide


def _entries(program: Program) -> Array:
    tasks = program.tasks[program.queue_tasks]
    entries = np.zeros(len(tasks), ENTRY)
    entries["task"], entries["first_run"] = program.queue_tasks, tasks["first_run"]
    entries["guard_counter"], entries["guard_count"] = tasks["guard_counter"], tasks["guard_count"]
    if len(program.counters):
        guard = tasks["guard_counter"]
        wide = _touched_by_others(program)[np.maximum(guard, 0)] & (guard >= 0)
        entries["guard_is_system_wide"] = wide.any(axis=1)
    return entries


def _queues(program: Program, cursors: Array, is_shared: Array) -> Array:
    queues = np.zeros(len(program.queues), QUEUE)
    queues["first"], queues["n_entries"] = program.queues["first"], program.queues["n_tasks"]
    queues["is_shared"], queues["cursor"] = is_shared, cursors
    return queues


def _renamed(table: Array, dtype: np.dtype[Any], **columns: str) -> Array:
    rows = np.zeros(len(table), dtype)
    for name, column in columns.items():
        rows[name] = table[column]
    return rows
