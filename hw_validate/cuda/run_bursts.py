"""Run a table of microbenchmarks on GPUs and bring back what it noted. Needs NumPy alone.

The kernel is kernels/bursts.cu; the layout of its parameters, its flags and its times is stated there, and here once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...sim.errors import InputError
from . import experiments as e
from .device import Buffer, DeviceFacts, Devices, Launch
from .errors import KernelTimeoutError, MemoryTooSmallError
from .experiments import Table
from .steady import until_steady
from .transport import Transport, far_addresses

SOURCE, KERNEL = "bursts.cu", "bursts"
THREADS, WARP = 256, 32
SHARED_HEADER_BYTES = 256
"""The struct `Shared` of the kernel, with room to spare."""
MOST_BULK_BYTES = 32 << 10
FEED_SHARE = 0.25
"""What is read out of L2, as a share of L2."""
WORDS_APART, WORDS_BEFORE, WORDS_OF_CTA = 32, 16, 6
PATIENCE_S = 10.0
"""Longest wait of one SM for another."""
SECONDS_SPARE = 15.0
WARP_STORE_BYTES = 512
"""What a warp stores at once, 16 bytes a thread."""

PARAMETERS = np.dtype(
    [
        ("rows", "u8"),
        ("marks", "u8"),
        ("row_times", "u8"),
        ("cta_times", "u8"),
        ("cta_sm", "u8"),
        ("far", "u8", e.MOST_RANKS),
        ("own", "u8"),
        ("feed", "u8"),
        ("region_bytes", "u8"),
        ("feed_bytes", "u8"),
        ("words", "u8"),
        ("peer_words", "u8", e.MOST_RANKS),
        ("watch_abort", "u8"),
        ("watch_patience", "u8"),
        ("n_rows", "u4"),
        ("rank", "u4"),
        ("n_ranks", "u4"),
        ("mark_capacity", "u4"),
        ("bulk_bytes", "u4"),
        ("padding", "u4"),
    ],
    align=True,
)


@dataclass(frozen=True, eq=False)
class BurstRun:
    """What one table noted. `table` is what ran, resolved; `marks[r]` are the times of rank r, by `first_mark`.

    `row_times` [ranks, rows, 4]: global timer (ns) and clock of SM 0 when each row begins and has ended; `cta_times`
    [ranks, CTAs, 4]: the same at the first and last tick of the global timer in the kernel. `cta_sm` is the SM of each CTA.
    """

    table: Table
    marks: np.ndarray[Any, np.dtype[np.uint32]]
    row_times: np.ndarray[Any, np.dtype[np.uint64]]
    cta_times: np.ndarray[Any, np.dtype[np.uint64]]
    cta_sm: np.ndarray[Any, np.dtype[np.uint32]]
    wall_s: float

    def arrays(self) -> dict[str, Any]:
        names = ("table", "marks", "row_times", "cta_times", "cta_sm")
        return {name: getattr(self, name) for name in names}

    def cycles_per_ns(self) -> float:
        """Median over SMs of how fast clocks went, between two ticks of the global timer."""
        first, last = self.cta_times[..., :2].astype(np.int64), self.cta_times[..., 2:].astype(np.int64)
        elapsed = last - first
        good = elapsed[..., 0] > 0
        if not good.any():
            raise InputError("do not move", field="times of the global timer")
        return float(np.median(elapsed[good, 1] / elapsed[good, 0]))


class BurstRunner:
    """Everything a table needs that can be made beforehand. Use it in `with`: it holds memory on every GPU.

    `ctas` is how many SMs take part (default: all), `threads` of each CTA.
    """

    def __init__(self, devices: Devices, transport: Transport, ctas: int | None = None, threads: int = THREADS) -> None:
        self.devices, self.transport = devices, transport
        self.ctas = ctas or transport.ranks[0].sms
        self.threads = threads
        self.kernels = {rank.index: devices.prepare(rank.index, SOURCE, [KERNEL]) for rank in transport.ranks}
        self.region_bytes = self._region_bytes()
        self.shared_bytes = _shared_bytes(transport.ranks[0])
        self.bulk_bytes = min(MOST_BULK_BYTES, self.shared_bytes // 2 // 1024 * 1024)
        self.mark_capacity = (self.shared_bytes - SHARED_HEADER_BYTES - self.bulk_bytes) // 4 // 32 * 32
        self.drain_gbs = 1.0
        self.cycles_per_ns = max(0.5, transport.ranks[0].clock_mhz / 1000)
        self._buffers: list[Buffer] = []
        n_words = (WORDS_BEFORE + self.ctas * WORDS_OF_CTA) * WORDS_APART
        feed = max(1 << 20, int(FEED_SHARE * transport.ranks[0].l2_bytes) >> 20 << 20)
        self._words = [self._memory(rank, 4 * n_words) for rank in transport.ranks]
        self._abort = [self._memory(rank, 128) for rank in transport.ranks]
        self._feed = [self._memory(rank, feed) for rank in transport.ranks]
        for buffer in self._feed:
            buffer.clear()

    def resolve(self, table: Table) -> Table:
        """The table for this machine. Raises `InputError` for bursts that do not fit into memory, or too many times."""
        made: Table = e.resolve(table, self.ctas, self.transport.n_ranks, self.drain_gbs, self.cycles_per_ns)
        made = made[(made["width"] <= 16) | (int(self.transport.ranks[0].compute_capability) >= 100)]
        made["warps"] = np.minimum(made["warps"], self.threads // WARP)
        made["chunk"] = np.minimum(made["chunk"], self.bulk_bytes)
        loads, at_once = np.isin(made["kind"], (e.FEED, e.PULL)), 8 * 16 * self.threads
        made["bytes"] = np.where(loads, made["bytes"] // at_once * at_once, made["bytes"])
        made = made[~self.too_big(made)]
        count = e.marks_of(made)
        made["first_mark"] = np.cumsum(count) - count
        most = int((made["bursts"] * made["marks"]).max(initial=0))
        if most > self.mark_capacity:
            raise InputError("are too many for shared memory", field="times a row", value=most,
                             allowed=f"up to {self.mark_capacity}")  # fmt: skip
        return made

    def too_big(self, table: Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows have bursts that do not fit into the memory that there is."""
        into_regions = np.isin(table["kind"], (e.STORE, e.BULK, e.PULL))
        return np.asarray(into_regions & (table["bytes"] > self.region_bytes // 4))

    def run(self, table: Table) -> BurstRun:
        """Run a resolved table on all ranks at once. Raises `KernelTimeoutError` and whatever the devices raise."""
        marks = int(e.marks_of(table).sum())
        outputs: list[dict[str, Buffer]] = []
        try:
            for rank in self.transport.ranks:
                sizes = {
                    "rows": table.nbytes, "marks": 4 * marks, "row_times": 32 * len(table),
                    "cta_times": 32 * self.ctas, "cta_sm": 4 * self.ctas,
                }  # fmt: skip
                outputs.append({})
                for name, size in sizes.items():
                    outputs[-1][name] = self.devices.device_memory(rank.index, max(16, size))
                    outputs[-1][name].clear()
                outputs[-1]["rows"].write(table)
            for buffer in (*self._words, *self._abort):
                buffer.clear()
            launches = [self._launch(table, r, out) for r, out in enumerate(outputs)]
            wall_s = self.devices.run(launches, self._abort, self._longest_s(table))
            if any(buffer.read(4).view(np.uint32)[0] for buffer in self._abort):
                raise KernelTimeoutError(
                    f"{KERNEL}: an SM waited for another for more than {PATIENCE_S:g} s and gave up"
                )
            return BurstRun(
                table=table,
                marks=np.stack([out["marks"].read(4 * marks).view(np.uint32) for out in outputs]),
                row_times=_words64(outputs, "row_times", len(table)),
                cta_times=_words64(outputs, "cta_times", self.ctas),
                cta_sm=np.stack([out["cta_sm"].read(4 * self.ctas).view(np.uint32) for out in outputs]),
                wall_s=wall_s,
            )
        finally:
            for out in outputs:
                for buffer in out.values():
                    buffer.free()

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.free()
        self._buffers.clear()

    def __enter__(self) -> BurstRunner:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def _memory(self, rank: DeviceFacts, size: int) -> Buffer:
        self._buffers.append(self.devices.device_memory(rank.index, size))
        return self._buffers[-1]

    def _region_bytes(self) -> int:
        """What each SM has of every target, in whole stores of a warp."""
        far = min(buffer.size for buffer in self.transport.far) // self.transport.n_ranks
        least = min(far, *(buffer.size for buffer in self.transport.own))
        region = least // self.ctas // WARP_STORE_BYTES * WARP_STORE_BYTES
        if region < 4 * WARP_STORE_BYTES:
            raise MemoryTooSmallError(f"{least} bytes are too few for {self.ctas} SMs")
        return region

    def _launch(self, table: Table, rank: int, out: dict[str, Buffer]) -> Launch:
        p = np.zeros(1, dtype=PARAMETERS)
        for name, buffer in out.items():
            p[name] = buffer.address
        p["far"] = far_addresses(self.transport, e.MOST_RANKS)
        p["own"], p["feed"] = self.transport.own[rank].address, self._feed[rank].address
        p["region_bytes"], p["feed_bytes"] = self.region_bytes, self._feed[rank].size
        p["words"] = self._words[rank].address
        p["peer_words"][0, : len(self._words)] = [buffer.address for buffer in self._words]
        p["watch_abort"], p["watch_patience"] = self._abort[rank].address, int(PATIENCE_S * 1e9 * self.cycles_per_ns)
        p["n_rows"], p["rank"], p["n_ranks"] = len(table), rank, self.transport.n_ranks
        p["mark_capacity"], p["bulk_bytes"] = self.mark_capacity, self.bulk_bytes
        device = self.transport.ranks[rank].index
        return Launch(device, SOURCE, KERNEL, self.ctas, self.threads, self.shared_bytes, p)

    def _longest_s(self, table: Table) -> float:
        """A deadline that no healthy run reaches: rests and gaps, ten times the draining, and some seconds."""
        drain = table["producers"] * table["bytes"] * table["bursts"] / self.drain_gbs
        gaps = table["gap_cycles"] * table["bursts"] / self.cycles_per_ns
        return float((table["rest_ns"] + 10 * drain + gaps).sum() / 1e9 + SECONDS_SPARE)


def scout_table() -> Table:
    """A first look: long runs, of which the last tells a rough R."""
    rows = [
        e.row(e.STORE, 0, bytes=size, rest_drains=0.0, rest_ns=2_000_000)
        for size in (1 << 16, 1 << 18, 1 << 18, 1 << 18)
    ]
    return np.concatenate(rows)


def wake(runner: BurstRunner) -> tuple[BurstRun, bool]:
    """Short runs until the clock is steady (steady.py), and whether it was; the last of them. To be done before what counts:
    the clock of an idle GPU is low, and writing results leaves it idle."""
    table = scout_table()
    table["bytes"] = np.minimum(table["bytes"], runner.region_bytes // 8 // WARP_STORE_BYTES * WARP_STORE_BYTES)
    resolved, stated = runner.resolve(table), runner.transport.ranks[0].clock_mhz / 1000
    runs, is_steady = until_steady(
        lambda: runner.run(resolved), BurstRun.cycles_per_ns, lambda run: run, stated, gpu=runner.devices
    )
    return runs[-1], is_steady


def scout(runner: BurstRunner) -> tuple[BurstRun, bool]:
    """Set the runner's first estimates of R and of the clock from short runs."""
    run, is_steady = wake(runner)
    runner.cycles_per_ns = run.cycles_per_ns()
    last = run.table[-1]
    marks = run.marks[0][int(last["first_mark"]) :].reshape(-1, 2)
    issue_ns = float(np.median(marks[:, 1] - marks[:, 0])) / runner.cycles_per_ns
    runner.drain_gbs = float(last["producers"] * last["bytes"] / max(issue_ns, 1.0))
    return run, is_steady


def _shared_bytes(rank: DeviceFacts) -> int:
    """More than half of an SM's shared memory, so that no two CTAs share an SM."""
    half = rank.shared_per_sm_bytes // 2 // 1024 * 1024 + 2048
    return min(half, rank.shared_per_block_bytes)


def _words64(outputs: Sequence[dict[str, Buffer]], name: str, rows: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.stack([out[name].read(32 * rows).view(np.uint64).reshape(rows, 4) for out in outputs])
