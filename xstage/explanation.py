"""`xstage explain`: where the time of a scenario goes, as bars that add up to its makespan.

The scenario runs again and again, each time with one more limit removed: what a step saves is the bar of that limit. What
is left when all are gone is split by the time of the busiest Tensor Core lane. Limits overlap, so a bar depends on the
order: one that comes later is charged only with what the earlier ones have left. `alone_us` is what removing that limit
and nothing else saves; where the two differ much, limits stand in for each other. A bar can be negative, where a limit
happened to order stores or tiles well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .api import resolved_scenario
from .counted_progress import Report, unreported
from .output import parts_html, table
from .reruns import Given, simulated
from .scenarios.loader import Resolved
from .sim import waterfall
from .sim.errors import InputError
from .sim.units import PS_PER_US

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from .scenarios.schema import Scenario
    from .scenarios.workload import Workload
    from .sim.topology import Fabric
    from .sim.trace import Trace

SMALL_PCT = 1.0
"""Below this share of the makespan, removing a limit is not worth a recommendation."""
BAR_WIDTH = 40


@dataclass(frozen=True)
class Limit:
    """Something that costs time and can be taken away, from the fabric or from the scenario (None where it is not there)."""

    name: str
    text: str
    removed: str
    fabric: Callable[[Fabric], Fabric] | None = None
    scenario: Callable[[Scenario], Scenario | None] | None = None


def _undisturbed(kind: str) -> Callable[[Scenario], Scenario | None]:
    """Without the disturbances of one kind."""

    def change(scenario: Scenario) -> Scenario | None:
        if not getattr(scenario.disturb, kind):
            return None
        return scenario.model_copy(update={"disturb": scenario.disturb.model_copy(update={kind: ()})})

    return change


def _with(change: Callable[[Workload], Workload | None]) -> Callable[[Scenario], Scenario | None]:
    """With a changed workload."""

    def changed(scenario: Scenario) -> Scenario | None:
        workload = change(scenario.workload)
        return None if workload is None else scenario.model_copy(update={"workload": workload})

    return changed


def _in_time(scenario: Scenario) -> Scenario | None:
    """With no rank late, whether the workload or a disturbance made it so."""
    workload = _with(lambda w: w.without_late_ranks())(scenario)
    return _undisturbed("late_gpu")(workload or scenario) or workload


LIMITS = (
    Limit("degraded_link", "a degraded link", "links as they should be", scenario=_undisturbed("degraded_link")),
    Limit("slow_gpu", "a slow GPU", "GPUs that are equally fast", scenario=_undisturbed("slow_gpu")),
    Limit("late_ranks", "ranks that start late", "a start of all at once", scenario=_in_time),
    Limit("capacity", "finite capacity of the stage (Q)", "a stage without limit", waterfall.without_capacity_limit),
    Limit("drain_rate", "finite drain rate (R)", "an interconnect without limit", waterfall.without_rate_limit),
    Limit("latency", "latency of the interconnect", "no latency", waterfall.without_latency),
    Limit("imbalance", "routing imbalance", "balanced routing", scenario=_with(lambda w: w.without_imbalance())),
    Limit(
        "sending", "what the schedule does to send", "nothing to send", scenario=_with(lambda w: w.without_sending())
    ),
)
"""In the order in which they are removed unless another is asked for."""

_PARTS = {
    "compute": "Tensor Core time of the busiest lane",
    "busy": "work of the busiest lane",
    "other": "its epilogue, issue and signals",
    "stall": "its stall",
    "wait": "its wait for ",
    "before": "before it starts",
    "after": "after its last tile",
}


@dataclass(frozen=True)
class Bar:
    """`ps` of the makespan. `removed` says without what; None for a part of what is left when all limits are gone."""

    name: str
    cause: str
    ps: int
    removed: str | None = None
    alone_ps: int | None = None

    def as_dict(self, total_ps: int) -> dict[str, Any]:
        return {
            "name": self.name,
            "cause": self.cause,
            "us": self.ps / PS_PER_US,
            "share_pct": 100 * self.ps / max(1, total_ps),
            "removed_by": self.removed,
            "alone_us": None if self.alone_ps is None else self.alone_ps / PS_PER_US,
        }


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """Bars in picoseconds that add up to the makespan exactly, removable ones first."""

    resolved: Resolved
    total_ps: int
    bars: tuple[Bar, ...]
    timing: dict[str, float]

    @property
    def largest(self) -> Bar | None:
        """The removable bar that saves most; None if none saves anything."""
        removable = [bar for bar in self.bars if bar.removed and bar.ps > 0]
        return max(removable, key=lambda bar: bar.ps, default=None)

    @property
    def sentence(self) -> str:
        """What to look at first, or that there is nothing."""
        largest, total = self.largest, self.total_ps
        if largest is None or 100 * largest.ps < SMALL_PCT * total:
            return f"No limit costs {SMALL_PCT:g} % of the time: computation and the order of tiles set it."
        return (
            f"The largest removable part is {largest.cause}: {largest.ps / PS_PER_US:.3f} us, "
            f"{100 * largest.ps / total:.1f} % of the makespan, gone with {largest.removed}."
        )

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage explain --json`, without the fields that all answers share."""
        scenario, largest = self.resolved.scenario, self.largest
        return {
            "scenario": scenario.name,
            "machine": self.resolved.machine.name,
            "total_us": self.total_ps / PS_PER_US,
            "bars": [bar.as_dict(self.total_ps) for bar in self.bars],
            "largest_removable": largest.name if largest else None,
            "sentence": self.sentence,
        }

    @property
    def frame(self) -> pd.DataFrame:
        """One row a bar."""
        import pandas as pd

        return pd.DataFrame(bar.as_dict(self.total_ps) for bar in self.bars)

    def plot(self) -> Figure:
        """The waterfall."""
        from .plots.schedule_figures import waterfall_figure

        return waterfall_figure(self.frame)

    def __repr__(self) -> str:
        return f"<Explanation of {self.resolved.scenario.name}: {self.total_ps / PS_PER_US:.3f} us>"

    def _repr_html_(self) -> str:
        return parts_html(explanation_parts(self))


def explain(
    scenario: Given,
    *,
    order: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    progress: Report = unreported,
) -> Explanation:
    """Split the makespan of a scenario into what each limit costs and what is left, see the module's description.

    `order` names limits in the order of their removal (default: all, as in `LIMITS`); those that the workload does not have
    are left out. Raises `InputError` for an unknown one.
    """
    started = time.perf_counter()
    resolved = resolved_scenario(scenario, overrides)
    limits = [limit for limit in _ordered(order) if _without(resolved, [limit]) is not None]
    expected, done = max(1, 2 * len(limits)), 0

    def makespan(removed: Sequence[Limit]) -> int:
        nonlocal done
        progress(done, expected)
        done += 1
        return _run(resolved, removed).makespan_ps

    after = [makespan(limits[:count]) for count in range(len(limits))]
    last = _run(resolved, limits)
    after.append(last.makespan_ps)
    alone = [after[0] - (after[1] if i == 0 else makespan([limit])) for i, limit in enumerate(limits)]
    progress(expected, expected)
    bars = [
        Bar(limit.name, limit.text, after[i] - after[i + 1], limit.removed, alone[i]) for i, limit in enumerate(limits)
    ]
    for part in waterfall.remainder(last):
        name = f"wait_{part.cause}" if part.cause else part.what
        bars.append(Bar(name, _PARTS[part.what] + (part.cause or ""), part.ps))
    return Explanation(resolved, after[0], tuple(bars), {"wall_s": time.perf_counter() - started})


def _ordered(order: Sequence[str] | None) -> list[Limit]:
    known = {limit.name: limit for limit in LIMITS}
    for name in order or ():
        if name not in known:
            raise InputError("is no limit that can be removed", field="order", value=name, allowed=known)
    return [known[name] for name in dict.fromkeys(order if order is not None else known)]


def _without(resolved: Resolved, removed: Sequence[Limit]) -> Resolved | None:
    """The scenario without what it adds itself; None if one of them is not there."""
    scenario = resolved.scenario
    for limit in removed:
        if limit.scenario is not None:
            changed = limit.scenario(scenario)
            if changed is None:
                return None
            scenario = changed
    return replace(resolved, scenario=scenario)


def _run(resolved: Resolved, removed: Sequence[Limit]) -> Trace:
    changed = _without(resolved, removed)
    assert changed is not None  # limits that are not there have been left out

    def change(fabric: Fabric) -> Fabric:
        for limit in removed:
            fabric = limit.fabric(fabric) if limit.fabric else fabric
        return fabric

    return simulated(changed, "off", change)


def explanation_parts(done: Explanation) -> list[Any]:
    """The waterfall for a person."""
    scenario, total = done.resolved.scenario, done.total_ps
    rows = [
        (
            bar.cause,
            f"{bar.ps / PS_PER_US:.3f}",
            f"{100 * bar.ps / max(1, total):.1f} %",
            "" if bar.alone_ps is None else f"{bar.alone_ps / PS_PER_US:.3f}",
            _drawn(bar.ps, total),
        )
        for bar in done.bars
    ]
    rows.append(("makespan", f"{total / PS_PER_US:.3f}", "100.0 %", "", ""))
    return [
        f"{scenario.name}: {scenario.question}",
        f"{scenario.workload.kind} on {scenario.workload.gpus} GPUs of {done.resolved.machine.name}",
        "",
        table("limits removed one after the other, then what is left", ("", "us", "share", "alone", ""), rows),
        "",
        done.sentence,
    ]


def _drawn(ps: int, total: int) -> str:
    length = round(BAR_WIDTH * abs(ps) / max(1, total))
    return ("█" if ps >= 0 else "░") * (length or int(ps != 0 and 200 * abs(ps) >= total))
