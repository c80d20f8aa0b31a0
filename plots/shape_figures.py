"""Figures over many shapes: speedups of MegaMoE calls, of attention by length, and the best policy of a GEMM by its size.

Each function draws one DataFrame, so that a figure can be drawn again from the CSV that is saved beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .style import BLUE, DASHES, GREEN, INK, MUTED, ORANGE, PINK, house_style, say_setting

if TYPE_CHECKING:
    import pandas as pd

POLICY_COLOURS = {"compute_only": MUTED, "serial": INK, "reserved_sms": GREEN, "comm_warp": PINK, "piggyback": BLUE}
POLICY_MARKS = {"reserved_sms": "s", "comm_warp": "^", "piggyback": "o"}
LARGE, MEDIUM, SMALL = 6.0, 4.2, 2.8
"""Sizes of marks of calls: those of one type of numbers differ from those of another in colour and size."""
SHORT = {"fused": "fused", "reserved_sms": "reserved", "reshaped": "reshaped", "serial": "serial"}


def calls_figure(data: pd.DataFrame, paper: Mapping[str, float], setting: str = "") -> Figure:
    """Speedup of interleaved over expert-wave MegaMoE, a mark a call, in columns by model.

    `data`: columns model, numbers, tokens, routing, speedup. `paper`: geometric_mean, minimum and maximum of its calls.
    `setting` says what was simulated.
    """
    models = list(dict.fromkeys(data["model"]))
    numbers, tokens = sorted(data["numbers"].unique()), sorted(data["tokens"].unique())
    routings = list(dict.fromkeys(data["routing"]))
    colour = dict(zip(numbers, (BLUE, ORANGE, GREEN), strict=False))
    size = dict(zip(numbers, (LARGE, MEDIUM, SMALL), strict=False))
    marker = dict(zip(tokens, ("o", "s", "^", "D", "v"), strict=False))
    mean = float(np.exp(np.log(data["speedup"]).mean()))
    with house_style():
        figure = Figure(figsize=(5.0, 3.9))
        axes = figure.add_subplot(
            ylabel="speedup over expert-wave",
            title=f"Interleaved MegaMoE is faster in {(data['speedup'] > 1).sum()} of {len(data)} calls,\n"
            f"{' and '.join(routings)}",
        )
        for number, tokens_of, routing in _all_of(data, ("numbers", "tokens", "routing")):
            chosen = (data["numbers"] == number) & (data["tokens"] == tokens_of) & (data["routing"] == routing)
            place = tokens.index(tokens_of) - (len(tokens) - 1) / 2 + 0.25 * (numbers.index(number) - 0.5)
            x = [models.index(model) + 0.22 * place for model in data.loc[chosen, "model"]]
            face = colour[number] if routing == routings[0] else "white"
            axes.plot(
                x, data.loc[chosen, "speedup"], marker[tokens_of], color=colour[number], markersize=size[number],
                markerfacecolor=face, linestyle="",
            )  # fmt: skip
        axes.axhline(1, color=INK, linewidth=0.9)
        axes.axhline(mean, color=MUTED, linewidth=1.0, linestyle=DASHES)
        axes.set_xticks(range(len(models)), models, rotation=20, ha="right")
        axes.set_xlim(-0.6, len(models) - 0.4)
        axes.grid(axis="x", visible=False)
        axes.tick_params(axis="x", length=0)
        axes.annotate(
            f"geometric mean {mean:.3f}\nthe paper's 84 calls, half of them skewed: {paper['geometric_mean']:g}, "
            f"from {paper['minimum']:g} to {paper['maximum']:g}",
            (0, 1), xycoords="axes fraction", xytext=(2, -2), textcoords="offset points", va="top", fontsize="small",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip
        axes.set_ylim(top=axes.get_ylim()[0] + 1.12 * (axes.get_ylim()[1] - axes.get_ylim()[0]))
        handles = [
            Line2D([], [], marker="o", linestyle="", color=colour[n], markersize=size[n], label=str(n).upper())
            for n in numbers
        ]
        handles += [Line2D([], [], marker=marker[t], linestyle="", color=MUTED, label=f"{t} tokens") for t in tokens]
        if len(routings) > 1:
            handles += [
                Line2D([], [], marker="o", linestyle="", color=MUTED, label=routings[0]),
                Line2D([], [], marker="o", linestyle="", color=MUTED, markerfacecolor="white", label=routings[1]),
            ]
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=min(len(handles), 5),
            columnspacing=1.0,
            handletextpad=0.2,
        )
        say_setting(figure, setting)
    return figure


def attention_figure(data: pd.DataFrame, setting: str = "") -> Figure:
    """Speedup over attention and All-to-All one after the other, by sequence length, a line a policy; measured as rings.

    `data`: columns series (simulated, measured), policy, tokens, speedup, fitted. `setting` says what was simulated.
    """
    simulated, measured = (data[data["series"] == name] for name in ("simulated", "measured"))
    with house_style():
        figure = Figure(figsize=(5.0, 3.5))
        axes = figure.add_subplot(
            xlabel="sequence length, tokens",
            ylabel="speedup over serial",
            title="Attention with an All-to-All behind it",
        )
        for policy in dict.fromkeys(simulated["policy"]):
            mine, colour = simulated[simulated["policy"] == policy], POLICY_COLOURS.get(policy, ORANGE)
            bound = policy == "compute_only"
            axes.plot(
                mine["tokens"], mine["speedup"], color=colour, linewidth=1.2, linestyle=DASHES if bound else "-",
                marker=POLICY_MARKS.get(policy, ""), markersize=4.5,
                label="nothing sent" if bound else policy,
            )  # fmt: skip
        judged = measured[measured["policy"] != "serial"]
        if len(judged):
            axes.plot(
                judged["tokens"], judged["speedup"], "o", markersize=10, markerfacecolor="none", markeredgewidth=1.4,
                color=ORANGE, label="piggyback, measured",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        tokens = sorted(simulated["tokens"].unique())
        axes.set_xticks(tokens, [f"{t // 1024}k" for t in tokens])
        axes.minorticks_off()
        axes.legend(loc="upper right")
        say_setting(figure, setting)
    return figure


def best_policy_figure(data: pd.DataFrame, setting: str = "") -> Figure:
    """The fastest policy of a GEMM and its collective by rows m and depth k: its name, and its speedup over serial.

    `data`: columns m, k, policy, speedup. `setting` says what was simulated.
    """
    best = data.loc[data.groupby(["m", "k"])["speedup"].idxmax()]
    rows, depths = sorted(data["m"].unique()), sorted(data["k"].unique())
    grid = best.pivot(index="k", columns="m", values="speedup").loc[depths, rows].to_numpy()
    names = best.pivot(index="k", columns="m", values="policy").loc[depths, rows].to_numpy()
    with house_style():
        figure = Figure(figsize=(5.0, 3.4))
        axes = figure.add_subplot(
            xlabel="rows $m$ (tokens)",
            ylabel="depth $k$, of all ranks",
            title="GEMM + ReduceScatter: the fastest policy",
        )
        top = max(1.01, float(grid.max()))
        norm = TwoSlopeNorm(vcenter=1.0, vmin=min(2 - top, float(grid.min()), 0.99), vmax=top)
        image = axes.imshow(grid, cmap=colormaps["PuOr_r"], norm=norm, origin="lower", aspect="auto")
        for y, x in np.ndindex(grid.shape):
            dark, policy = norm(grid[y, x]) > 0.82, str(names[y, x])
            axes.annotate(
                f"{SHORT.get(policy, policy)}\n{grid[y, x]:.2f}×", (x, y), ha="center", va="center", fontsize=8,
                color="white" if dark else INK, linespacing=1.15,
            )  # fmt: skip
        axes.set_xticks(range(len(rows)), [str(m) for m in rows])
        axes.set_yticks(range(len(depths)), [str(k) for k in depths])
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=30)
        bar.ax.set_ylim(1, top)
        bar.set_label("speedup over serial")
        say_setting(figure, setting)
    return figure


def _all_of(data: pd.DataFrame, columns: tuple[str, str, str]) -> list[tuple[object, object, object]]:
    """The combinations of values that there are, in the order of their first rows."""
    return list(dict.fromkeys(data[list(columns)].itertuples(index=False, name=None)))
