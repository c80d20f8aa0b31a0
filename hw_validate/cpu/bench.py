"""Cores, memory and a clock made ready, on which lists of steps run: what calibration and replay share.

The cost of noting the time is measured once (`Costs`) and taken off everything: a store of no lines takes
`store_ticks`, which is no storing but part of the gap that follows it; a spin ends `overshoot_ticks` late on average.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from ...sim.errors import InputError
from ..centre import centre
from ..measuring import MeasurementError
from . import lane, yardstick
from .architecture import LINE_BYTES, Architecture
from .buffers import Buffer
from .clock import Clock, check_rates, core_speed, lost_share, measure_clock, measure_rate
from .cores import choose_cores, run_pinned
from .tables import CoreTables, State
from .yardstick import Steps

CACHED_BYTES = 4 << 10
"""Ordinary stores go round in this much memory, which stays in the first-level cache; little, as loads may drive it out."""
LOAD_AREA_BYTES = 64 << 10
"""Loads go round in this much memory of each rank, which stays in the second-level cache."""
WARM_UP_BYTES = 256 << 20
PATIENCE_S = 5.0
"""Nothing that runs here lasts longer by far; a wait that does is a deadlock."""


LATE_SHARE = 0.1
NO_LIMIT = 1e12
PACES, QUIETEST = 1500, 0.25
"""So often small bursts are run to see what is usual: what they take in the quietest quarter."""
WAIT_S = 1.0
"""So long something is run again until it is quiet; a core may be in another state for seconds."""


class StuckError(MeasurementError):
    """Lanes on real cores waited for each other for seconds."""


@dataclass(frozen=True)
class Costs:
    """What measuring itself takes, in ticks."""

    store_ticks: float
    overshoot_ticks: float


@dataclass(frozen=True)
class Limits:
    """From when on a run counts as disturbed."""

    late_ns: float = 500.0
    """If a lane began this late, or a tenth of its spins ended this late, something else ran on its core."""
    pause_ns: float = 2_000.0
    """It did as well if a core that runs a Program did not look at its lanes for so long. A slice of another thread is far
    longer; a few ops of many lanes at once, or the first use of some memory, are shorter."""
    pace: float = 1.3
    """The core was in another state if small bursts took so many times more, or less, than they usually take."""


class Ran(NamedTuple):
    """The times noted by lane, one more than steps, and whether something else took time from a lane."""

    stamps: list[Steps]
    disturbed: bool


class RanProgram(NamedTuple):
    """What `lane.run_core` noted, a row an op: (lane, task, op, start, end, begun), times in ticks; and whether something
    else took time from a core."""

    records: Steps
    disturbed: bool


class Bench:
    """`producers` cores with a buffer each. Use it in `with`: it holds memory. If it does not judge, no run counts as
    disturbed, whatever else runs here.

    Raises `InputError` for more producers than cores, and `UnsteadyClockError`.
    """

    def __init__(self, producers: int = 1, buffer_bytes: int | None = None, judges: bool = True) -> None:
        rough = Clock(measure_rate(0.01), 1)
        self.cores = choose_cores(producers, lambda core: lost_share(core, rough))
        self.clock = measure_clock(self.cores[0])
        self.buffers = [Buffer(buffer_bytes or lane.ARCHITECTURE.buffer_bytes) for _ in range(producers)]
        self._limits = Limits() if judges else Limits(NO_LIMIT, NO_LIMIT, NO_LIMIT)
        self._offsets = [0] * producers
        self._cached = [np.ones(CACHED_BYTES + LINE_BYTES, dtype=np.uint8) for _ in range(producers)]
        self._warm_up()
        self._judges = judges
        self._usual_ticks: dict[int, float] = {}  # of small bursts, by the number of lanes that run
        self.speed_before = core_speed(self.cores[0])
        self.costs = self._measure_costs()

    @property
    def architecture(self) -> Architecture:
        return lane.ARCHITECTURE

    @property
    def producers(self) -> int:
        return len(self.cores)

    def run_quietly(self, lists: Sequence[Steps]) -> Ran:
        """As `run_watched`, again while it is disturbed, for `WAIT_S` at most. Not for steps that use counters."""
        give_up = time.monotonic() + WAIT_S
        while (ran := self.run_watched(lists)).disturbed and time.monotonic() < give_up:
            pass
        return ran

    def run_watched(self, lists: Sequence[Steps]) -> Ran:
        """As `run`, between small bursts; it counts as disturbed as well if these did not take what they usually take."""
        stamps, disturbed = self.run([yardstick.around(steps, self.clock) for steps in lists])
        paces = [yardstick.paces_ticks(noted) for noted in stamps]
        return Ran([yardstick.between(noted) for noted in stamps], disturbed or not self._as_usual(paces))

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
        late = self.clock.ticks(self._limits.late_ns)
        return Ran(stamps, any(_disturbed(*each, start, late) for each in zip(lists, stamps, strict=True)))

    def run_program(self, tables: CoreTables, drain_ns: float, watched: bool = True) -> RanProgram:
        """Run a Program on the cores that it was mapped to, once to make code and tables warm, then again, which counts.

        `drain_ns` is how long a full stage drains: a core tells of its stores as long after them. The run counts as
        disturbed if something else took time from a core, or if the small bursts before and after it, which are left out
        unless `watched`, did not take what they usually take.
        Raises `InputError` for more cores than there are or a store larger than its area, and `StuckError` naming lane and
        counter if lanes wait for each other for seconds.
        """
        count = len(tables.lanes_of_core)
        if count > self.producers:
            raise InputError("more lanes than cores", field="lanes", value=count, allowed=f"1 to {self.producers}")
        area = self._area_bytes(tables)
        bursts = [yardstick.before(self.clock), yardstick.after(self.clock)] if watched else []
        patience = self.clock.ticks(PATIENCE_S * 1e9)
        rehearsed, shared, *around = (np.zeros(lane.N_SHARED, dtype=np.int64) for _ in range(2 + len(bursts)))
        states = [tables.state(), tables.state()]
        loads = np.ones((count, tables.ranks * LOAD_AREA_BYTES + LINE_BYTES), dtype=np.uint8)
        stamps = [[np.ones(len(steps) + 1, dtype=np.int64) for _ in range(count)] for steps in bursts]
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
                    patience, self.clock.ticks(self._limits.pause_ns),
                )  # fmt: skip

            def run_bursts(which: int) -> Any:
                outcome, _ = lane.run_lane(
                    bursts[which], 0, stamps[which][i], around[which].ctypes.data, count,
                    buffer.address, buffer.size, aligned, CACHED_BYTES, patience,
                )  # fmt: skip
                return outcome

            def run() -> Any:
                found = run_core(states[0], rehearsed)
                if found[0] != lane.DONE:
                    return *found, states[0]
                if watched and (outcome := run_bursts(0)) != lane.DONE:
                    return outcome, 0, 0, -1, states[1]
                found = run_core(states[1], shared)
                if watched and found[0] == lane.DONE and (outcome := run_bursts(1)) != lane.DONE:
                    return outcome, 0, 0, -1, states[1]
                return *found, states[1]

            return run

        def abort() -> None:
            for words in (rehearsed, shared, *around):
                words[lane.ABORT] = 1

        ended = run_pinned([runner(i) for i in range(count)], self.cores, abort)
        for core, (outcome, _, _, waiting, state) in enumerate(ended):
            if outcome == lane.TIMED_OUT:
                where = (
                    tables.describe(waiting, state) if waiting >= 0 else f"core {core} waited for the others to start"
                )
                raise StuckError(f"{where} for more than {PATIENCE_S:g} s")
        rows = np.concatenate([records[i][: ended[i][1]] for i in range(count)])
        disturbed = any(lost > 0 for _, _, lost, _, _ in ended)
        if watched:
            paces = [[yardstick.pace_ticks(noted) for noted in each] for each in zip(*stamps, strict=True)]
            disturbed = disturbed or not self._as_usual(paces)
        return RanProgram(rows, disturbed)

    def _area_bytes(self, tables: CoreTables) -> int:
        """What a buffer has for each rank. Raises `InputError` if a store or load of the Program does not fit."""
        area = self.buffers[0].size // tables.ranks // LINE_BYTES * LINE_BYTES
        for lines, size in ((tables.most_stored_lines, area), (tables.most_loaded_lines, LOAD_AREA_BYTES)):
            if lines > size // LINE_BYTES:
                allowed = f"0 to {size // LINE_BYTES}"
                raise InputError("does not fit into its area", field="lines", value=lines, allowed=allowed)
        return area

    def _warm_up(self) -> None:
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

    def _as_usual(self, paces: Any) -> bool:
        """Whether small bursts before and after took what they usually take; `paces` [lanes, 2] are ticks. A bench that
        does not judge does not ask what is usual either."""
        if not self._judges:
            return True
        if len(paces) not in self._usual_ticks:
            self._usual_ticks[len(paces)] = self._measure_usual(len(paces))
        ratio = np.mean(paces, axis=0) / self._usual_ticks[len(paces)]
        return bool(((ratio <= self._limits.pace) & (ratio >= 1 / self._limits.pace)).all())

    def _measure_usual(self, lanes: int) -> float:
        """What small bursts usually take on `lanes` lanes at once, in ticks."""
        bursts = [yardstick.before(self.clock)] * lanes
        paces = [np.mean([yardstick.pace_ticks(noted) for noted in self.run(bursts).stamps]) for _ in range(PACES)]
        return float(np.quantile(paces, QUIETEST))

    def _measure_costs(self) -> Costs:
        pairs, times = 400, 25
        asked = self.clock.ticks(200) + np.arange(pairs) % max(1, self.clock.ticks(100))  # any place between two steps
        steps = np.zeros((2 * pairs, 4), dtype=np.int64)
        steps[::2, 0], steps[::2, 1] = lane.SPIN, asked
        steps[1::2, 0] = lane.STORE
        took = np.diff(np.stack([self.run_quietly([steps]).stamps[0] for _ in range(times)]), axis=1)
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
