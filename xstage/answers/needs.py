"""`xstage needs`: how much drain rate, and how much room in the stage, a scenario needs.

Enough is the least with which it takes no more than 1 % longer than without that limit at all, all else being as it is. For
bursts the closed forms know it (`xstage audit`); for a kernel it is searched by running it again: R and Q are multiplied
by factors of two until they are enough and until they are not, then the bounds are drawn together. A factor of R goes to
every rate of the interconnect, one of Q to the room of each SM and of each GPU. Where an interconnect has rates of several
kinds (GPU and network interface, GPU and core of the switch) each runs with the factor on its own, too: if one of them is
enough, it is the one that binds, and the answer. So are the busiest entries of a list of links, if others may stay.

How long a scenario takes is its makespan, for a single burst its sender-visible end, when it has been issued.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ..scenarios.cautions import cautions
from ..scenarios.loader import Resolved
from ..sim import waterfall
from ..sim.units import PS_PER_US
from ..terminal.heading import asked, scenario_fields, what_runs_where
from ..terminal.output import Printed, table, warning_parts, with_warnings
from ..terminal.progress import Progress, silent
from .api import resolved_scenario
from .needed_parts import UNBOUNDED, Amount, Scalable, all_rates, links_by_use, rate_parts, room, some_links
from .reruns import Given, end_in_words, simulated, taken_ps

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..sim.trace import Trace

LOSS_PCT = 1.0
"""What a limit that is enough may cost."""
ORDER_PCT = 0.2
"""What another order of granules alone may change; docs/model.md."""
SAME_PROGRAM = ("attention_a2a", "megamoe", "program")
"""Kinds of workloads whose Program is the same whatever R and Q are, so that it is built once. A burst train holds the pace
that R allows, and a kernel with a collective takes what that takes at R.
"""
MOST_FACTOR = 1024.0
MOST_LINKS = 3
"""Entries of a list of links that are tried on their own, the busiest first."""
PRECISION = 1.02
"""Bounds of a factor are drawn together until they differ by no more."""
EXPECTED_RUNS = 11
"""Of a limit, for telling how far the search is."""


Rerun = Callable[[Resolved], int]
"""How long a scenario takes, in ps, to the end that it is judged by."""


@dataclass(frozen=True)
class Alone:
    """The time with one kind of rate at the factor that all of them need, the others as they are."""

    name: str
    text: str
    now: str
    value: str
    settings: Mapping[str, Any]
    time_us: float
    enough: bool


@dataclass(frozen=True)
class Less:
    """Less of something, with which the scenario was faster."""

    value: str
    settings: Mapping[str, Any]
    factor: float
    time_us: float


@dataclass(frozen=True)
class Need:
    """`factor` of what there is that is enough, `value` with its unit. Both are None if `MOST_FACTOR` times as much is not,
    or if a `MOST_FACTOR`-th still is (`unimportant`). `time_us` is with what is needed, `best_us` without the limit; `tried`
    are all factors of `scaled` with their times, us. A run with the overrides `settings` takes `time_us`.
    `alone` are the kinds of rates, where there are several; `less` is there if less was faster than what there is.
    """

    name: str
    text: str
    now: str
    value: str | None
    factor: float | None
    time_us: float
    best_us: float
    unimportant: bool
    tried: tuple[tuple[float, float], ...]
    settings: Mapping[str, Any]
    scaled: str
    alone: tuple[Alone, ...] = ()
    less: Less | None = None

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.less:
            return "less is faster"
        if self.unimportant:
            return "costs nothing"
        if self.factor is None:
            return f"more than {MOST_FACTOR:g} times as much"
        return "is enough" if self.factor <= 1 else "is not enough"

    @property
    def is_short(self) -> bool:
        return not self.unimportant and (self.factor is None or self.factor > 1)


@dataclass(frozen=True, repr=False, eq=False)
class Needs(Printed):
    """What a scenario needs of R and of Q, each with the other as it is. It takes `time_us` as it is."""

    resolved: Resolved
    time_us: float
    needs: tuple[Need, ...]
    warnings: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What is too little, or that all is enough; and what less of was faster."""
        short = [need for need in self.needs if need.is_short]
        sentence = "; ".join(_short(need, self.time_us) for need in short) or "neither is too little"
        said = [f"{sentence[0].upper()}{sentence[1:]}."]
        for need in self.needs:
            if need.less:
                gain = 100 * (1 - need.less.time_us / self.time_us)
                said.append(
                    f"With less {need.text}, {need.less.value}, it takes {need.less.time_us:.3f} us, {gain:.1f} % less: "
                    "stores then reach the ports in another order."
                )
        return " ".join(said)

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage needs --json`, without the fields that all answers share."""
        answer = {
            **scenario_fields(self.resolved),
            "machine": self.resolved.machine.name,
            "time_is": f"{self.resolved.scenario.workload.judged_by}_us",
            "time_us": self.time_us,
            "loss_pct": LOSS_PCT,
            "needs": [asdict(need) | {"verdict": need.verdict} for need in self.needs],
            "sentence": self.sentence,
        }
        return with_warnings(answer, self.warnings)

    @property
    def frame(self) -> pd.DataFrame:
        """One row a limit."""
        import pandas as pd

        return pd.DataFrame(self.as_dict()["needs"])

    def plot(self) -> Figure:
        """The time over a factor of R, and of Q, with what is enough."""
        import pandas as pd

        from ..plots.needs_figures import needs_figure
        from .figure_setting import setting_of

        rows = [
            (need.scaled, factor, time, need.factor, need.best_us) for need in self.needs for factor, time in need.tried
        ]
        columns = ["limit", "factor", "makespan_us", "needed_factor", "best_us"]
        data = pd.DataFrame(rows, columns=columns)
        return needs_figure(data, setting_of(self.resolved), end_in_words(self.resolved))

    def __repr__(self) -> str:
        return f"<Needs of {self.resolved.scenario.name}: {', '.join(f'{n.name} {n.verdict}' for n in self.needs)}>"

    def printed(self) -> list[Any]:
        """The answer for a person."""
        rows = [
            (
                need.text,
                need.now,
                need.value or need.verdict,
                f"{need.factor:.3g}" if need.factor else "",
                f"{need.time_us:.3f}",
                f"{need.best_us:.3f}",
            )
            for need in self.needs
        ]
        end = end_in_words(self.resolved)
        return [
            *asked(self.resolved),
            f"{what_runs_where(self.resolved)}: {self.time_us:.3f} us" + ("" if end == "makespan" else f", {end}"),
            "",
            table(
                f"what it needs to lose no more than {LOSS_PCT:g} % to a limit, each with the other as it is",
                ("limit", "now", "needed", "times now", "then, us", "without limit, us"),
                rows,
            ),
            "",
            self.sentence,
            *warning_parts(self.warnings),
        ]


def needs(scenario: Given, *, overrides: Mapping[str, Any] | None = None, progress: Progress = silent) -> Needs:
    """How much R and how much Q a scenario needs to lose no more than 1 % to it, each with the other as it is.

    Takes some 25 runs. Raises `InputError` as `run` does.
    """
    resolved = resolved_scenario(scenario, overrides)
    done = 1

    def took(changed: Resolved, without_room: bool = False) -> int:
        nonlocal done
        progress(done, max(done + 1, 2 * EXPECTED_RUNS))
        done += 1
        again = simulated(changed, "off", waterfall.without_capacity_limit if without_room else None, same)
        return taken_ps(changed, again)

    progress(0, 2 * EXPECTED_RUNS)
    run, rates = simulated(resolved, "off"), all_rates(resolved)
    same = run.program if resolved.scenario.workload.kind in SAME_PROGRAM else None
    own_ps = taken_ps(resolved, run)
    unlimited_ps = took(rates.at(UNBOUNDED).of(resolved))
    drain = _need(rates, resolved, took, own_ps, unlimited_ps)
    capacity = _need(room(resolved), resolved, took, own_ps, took(resolved, without_room=True))
    some = _few_links(drain, resolved, run, took, own_ps, unlimited_ps)
    found = (_that_binds(drain, resolved, took, unlimited_ps) if some is None else some, capacity)
    progress(done, done)
    return Needs(resolved, own_ps / PS_PER_US, found, tuple(cautions(resolved, run.program, run)))


def _need(limit: Scalable, resolved: Resolved, took: Rerun, own_ps: int, best_ps: int) -> Need:
    found = {1.0: own_ps}

    def is_enough(factor: float) -> bool:
        if factor not in found:
            found[factor] = took(limit.at(factor).of(resolved))
        return _enough(found[factor], best_ps)

    factor = least_factor(is_enough)
    then_ps = found[factor] if factor else own_ps
    amount = limit.at(factor) if factor and factor != 1 else Amount(limit.now, {}, {})
    return Need(
        name="capacity" if limit.name == "capacity" else "drain_rate",
        text=limit.text,
        now=limit.now,
        value=amount.text if factor else None,
        factor=factor or None,
        time_us=then_ps / PS_PER_US,
        best_us=best_ps / PS_PER_US,
        unimportant=factor == 0,
        tried=tuple((factor, ps / PS_PER_US) for factor, ps in sorted(found.items())),
        settings=amount.settings,
        scaled=limit.text,
        less=_faster_with_less(limit, found, best_ps),
    )


def _enough(time_ps: int, best_ps: int) -> bool:
    return time_ps <= (1 + LOSS_PCT / 100) * best_ps


def _faster_with_less(limit: Scalable, found: Mapping[float, int], best_ps: int) -> Less | None:
    """The fastest of what was tried, if it is less than there is and faster than all that there could be."""
    factor = min(found, key=lambda one: (found[one], -one))
    if factor >= 1 or found[factor] >= (1 - ORDER_PCT / 100) * min(found[1.0], best_ps):
        return None
    amount = limit.at(factor)
    return Less(amount.text, amount.settings, factor, found[factor] / PS_PER_US)


def _that_binds(need: Need, resolved: Resolved, took: Rerun, best_ps: int) -> Need:
    """What is needed of rates of several kinds: of the one that is enough on its own, or else of all of them."""
    parts = rate_parts(resolved)
    if len(parts) == 1 or need.factor is None or need.factor <= 1:
        return need
    found = []
    for part in parts:
        amount = part.at(need.factor)
        then_ps = took(amount.of(resolved))
        found.append(Alone(part.name, part.text, part.now, amount.text, amount.settings, then_ps / PS_PER_US,
                           _enough(then_ps, best_ps)))  # fmt: skip
    need = replace(need, alone=tuple(found))
    binding = min((one for one in found if one.enough), key=lambda one: one.time_us, default=None)
    if binding is None:
        return need
    return replace(need, text=binding.text, now=binding.now, value=binding.value, settings=binding.settings,
                   time_us=binding.time_us)  # fmt: skip


def _few_links(need: Need, resolved: Resolved, run: Trace, took: Rerun, own_ps: int, best_ps: int) -> Need | None:
    """What is needed of the busiest links of a list alone, if a few of them are enough."""
    if need.factor is None or need.factor <= 1:
        return None
    by_use = links_by_use(run, resolved.machine)
    for count in range(1, min(MOST_LINKS, len(by_use) - 1) + 1):
        some = some_links(resolved.machine, by_use[:count])
        if _enough(took(some.at(MOST_FACTOR).of(resolved)), best_ps):
            return _need(some, resolved, took, own_ps, best_ps)
    return None


def least_factor(is_enough: Callable[[float], bool]) -> float | None:
    """The least factor that is enough, to `PRECISION`; None if `MOST_FACTOR` is not, 0 if a `MOST_FACTOR`-th still is."""
    enough, short = 1.0, 1.0
    if is_enough(1.0):
        while is_enough(short):
            if short <= 1 / MOST_FACTOR:
                return 0.0
            enough, short = short, short / 2
    else:
        while not is_enough(enough):
            if enough >= MOST_FACTOR:
                return None
            enough, short = 2 * enough, enough
    while enough / short > PRECISION:
        middle = math.sqrt(enough * short)
        if is_enough(middle):
            enough = middle
        else:
            short = middle
    return enough


def _short(need: Need, now_us: float) -> str:
    if not need.value:
        return f"no {need.text} of up to {MOST_FACTOR:g} times as much would be enough"
    others = [one for one in need.alone if one.text != need.text]
    together = {path: value for one in others for path, value in one.settings.items()}
    if need.alone and len(others) == len(need.alone) and together == need.settings:
        said = " and ".join(f"{one.text} of {one.value}" for one in others) + " together"
    else:  # one of them, or a drain rate that takes the core of a switch with it
        name, comma, beside = need.text.partition(",")
        said = f"{name} of {need.value}{comma}{beside}{comma}"
    said += f" would save {now_us - need.time_us:.3f} us"
    alone = ", ".join(f"{one.text} of {one.value} alone {_saved(now_us - one.time_us)}" for one in others)
    return f"{said} ({alone})" if alone else said


def _saved(us: float) -> str:
    return f"{us:.3f} us" if us >= 0.001 else "nothing"
