"""`xstage needs`: how much drain rate, and how much room in the stage, a scenario needs.

Enough is the least with which it takes no more than 1 % longer than without that limit at all, all else being as it is. For
bursts the closed forms know it (`xstage audit`); for a kernel it is searched by running it again: R and Q are multiplied
by factors of two until they are enough and until they are not, then the bounds are drawn together. A factor of R goes to
every port of the interconnect, one of Q to the room of each SM and of each GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..scenarios.loader import Resolved
from ..sim import waterfall
from ..sim.units import PS_PER_US, format_size, gbs
from ..terminal.counted_progress import Report, unreported
from ..terminal.heading import asked
from ..terminal.output import parts_html, table
from .api import resolved_scenario
from .reruns import Given, simulated
from .run import what_runs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..sim.topology import Fabric

Change = Callable[["Fabric"], "Fabric"]

LOSS_PCT = 1.0
"""What a limit that is enough may cost."""
MOST_FACTOR = 1024.0
PRECISION = 1.02
"""Bounds of a factor are drawn together until they differ by no more."""
EXPECTED_RUNS = 11
"""Of a limit, for telling how far the search is."""


@dataclass(frozen=True)
class Need:
    """`factor` of what there is that is enough, `value` with its unit. Both are None if `MOST_FACTOR` times as much is not,
    or if a `MOST_FACTOR`-th still is (`unimportant`). `makespan_us` is with what is needed, `best_us` without the limit;
    `tried` are all factors with their makespans, us."""

    name: str
    text: str
    now: str
    value: str | None
    factor: float | None
    makespan_us: float
    best_us: float
    unimportant: bool
    tried: tuple[tuple[float, float], ...]

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.unimportant:
            return "costs nothing"
        if self.factor is None:
            return f"more than {MOST_FACTOR:g} times as much"
        return "is enough" if self.factor <= 1 else "is not enough"


@dataclass(frozen=True, repr=False, eq=False)
class Needs:
    """What a scenario needs of R and of Q, each with the other as it is."""

    resolved: Resolved
    makespan_us: float
    needs: tuple[Need, ...]
    timing: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage needs --json`, without the fields that all answers share."""
        return {
            "scenario": self.resolved.scenario.name,
            "machine": self.resolved.machine.name,
            "makespan_us": self.makespan_us,
            "loss_pct": LOSS_PCT,
            "needs": [asdict(need) | {"verdict": need.verdict} for need in self.needs],
        }

    @property
    def frame(self) -> pd.DataFrame:
        """One row a limit."""
        import pandas as pd

        return pd.DataFrame(self.as_dict()["needs"])

    def plot(self) -> Figure:
        """Makespan over a factor of R, and of Q, with what is enough."""
        import pandas as pd

        from ..plots.needs_figures import needs_figure
        from .figure_setting import setting_of

        rows = [
            (need.text, factor, makespan, need.factor, need.best_us)
            for need in self.needs
            for factor, makespan in need.tried
        ]
        columns = ["limit", "factor", "makespan_us", "needed_factor", "best_us"]
        return needs_figure(pd.DataFrame(rows, columns=columns), setting_of(self.resolved))

    def __repr__(self) -> str:
        return f"<Needs of {self.resolved.scenario.name}: {', '.join(f'{n.name} {n.verdict}' for n in self.needs)}>"

    def _repr_html_(self) -> str:
        return parts_html(needs_parts(self))


def needs(scenario: Given, *, overrides: Mapping[str, Any] | None = None, progress: Report = unreported) -> Needs:
    """How much R and how much Q a scenario needs so as to lose no more than 1 % to it; see the module's description.

    Takes some 25 runs. Raises `InputError` as `run` does.
    """
    started = time.perf_counter()
    resolved = resolved_scenario(scenario, overrides)
    done = 0

    def makespan(change: Change | None = None) -> int:
        nonlocal done
        progress(done, max(done + 1, 2 * EXPECTED_RUNS))
        done += 1
        return simulated(resolved, "off", change).makespan_ps

    own, fabric = makespan(), resolved.fabric()
    rate = gbs(float(fabric.rates_kbs[0, 0]))
    room, room_sm = int(fabric.capacity_gpu[0]), int(fabric.capacity_sm[0])

    def rate_text(factor: float) -> str:
        return f"{rate * factor:.{0 if rate * factor >= 1000 else 1}f} GB/s"

    def room_text(factor: float) -> str:
        return f"{format_size(room * factor, 'up')}, {format_size(room_sm * factor, 'up')} an SM"

    found = (
        _need("drain_rate", "drain rate (R)", rate_text, faster, waterfall.without_rate_limit, makespan, own),
        _need(
            "capacity", "capacity of the stage (Q)", room_text, roomier, waterfall.without_capacity_limit, makespan, own
        ),
    )
    progress(done, done)
    return Needs(resolved, own / PS_PER_US, found, {"wall_s": time.perf_counter() - started})


def faster(factor: float) -> Change:
    """Every port at `factor` times its rate."""
    return lambda fabric: replace(fabric, rates_kbs=_times(fabric.rates_kbs, factor))


def roomier(factor: float) -> Change:
    """Room for `factor` times as much, in an SM and in a GPU; at least for a granule."""

    def change(fabric: Fabric) -> Fabric:
        least = fabric.granule_bytes
        return replace(
            fabric,
            capacity_sm=np.maximum(least, _times(fabric.capacity_sm, factor)),
            capacity_gpu=np.maximum(least, _times(fabric.capacity_gpu, factor)),
        )

    return change


def _times(numbers: Any, factor: float) -> Any:
    return np.clip(np.ceil(numbers * factor), 1, waterfall.WITHOUT_LIMIT).astype(numbers.dtype)


def _need(
    name: str, text: str, shown: Callable[[float], str], scaled: Callable[[float], Change], without: Change,
    makespan: Callable[[Change], int], own_ps: int,
) -> Need:  # fmt: skip
    best_ps = makespan(without)
    found = {1.0: own_ps}

    def is_enough(factor: float) -> bool:
        if factor not in found:
            found[factor] = makespan(scaled(factor))
        return found[factor] <= (1 + LOSS_PCT / 100) * best_ps

    factor = least_factor(is_enough)
    unimportant = factor == 0
    return Need(
        name=name,
        text=text,
        now=shown(1.0),
        value=shown(factor) if factor else None,
        factor=factor or None,
        makespan_us=(found[factor] if factor else own_ps) / PS_PER_US,
        best_us=best_ps / PS_PER_US,
        unimportant=unimportant,
        tried=tuple((factor, ps / PS_PER_US) for factor, ps in sorted(found.items())),
    )


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


def needs_parts(done: Needs) -> list[Any]:
    """The answer for a person."""
    scenario = done.resolved.scenario
    rows = [
        (
            need.text,
            need.now,
            need.value or need.verdict,
            f"{need.factor:.2f}" if need.factor else "",
            f"{need.makespan_us:.3f}",
            f"{need.best_us:.3f}",
        )
        for need in done.needs
    ]
    return [
        *asked(done.resolved),
        f"{what_runs(scenario.workload)}, on {scenario.workload.gpus} GPUs of {done.resolved.machine.name}: "
        f"{done.makespan_us:.3f} us",
        "",
        table(
            f"what it needs to lose no more than {LOSS_PCT:g} % to a limit, each with the other as it is",
            ("limit", "now", "needed", "times now", "then, us", "without limit, us"),
            rows,
        ),
        "",
        _sentence(done),
    ]


def _sentence(done: Needs) -> str:
    """What is too little, or that all is enough."""
    short = [need for need in done.needs if not need.unimportant and (need.factor is None or need.factor > 1)]
    if not short:
        return "Neither is too little."
    said = [
        f"{need.text} of {need.value} would save {done.makespan_us - need.makespan_us:.3f} us"
        if need.value
        else f"no {need.text} of up to {MOST_FACTOR:g} times as much would be enough"
        for need in short
    ]
    sentence = "; ".join(said)
    return f"{sentence[0].upper()}{sentence[1:]}."
