"""Times that a table of microbenchmarks noted, in cycles and ns. Needs NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...sim.calibrate import LEAST_NS_PER_BYTE
from . import experiments as e
from .experiments import Table

Array = np.ndarray[Any, np.dtype[Any]]
LEAST_WINDOW_NS = 1e6
"""The clock is told from stretches at least this long: ticks of the global timer may be 1 us apart."""


@dataclass(frozen=True, eq=False)
class Noted:
    """The arrays of one `BurstRun`, as they are or as read back from a file, with what each row was for."""

    table: Table
    marks: Array
    row_times: Array
    cta_times: Array
    cta_sm: Array
    groups: list[dict[str, Any]]

    @classmethod
    def of(cls, arrays: dict[str, Array], groups: list[dict[str, Any]]) -> Noted:
        return cls(arrays["table"], arrays["marks"], arrays["row_times"], arrays["cta_times"], arrays["cta_sm"], groups)

    def rows(self, group: str) -> Any:
        """Numbers of the rows of a group, in the order in which they ran."""
        configs = [i for i, told in enumerate(self.groups) if told["group"] == group]
        return np.flatnonzero(np.isin(self.table["config"], configs))

    def cycles(self, number: int, rank: int = 0) -> Array:
        """[SMs, bursts, marks] of a row, in cycles of each SM since the row began there."""
        row = self.table[number]
        shape = (int(e.noters(self.table[number : number + 1])[0]), int(row["bursts"]), int(row["marks"]))
        first = int(row["first_mark"])
        return self.marks[rank, first : first + int(np.prod(shape))].astype(np.int64).reshape(shape)

    def ns(self, number: int, rank: int = 0) -> Array:
        """The same in ns, by the clock as it was then."""
        return np.asarray(self.cycles(number, rank) / self.cycles_per_ns[number])

    @cached_property
    def cycles_per_ns(self) -> Array:
        """How fast the clock of SM 0 went while each row ran, [rows]."""
        ns, ticks = self._stretches()
        rates = np.diff(ticks) / np.diff(ns)
        begun = self.row_times[0, :, 0].astype(np.int64)
        return rates[np.clip(np.searchsorted(ns, begun, side="right") - 1, 0, len(rates) - 1)]

    def clock_moved_pct(self) -> float:
        """How far the clock moved while the table ran: the range of rates of stretches, as a share of their median."""
        ns, ticks = self._stretches()
        rates = np.diff(ticks) / np.diff(ns)
        return float(100 * (rates.max() - rates.min()) / np.median(rates))

    def tick_ns(self) -> float:
        """Smallest step that the global timer made (NaN: the table has no such rows)."""
        steps = [np.diff(self.cycles(i)[0, :, 1]) for i in self.rows("tick idle")]
        moved = np.concatenate([step[step > 0] for step in steps]) if steps else np.zeros(0)
        return float(moved.min()) if len(moved) else float("nan")

    def offsets(self) -> dict[str, dict[str, float]]:
        """By the ping-pong with the shortest round trip (`trip_ns`): how far the timer of each rank is ahead of that of
        rank 0 (`ahead_ns`), and when that was (`at_ns` of rank 0's)."""
        best: dict[str, dict[str, float]] = {}
        for i in self.rows("offset"):
            words = self.cycles(i)[0]
            asked, theirs, answered = (words[:, 2 * k] + (words[:, 2 * k + 1] << 32) for k in range(3))
            fastest = int(np.argmin(answered - asked))
            trip = float(answered[fastest] - asked[fastest])
            offset = float(theirs[fastest] - asked[fastest]) - trip / 2
            rank = str(int(self.table["target"][i]))
            if rank not in best or trip < best[rank]["trip_ns"]:
                best[rank] = {"at_ns": float(asked[fastest]), "ahead_ns": offset, "trip_ns": trip}
        return best

    def offsets_ns(self) -> dict[str, float]:
        """`ahead_ns` alone."""
        return {rank: told["ahead_ns"] for rank, told in self.offsets().items()}

    def _stretches(self) -> tuple[Array, Array]:
        """Global timer and clock of SM 0 at times at least 1 ms apart, from the first to the last that was noted."""
        times = np.concatenate([self.cta_times[0, :1, :2], self.row_times[0, :, :2], self.cta_times[0, :1, 2:]])
        ns, ticks = times[:, 0].astype(np.int64), times[:, 1].astype(np.int64)
        chosen = [0]
        for i in range(1, len(ns) - 1):
            if ns[i] - ns[chosen[-1]] >= LEAST_WINDOW_NS and ns[-1] - ns[i] >= LEAST_WINDOW_NS:
                chosen.append(i)
        chosen.append(len(ns) - 1)
        return ns[chosen], ticks[chosen]


def issue_ns(noted: Noted, number: int, skip: int = 0) -> float:
    """Mean over SMs and bursts (after the first `skip`) of the time to issue one burst of a row."""
    times = noted.ns(number)
    return float((times[:, skip:, 1] - times[:, skip:, 0]).mean())


def gap_ns(noted: Noted, number: int, skip: int = 0) -> float:
    """Mean over SMs of the time from the end of a burst to the start of the next, after the first `skip` bursts."""
    times = noted.ns(number)
    return float((times[:, skip + 1 :, 0] - times[:, skip:-1, 1]).mean())


def outer_lines(noted: Noted) -> tuple[Array, Array]:
    """`lines_of_thirds` of the isolated bursts, by the median over rounds."""
    rows = noted.rows("isolated")
    each = noted.table["bytes"][rows].astype(float)
    times = np.array([issue_ns(noted, int(i)) for i in rows])
    sizes = np.unique(each)
    return lines_of_thirds(sizes, np.array([np.median(times[each == size]) for size in sizes]))


def lines_of_thirds(sizes: Array, times_ns: Array) -> tuple[Array, Array]:
    """Straight lines through the times of the smallest and of the largest third of sizes, in order, each as ns a byte and ns
    at 0 bytes. Misses count relative to the time. The first slope is no less than that of the fit."""
    third = max(3, len(sizes) // 3)
    small, large = (
        np.polyfit(sizes[part], times_ns[part], 1, w=1 / times_ns[part]) for part in (slice(third), slice(-third, None))
    )
    small[0] = max(small[0], LEAST_NS_PER_BYTE)
    return small, large


def knee_ratio(noted: Noted) -> float:
    """How many times more a byte takes in the largest third of isolated bursts than in the smallest (1: no knee)."""
    small, large = outer_lines(noted)
    return float(large[0] / small[0])
