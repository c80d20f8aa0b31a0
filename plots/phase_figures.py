"""The phase diagram of free-running bursts: volume against gap, what the closed forms say and what was simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from .style import BLUE, DASHES, GREEN, INK, MUTED, ORANGE, house_style, say_setting

if TYPE_CHECKING:
    import pandas as pd

MARKS = {
    "issue_bound": ("s", GREEN, "issue-bound"),
    "recovered": ("o", BLUE, "recovered"),
    "drain_limited": ("X", ORANGE, "drain-limited"),
}


def phase_figure(data: pd.DataFrame, setting: str = "") -> Figure:
    """Which phase a train of bursts is in, over the volume V of one burst of all producers and the gap G after it.

    `data`: columns series (law, knee, compiled), volume_mib, gap_us, phase. Along `law` rows G is just enough.
    `setting` says what was simulated.
    """
    law, knee, simulated = (data[data["series"] == name] for name in ("law", "knee", "compiled"))
    highest = float(simulated["gap_us"].max()) * 1.26
    with house_style():
        figure = Figure(figsize=(5.0, 3.9))
        axes = figure.add_subplot(
            xlabel="volume $V$ of a burst, all producers, MiB", ylabel="gap $G$ between bursts, µs",
            title="What a gap recovers, and what no gap can",
        )  # fmt: skip
        axes.grid(visible=False)
        axes.fill_between(law["volume_mib"], law["gap_us"], highest, color=BLUE, alpha=0.10, linewidth=0)
        axes.fill_between(law["volume_mib"], 0, law["gap_us"], color=ORANGE, alpha=0.14, linewidth=0)
        axes.plot(law["volume_mib"], law["gap_us"], color=INK, linewidth=1.4, label=r"$G^* = V/R - T_\mathrm{iss0}$")
        for phase, (marker, colour, label) in MARKS.items():
            mine = simulated[simulated["phase"] == phase]
            if len(mine):
                axes.plot(
                    mine["volume_mib"], mine["gap_us"], marker, color=colour, markersize=5, label=label, clip_on=False,
                    linestyle="", zorder=3,
                )  # fmt: skip
        for volume in knee["volume_mib"]:
            axes.axvline(volume, color=MUTED, linewidth=1.0, linestyle=DASHES, label="knee of an isolated burst")
            axes.annotate(
                "beyond the knee no gap\nremoves the stall of bursts\nthat start together",
                (volume, 0.985), xycoords=("data", "axes fraction"),
                xytext=(4, 0), textcoords="offset points", va="top", fontsize="small", color=MUTED,
            )  # fmt: skip
        say_setting(figure, setting)
        axes.set_xlim(0, law["volume_mib"].max())
        axes.set_ylim(0, highest)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    return figure
