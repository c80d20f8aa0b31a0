"""`xstage explain`: where the time of a scenario goes, as bars that add up to its makespan.

The scenario runs again and again, each time with one more limit removed: what a step saves is the bar of that limit. What
is left when all are gone is split by the time of the busiest Tensor Core lane. Its main loops run at the machine's MMA
efficiency, not at peak, with `tile_fixed` each. Limits overlap, so a bar depends on the order: one that comes later is
charged only with what the earlier ones have left. `alone_us` is what removing that limit and nothing else saves; where the
two differ much, limits stand in for each other. A bar is negative where what a limit held back comes sooner without it and
delays something else; a later bar then pays that back, so that the headline goes by `alone_us`.

Bars of a single burst add up to its sender-visible end instead, when it has been issued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..scenarios.cautions import cautions
from ..scenarios.loader import Resolved
from ..sim import waterfall
from ..sim.activity import has_epilogues_in_math
from ..sim.units import PS_PER_US
from ..terminal.heading import asked, scenario_fields, what_runs_where
from ..terminal.narrow import Bar as Drawn
from ..terminal.output import Printed, table, warning_parts, with_warnings
from ..terminal.progress import Progress, silent
from .api import resolved_scenario
from .figure_setting import setting_of
from .limits import FEEDS, IMBALANCE, ISSUE, L2_CACHE, LIMITS, SENDING, Limit, WithoutLimits, named, ordered
from .reruns import Given, choices_of, chosen_policies, end_in_words, own_policy, taken_ps, under_policy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..sim.program import Program

SMALL_PCT = 1.0
"""Below this share of the makespan, removing a limit is not worth a recommendation."""
BAR_WIDTH = 40
"""Characters of a bar as long as the whole."""
SEEN = 0.005
"""Share of the whole from which on a bar has a character."""
REPAID_PCT = 2.0
"""From this share of the time on, below 0, a later bar is too much larger for what it pays back to be named by its size."""
BELOW_ZERO = (
    "Below 0: without that limit the scenario takes longer. What it held back comes sooner, and delays something else."
)
EVEN_BELOW_ZERO = (
    "Routing imbalance below 0: the same rows, spread evenly, take more m-blocks or the weights of more experts."
)
WAVES = "expert_wave"
"""The policy that crosses fewest experts."""
LEFT = "left, on the busiest lane:"
"""Above the parts of what is left when all limits are gone."""
WITH_FEED = "main loops, with feeds"
ISSUED_AT_ONCE = "epilogue, signals"
OF_OWN_PROGRAM = {"compute": "computation", "other": "all other ops"}
"""Parts of a Program of one's own, of which nobody knows what it computes."""
_PARTS = {
    "compute": "main loops",
    "busy": "work",
    "other": "epilogue, issue, signals",
    "stall": "stall",
    "wait": "wait: ",
    "before": "before its start",
    "after": "after its last tile",
}


@dataclass(frozen=True)
class Bar:
    """`ps` of the whole. `removed` says without what; None for a part of what is left when all limits are gone."""

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
class Explanation(Printed):
    """Bars in picoseconds that add up to `total_ps` exactly, removable ones first: the time to the end that the workload
    is judged by, of a single burst the sender-visible one, else the makespan.

    `weight_hits_pct` is, by policy, the share of tiles that find their weights in the L2 cache: of the scenario's own, then
    of expert_wave. It is there where weights that are read again cost time.
    """

    resolved: Resolved
    total_ps: int
    bars: tuple[Bar, ...]
    weight_hits_pct: Mapping[str, float]
    warnings: tuple[str, ...] = ()

    @property
    def largest(self) -> Bar | None:
        """The removable bar that saves most whatever else is removed: both as a bar and alone. If none does so, the largest
        bar, which takes others with it; None if none saves anything. A bar that pays back what one above it costs is larger
        by that: then the one that saves most alone.
        """
        found = self._largest_bar
        return self._most_alone if found is not None and self._pays_back(found) else found

    @property
    def _largest_bar(self) -> Bar | None:
        removable = [bar for bar in self.bars if bar.removed and bar.ps > 0]
        sure = max(removable, key=_sure_ps, default=None)
        if sure is not None and self._matters(_sure_ps(sure)):
            return sure
        return max(removable, key=lambda bar: bar.ps, default=None)

    @property
    def _most_alone(self) -> Bar | None:
        limits = [bar for bar in self.bars if bar.alone_ps is not None and bar.name != SENDING]
        return max(limits, key=lambda bar: bar.alone_ps or 0, default=None)

    def _pays_back(self, found: Bar) -> bool:
        above = self.bars[: self.bars.index(found)]
        return any(100 * bar.ps <= -REPAID_PCT * self.total_ps for bar in above)

    @property
    def sentence(self) -> str:
        """What to look at first, or that there is nothing."""
        bar = self._largest_bar
        if bar is None or not self._matters(bar.ps):
            return f"No limit costs {SMALL_PCT:g} % of the time: computation and the order of tiles set it."
        largest = self.largest or bar
        if self._pays_back(bar):
            said = self._said_alone(largest)
        else:
            said = f"The largest removable part is {self._told(bar)}, gone with {bar.removed}."
            said += self._only_with_others(bar) + self._more_alone(bar) + self._masked(bar)
        weights = next((bar for bar in self.bars if bar.name == L2_CACHE), None)
        if weights is not None and self._matters(weights.ps):
            said += "" if weights is largest else f" Also {self._told(weights)}."
            said += self._of_weights()
        return said

    def _said_alone(self, largest: Bar) -> str:
        """What saves most alone, where bars do not tell."""
        said = "One bar is below 0, and those under it pay that back: `alone` tells what is saved. "
        if not self._matters(alone := largest.alone_ps or 0):
            return said + f"No limit alone saves {SMALL_PCT:g} % of the time."
        return said + f"Most saves {largest.cause}: {self._share(alone)}, gone with {largest.removed}."

    def _matters(self, ps: int) -> bool:
        return 100 * ps >= SMALL_PCT * self.total_ps

    @property
    def _whole(self) -> str:
        end = end_in_words(self.resolved)
        return end if end == "makespan" else f"{end} time"

    def _told(self, bar: Bar) -> str:
        return f"{bar.cause}: {self._share(bar.ps)}"

    def _share(self, ps: int) -> str:
        return f"{ps / PS_PER_US:.3f} us, {100 * ps / self.total_ps:.1f} % of the {self._whole}"

    def _only_with_others(self, bar: Bar) -> str:
        """That a bar takes others with it, where it saves less alone."""
        alone = bar.alone_ps or 0
        if not self._matters(bar.ps - alone):
            return ""
        if alone <= 0:
            return " Alone it saves nothing: it does once the limits above it are gone, too."
        return f" Alone it saves {alone / PS_PER_US:.3f} us, the rest once the limits above it are gone, too."

    def _more_alone(self, largest: Bar) -> str:
        """What saves clearly more if it is all that is removed, because it takes earlier bars with it."""
        most = self._most_alone or largest
        alone = most.alone_ps or 0
        if not self._matters(alone - (largest.alone_ps or 0)):
            return ""
        share = 100 * alone / self.total_ps
        return f" Of the limits removed alone, {most.cause} saves most: {alone / PS_PER_US:.3f} us, {share:.1f} %."

    def _masked(self, largest: Bar) -> str:
        """The bars that are larger, and save less alone."""
        larger = [bar for bar in self.bars if bar.removed and bar.ps > largest.ps and bar is not largest]
        told = [
            f"{bar.cause}: {bar.ps / PS_PER_US:.3f} us, alone {(bar.alone_ps or 0) / PS_PER_US:.3f} us"
            for bar in larger
        ]
        return f" Larger, but only once the limits above it are gone, is {', and '.join(told)}." if told else ""

    def _of_weights(self) -> str:
        """How often tiles find their weights in the L2 cache, and under expert waves, which cross fewest experts."""
        (own, hits), *waves = self.weight_hits_pct.items()
        found = f" Under {own} {hits:.0f} % of the tiles find their weights in the L2 cache"
        wave, more = waves[0] if waves else (own, hits)
        return found + (f", {more:.0f} % under {wave}: this order crosses experts." if more > hits else ".")

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage explain --json`, without the fields that all answers share."""
        scenario, largest = self.resolved.scenario, self.largest
        answer = {
            **scenario_fields(self.resolved),
            "machine": self.resolved.machine.name,
            "total_us": self.total_ps / PS_PER_US,
            "total_is": f"{scenario.workload.judged_by}_us",
            "bars": [bar.as_dict(self.total_ps) for bar in self.bars],
            "largest_removable": largest.name if largest else None,
            "sentence": self.sentence,
            "weight_hits_pct": dict(self.weight_hits_pct),
        }
        return with_warnings(answer, self.warnings)

    @property
    def frame(self) -> pd.DataFrame:
        """One row a bar."""
        import pandas as pd

        return pd.DataFrame(bar.as_dict(self.total_ps) for bar in self.bars)

    def plot(self) -> Figure:
        """The waterfall."""
        from ..plots.schedule_figures import waterfall_figure

        return waterfall_figure(self.frame, setting_of(self.resolved), end_in_words(self.resolved))

    def __repr__(self) -> str:
        return f"<Explanation of {self.resolved.scenario.name}: {self.total_ps / PS_PER_US:.3f} us>"

    def printed(self) -> list[Any]:
        """The waterfall for a person."""
        total = self.total_ps
        # A part is longer than the whole where another is below 0.
        scale = max([1, total, *(abs(bar.ps) for bar in self.bars)])
        longest = max([0, *(abs(bar.ps) for bar in self.bars)]) / scale
        rows: list[tuple[Any, ...]] = [
            (
                bar.cause if bar.removed else f"  {bar.cause}",
                f"{bar.ps / PS_PER_US:.3f}",
                f"{100 * bar.ps / max(1, total):.1f} %",
                "" if bar.alone_ps is None else f"{bar.alone_ps / PS_PER_US:.3f}",
                Drawn(bar.ps / scale, longest, BAR_WIDTH, SEEN),
            )
            for bar in self.bars
        ]
        removable = sum(bar.removed is not None for bar in self.bars)
        if removable < len(rows):
            rows.insert(removable, (LEFT, "", "", "", ""))
        slower = [bar.name for bar in self.bars if bar.ps < 0 or (bar.alone_ps or 0) < 0]
        reasons = [EVEN_BELOW_ZERO] * (IMBALANCE in slower) + [BELOW_ZERO] * any(name != IMBALANCE for name in slower)
        rows.append((end_in_words(self.resolved), f"{total / PS_PER_US:.3f}", "100.0 %", "", ""))
        return [
            *asked(self.resolved),
            what_runs_where(self.resolved),
            "",
            table("limits removed one after the other, then what is left", ("", "us", "share", "alone", ""), rows),
            *(["", *reasons] if reasons else []),
            "",
            self.sentence,
            *warning_parts(self.warnings),
        ]


def explain(
    scenario: Given,
    policy: str | None = None,
    *,
    order: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Explanation:
    """Split the time of a scenario into what each limit costs and what is left.

    `policy` replaces the scenario's own. `order` names limits in the order of their removal (default: as in
    `limits.LIMITS`); those that the workload does not have are left out. Raises `InputError` for an unknown policy or limit,
    or a limit that is given twice.
    """
    resolved = resolved_scenario(scenario, overrides)
    if policy is not None:
        choices = choices_of(resolved)
        [name] = chosen_policies(choices, [policy], "policy")
        resolved, _ = under_policy(resolved, name, choices[name])
    chosen = ordered(order)
    runs = WithoutLimits(resolved)
    limits = runs.there(chosen)
    fed = runs.there([limit for limit in LIMITS if limit.name in FEEDS and limit not in chosen])
    expected, done = max(1, 2 * len(limits)), 1

    def without(removed: Sequence[Limit]) -> int:
        nonlocal done
        progress(done, expected)
        done += 1
        return taken_ps(resolved, runs.run(removed))

    progress(0, expected)
    own = runs.run([])
    between = [without(limits[:count]) for count in range(1, len(limits))]
    last = runs.run(limits) if limits else own
    left_ps = taken_ps(resolved, last)
    after = [taken_ps(resolved, own), *between, left_ps]
    alone = [after[0] - (after[1] if i == 0 else without([limit])) for i, limit in enumerate(limits)]
    progress(expected, expected)
    bars = [
        Bar(limit.name, limit.text, after[i] - after[i + 1], limit.removed, alone[i])
        for i, limit in enumerate(named(limit, resolved) for limit in limits)
    ]
    parts = _PARTS | ({"compute": WITH_FEED} if fed else {})
    parts |= {"other": ISSUED_AT_ONCE} if any(limit.name == ISSUE for limit in limits) else {}
    if resolved.scenario.workload.kind == "program" and not has_epilogues_in_math(own.program):
        parts |= OF_OWN_PROGRAM
    for part in waterfall.remainder(last, left_ps):
        name = f"wait_{part.cause}" if part.cause else part.what
        bars.append(Bar(name, parts[part.what] + (part.cause or ""), part.ps))
    hits = _weight_hits(resolved, own.program) if any(limit.name == L2_CACHE for limit in limits) else {}
    warnings = tuple(cautions(resolved, own.program, own))
    return Explanation(resolved, after[0], tuple(bars), hits, warnings)


def _sure_ps(bar: Bar) -> int:
    """What a bar saves at the least, of itself in its place and of itself alone."""
    return min(bar.ps, bar.alone_ps or 0)


def _weight_hits(resolved: Resolved, program: Program) -> dict[str, float]:
    """Share of tiles that find their weights in the L2 cache, percent, of the scenario's policy and of expert waves."""
    own, choices = own_policy(resolved), choices_of(resolved)
    programs = {own: program}
    for name in {WAVES} & set(choices) - {own}:
        programs[name] = under_policy(resolved, name, choices[name])[0].program()
    return {name: float(np.mean(program.meta["weight_hits_pct"])) for name, program in programs.items()}
