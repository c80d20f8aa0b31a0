"""How sure a saving is: over the intervals of the machine's numbers, and over other seeds.

The scenario and what is better run again with each number of the machine at each end of its interval, then with all of them
at the ends that lower the saving, and at those that raise it. Numbers that change neither schedule nor interconnect of
either are left out. Where a seed draws the routing, both run with other seeds, too: a saving need not be that of one draw.
The model itself, and numbers without an interval, are in none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..scenarios.loader import Resolved
from ..sim.errors import XstageError
from ..sim.traffic import same_in_effect
from .reruns import with_numbers

if TYPE_CHECKING:
    from ..sim.trace import Trace

SEEDS = 4
"""Draws beside the scenario's own."""

Ran: TypeAlias = "tuple[Resolved, Trace]"
"""A scenario and its run."""
Ends = tuple[float, float]
Change = Callable[[Resolved], Resolved]
Tell = Callable[[int, int], None]
"""Called with the runs done and those expected."""


@dataclass(frozen=True)
class SavingInterval:
    """The least and the most that is saved, percent. `by_number` are the savings at the lower and at the upper end of each
    number alone, `by_seed` those of other seeds. An end at which one of the two cannot run counts as no change.
    """

    low_pct: float
    high_pct: float
    by_number: Mapping[str, Ends]
    by_seed: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"numbers": {name: list(ends) for name, ends in self.by_number.items()}, "seeds": list(self.by_seed)}

    @property
    def told(self) -> str:
        """What the interval is of."""
        said = []
        if self.by_number:
            name, ends = max(self.by_number.items(), key=lambda item: abs(item[1][1] - item[1][0]))
            count = len(self.by_number)
            numbers = f"{count} numbers of the machine within their intervals"
            one = "1 number of the machine within its interval"
            said.append(f"{numbers if count > 1 else one} ({_between(ends)} by {name} alone)")
        if self.by_seed:
            said.append(f"{len(self.by_seed)} other seeds ({_between(self.by_seed)})")
        return f"The interval is that of {' and of '.join(said)}."


def saved_pct(own: float, best: float) -> float:
    """What `best` saves of `own`, two times in the same unit, percent."""
    return 100 * (own - best) / own


def saving_interval(own: Ran, best: Ran, tell: Tell) -> SavingInterval | None:
    """The interval of what `best` saves of `own`; None if no number with an interval, and no seed, changes either."""
    resolved = own[0]
    intervals = {path: number.interval for path, number in resolved.machine.numbers() if number.interval}
    both, done, expected = (_Base(*own), _Base(*best)), 0, 2 * (1 + 2 * len(intervals) + 2 + SEEDS)

    def saving(change: Change) -> float | None:
        """None if it changes neither, or if it keeps one of them from running."""
        nonlocal done
        tell(done, expected)
        done += 2
        try:
            before, after = (base.makespan_ps(change) for base in both)
        except XstageError:
            return None
        if before is None and after is None:
            return None
        return saved_pct(before or both[0].ps, after or both[1].ps)

    here = saved_pct(both[0].ps, both[1].ps)
    by_number: dict[str, Ends] = {}
    for path, interval in intervals.items():
        low, high = (saving(_with({path: end})) for end in interval)
        if low is not None or high is not None:
            by_number[path] = here if low is None else low, here if high is None else high
    corners = [saving(_with(corner)) for corner in _corners(intervals, by_number)] if len(by_number) > 1 else []
    seeds = [saving(_seeded(resolved.scenario.seed + more)) for more in range(1, SEEDS + 1)]
    by_seed = tuple(one for one in seeds if one is not None)
    if not by_number and not by_seed:
        return None
    known = [
        here,
        *by_seed,
        *(one for one in corners if one is not None),
        *(one for ends in by_number.values() for one in ends),
    ]
    return SavingInterval(min(known), max(known), by_number, by_seed)


@dataclass(frozen=True)
class _Base:
    """A scenario that has run, with what it ran, so that what changes nothing need not run again."""

    resolved: Resolved
    run: Trace

    @property
    def ps(self) -> int:
        return self.run.makespan_ps

    def makespan_ps(self, change: Change) -> int | None:
        """The makespan with a change; None if that changes neither schedule nor interconnect."""
        from ..sim.execute import simulate

        changed = change(self.resolved)
        program, fabric = changed.program(), changed.fabric()
        if program == self.run.program and same_in_effect(fabric, self.run.fabric):
            return None
        return simulate(program, fabric, changed.scenario.engine, "off").makespan_ps


def _with(values: Mapping[str, Any]) -> Change:
    return lambda resolved: replace(resolved, machine=with_numbers(resolved.machine, values))


def _seeded(seed: int) -> Change:
    return lambda resolved: replace(resolved, scenario=resolved.scenario.model_copy(update={"seed": seed}))


def _corners(intervals: Mapping[str, Any], savings: Mapping[str, Ends]) -> list[dict[str, Any]]:
    """Each number at the end where less is saved, and each at the end where more is."""
    less = {path: 0 if low <= high else 1 for path, (low, high) in savings.items()}
    return [
        {path: intervals[path][end] for path, end in less.items()},
        {path: intervals[path][1 - end] for path, end in less.items()},
    ]


def _between(values: tuple[float, ...]) -> str:
    return f"{min(values):.1f} to {max(values):.1f} %"
