"""Figures of MegaMoE beside the X-Stage paper: spans and stalls of tiles, speedups of calls, the curve of the row lead.

Each function draws one DataFrame, so that a figure can be drawn again from the table that it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from .style import BLUE, DASHES, GREEN, INK, MUTED, ORANGE, house_style, mark_x, say_setting

if TYPE_CHECKING:
    import pandas as pd

MEASURED = "none"
"""Bars of the paper are outlines, those of the simulation are filled."""


def tiles_figure(data: pd.DataFrame) -> Figure:
    """Span of an L2 tile under both orders and the exposed stall under expert-wave, measured and simulated, a row a model.

    `data`: columns model, and span_wave, span_interleaved and stall, each with _measured_us and _us.
    """
    with house_style():
        figure = Figure(figsize=(6.4, 1.2 + 0.75 * len(data)))
        axes = figure.add_subplot(xlabel="µs a tile", title="L2 tiles: outlined as measured, filled as simulated")
        rows = np.arange(len(data))
        for place, (name, label, colour) in enumerate(
            (
                ("span_wave", "span, expert-wave", ORANGE),
                ("span_interleaved", "span, interleaved", BLUE),
                ("stall", "stall of Tensor Core lanes, expert-wave", GREEN),
            )
        ):
            at = rows + 0.26 * (place - 1)
            axes.barh(at, data[f"{name}_us"], height=0.24, color=colour, alpha=0.6, label=label)
            axes.barh(at, data[f"{name}_measured_us"], height=0.24, color=MEASURED, edgecolor=INK, linewidth=1.0)
        axes.set_yticks(rows, list(data["model"]))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def speedups_figure(data: pd.DataFrame, paper: Mapping[str, float]) -> Figure:
    """Speedups of all calls from the smallest to the largest by routing, with the paper's range and geometric mean.

    `data`: columns routing, speedup. `paper`: geometric_mean, minimum, maximum.
    """
    with house_style():
        figure = Figure()
        axes = figure.add_subplot(
            xlabel="share of the calls, %",
            ylabel="speedup over expert-wave",
            title="Interleaved MegaMoE, 84 kinds of calls",
        )
        axes.axhspan(
            paper["minimum"], paper["maximum"], color=MUTED, alpha=0.12, linewidth=0, label="range of the paper"
        )
        axes.axhline(
            paper["geometric_mean"], color=MUTED, linewidth=1.2, linestyle=DASHES, label="geometric mean of the paper"
        )
        for routing, colour in zip(dict.fromkeys(data["routing"]), (BLUE, ORANGE), strict=False):
            speedup = np.sort(data.loc[data["routing"] == routing, "speedup"].to_numpy(dtype=float))
            share = 100 * (np.arange(len(speedup)) + 0.5) / len(speedup)
            axes.plot(share, speedup, "o-", color=colour, markersize=4, linewidth=1.0, label=f"{routing}, simulated")
        axes.set_xlim(0, 100)
        axes.legend(loc="upper left")
    return figure


def lead_figure(data: pd.DataFrame, knee_rows: int, setting: str = "") -> Figure:
    """Makespan and the ring that each lead needs, over the row lead D, with D_knee marked.

    `data`: columns lead_rows, makespan_us, ring_mib. `setting` says what was simulated.
    """
    with house_style():
        figure = Figure()
        axes = figure.add_subplot(
            xlabel="row lead D, rows (logarithmic, but for 0)",
            ylabel="makespan, µs",
            title="A lead that is too small starves L2",
        )
        axes.plot(data["lead_rows"], data["makespan_us"], "o-", color=BLUE, label="makespan")
        axes.set_xscale("symlog", linthresh=192, base=2)
        say_setting(figure, setting)
        axes.set_xticks(
            list(data["lead_rows"]), [f"{lead:g}" for lead in data["lead_rows"]], rotation=60, fontsize="small"
        )
        axes.minorticks_off()
        axes.set_ylim(0)
        mark_x(axes, knee_rows, rf"$D_\mathrm{{knee}}$ = {knee_rows}", top=0.2)
        ring = axes.twinx()
        ring.plot(data["lead_rows"], data["ring_mib"], "s--", color=ORANGE, label="ring")
        ring.set_ylabel("ring, MiB")
        ring.set_ylim(0)
        ring.grid(visible=False)
        lines, labels = axes.get_legend_handles_labels()
        more_lines, more_labels = ring.get_legend_handles_labels()
        figure.legend(lines + more_lines, labels + more_labels, loc="outside lower center", ncols=2)
    return figure
