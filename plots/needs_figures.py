"""How much of R and of Q is enough: the makespan over a factor of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from .style import BLUE, DASHES, MUTED, ORANGE, house_style, mark_x, say_setting

if TYPE_CHECKING:
    import pandas as pd


def needs_figure(data: pd.DataFrame, setting: str = "") -> Figure:
    """A panel a limit: makespan at each factor that was tried, and, dashed, without the limit and where it is enough.

    `data`: columns limit, factor, makespan_us, needed_factor (NaN where none was found), best_us. `setting` says what was
    simulated.
    """
    limits = list(data.groupby("limit", sort=False))
    with house_style():
        figure = Figure(figsize=(3.6 * len(limits), 3.2))
        panels = figure.subplots(1, len(limits), squeeze=False, sharey=True)[0]
        for axes, colour, (name, rows) in zip(panels, (BLUE, ORANGE), limits, strict=False):
            first = rows.iloc[0]
            axes.plot(rows["factor"], rows["makespan_us"], "o-", color=colour, markersize=4, linewidth=1.2)
            axes.axhline(first["best_us"], color=MUTED, linewidth=1.0, linestyle=DASHES)
            axes.annotate("without limit", (0.02, first["best_us"]), xycoords=("axes fraction", "data"),
                          xytext=(0, -10), textcoords="offset points", fontsize="small", color=MUTED)  # fmt: skip
            if first["needed_factor"] > 0:
                mark_x(axes, float(first["needed_factor"]), f"enough: {first['needed_factor']:.2f}", top=0.9)
            axes.set(title=str(name), xlabel="times what there is (logarithmic)")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_ylim(bottom=0, top=1.1 * float(data["makespan_us"].max()))
        panels[0].set_ylabel("makespan, µs")
        say_setting(figure, setting)
    return figure
