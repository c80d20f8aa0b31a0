"""What single lanes do over time: the Gantt chart of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .names import shortened
from .style import AMBER, BLUE, DASHES, GREEN, INK, ORANGE, PINK, SKY, house_style, say_setting

if TYPE_CHECKING:
    import pandas as pd

COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY)
KNOWN = {"l1": BLUE, "l2": ORANGE}
NAMES = {"l1": "L1: first GEMM of an expert", "l2": "L2: its second GEMM"}
"""Colours of phases that many figures show; others get one of `COLOURS` in order."""
HIGH, LOW = 0.74, 0.4
"""Heights of bars, of 1 a row: tiles of L2 are lower, so that they differ from those of L1 without their colour, too."""


def lanes_figure(
    data: pd.DataFrame, ylabel: str = "some SM pairs of one GPU", setting: str = "", doing: str = ""
) -> Figure:
    """When each lane computes, a bar a task in the colour of its phase, one panel a policy, on one time axis.

    `data`: columns policy, makespan_us, row (a lane, from 0), phase, start_us, end_us, and role where rows are to be named
    by it. What is white is waiting. `setting` says what was simulated. With `doing`, what lanes do while there are
    bars ('computing'), titles say for how much of the time they do.
    """
    policies, phases = list(dict.fromkeys(data["policy"])), sorted(data["phase"].astype(str).unique())
    colour = _colours(phases)
    rows = int(data["row"].max()) + 1
    with house_style():
        figure = Figure(figsize=(5.0, 0.95 + len(policies) * (0.35 + 0.16 * rows)))
        panels = figure.subplots(len(policies), 1, sharex=True, squeeze=False)[:, 0]
        for axes, policy in zip(panels, policies, strict=True):
            mine = data[data["policy"] == policy]
            for phase in phases:
                shown = mine[mine["phase"].astype(str) == phase]
                axes.barh(
                    shown["row"], shown["end_us"] - shown["start_us"], left=shown["start_us"],
                    height=LOW if phase == "l2" else HIGH, color=colour[phase], edgecolor="white", linewidth=0.3,
                )  # fmt: skip
            end = float(mine["makespan_us"].iloc[0])
            axes.axvline(end, color=INK, linewidth=1.0, linestyle=DASHES)
            title = f"{policy}: {end:.0f} µs" if policy else f"{end:.0f} µs"
            axes.set_title(f"{title}, {doing} {_covered_pct(mine):.0f} % of it" if doing else title)
            named_rows = mine.drop_duplicates("row").set_index("row")["role"] if "role" in mine else {}
            axes.set_yticks(np.arange(rows), [shortened(str(named_rows.get(row, "")), 24) for row in range(rows)])
            axes.tick_params(axis="y", length=0)
            axes.invert_yaxis()
            axes.grid(axis="y", visible=False)
        panels[-1].set(xlim=(0, data["makespan_us"].max() * 1.01), xlabel="time, µs")
        figure.supylabel(ylabel, fontsize="medium")
        handles: list[Artist] = [Patch(color=colour[phase], label=NAMES.get(phase, phase)) for phase in phases]
        handles.append(Line2D([], [], color=INK, linewidth=1.0, linestyle=DASHES, label="end"))
        named = any(phase in NAMES for phase in phases)
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 3 if named else 5))
        say_setting(figure, setting)
    return figure


def _covered_pct(mine: pd.DataFrame) -> float:
    """The share of the time to the end of a policy that its lanes have bars, percent."""
    whole = float(mine["makespan_us"].iloc[0]) * mine["row"].nunique()
    return 100 * float((mine["end_us"] - mine["start_us"]).sum()) / whole


def _colours(phases: list[str]) -> dict[str, str]:
    spare = [colour for colour in COLOURS if colour not in {KNOWN.get(phase) for phase in phases}]
    others = [phase for phase in phases if phase not in KNOWN]
    return KNOWN | {phase: spare[i % len(spare)] for i, phase in enumerate(others)}
