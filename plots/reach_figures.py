"""The even share of each pair of GPUs in a topology, and how near predictions come to published measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from .style import BLUE, GREEN, MUTED, ORANGE, PINK, house_style, say_setting

if TYPE_CHECKING:
    import pandas as pd

MARKS = {
    "megamoe": ("o", BLUE), "attention": ("s", ORANGE), "ulysses": ("D", PINK), "tensor parallel": ("^", GREEN),
    "all-to-all": ("v", MUTED),
}  # fmt: skip
BAND_PCT = 20
"""The grey band holds predictions within this share of what was measured."""


def pair_rates_figure(data: pd.DataFrame) -> Figure:
    """Even share of each pair of GPUs while all store to all, one heat map a machine, each with a scale of its own.

    `data`: columns machine, source, destination, gbs.
    """
    machines = list(dict.fromkeys(data["machine"]))
    across = 2 if len(machines) > 1 else 1
    down = -(-len(machines) // across)
    with house_style():
        figure = Figure(figsize=(5.0, 0.55 + 2.05 * down))
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for axes in panels[len(machines) :]:
            axes.set_axis_off()
        for axes, machine in zip(panels, machines, strict=False):
            mine = data[data["machine"] == machine]
            count = int(mine["source"].max()) + 1
            grid = np.full((count, count), np.nan)
            grid[mine["source"], mine["destination"]] = mine["gbs"]
            image = axes.imshow(grid, cmap=colormaps["cividis"], vmin=0, vmax=float(np.nanmax(grid)))
            figure.colorbar(image, ax=axes, aspect=25, pad=0.04).ax.tick_params(labelsize="small")
            low, high = f"{np.nanmin(grid):.3g}", f"{np.nanmax(grid):.3g}"
            axes.set_title(f"{machine}: {high if low == high else f'{low} to {high}'}", fontsize="small")
            ticks = range(0, count, 1 if count <= 8 else 4)
            axes.set_xticks(ticks)
            axes.set_yticks(ticks)
            axes.tick_params(length=0)
            axes.grid(visible=False)
            axes.spines[:].set_visible(False)
        figure.supxlabel("to GPU", fontsize="medium")
        figure.supylabel("from GPU", fontsize="medium")
        figure.suptitle("Even share of each pair, all GPUs storing to all, GB/s", fontsize="medium", fontweight="bold")
    return figure


def measured_figure(data: pd.DataFrame) -> Figure:
    """Predicted against measured times, a mark a published row, with the band within `BAND_PCT` of it.

    `data`: columns kind, time_us, predicted_us, error_pct; machine, where the figure is to name the machines; one_row_in, of
    which number of published rows one is here: all of them where there is no such column.
    """
    drawn = _share_text(int(data["one_row_in"].iloc[0]) if "one_row_in" in data else 1)
    ends = np.array(
        [data[["time_us", "predicted_us"]].min().min() / 1.6, data[["time_us", "predicted_us"]].max().max() * 1.6]
    )
    share = BAND_PCT / 100
    middle = float(data["error_pct"].abs().median())
    with house_style():
        figure = Figure(figsize=(5.0, 4.2))
        axes = figure.add_subplot(
            xlabel="measured, µs", ylabel="predicted, µs",
            title=f"{len(data)} published times{drawn}median error {middle:.1f} %",
        )  # fmt: skip
        axes.fill_between(
            ends, (1 - share) * ends, (1 + share) * ends, color="#dddddd", linewidth=0, zorder=0,
            label=f"within {BAND_PCT} %",
        )  # fmt: skip
        axes.plot(ends, ends, color=MUTED, linewidth=1.0, zorder=1)
        for kind in dict.fromkeys(data["kind"]):
            mine, (marker, colour) = data[data["kind"] == kind], MARKS.get(kind, ("P", MUTED))
            axes.plot(
                mine["time_us"], mine["predicted_us"], marker, color=colour, markersize=4.5, markeredgecolor="white",
                markeredgewidth=0.3, linestyle="", label=f"{kind} ({len(mine)})",
            )  # fmt: skip
        if "machine" in data:
            say_setting(figure, "predicted on " + ", ".join(dict.fromkeys(data["machine"].astype(str))))
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        axes.legend(loc="upper left")
    return figure


def _share_text(one_row_in: int) -> str:
    return f", one row in {one_row_in}:\n" if one_row_in > 1 else ": "
