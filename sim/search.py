"""Find the integers at which a run is shortest, in few runs: a coarse grid first, then ever closer around the best points.

A makespan over a schedule's settings is no smooth function, so nothing here relies on slopes. `cost` is called once a
point; it gives None where the point cannot be run.

>>> found = Search((Axis(0, 400),), lambda point: 1000.0 + (point[0] - 137) ** 2)
>>> found.run()
>>> found.best
(137,)
>>> len(found.costs) < 40
True
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .errors import InputError

Point = tuple[int, ...]
Cost = Callable[[Point], float | None]

COARSE = {1: 10, 2: 6, 3: 4}
"""Values of each setting in the coarse grid, by the number of settings; a setting with fewer has all of them there."""
REFINED = 3
"""Best points around which the grid is made finer."""
KNEE_PCT = 1.0


@dataclass(frozen=True)
class Axis:
    """The integers low, low + step, ... up to `high`. Raises `InputError` if there are none."""

    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        if self.step < 1 or self.high < self.low:
            value = f"{self.low} to {self.high} by {self.step}"
            raise InputError("holds no value", field="axis", value=value, allowed="low <= high, step >= 1")

    def __len__(self) -> int:
        return (self.high - self.low) // self.step + 1

    def values(self) -> range:
        return range(self.low, self.high + 1, self.step)

    def coarse(self, count: int) -> list[int]:
        """At most `count` values, the first and the last among them, denser towards the first."""
        if len(self) <= count:
            return list(self.values())
        index = np.unique(np.round(np.geomspace(1, len(self), count)).astype(int)) - 1
        return [self.values()[i] for i in index]


@dataclass
class Search:
    """The points that were looked at, in that order, and what they cost."""

    axes: Sequence[Axis]
    cost: Cost
    most: int = 60
    costs: dict[Point, float | None] = field(default_factory=dict)

    def run(self) -> None:
        """Look at the coarse grid, then refine until the best points have known neighbours or `most` points are known."""
        count = COARSE.get(len(self.axes), 3)
        for point in itertools.product(*(axis.coarse(count) for axis in self.axes)):
            self.look(point)
        while len(self.costs) < self.most:
            new = [point for best in self._leaders() for point in self._halfway(best) if point not in self.costs]
            if not new:
                return
            for point in new[: self.most - len(self.costs)]:
                self.look(point)

    @property
    def best(self) -> Point | None:
        """The cheapest known point, of equal ones the smallest; None if none can be run."""
        leaders = self._leaders()
        return leaders[0] if leaders else None

    def look(self, point: Point) -> float | None:
        if point not in self.costs:
            self.costs[point] = self.cost(point)
        return self.costs[point]

    def find_knee(self, usual: float | None = None) -> int | None:
        """As `knee`, for a single axis; looks at more points until the value before the knee is known to cost more."""
        values = list(self.axes[0].values())
        while True:
            at = knee({point[0]: cost for point, cost in self.costs.items()}, usual)
            if at is None:
                return None
            below = max((point[0] for point in self.costs if point[0] < at), default=None)
            if below is None or values.index(at) - values.index(below) <= 1:
                return at
            self.look((values[(values.index(at) + values.index(below)) // 2],))

    def _leaders(self) -> list[Point]:
        known = [(cost, point) for point, cost in self.costs.items() if cost is not None]
        return [point for _, point in sorted(known)[:REFINED]]

    def _halfway(self, point: Point) -> Iterator[Point]:
        """Points halfway to the known neighbours along each axis."""
        for position, axis in enumerate(self.axes):
            on_line = [
                known[position]
                for known in self.costs
                if known[:position] + known[position + 1 :] == point[:position] + point[position + 1 :]
            ]
            here = point[position]
            below = max((value for value in on_line if value < here), default=None)
            above = min((value for value in on_line if value > here), default=None)
            for known in (below, above):
                steps = 0 if known is None else (known - here) // axis.step
                if abs(steps) > 1:
                    middle = here + int(steps / 2) * axis.step
                    yield (*point[:position], middle, *point[position + 1 :])


def knee(costs: Mapping[int, float | None], usual: float | None = None) -> int | None:
    """The smallest value whose cost is within `KNEE_PCT` of the lowest one; None if none is.

    `usual`: the cost where no value is given, which may be the lowest.
    """
    known = {value: cost for value, cost in costs.items() if cost is not None}
    limit = min([*known.values(), math.inf if usual is None else usual]) * (1 + KNEE_PCT / 100)
    return min((value for value, cost in known.items() if cost <= limit), default=None)
