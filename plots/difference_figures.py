"""What differs between two things, and what a fit changed, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .names import shortened
from .style import BLUE, INK, MUTED, ORANGE, house_style

if TYPE_CHECKING:
    import pandas as pd

MOST_BARS = 20


def changes_figure(data: pd.DataFrame, old: str, new: str) -> Figure:
    """The largest relative changes, a bar each, in percent of the old value.

    `data`: columns what, relative_pct (None where there is no number, which is left out).
    """
    known = data[data["relative_pct"].notna()]
    shown = known.reindex(known["relative_pct"].abs().sort_values(ascending=False, kind="stable").index[:MOST_BARS])
    left_out = len(data) - len(shown)
    with house_style():
        figure = Figure(figsize=(5.0, 1.0 + 0.26 * max(2, len(shown))))
        axes = figure.add_subplot(xlabel=f"change, % of {shortened(old, 24)}")
        if not len(shown):
            axes.set_title("no number differs" if len(data) else "nothing differs")
            axes.set_axis_off()
            return figure
        percent = shown["relative_pct"].to_numpy(dtype=float)
        axes.barh(range(len(shown)), percent, color=np.where(percent > 0, ORANGE, BLUE), height=0.7)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(shown)), [shortened(str(what), 36) for what in shown["what"]])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        most = float(np.abs(percent).max())
        if most > 50 * float(np.median(np.abs(percent))):
            axes.set_xscale("symlog", linthresh=max(1e-3, float(np.median(np.abs(percent)))))
        more = f":\nthe {len(shown)} largest of {len(data)} changes" if left_out else ""
        axes.set_title(shortened(new, 36) + more)
    return figure


def fit_figure(data: pd.DataFrame, machine: str) -> Figure:
    """The error of each call that a machine was fitted to, before and after. `data`: columns call, before_pct, after_pct."""
    rows = np.arange(len(data))
    with house_style():
        figure = Figure(figsize=(5.0, 1.5 + 0.34 * max(1, len(data))))
        axes = figure.add_subplot(
            xlabel="error of the predicted time, %", title=f"{machine}: calls that it is fitted to"
        )
        axes.hlines(rows, data["before_pct"], data["after_pct"], color=MUTED, linewidth=1.0)
        axes.plot(data["before_pct"], rows, "o", color="white", markeredgecolor=MUTED, label="before")
        axes.plot(data["after_pct"], rows, "o", color=BLUE, label="fitted")
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(rows, [shortened(str(call), 34) for call in data["call"]])
        axes.set_ylim(len(data) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=2)
    return figure
