"""Figures of whole schedules: what computes over time, where lanes stand still, the waterfall, the curve of a setting.

Each function draws one DataFrame, so that a figure can be drawn again from the CSV that is saved beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from ..sim.activity import TENSOR_ROLES
from .style import AMBER, BLUE, DASHES, GREEN, INK, MUTED, ORANGE, PINK, SKY, house_style, mark_x, say_setting

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

CAUSE_COLOURS = {"stall": ORANGE, "inputs": BLUE, "slot": SKY, "peer": GREEN, "ring": PINK, "barrier": AMBER}
OTHER_COLOURS = {"issue": "#999999", "window": "#bbbbbb", "task": "#dddddd"}
HATCHES = {"inputs": "//", "slot": "\\\\", "peer": "xx", "ring": "++", "barrier": "--"}
"""White on the colour of a cause, so that causes differ without it, too; what else there is has none."""
STORING_ROLES = ("epilogue", "store")
"""Where there are Tensor Cores, other roles are left out: they wait for their turn nearly all of the time."""
SETTINGS = {"lead_rows": "row lead D"}
"""Settings that have a name in the field."""
FULL_PCT = 90
"""From this use of the egress on it counts as full."""
BY_DESIGN = "slot"
"""What lanes that store wait for between any two tiles: it says nothing, and would hide the rest."""
FAR_APART = 20
"""From this ratio of the largest to the smallest value of a setting its axis is logarithmic."""


def timeline_figure(data: pd.DataFrame, setting: str = "") -> Figure:
    """How many Tensor Core lanes compute and how much of the egress is in use over time, one panel a policy.

    `data`: columns policy, time_us, tensor_core_pct, egress_pct, as steps; makespan_us, the same in all rows of a policy.
    `setting` says what was simulated.
    """
    policies = list(dict.fromkeys(data["policy"]))
    with house_style():
        figure = Figure(figsize=(5.0, 0.9 + 1.3 * len(policies)))
        panels = figure.subplots(len(policies), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, policy in zip(panels, policies, strict=True):
            mine = data[data["policy"] == policy]
            end = mine["makespan_us"].iloc[0]
            axes.fill_between(
                mine["time_us"], mine["tensor_core_pct"], step="post", color=BLUE, alpha=0.35, linewidth=0,
                label="Tensor Core lanes that compute",
            )  # fmt: skip
            axes.step(mine["time_us"], mine["tensor_core_pct"], where="post", color=BLUE, linewidth=1.0)
            axes.step(
                mine["time_us"], mine["egress_pct"], where="post", color=ORANGE, linewidth=1.0, label="egress in use"
            )
            axes.axvline(end, color=INK, linewidth=1.0, linestyle=DASHES, label="end")
            axes.set_title(f"{policy}: {end:.0f} µs, egress full {_full_pct(mine):.0f} % of the time")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        panels[-1].set(
            xlim=(0, data["makespan_us"].max() * 1.01), ylim=(0, 112), yticks=(0, 50, 100), xlabel="time, µs"
        )
        figure.supylabel("share, %", fontsize="medium")
        say_setting(figure, setting)
    return figure


def _full_pct(mine: pd.DataFrame) -> float:
    """For how much of its time a policy has an egress of which `FULL_PCT` or more is in use, percent."""
    during = mine.loc[mine["time_us"] < mine["makespan_us"], "egress_pct"]
    return 100 * float((during >= FULL_PCT).mean())


def breakdown_figure(data: pd.DataFrame, setting: str = "") -> Figure:
    """Stall, then waits by cause, of the lanes that compute on Tensor Cores or store: means, a panel a role, a bar a policy.

    All panels have one axis of time, so that bars of different roles can be compared; the sum stands behind each bar. Lanes
    that store are drawn without their waits for a slot. Where there are no Tensor Cores, every role has a panel, with all of
    its waits. `setting` says what was simulated.
    `data`: columns policy, role, what (busy, stall, wait, idle), cause, mean_us; see `breakdown` in sim/activity.py. With a
    column makespan_us that stands beside each policy.
    """
    if "makespan_us" in data:
        data = data.assign(policy=[_ended(*end) for end in zip(data["policy"], data["makespan_us"], strict=True)])
    beside = bool(data["role"].isin(TENSOR_ROLES).any())
    if beside:
        data = data[data["role"].isin((*TENSOR_ROLES, *STORING_ROLES))]
        data = data[~(data["role"].isin(STORING_ROLES) & (data["cause"] == BY_DESIGN))]
    still = data[data["what"].isin(("stall", "wait"))]
    still = still.assign(name=still["cause"].where(still["what"] == "wait", "stall"))
    bars = {str(role): list(dict.fromkeys(mine["policy"])) for role, mine in data.groupby("role", sort=False)}
    heights = [0.55 + 0.3 * len(policies) for policies in bars.values()]
    with house_style():
        figure = Figure(figsize=(5.0, 0.9 + sum(heights)))
        panels = figure.subplots(max(1, len(bars)), 1, sharex=True, squeeze=False, height_ratios=heights or None)[:, 0]
        longest = 0.0
        for axes, (role, policies) in zip(panels, bars.items(), strict=False):
            longest = max(longest, _still_bars(axes, still[still["role"] == role], policies))
            mine = still[still["role"] == role]
            if role in TENSOR_ROLES:
                stalls = (mine["what"] == "stall") & (mine["mean_us"] > 0)
                does = "stand still" if stalls.any() else "wait"
                axes.set_title(f"{role} lanes {does} {_between(mine, policies)}\n(they drive the Tensor Cores)")
            elif beside:
                stalled = _between(mine[mine["what"] == "stall"], policies)
                axes.set_title(f"{role} lanes stall {stalled}\n(without their waits for a {BY_DESIGN})")
            else:
                axes.set_title(f"{role} lanes")
        panels[-1].set(xlim=(0, 1.15 * longest or 1.0), xlabel="stall and waits, µs a lane")
        drawn = [_label(name) for name in CAUSE_COLOURS | OTHER_COLOURS]
        parts = {
            label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        known = [label for label in drawn if label in parts]
        if known:
            figure.legend([parts[label] for label in known], known, loc="outside lower center", ncols=3)
        say_setting(figure, setting)
    return figure


def _between(mine: pd.DataFrame, policies: list[str]) -> str:
    """The least and the most that lanes of a role stand still: '0.4 to 27.1 µs'."""
    sums = mine.groupby("policy")["mean_us"].sum().reindex(policies, fill_value=0.0)
    low, high = f"{sums.min():.1f}", f"{sums.max():.1f}"
    return f"{high} µs" if low == high else f"{low} to {high} µs"


def _still_bars(axes: Axes, still: pd.DataFrame, policies: list[str]) -> float:
    """Of one role: a bar a policy, the stall first, then each cause of waits that there is. Returns the longest bar."""
    left = np.zeros(len(policies))
    for name, colour in (CAUSE_COLOURS | OTHER_COLOURS).items():
        mine = still[still["name"] == name].groupby("policy")["mean_us"].sum()
        time = mine.reindex(policies, fill_value=0.0).to_numpy(dtype=float)
        if time.any():
            axes.barh(
                range(len(policies)), time, left=left, color=colour, label=_label(name), height=0.7,
                hatch=HATCHES.get(name), edgecolor="white", linewidth=0,
            )  # fmt: skip
            left += time
    for row, end in enumerate(left):
        axes.annotate(
            f"{end:.1f}", (end, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize="small"
        )
    axes.set_yticks(range(len(policies)), policies)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return float(left.max(initial=0.0))


def _ended(policy: str, makespan_us: float) -> str:
    return f"{policy}: {makespan_us:.0f} µs" if makespan_us >= 100 else f"{policy}: {makespan_us:.3g} µs"


def _label(cause: str) -> str:
    return cause if cause == "stall" else f"wait: {cause}"


def waterfall_figure(data: pd.DataFrame, setting: str = "", whole: str = "makespan") -> Figure:
    """The time of a run as bars that begin where the one before ends, the removable ones first.

    `data`: columns cause, us, removed_by (None for what is left), in order; alone_us, what removing only that limit saves,
    is a hollow mark as far from where its bar begins; and name. `setting` says what was simulated, `whole` what the bars add
    up to.
    """
    with house_style():
        figure = Figure(figsize=(5.4, 1.3 + 0.32 * (len(data) + 1)))
        total = float(data["us"].sum())
        axes = figure.add_subplot(xlabel="time, µs", title=f"Where {total:.0f} µs go{_most_alone_told(data)}")
        end = np.cumsum(data["us"].to_numpy(dtype=float))
        for row, (us, until, removed) in enumerate(zip(data["us"], end, data["removed_by"], strict=True)):
            colour = BLUE if not isinstance(removed, str) else ORANGE if us >= 0 else "none"
            axes.barh(row, us, left=until - us, color=colour, edgecolor=ORANGE if us < 0 else colour, height=0.7)
            axes.annotate(
                f"{us:.1f}", (max(until, until - us), row), xytext=(8, 0), textcoords="offset points", va="center",
                fontsize="small",
            )  # fmt: skip
            axes.plot([until, until], [row + 0.35, row + 0.65], color=MUTED, linewidth=0.8)
        alone = data["alone_us"].to_numpy(dtype=float) if "alone_us" in data else np.full(len(data), np.nan)
        reach = end - data["us"].to_numpy(dtype=float) + alone
        axes.plot(
            reach, range(len(data)), "D", markerfacecolor="none", color=INK, markersize=5, linestyle="", zorder=3,
            label="saved if removed alone" if np.isfinite(alone).any() else None,
        )  # fmt: skip
        axes.barh(len(data), total, color=MUTED, height=0.7)
        axes.set_yticks(range(len(data) + 1), [*data["cause"], whole])
        ends = [total, *end, *reach[np.isfinite(reach)]]
        axes.set_xlim(min(0.0, *ends), 1.12 * max(ends))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.barh(0, 0, color=ORANGE, label="can be removed")
        axes.barh(0, 0, color=BLUE, label="left, on the busiest lane")
        if (data["us"] < 0).any():
            axes.barh(0, 0, color="none", edgecolor=ORANGE, label="slower without it")
        figure.legend(loc="outside lower center", ncols=2)
        say_setting(figure, setting)
    return figure


def _most_alone_told(data: pd.DataFrame) -> str:
    """Which limit saves most if it is all that is removed; nothing where none saves 1 %."""
    if "alone_us" not in data:
        return ""
    limits = data[data["name"] != "sending"] if "name" in data else data
    alone = limits["alone_us"].astype(float)
    if not alone.max() >= 0.01 * float(data["us"].sum()):
        return ""
    most = limits.loc[[alone.idxmax()]].iloc[0]
    return f":\n{most['cause']} alone takes {most['alone_us']:.0f} of them"


def tune_figure(
    data: pd.DataFrame, policy: str, setting: str | None, knee: int | None, own_us: float | None, simulated: str = ""
) -> Figure:
    """Makespan over one setting of a policy, with the knee marked. Without a setting, or with one that is on or off, the
    best of each policy and of each value of that setting.

    `data`: columns policy, makespan_us, and one for the setting; the first row is the scenario as it is written. `own_us` is
    its makespan, `simulated` says what it is.
    """
    written = f"as written: {data['policy'].iloc[0]}"
    if setting is None or all(isinstance(value, (bool, np.bool_)) for value in data[setting].dropna()):
        return _best_figure(data, policy, setting, own_us, simulated, written)
    with house_style():
        figure = Figure()
        say_setting(figure, simulated)
        axes = figure.add_subplot(ylabel="makespan, µs")
        mine = data[(data["policy"] == policy) & data[setting].notna() & data["makespan_us"].notna()]
        if (
            "room_bytes" in mine and mine["room_bytes"].notna().any()
        ):  # leads with their rings: the written one may lack it
            mine = mine[mine["room_bytes"].notna()]
        curve = mine.groupby(setting)["makespan_us"].min()
        axes.plot(curve.index.astype(float), curve, "o-", color=BLUE, linewidth=1.2, label=policy)
        positive = curve.index[curve.index > 0]
        if len(positive) and positive.max() > FAR_APART * positive.min():  # else the small ones coincide
            axes.set_xscale("symlog", base=2, linthresh=float(positive.min()))
            marked = _spread(list(curve.index))
            axes.set_xticks(marked, [f"{value:g}" for value in marked])
            axes.minorticks_off()
        scale = " (logarithmic, but for 0)" if axes.get_xscale() == "symlog" else ""
        name = SETTINGS.get(setting, setting.replace("_", " "))
        axes.set(xlabel=name + scale, title=f"{policy}: makespan over {name}")
        axes.set_ylim(0)
        if own_us is not None:
            axes.axhline(own_us, color=ORANGE, linewidth=1.2, linestyle=DASHES, label=written)
            axes.set_ylim(0, 1.05 * max(own_us, float(curve.max()) if len(curve) else 0.0))
        if knee is not None:
            side = "left" if len(curve) and knee > curve.index.to_series().median() else "right"
            mark_x(axes, knee, rf"$D_\mathrm{{knee}}$ = {knee}", top=0.3, side=side)
        axes.legend(loc="best")
    return figure


def _best_figure(
    data: pd.DataFrame, policy: str, setting: str | None, own_us: float | None, simulated: str, written: str
) -> Figure:
    """A bar for the best of each policy, of `policy` one for each value of a setting that is on or off."""
    named = data.assign(name=data["policy"])
    if setting is not None:
        told = data[setting].map({True: f"{policy}, with {setting}", False: f"{policy}, without {setting}"})
        named["name"] = told.where(told.notna() & (data["policy"] == policy), data["policy"])
    best = named.dropna(subset="makespan_us").groupby("name", sort=False)["makespan_us"].min()
    with house_style():
        figure = Figure(figsize=(5.4, 1.4 + 0.32 * len(best)))
        say_setting(figure, simulated)
        axes = figure.add_subplot(xlabel="makespan, µs", title="The best of each policy")
        axes.barh(range(len(best)), best, color=[BLUE if time == best.min() else MUTED for time in best], height=0.7)
        for row, time in enumerate(best):
            axes.annotate(
                f"{time:.1f}", (time, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize="small",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
        axes.set_yticks(range(len(best)), list(best.index))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlim(0, 1.16 * max([*best, own_us or 0.0]))
        if own_us is not None:
            axes.axvline(own_us, color=ORANGE, linewidth=1.2, linestyle=DASHES, label=written, zorder=1)
            figure.legend(loc="outside lower center")
    return figure


def _spread(values: list[float]) -> list[float]:
    """Of ascending values the first, and each that is at least 2.2 times the one taken before."""
    taken: list[float] = []
    for value in values:
        if not taken or (value > 0 and value >= 2.2 * taken[-1]):
            taken.append(value)
    return taken
