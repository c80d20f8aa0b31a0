"""Figures of a calibration: bursts as they were measured, on the law that was fitted to them.

Points are medians over the rounds, with a bar over their middle half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from .beside_figures import COLOURS, MARKS
from .style import BLUE, DASHES, INK, MUTED, ORANGE, SKY, house_style, mark_x

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from ..sim.calibrate import BurstTimes, Calibration

LEGEND_ABOVE = {"loc": "outside upper left", "ncols": 2}


def isolated_figure(times: BurstTimes, law: Calibration, beside: pd.DataFrame) -> Figure:
    """Issue time of isolated bursts against their size, with the knee and its interval.

    `beside`: columns burst_bytes, completed_ns (until all stores had left), control_ns (ordinary stores into own memory).
    """
    size = times.burst_bytes[times.isolated]
    knee_kib = law.knee_bytes.value / 1024
    dense = np.linspace(size.min(), size.max(), 400)
    with house_style():
        figure = Figure(figsize=(5.0, 3.7))
        axes = figure.add_subplot(xlabel="burst $B$, KiB a producer", ylabel="issue time, ns")
        axes.axvspan(law.knee_bytes.low / 1024, law.knee_bytes.high / 1024, color=ORANGE, alpha=0.18, linewidth=0)
        _measured(axes, size / 1024, times.issue_ns[:, times.isolated], BLUE, "o", "measured")
        axes.plot(dense / 1024, law.issue_ns(dense, np.inf), color=INK, linewidth=1.2, label="law, fitted")
        kib = beside["burst_bytes"] / 1024
        axes.plot(kib, beside["completed_ns"], color=SKY, linewidth=1.2, label="until the last has left")
        axes.plot(kib, beside["control_ns"], ".", color=MUTED, linestyle=DASHES, linewidth=1.0,
                  label="control: stores into own memory")  # fmt: skip
        mark_x(axes, knee_kib, f"knee: {knee_kib:.1f} KiB", top=0.97)
        axes.set_xlim(0)
        axes.set_ylim(0)
        figure.legend(**LEGEND_ABOVE)
    return figure


def trains_figure(times: BurstTimes, law: Calibration) -> Figure:
    """Issue time of the bursts of a train against the gap between them, one colour and mark a size."""
    with house_style():
        figure = Figure(figsize=(5.0, 3.7))
        axes = figure.add_subplot(xlabel="gap $G$ between bursts, ns", ylabel="issue time, ns")
        for number, size in enumerate(np.unique(times.burst_bytes[~times.isolated])):
            chosen = ~times.isolated & (times.burst_bytes == size)
            gap, colour = times.gap_ns[chosen], COLOURS[number % len(COLOURS)]
            mark, name = MARKS[number % len(MARKS)], f"measured, {size / 1024:.1f} KiB"
            _measured(axes, gap, times.issue_ns[:, chosen], colour, mark, name)
            dense = np.linspace(gap.min(), gap.max(), 400)
            axes.plot(dense, law.issue_ns(size, dense), color=colour, linewidth=1.2)
        axes.plot([], [], color=MUTED, linewidth=1.2, label="law, fitted")
        axes.set_ylim(0)
        figure.legend(**LEGEND_ABOVE)
    return figure


def _measured(axes: Axes, x: Any, rounds: Any, colour: str, mark: str, label: str) -> None:
    low, middle, high = np.quantile(rounds, [0.25, 0.5, 0.75], axis=0)
    bars = (middle - low, high - middle)
    axes.errorbar(x, middle, bars, fmt=mark, markersize=4, linewidth=1.2, color=colour, label=label)
