"""Ops that were measured beside the same ops simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .names import shortened
from .style import AMBER, BLUE, GREEN, MUTED, ORANGE, PINK, SKY, house_style

if TYPE_CHECKING:
    import pandas as pd

COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY)
MARKS = "o^sDvP"
"""One for each colour, so that kinds differ without it, too."""
MOST_POINTS = 5000
LEAST_SHARE = 1e-4
"""Ops shorter than this share of the longest one are left out: on a logarithmic axis they would take all of the room."""


def beside_figure(data: pd.DataFrame, each: str = "an op", within_pct: float | None = None) -> Figure:
    """Time of each op (or what else `each` says), simulated against measured, by what it is; on the line both are equal.

    `data`: columns measured_issue_us, simulated_issue_us, and `what` or kind. Of many ops evenly chosen ones are drawn.
    Errors up to `within_pct` lie in a band.
    """
    longest = float(data[["measured_issue_us", "simulated_issue_us"]].max().max())
    shown = data[data[["measured_issue_us", "simulated_issue_us"]].min(axis=1) > LEAST_SHARE * longest]
    shown = shown.iloc[:: max(1, len(shown) // MOST_POINTS)]
    what = shown["what" if "what" in shown else "kind"].astype(str)
    with house_style():
        figure = Figure(figsize=(5.0, 4.2))
        axes = figure.add_subplot(xlabel=f"measured, µs {each}", ylabel=f"simulated, µs {each}")
        if len(shown):
            times = shown[["measured_issue_us", "simulated_issue_us"]].to_numpy(dtype=float)
            ends = np.array([times.min() / 1.3, times.max() * 1.3])
            axes.plot(ends, ends, color=MUTED, linewidth=1.0)
            if within_pct is not None:
                off, label = ends * within_pct / 100, f"within {within_pct:g} %"
                axes.fill_between(ends, ends - off, ends + off, color="#dddddd", linewidth=0, label=label)
            for number, name in enumerate(dict.fromkeys(what)):
                mine, style = shown[what == name], number % len(COLOURS)
                axes.plot(
                    mine["measured_issue_us"], mine["simulated_issue_us"], MARKS[style], markersize=4, color=COLOURS[style],
                    markeredgecolor="white", markeredgewidth=0.3, linestyle="", label=f"{shortened(name, 30)} ({len(mine)})",
                )  # fmt: skip
            axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
            axes.legend(loc="upper left")
    return figure
