"""The microbenchmarks: which rows each part of a measurement runs, in the order of what they are worth.

Every part is one table, run in one launch; results are kept after each. A part says what its rows are for (`Group`), so that
whoever reads results need not know how they were planned. Sizes are bytes that one producer stores in a burst.

    clock       what a tick of globaltimer is, how fast cycles go, what noting a time costs, how far GPUs' timers are apart
    bursts      isolated bursts of many sizes; the same into local memory (the control), and until the last word has arrived
    trains      periodic bursts of some sizes at many gaps, and one long run: R twice
    producers   isolated bursts by the number of producers: is Q an SM's, a GPU's, or the smaller of the two
    costs       releases to all and in the SM, flags, tickets, barriers, loads out of the far memory
    completion  issued, fenced, arrived, by size
    width       stores of 4 to 32 bytes, and by 1 to 8 warps
    neighbours  a light storing or releasing SM beside hogs, loads and releases under stores, other SMs busy, zeros in place
                of noise
    feed        what SMs take in from L2
    bulk        1-D bulk stores
    incast      several GPUs into one, and each into the next
    warm        isolated bursts and a long run to the same places again and again, as in replays: others go to new ones
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import experiments as e
from .experiments import Table, repeated, row

MiB, KiB = 2**20, 2**10
LINE_BYTES = 128
"""A cache line: sizes are whole lines. A warp stores four of them at once, 16 bytes a thread."""


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    sizes: int
    rounds: int
    train_rounds: int
    train_bursts: int
    sweep_rounds: int


FULL = Extent(sizes=32, rounds=24, train_rounds=12, train_bursts=48, sweep_rounds=8)
QUICK = Extent(sizes=24, rounds=10, train_rounds=5, train_bursts=32, sweep_rounds=4)
LEAST_BYTES, MOST_BYTES = LINE_BYTES, 192 * KiB
TRAIN_BYTES = (4 * KiB, 16 * KiB, 48 * KiB)
TRAIN_GAPS = (0.0, 0.15, 0.3, 0.5, 0.7, 0.85, 1.0, 1.25, 1.6)
"""Gaps of trains, in the time that a burst takes to drain."""
SWEEP_PRODUCERS = (1, 2, 4, 8, 16, 32, 64, 96)
FEW_PRODUCERS = 4
"""Up to so many the knee may lie at very large bursts, if there is one."""
SWEEP_BYTES = {"few": (2 * KiB, MiB), "many": (4 * LINE_BYTES, 256 * KiB)}
LONG_BYTES, LONG_BURSTS = MiB, 4
WARM_SIZES = 6
PULL_BYTES = (32 * KiB, 256 * KiB)
"""What an SM has in flight at most, so that it takes one way there and back; and many times that."""


@dataclass(frozen=True)
class Part:
    """One table. `groups[config]` says what a row is for: {"group": ..., and what tells it from others of the group}."""

    name: str
    table: Table
    groups: list[dict[str, Any]]


_TOLD = ("bytes", "producers", "width", "warps", "chunk", "gap_drains")


class _Rows:
    """Collects rows with their groups."""

    def __init__(self) -> None:
        self.rows: list[Table] = []
        self.groups: list[dict[str, Any]] = []

    def add(self, group: str, kind: int, **columns: Any) -> None:
        self.rows.append(row(kind, len(self.groups), **columns))
        self.groups.append({"group": group, **{name: columns[name] for name in _TOLD if name in columns}})

    def part(self, name: str, rounds: int, rng: np.random.Generator) -> Part:
        return Part(name, repeated(self.rows, rounds, rng), self.groups)


def sizes(count: int, most: int = MOST_BYTES, least: int = LEAST_BYTES) -> list[int]:
    """About `count` sizes in whole lines, in equal ratios from `least` to `most` bytes."""
    lines = np.unique(np.round(np.geomspace(least, most, count) / LINE_BYTES).astype(int))
    return [LINE_BYTES * int(n) for n in lines if n > 0]


def clock(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    rows.add("tick idle", e.CLOCK, producers=1, bursts=64)
    rows.add("tick busy", e.CLOCK, producers=1, bursts=64, flags=e.BUSY)
    rows.add("noting", e.STORE, bursts=64, bytes=0, flags=e.LOCAL)
    for rank in range(1, e.MOST_RANKS):
        rows.add("offset", e.OFFSET, producers=1, bursts=64, marks=6, target=rank)
    return rows.part("clock", 3, rng)


def bursts(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    for size in sizes(extent.sizes):
        rows.add("isolated", e.STORE, bytes=size)
        rows.add("control", e.STORE, bytes=size, flags=e.LOCAL)
        rows.add("completed", e.STORE, bytes=size, flags=e.BACK, marks=3)
    return rows.part("bursts", extent.rounds, rng)


def trains(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    for size in TRAIN_BYTES:
        for gap in TRAIN_GAPS:
            rows.add("train", e.STORE, bytes=size, bursts=extent.train_bursts, gap_drains=gap)
    rows.add("train control", e.STORE, bytes=TRAIN_BYTES[1], bursts=extent.train_bursts, gap_drains=0.3, flags=e.LOCAL)
    rows.add("long run", e.STORE, bytes=LONG_BYTES, bursts=LONG_BURSTS)
    return rows.part("trains", extent.train_rounds, rng)


def producers(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    for count in SWEEP_PRODUCERS:
        least, most = SWEEP_BYTES["few" if count <= FEW_PRODUCERS else "many"]
        for size in sizes(max(14, extent.sizes // 2), most, least):
            rows.add("producers", e.STORE, producers=count, bytes=size)
    return rows.part("producers", extent.sweep_rounds, rng)


def costs(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    for size in (0, LINE_BYTES, 4 * KiB, 32 * KiB):
        rows.add("release", e.STORE, bytes=size, marks=3, flags=e.FENCE)
        rows.add("release alone", e.STORE, producers=1, bytes=size, marks=3, flags=e.FENCE)
    rows.add("release in the SM", e.STORE, bytes=32 * KiB, marks=3, flags=e.FENCE | e.IN_SM)
    for count in (1, 8, e.ALL):
        rows.add("ticket", e.TICKET, producers=count, bursts=32)
    rows.add("flag", e.FLAG, producers=2, bursts=32)
    rows.add("barrier", e.SYNC, bursts=16)
    for count in (1, e.ALL):
        for size in PULL_BYTES:
            rows.add("pull", e.PULL, producers=count, bytes=size, bursts=4)
    return rows.part("costs", extent.sweep_rounds, rng)


def completion(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    for size in sizes(8, MOST_BYTES, 2 * KiB):
        rows.add("load back", e.STORE, bytes=size, marks=4, flags=e.FENCE | e.BACK)
        rows.add("echo", e.STORE, bytes=size, marks=4, flags=e.FENCE | e.ECHO)
        rows.add("load back of one", e.STORE, producers=1, bytes=size, marks=3, flags=e.BACK)
        rows.add("echo of one", e.STORE, producers=1, bytes=size, marks=3, flags=e.ECHO)
    return rows.part("completion", extent.sweep_rounds, rng)


def width(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    for size in (8 * KiB, 32 * KiB, 128 * KiB):
        for one in (4, 8, 16, 32):
            rows.add("width", e.STORE, bytes=size, width=one)
            rows.add("width of one", e.STORE, producers=1, bytes=size, width=one)
        for warps in (1, 2, 4, 8):
            rows.add("warps of one", e.STORE, producers=1, bytes=size, warps=warps)
    return rows.part("width", extent.sweep_rounds, rng)


def neighbours(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    light = {"bursts": 24, "other_bytes": 4 * KiB, "bytes": 64 * KiB, "flags": e.LIGHT, "gap_ns": 2000.0}
    for hogs in (0, 8, 32, e.ALL):
        rows.add("light beside hogs", e.STORE, producers=hogs, **light)
        released = light | {"other_bytes": LINE_BYTES, "marks": 3, "flags": e.LIGHT | e.FENCE}
        rows.add("release beside hogs", e.STORE, producers=hogs, **released)
    for size in (8 * KiB, 64 * KiB):
        for producers in (1, e.ALL):  # below the knee, where T_iss0 shows, and beyond it
            beside = {"producers": producers, "bytes": size, "warps": 4}
            rows.add("no loads", e.STORE, **beside)
            rows.add("loads under stores", e.STORE, **beside, marks=3, flags=e.LOADS)
            rows.add("fences under stores", e.STORE, **beside, marks=3, flags=e.FENCES)
        rows.add("others idle", e.STORE, bytes=size, producers=8)
        rows.add("others busy", e.STORE, bytes=size, producers=8, flags=e.BUSY)
        rows.add("noise", e.STORE, bytes=size)
        rows.add("zeros", e.STORE, bytes=size, flags=e.ZEROS)
    return rows.part("neighbours", extent.sweep_rounds, rng)


def feed(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    for count in (1, 8, 32, e.ALL):
        rows.add("feed", e.FEED, producers=count, bytes=256 * KiB, bursts=8)
    return rows.part("feed", extent.sweep_rounds, rng)


def bulk(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    for size in sizes(10, MOST_BYTES, 2 * KiB):
        rows.add("bulk", e.BULK, bytes=size, chunk=8 * KiB, marks=5, flags=e.BACK)
    for chunk in (512, 2 * KiB, 8 * KiB, 16 * KiB):
        rows.add("bulk of one", e.BULK, producers=1, bytes=64 * KiB, chunk=chunk, marks=5, flags=e.BACK)
        rows.add("bulk control", e.BULK, producers=1, bytes=64 * KiB, chunk=chunk, marks=5, flags=e.BACK | e.LOCAL)
    return rows.part("bulk", extent.sweep_rounds, rng)


def incast(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    everyone = (1 << e.MOST_RANKS) - 1
    for size in (16 * KiB, 64 * KiB):
        many = {"bytes": size, "bursts": extent.train_bursts}
        rows.add("one to the next", e.STORE, **many)
        rows.add("all to the next", e.STORE, senders=everyone, **many)
        rows.add("incast", e.STORE, senders=everyone & ~1, target=0, **many)
    return rows.part("incast", extent.sweep_rounds, rng)


def warm(extent: Extent, rng: np.random.Generator) -> Part:
    rows = _Rows()
    every = sizes(extent.sizes)
    for i in np.linspace(0, len(every) - 1, WARM_SIZES).round().astype(int):
        rows.add("same places", e.STORE, bytes=every[i], flags=e.SAME)
    rows.add("long run", e.STORE, bytes=LONG_BYTES, bursts=LONG_BURSTS, flags=e.SAME)
    return rows.part("warm", extent.sweep_rounds, rng)


PARTS: dict[str, Callable[[Extent, np.random.Generator], Part]] = {
    make.__name__: make
    for make in (clock, bursts, trains, producers, costs, completion, width, neighbours, feed, bulk, incast, warm)
}
AGAIN = {"drift": "bursts", "clock after": "clock"}
"""Parts that are run once more at the end: a few rounds of the table named."""
CALIBRATION_PARTS = ("clock", "bursts", "trains", "producers", "costs", "warm")
"""What `calibrate` needs, and what may speak against it."""


def microbenchmarks(extent: Extent, seed: int, names: tuple[str, ...] = tuple(PARTS)) -> list[Part]:
    """The parts of those names, each with an order of rows of its own drawn from `seed`."""
    return [PARTS[name](extent, np.random.default_rng([seed, list(PARTS).index(name)])) for name in names]


def runs_here(part: str, transport: str, compute_capability: str, ranks: int) -> str | None:
    """Why a part cannot run, or None."""
    if part == "bulk" and int(compute_capability) < 90:
        return f"bulk stores need compute capability 90, this GPU has {compute_capability}"
    if part == "incast" and ranks < 2:
        return f"incast needs two GPUs or more, transport {transport} has one"
    return None
