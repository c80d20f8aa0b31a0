"""Figures of bursts of remote stores: the knee, the recovery by a gap, and what the stage holds meanwhile.

Each function draws one DataFrame, so a figure can be drawn again from the CSV that is saved beside it. `setting`,
where there is one, says above it what was simulated.
`law` rows are the closed forms of sim/burst_gap.py, `compiled` and `simpy` rows what the engines gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from .style import BLUE, DASHES, GREEN, INK, MUTED, ORANGE, house_style, mark_x, say_setting

if TYPE_CHECKING:
    import pandas as pd

T_ISS = r"$T_\mathrm{iss}$"
PHASES = {"issue_bound": GREEN, "recovered": BLUE, "drain_limited": ORANGE}


def knee_figure(data: pd.DataFrame, knee_kib: float, published_kib: float, setting: str = "") -> Figure:
    """T_iss of the last producer of an isolated burst, against the size of the burst.

    `data`: columns series (law, compiled, and simpy if it ran), burst_kib, t_iss_us.
    """
    with house_style():
        figure = Figure()
        axes = figure.add_subplot(
            xlabel="burst $B$, KiB a producer",
            ylabel=f"issue time {T_ISS}, µs",
            title="A burst beyond the knee waits to issue",
        )
        law, compiled, simpy = (data[data["series"] == name] for name in ("law", "compiled", "simpy"))
        axes.plot(law["burst_kib"], law["t_iss_us"], color=INK, linewidth=1.2, label="closed form")
        axes.plot(compiled["burst_kib"], compiled["t_iss_us"], "o", color=BLUE, label="compiled engine")
        if len(simpy):
            axes.plot(
                simpy["burst_kib"], simpy["t_iss_us"], "s", markersize=10, markerfacecolor="none", markeredgewidth=1.5,
                color=ORANGE, label="SimPy engine",
            )  # fmt: skip
        text = f"knee: simulated {knee_kib:.1f} KiB,\npublished {published_kib:g} KiB"
        mark_x(axes, knee_kib, text, top=0.5, side="left")
        say_setting(figure, setting)
        axes.set_xlim(0, law["burst_kib"].max() * 1.03)
        axes.set_ylim(0)
        axes.legend(loc="upper left")
    return figure


def audit_figure(data: pd.DataFrame, burst_kib: float, verdict: str, setting: str = "") -> Figure:
    """How long a burst takes to issue against its size, a line each for the first and for those in the long run.

    `data`: columns series, burst_kib, t_iss_us. The burst that was asked about is marked on each line.
    """
    with house_style():
        figure = Figure()
        axes = figure.add_subplot(
            xlabel="burst $B$, KiB a producer",
            ylabel=f"issue time {T_ISS}, µs",
            title=f"{burst_kib:.4g} KiB: {verdict}",
        )
        for (name, mine), colour, dashes in zip(
            data.groupby("series", sort=False), (ORANGE, BLUE), (DASHES, "solid"), strict=False
        ):
            axes.plot(mine["burst_kib"], mine["t_iss_us"], color=colour, linestyle=dashes, label=str(name))
            there = np.interp(burst_kib, mine["burst_kib"], mine["t_iss_us"])
            axes.plot([burst_kib], [there], "o", color=colour, markeredgecolor="white")
        axes.axvline(burst_kib, color=MUTED, linewidth=1.0, linestyle=":", zorder=1)
        say_setting(figure, setting)
        axes.set_xlim(0, data["burst_kib"].max())
        axes.set_ylim(0)
        axes.legend(loc="upper left")
    return figure


def recovery_figure(data: pd.DataFrame, recovery_gaps_us: Mapping[int, float], setting: str = "") -> Figure:
    """T_iss in the steady state against the gap between bursts, for each burst size and mode.

    `data`: columns series (law, compiled), mode (free_running, synchronised), burst_kib, gap_us, t_iss_us.
    `recovery_gaps_us`: G* by burst size in KiB, of free-running producers.
    """
    with house_style():
        figure = Figure()
        axes = figure.add_subplot(
            xlabel="gap $G$ between bursts, µs",
            ylabel=f"issue time {T_ISS}, µs",
            title="A gap removes the stall of free-running producers",
        )
        names = {"free_running": ("free-running", "o", "-"), "synchronised": ("started together", "^", "--")}
        for (size, gap), colour in zip(recovery_gaps_us.items(), (BLUE, ORANGE, GREEN), strict=False):
            for mode, (name, marker, dashes) in names.items():
                mine = data[(data["burst_kib"] == size) & (data["mode"] == mode)]
                law, simulated = (mine[mine["series"] == series] for series in ("law", "compiled"))
                look: dict[str, Any] = {
                    "color": colour,
                    "markerfacecolor": colour if mode == "free_running" else "white",
                }
                axes.plot(law["gap_us"], law["t_iss_us"], dashes, color=colour, linewidth=1.2)
                axes.plot(simulated["gap_us"], simulated["t_iss_us"], marker, clip_on=False, **look)
                axes.plot([], [], dashes, marker=marker, linewidth=1.2, label=f"{size:g} KiB, {name}", **look)
            mark_x(axes, gap, f"G* = {gap:.1f} µs", top=0.56, colour=colour)
        say_setting(figure, setting)
        axes.set_xlim(0, data["gap_us"].max() * 1.03)
        axes.set_ylim(0)
        axes.legend(loc="upper right", title="marks: simulated, lines: closed forms")
    return figure


def occupancy_figure(data: pd.DataFrame, setting: str = "") -> Figure:
    """What the stage of a GPU holds over time, in percent of Q(K): one panel a phase.

    `data`: columns phase, title (of the phase's panel), time_us, held_pct (and others, not drawn), as steps.
    """
    titles = dict(zip(data["phase"], data["title"], strict=True))
    with house_style():
        figure = Figure(figsize=(5.0, 0.9 + 1.1 * len(titles)))
        panels = figure.subplots(len(titles), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (phase, title) in zip(panels, titles.items(), strict=True):
            mine, colour = data[data["phase"] == phase], PHASES[phase]
            axes.fill_between(mine["time_us"], mine["held_pct"], step="post", color=colour, alpha=0.35, linewidth=0)
            axes.step(mine["time_us"], mine["held_pct"], where="post", color=colour, linewidth=1.2)
            axes.axhline(100, color=INK, linewidth=1.0, linestyle=DASHES, zorder=1)
            axes.set_title(title)
        panels[0].annotate(
            "full: $Q$", (1, 100), xycoords=("axes fraction", "data"), xytext=(0, -4), textcoords="offset points",
            ha="right", va="top", fontsize="small",
        )  # fmt: skip
        panels[-1].set(xlim=(0, data["time_us"].max()), ylim=(0, 112), yticks=(0, 50, 100), xlabel="time, µs")
        figure.supylabel("stage holds, % of $Q$", fontsize="medium")
        say_setting(figure, setting)
    return figure
