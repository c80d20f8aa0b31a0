"""Figures of one run and of a calibration, drawn from what their answers hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from .schedule_figures import CAUSE_COLOURS, HATCHES, OTHER_COLOURS
from .style import BLUE, DASHES, INK, MUTED, ORANGE, house_style, mark_x, say_setting

if TYPE_CHECKING:
    import pandas as pd

BUSY = "#333333"
NOT_RUNNING = "not running"


def roles_table(roles: Mapping[str, Any]) -> pd.DataFrame:
    """The `roles` of a run's metrics as a table: role, lanes, then us: busy, stall, wait: CAUSE, not running.

    One row a role, whose times add up to the makespan.
    """
    import pandas as pd

    table = pd.DataFrame([
        {"role": role, "lanes": found["lanes"], "busy": found["busy_mean_us"], "stall": found["stall_mean_us"],
         **{f"wait: {cause}": time for cause, time in found["wait_mean_us"].items()}}
        for role, found in roles.items()
    ])  # fmt: skip
    there = [found.get("not_running_mean_us") for found in roles.values()]
    return table if None in there else table.assign(**{NOT_RUNNING: there})


def roles_figure(data: pd.DataFrame, makespan_us: float, setting: str = "") -> Figure:
    """Busy, stalled and waiting time of a lane, a bar a role, and when it is not running: before it starts, after it ends.

    `data`: see `roles_table`. `setting` says what was simulated.
    """
    waits = [str(name) for name in data if str(name).startswith("wait: ")]
    with house_style():
        figure = Figure(figsize=(5.0, 1.35 + 0.32 * max(1, len(data))))
        axes = figure.add_subplot(xlabel="time, µs, the mean of a role's lanes", title="What lanes do")
        left = np.zeros(len(data))
        parts = [("busy", BUSY), ("stall", CAUSE_COLOURS["stall"])]
        colours = CAUSE_COLOURS | OTHER_COLOURS
        parts += [(name, colours.get(name.removeprefix("wait: "), MUTED)) for name in waits]
        parts += [(NOT_RUNNING, "white")]
        for name, colour in parts:
            time = data[name].fillna(0.0).to_numpy(dtype=float) if name in data else np.zeros(len(data))
            if time.any():
                axes.barh(
                    range(len(data)), time, left=left, color=colour, label=name, height=0.7,
                    hatch=HATCHES.get(name.removeprefix("wait: ")), linewidth=0 if name != NOT_RUNNING else 0.8,
                    edgecolor="white" if name != NOT_RUNNING else MUTED,
                )  # fmt: skip
                left = left + time
        axes.set_yticks(range(len(data)), list(data["role"]))
        axes.invert_yaxis()
        axes.set_xlim(0, 1.02 * max(makespan_us, float(left.max(initial=0.0))) or 1.0)
        axes.axvline(makespan_us, color=INK, linewidth=1.0, linestyle=DASHES, label=f"makespan: {makespan_us:.1f} µs")
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=3)
        say_setting(figure, setting)
    return figure


def makespans_figure(data: pd.DataFrame) -> Figure:
    """The makespan of each policy as a bar with its number. `data`: columns policy, makespan_us."""
    with house_style():
        figure = Figure(figsize=(5.0, 0.9 + 0.32 * max(1, len(data))))
        axes = figure.add_subplot(xlabel="makespan, µs")
        best = data["makespan_us"].min()
        colours = [BLUE if time == best else MUTED for time in data["makespan_us"]]
        axes.barh(range(len(data)), data["makespan_us"], color=colours, height=0.7)
        for row, time in enumerate(data["makespan_us"]):
            axes.annotate(
                f"{time:.1f}", (time, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize="small"
            )
        axes.set_yticks(range(len(data)), list(data["policy"]))
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * float(data["makespan_us"].max()))
        axes.grid(axis="y", visible=False)
    return figure


def law_figure(found: Mapping[str, Any]) -> Figure:
    """The fitted law of isolated bursts: T_iss = max(T_iss0, (V - Q)/R) against the burst of one producer.

    `found`: t0_ns, issue_gbs, drain_gbs, capacity_bytes, knee_bytes, producers and intervals, of `xstage calibrate`.
    """
    size = np.linspace(0, 3 * found["knee_bytes"], 400)
    unhindered = found["t0_ns"] + size / found["issue_gbs"]
    waiting = (found["producers"] * size - found["capacity_bytes"]) / found["drain_gbs"]
    low, high = found["intervals"]["knee_bytes"]
    with house_style():
        figure = Figure(figsize=(5.0, 3.0))
        axes = figure.add_subplot(
            xlabel="burst $B$, KiB a producer", ylabel="issue time, ns", title="An isolated burst"
        )
        axes.axvspan(low / 1024, high / 1024, color=ORANGE, alpha=0.18, linewidth=0)
        axes.plot(size / 1024, np.maximum(unhindered, waiting), color=BLUE, label="law")
        axes.plot(size / 1024, unhindered, color=INK, linewidth=1.0, linestyle=":", label=r"$T_\mathrm{iss0}$")
        mark_x(axes, found["knee_bytes"] / 1024, f"knee: {found['knee_bytes'] / 1024:.1f} KiB", top=0.6, side="left")
        axes.set_xlim(0, size.max() / 1024)
        axes.set_ylim(0)
        axes.legend(loc="upper left")
    return figure
