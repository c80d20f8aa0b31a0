"""Cores, memory and a clock made ready, on which lists of steps run: what calibration and replay share.

The cost of noting the time is measured once (`Costs`) and taken off everything: a store of no lines takes
`store_ticks`, which is no storing but part of the gap that follows it; a spin ends `overshoot_ticks` late on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from ...sim.errors import InputError, XstageError
from ..centre import centre
from . import lane
from .architecture import LINE_BYTES, Architecture
from .buffers import Buffer
from .clock import Clock, check_rates, core_speed, lost_share, measure_clock, measure_rate
from .cores import choose_cores, run_pinned
from .tables import CoreTables, State

Steps = np.ndarray[Any, np.dtype[np.int64]]

CACHED_BYTES = 16 << 10
"""Ordinary stores go round in this much memory, which stays in the first-level cache."""
LOAD_AREA_BYTES = 64 << 10
"""Loads go round in this much memory of each rank, which stays in the second-level cache."""
WARM_UP_BYTES = 256 << 20
PATIENCE_S = 5.0
"""Nothing that runs here lasts longer by far; a wait that does is a deadlock."""


LATE_NS, LATE_SHARE = 500.0, 0.1
"""A run was disturbed if a lane began this late, or if more than this share of its spins ended this late: something else ran
on its core, and of several lanes one stored while another was off."""
PAUSE_NS = 2_000.0
"""A core that runs a Program was disturbed if it did not look at its lanes for this long. A slice of another thread is far
longer; a few ops of many lanes at once, or the first use of some memory, are shorter."""
TRIES = 4


class StuckError(XstageError):
    """Lanes on real cores waited for each other for seconds."""


@dataclass(frozen=True)
class Costs:
    """What measuring itself takes, in ticks."""

    store_ticks: float
    overshoot_ticks: float


class Ran(NamedTuple):
    """The times noted by lane, one more than steps, and whether something else took time from a lane."""

    stamps: list[Steps]
    disturbed: bool


class RanProgram(NamedTuple):
    """What `lane.run_core` noted, a row an op: (lane, task, op, start, end, begun), times in ticks."""

    records: Steps
    prefix: list[Steps]
    disturbed: bool


class Bench:
    """`producers` cores with a buffer each. Use it in `with`: it holds memory.

    Raises `InputError` for more producers than cores, and `UnsteadyClockError`.
    """

    def __init__(self, producers: int = 1, buffer_bytes: int | None = None) -> None:
        rough = Clock(measure_rate(0.01), 1)
        self.cores = choose_cores(producers, lambda core: lost_share(core, rough))
        self.clock = measure_clock(self.cores[0])
        self.buffers = [Buffer(buffer_bytes or lane.ARCHITECTURE.buffer_bytes) for _ in range(producers)]
        self.late_ns, self.pause_ns = LATE_NS, PAUSE_NS
        self._offsets = [0] * producers
        self._cached = [np.ones(CACHED_BYTES + LINE_BYTES, dtype=np.uint8) for _ in range(producers)]
        self.speed_before = core_speed(self.cores[0])
        self.costs = self._measure_costs()

    @property
    def architecture(self) -> Architecture:
        return lane.ARCHITECTURE

    @property
    def producers(self) -> int:
        return len(self.cores)

    def run_quietly(self, lists: Sequence[Steps]) -> Ran:
        """As `run`, again up to three times if it was disturbed. Not for steps that use counters."""
        for _ in range(TRIES - 1):
            ran = self.run(lists)
            if not ran.disturbed:
                return ran
        return self.run(lists)

    def run(self, lists: Sequence[Steps]) -> Ran:
        """Run a list of steps on each of the first cores, started together.

        Raises `StuckError` if lanes wait for each other for seconds, `InputError` for a burst larger than the buffer.
        """
        if len(lists) > self.producers:
            raise InputError("more lanes than cores", field="lanes", value=len(lists), allowed=f"1 to {self.producers}")
        shared = np.zeros(lane.N_SHARED, dtype=np.int64)
        patience = self.clock.ticks(PATIENCE_S * 1e9)
        stamps = [np.ones(len(steps) + 1, dtype=np.int64) for steps in lists]  # ones, so that the pages are touched

        def runner(i: int) -> Any:
            steps, buffer, cached = lists[i], self.buffers[i], self._cached[i]
            check_steps(steps, buffer.size)
            aligned = -(-cached.ctypes.data // LINE_BYTES) * LINE_BYTES
            return lambda: lane.run_lane(
                steps, self._offsets[i], stamps[i], shared.ctypes.data, len(lists),
                buffer.address, buffer.size, aligned, CACHED_BYTES, patience,
            )  # fmt: skip

        def abort() -> None:
            shared[lane.ABORT] = 1

        ended = run_pinned([runner(i) for i in range(len(lists))], self.cores, abort)
        for i, (outcome, offset) in enumerate(ended):
            self._offsets[i] = offset
            if outcome == lane.TIMED_OUT:
                raise StuckError(f"lane {i} waited for more than {PATIENCE_S:g} s on core {self.cores[i]}")
        start = int(shared[lane.START_TICK])
        late = self.clock.ticks(self.late_ns)
        return Ran(stamps, any(_disturbed(*each, start, late) for each in zip(lists, stamps, strict=True)))

    def run_program(self, tables: CoreTables, prefix: Steps, drain_ns: float) -> RanProgram:
        """Run a Program on the cores that it was mapped to, once to make code and tables warm, then `prefix` on each of
        them, then the Program again, which counts.

        `drain_ns` is how long a full stage drains: a core tells of its stores as long after them. The run counts as
        disturbed if something else took time from a core.
        Raises `InputError` for more cores than there are or a store larger than its area, and `StuckError` naming lane and
        counter if lanes wait for each other for seconds.
        """
        count = len(tables.lanes_of_core)
        if count > self.producers:
            raise InputError("more lanes than cores", field="lanes", value=count, allowed=f"1 to {self.producers}")
        area = self._area_bytes(tables)
        check_steps(prefix, self.buffers[0].size)
        patience = self.clock.ticks(PATIENCE_S * 1e9)
        rehearsed, before, shared = (np.zeros(lane.N_SHARED, dtype=np.int64) for _ in range(3))
        states = [tables.state(), tables.state()]
        loads = np.ones((count, tables.ranks * LOAD_AREA_BYTES + LINE_BYTES), dtype=np.uint8)
        stamps = [np.ones(len(prefix) + 1, dtype=np.int64) for _ in range(count)]
        records = [np.ones((max(1, len(tables.ops)), 6), dtype=np.int64) for _ in range(count)]

        def runner(i: int) -> Any:
            buffer, cached = self.buffers[i], self._cached[i]
            aligned, loaded = (-(-each.ctypes.data // LINE_BYTES) * LINE_BYTES for each in (cached, loads[i]))
            offsets, load_offsets = (np.zeros(tables.ranks, dtype=np.int64) for _ in range(2))

            def run_core(state: State, words: Steps) -> Any:
                return lane.run_core(
                    i, tables.lanes_of_core[i], tables.ops, tables.costs, tables.pieces, tables.notices, tables.runs,
                    tables.tasks, tables.queues, tables.queue_tasks, tables.steps, tables.groups, tables.lanes, state.lanes,
                    state.groups, state.taken, state.address, tables.n_words, records[i], words.ctypes.data, count,
                    buffer.address,
                    loaded, area, LOAD_AREA_BYTES, offsets, load_offsets, aligned, CACHED_BYTES, self.clock.ticks(drain_ns),
                    patience, self.clock.ticks(self.pause_ns),
                )  # fmt: skip

            def run() -> Any:
                found = run_core(states[0], rehearsed)
                if found[0] != lane.DONE:
                    return *found, states[0]
                outcome, _ = lane.run_lane(
                    prefix, 0, stamps[i], before.ctypes.data, count,
                    buffer.address, buffer.size, aligned, CACHED_BYTES, patience,
                )  # fmt: skip
                if outcome != lane.DONE:
                    return outcome, 0, 0, -1, states[1]
                return *run_core(states[1], shared), states[1]

            return run

        def abort() -> None:
            rehearsed[lane.ABORT] = before[lane.ABORT] = shared[lane.ABORT] = 1

        ended = run_pinned([runner(i) for i in range(count)], self.cores, abort)
        for core, (outcome, _, _, waiting, state) in enumerate(ended):
            if outcome == lane.TIMED_OUT:
                where = (
                    tables.describe(waiting, state) if waiting >= 0 else f"core {core} waited for the others to start"
                )
                raise StuckError(f"{where} for more than {PATIENCE_S:g} s")
        rows = np.concatenate([records[i][: ended[i][1]] for i in range(count)])
        return RanProgram(rows, stamps, any(lost > 0 for _, _, lost, _, _ in ended))

    def _area_bytes(self, tables: CoreTables) -> int:
        """What a buffer has for each rank. Raises `InputError` if a store or load of the Program does not fit."""
        area = self.buffers[0].size // tables.ranks // LINE_BYTES * LINE_BYTES
        for lines, size in ((tables.most_stored_lines, area), (tables.most_loaded_lines, LOAD_AREA_BYTES)):
            if lines > size // LINE_BYTES:
                allowed = f"0 to {size // LINE_BYTES}"
                raise InputError("does not fit into its area", field="lines", value=lines, allowed=allowed)
        return area

    def warm_up(self) -> None:
        """Bring the cores to speed and every page of the buffers into reach."""
        lines = 64
        stored = max(self.buffers[0].size, WARM_UP_BYTES)
        bursts = np.zeros((stored // (lines * LINE_BYTES), 4), dtype=np.int64)
        bursts[:, 0], bursts[:, 1] = lane.STORE, lines
        self.run([bursts] * self.producers)

    def check_clock(self) -> dict[str, float]:
        """Rate and speed now and at the start. Raises `UnsteadyClockError` if the counter changed its rate."""
        rate = measure_rate()
        check_rates(self.clock.ticks_per_ns, rate)
        return {
            "ticks_per_ns_before": self.clock.ticks_per_ns,
            "ticks_per_ns_after": rate,
            "core_speed_change_pct": 100 * (core_speed(self.cores[0]) / self.speed_before - 1),
        }

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _measure_costs(self) -> Costs:
        pairs = 2000
        asked = self.clock.ticks(200) + np.arange(pairs) % max(1, self.clock.ticks(100))  # any place between two steps
        steps = np.zeros((2 * pairs, 4), dtype=np.int64)
        steps[::2, 0], steps[::2, 1] = lane.SPIN, asked
        steps[1::2, 0] = lane.STORE
        took = np.diff(np.stack([self.run([steps]).stamps[0] for _ in range(5)]), axis=1)
        return Costs(float(centre(took[:, 1::2].ravel())), float(centre((took[:, ::2] - asked).ravel())))


def _disturbed(steps: Steps, stamps: Steps, start: int, late: int) -> bool:
    if len(stamps) and stamps[0] - start > late:
        return True
    spins, fixed = steps[:, 0] == lane.SPIN, steps[:, 0] == lane.AT
    behind = np.concatenate([np.diff(stamps)[spins] - steps[spins, 1], stamps[1:][fixed] - start - steps[fixed, 1]])
    return len(behind) > 0 and float(np.mean(behind > late)) > LATE_SHARE


def check_steps(steps: Steps, buffer_bytes: int) -> None:
    """Raise `InputError` if a burst does not fit into the buffer: then none of its stores could be kept inside."""
    stored = steps[steps[:, 0] == lane.STORE, 1]
    most = buffer_bytes // LINE_BYTES
    if len(stored) and not 0 <= int(stored.min()) <= int(stored.max()) <= most:
        worst = int(stored.max()) if stored.max() > most else int(stored.min())
        raise InputError("a burst does not fit into the buffer", field="lines", value=worst, allowed=f"0 to {most}")
