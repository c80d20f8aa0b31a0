"""How much of R and of Q is enough: what a run takes over a factor of each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from .style import BLUE, DASHES, MUTED, ORANGE, house_style, mark_x, say_setting

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

MOST_LABELS = 6


def needs_figure(data: pd.DataFrame, setting: str = "", time: str = "makespan") -> Figure:
    """A panel a limit: the time at each factor that was tried, and, dashed, without the limit and where it is enough.

    `data`: columns limit, factor, makespan_us, needed_factor (NaN where none was found), best_us. `setting` says what was
    simulated, `time` what it is that `makespan_us` holds, where that is another end of the run.
    """
    limits = list(data.groupby("limit", sort=False))
    with house_style():
        figure = Figure(figsize=(3.6 * len(limits), 3.4))
        panels = figure.subplots(1, len(limits), squeeze=False, sharey=True)[0]
        top = float(data["makespan_us"].max())
        for axes, colour, (name, rows) in zip(panels, (BLUE, ORANGE), limits, strict=False):
            first = rows.iloc[0]
            axes.plot(rows["factor"], rows["makespan_us"], "o-", color=colour, markersize=4, linewidth=1.2)
            axes.axhline(first["best_us"], color=MUTED, linewidth=1.0, linestyle=DASHES)
            # Below the line at the left end: what is enough is written above every curve.
            axes.annotate(f"without limit: {first['best_us']:.4g} µs", (0.02, first["best_us"]),
                          xycoords=("axes fraction", "data"), xytext=(0, -4), textcoords="offset points", va="top",
                          fontsize="small", color=MUTED)  # fmt: skip
            if first["needed_factor"] > 0:
                side = "left" if _is_right_half(rows["factor"], float(first["needed_factor"])) else "right"
                mark_x(
                    axes, float(first["needed_factor"]), f"enough: {first['needed_factor']:.3g}×", top=1.0, side=side
                )
            axes.set(title=str(name), xlabel="times what there is (logarithmic)")
            _label_powers(axes, rows["factor"])
            axes.set_ylim(bottom=0, top=1.3 * top)
        panels[0].set_ylabel(f"{time}, µs")
        say_setting(figure, setting)
    return figure


def _is_right_half(factors: pd.Series, factor: float) -> bool:
    """Whether a factor lies in the right half of a logarithmic axis of all of them."""
    return factor * factor > float(factors.min() * factors.max())


def _label_powers(axes: Axes, factors: pd.Series) -> None:
    """A logarithmic axis with so few powers of two, 1 among them, that their labels do not meet; of one or two octaves with
    steps between them.
    """
    low, high = (math.floor(math.log2(factors.min())), math.ceil(math.log2(factors.max())))
    step = max(1, math.ceil((high - low) / MOST_LABELS))
    powers = [power for power in range(low, high + 1) if power % step == 0]
    parts = {1: 4, 2: 2}.get(high - low, 1)
    between = [2.0**power * (1 + part / parts) for power in powers[:-1] for part in range(1, parts)]
    named = {2.0**power: f"1/{2**-power}" if power < 0 else f"{2**power}" for power in powers}
    named |= {factor: f"{factor:.3g}" for factor in between}
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(named), [named[factor] for factor in sorted(named)])
    axes.minorticks_off()
