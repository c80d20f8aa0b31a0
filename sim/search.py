"""Find the settings with which a run is shortest, in few runs: a coarse grid first, then ever closer around the best.

A point holds, for each setting, a position in the list of its values. A makespan over a schedule's settings is no smooth
function, so nothing here relies on slopes. `cost` is called once a point; it gives None where the point cannot be run.

>>> found = Search((401,), lambda point: 1000.0 + (point[0] - 137) ** 2)
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


@dataclass
class Search:
    """The points that were looked at, in that order, and what they cost. `counts`: how many values each setting has.

    Raises `InputError` if a setting has none.
    """

    counts: Sequence[int]
    cost: Cost
    most: int = 60
    costs: dict[Point, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(self.counts, default=1) < 1:
            raise InputError(
                "holds no value", field="setting", value=list(self.counts), allowed="1 or more values each"
            )

    def run(self) -> None:
        """Look at the coarse grid, then refine until the best points have known neighbours or `most` points are known."""
        most = COARSE.get(len(self.counts), 3)
        for point in itertools.product(*(_coarse(count, most) for count in self.counts)):
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
        """As `knee`, for a single setting; looks at more points until the one before the knee is known to cost more."""
        while True:
            at = knee({point[0]: cost for point, cost in self.costs.items()}, usual)
            if at is None:
                return None
            below = max((point[0] for point in self.costs if point[0] < at), default=None)
            if below is None or at - below <= 1:
                return at
            self.look(((at + below) // 2,))

    def _leaders(self) -> list[Point]:
        known = [(cost, point) for point, cost in self.costs.items() if cost is not None]
        return [point for _, point in sorted(known)[:REFINED]]

    def _halfway(self, point: Point) -> Iterator[Point]:
        """Points halfway to the known neighbours along each setting."""
        for axis, here in enumerate(point):
            before, after = point[:axis], point[axis + 1 :]
            on_line = [known[axis] for known in self.costs if known[:axis] + known[axis + 1 :] == before + after]
            below = max((position for position in on_line if position < here), default=here)
            above = min((position for position in on_line if position > here), default=here)
            for known in (below, above):
                if abs(known - here) > 1:
                    yield (*before, here + int((known - here) / 2), *after)


def _coarse(count: int, most: int) -> list[int]:
    """At most `most` of `count` positions, the first and the last among them, denser towards the first."""
    if count <= most:
        return list(range(count))
    return [int(one) - 1 for one in np.unique(np.round(np.geomspace(1, count, most)).astype(int))]


def knee(costs: Mapping[int, float | None], usual: float | None = None) -> int | None:
    """The smallest value whose cost is within `KNEE_PCT` of the lowest one; None if none is.

    `usual`: the cost where no value is given, which may be the lowest.
    """
    known = {value: cost for value, cost in costs.items() if cost is not None}
    limit = min([*known.values(), math.inf if usual is None else usual]) * (1 + KNEE_PCT / 100)
    return min((value for value, cost in known.items() if cost <= limit), default=None)
