"""The rows of experiment tables: what a microbenchmark kernel does in one go, and which times it notes.

A table is an array of `ROW`; kernels/bursts.cu works through it inside one launch, and all GPUs work through the same one.
Every row begins with a barrier and a rest in which nothing is stored. Then each of `producers` SMs does `bursts` bursts and
notes `marks` times a burst, in cycles since its row began:

    STORE    start, issued [, fenced] [, back]       stores from registers
    BULK     start, issued, read, done, back         1-D bulk stores from shared memory (sm_90 or newer)
    FEED     start, end                              loads out of L2
    PULL     start, end                              loads out of the far memory, each of other bytes
    TICKET   start, end                              one atomic addition to a counter that all producers share
    FLAG     start, end                              to a partner SM and back, by release and acquire
    SYNC     start, end                              the barrier of the whole grid
    CLOCK    start, end                              the next change of globaltimer: `end` is its new value (ns, low word)
    OFFSET   asked, theirs, answered                 global timers of two GPUs in a ping-pong (ns, low and high word each)

`fenced` is after a release at system scope (`IN_SM`: at CTA scope). `back` is when the producer knows that its last store
has arrived: with `ECHO` a partner on the receiving GPU has seen a flag that was released behind the stores, and has
answered; else (`BACK`) the last word stored was loaded back, which neither PCIe nor a GPU's own memory lets overtake the
store.

A table as planned leaves open what only the machine can say: the number of SMs (`producers` = ALL), rests and gaps in
proportion to the time V / R that a burst takes to drain (`rest_drains`, `gap_drains`). `resolve` fills them in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

STORE, BULK, FEED, TICKET, FLAG, SYNC, CLOCK, OFFSET, PULL = range(9)

LOCAL, ZEROS, LOADS, LIGHT, FENCE, BACK, ECHO, BUSY, FENCES, SAME, IN_SM = (1 << i for i in range(11))
"""Flags. LOCAL: store to the GPU's own memory. ZEROS: the data are zeros, not noise. LOADS: the other warps of a producer
load from where it stores. LIGHT: one SM more, the last, stores bursts of `other_bytes`, and only it notes times. BUSY: SMs
that do nothing else compute. FENCES: one thread of a warp that does not store releases at system scope, again and again.
SAME: every burst goes to the same places, not to new ones. IN_SM: the release of `fenced` is for the own SM alone."""

ALL = -1
NEXT = -1
MOST_RANKS = 8
LEAST_REST_NS = 20_000
REST_DRAINS = 3.0
"""Idle before an isolated burst, in drain times V / R of the row before it and of its own."""

ROW = np.dtype(
    [
        ("kind", "i4"),
        ("config", "i4"),
        ("round", "i4"),
        ("producers", "i4"),
        ("bursts", "i4"),
        ("marks", "i4"),
        ("warps", "i4"),
        ("width", "i4"),
        ("flags", "i4"),
        ("target", "i4"),
        ("senders", "u4"),
        ("chunk", "i4"),
        ("bytes", "i8"),
        ("other_bytes", "i8"),
        ("gap_cycles", "i8"),
        ("rest_ns", "i8"),
        ("first_mark", "i8"),
        ("gap_ns", "f8"),
        ("gap_drains", "f8"),
        ("rest_drains", "f8"),
    ],
    align=True,
)
"""One row; kernels/bursts.cu has the same struct. `senders` is a mask of the GPUs that produce, `target` the GPU stored to
(NEXT: each to the one after it), `chunk` the bytes of one bulk store."""

Table = np.ndarray[Any, np.dtype[Any]]


def row(kind: int, config: int, **columns: Any) -> Table:
    """One row with usual values for what is not given."""
    made = np.zeros(1, dtype=ROW)
    made["kind"], made["config"] = kind, config
    usual = {
        "producers": ALL, "bursts": 1, "marks": 2, "warps": 8, "width": 16, "target": NEXT, "senders": 1,
        "rest_drains": REST_DRAINS,
    }  # fmt: skip
    for name, value in (usual | columns).items():
        made[name] = value
    return made


def repeated(rows: list[Table], rounds: int, rng: np.random.Generator) -> Table:
    """A table that runs all `rows` `rounds` times, each time in a new random order."""
    once = np.concatenate(rows)
    turns = []
    for number in range(rounds):
        turn = once[rng.permutation(len(once))].copy()
        turn["round"] = number
        turns.append(turn)
    return np.concatenate(turns)


def resolve(table: Table, sms: int, ranks: int, drain_gbs: float, cycles_per_ns: float) -> Table:
    """The table for one machine, without rows that it cannot run: more producers than SMs (a light SM and partners
    included), or senders and targets that are not there.

    `drain_gbs` is a first estimate of R: rests are to be long enough, gaps of about the size wanted; what they were is
    measured. Sets `producers`, `gap_cycles`, `rest_ns` and `first_mark`.
    """
    table = table.copy()
    reserved = np.where(table["flags"] & LIGHT != 0, 1, 0)
    everyone = table["producers"] == ALL
    table["producers"][everyone] = (sms - reserved)[everyone]
    table["producers"] = np.where(table["kind"] == FLAG, table["producers"] // 2 * 2, table["producers"])
    present = (1 << ranks) - 1
    kept = (
        (table["producers"] + reserved <= sms)
        & (table["senders"] & present != 0)
        & (table["target"] < ranks)
        & (((table["flags"] & ECHO == 0) & (table["kind"] != OFFSET)) | (ranks > 1))
    )
    table = table[kept]
    drain_ns = table["producers"] * table["bytes"] / drain_gbs
    stores = np.isin(table["kind"], (STORE, BULK))
    before = np.concatenate([[0.0], drain_ns[:-1]])
    rest = np.where(stores, table["rest_drains"] * np.maximum(drain_ns, before), before)
    table["rest_ns"] = np.ceil(np.maximum(np.maximum(rest, table["rest_ns"]), LEAST_REST_NS))
    gap_ns = table["gap_ns"] + np.where(table["gap_drains"] > 0, table["gap_drains"] * drain_ns, 0.0)
    table["gap_cycles"] = np.round(gap_ns * cycles_per_ns)
    count = marks_of(table)
    table["first_mark"] = np.cumsum(count) - count
    return table


def noters(table: Table) -> Any:
    """How many SMs note times in each row: the producers, or the light one alone."""
    return np.where(table["flags"] & LIGHT != 0, 1, table["producers"])


def marks_of(table: Table) -> Any:
    """How many times each row notes on one GPU."""
    return noters(table).astype(np.int64) * table["bursts"] * table["marks"]
