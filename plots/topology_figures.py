"""A topology as a picture: GPUs on a circle, switches where their links meet, links as wide as they are fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .style import BLUE, INK, ORANGE, SKY, house_style

if TYPE_CHECKING:
    import pandas as pd

MOST_RATES = 5
"""Of more different rates the widest and the narrowest are in the legend."""
WIDEST, NARROWEST = 4.0, 0.8
"""Of a node of `USUAL` GPUs; lines of more are thinner, so that they do not run into one another."""
USUAL = 8
INNER = 0.28
LINE = "#999999"

Position = tuple[float, float]


def topology_figure(links: pd.DataFrame, gpus: int, taking_part: int, title: str) -> Figure:
    """GPUs 0 to `gpus` - 1, of which the first `taking_part` are used, and their links.

    `links`: a row for each direction of each link, columns source, target (a number is a GPU, a text a switch), rate_gbs.
    The two directions of a link are one line, as wide as the faster.
    """
    at = positions(links, gpus)
    widths = _widths(links, min(1.0, USUAL / gpus))
    with house_style():
        figure = Figure(figsize=(5.4, 4.2))
        axes = figure.add_subplot(aspect="equal", title=title)
        axes.set_axis_off()
        for (a, b), rate in _lines(links).items():
            (x, y), (to_x, to_y) = at[a], at[b]
            axes.plot([x, to_x], [y, to_y], color=LINE, linewidth=widths[rate], solid_capstyle="butt", zorder=1)
        size = max(4.0, min(17.0, 190 / gpus))
        for name, (x, y) in at.items():
            is_gpu = name.isdigit()
            used = not is_gpu or int(name) < taking_part
            colour = (BLUE if used else SKY) if is_gpu else ORANGE
            axes.plot(x, y, "o" if is_gpu else "s", color=colour, markersize=size if is_gpu else 11, zorder=2)
            if is_gpu and gpus <= 24:
                axes.annotate(name, (x, y), ha="center", va="center", color="white", fontsize="small", zorder=3)
            elif not is_gpu:
                axes.annotate(
                    name, (x, y), xytext=(0, 8), textcoords="offset points", ha="center", fontsize="small", color=INK,
                    zorder=3, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
                )  # fmt: skip
        handles = _legend(widths, taking_part < gpus, has_switch=len(at) > gpus)
        axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def positions(links: pd.DataFrame, gpus: int) -> dict[str, Position]:
    """Where each node is drawn: GPUs on the unit circle, a switch towards the middle of what it joins."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(str(gpu) for gpu in range(gpus))
    circle = {
        name: (float(y), float(x)) for name, (x, y) in nx.circular_layout(graph).items()
    }  # clockwise from the top
    at: dict[str, Position] = dict(circle)
    graph.add_edges_from((str(row.source), str(row.target)) for row in links.itertuples())
    switches = [node for node in graph if node not in at]
    centres: dict[Position, list[str]] = {}
    for node in switches:
        joined = [circle[other] for other in graph[node] if other in circle]
        x, y = (sum(p[axis] for p in joined) / max(1, len(joined)) for axis in (0, 1))
        centres.setdefault((round(0.7 * x, 3) + 0.0, round(0.7 * y, 3) + 0.0), []).append(node)
    for (x, y), there in centres.items():
        ring = nx.circular_layout(nx.empty_graph(len(there)), scale=INNER, center=(x, y))
        at |= {node: (float(ring[index][0]), float(ring[index][1])) for index, node in enumerate(there)}
        if len(there) == 1:
            at[there[0]] = (x, y)
    return at


def _lines(links: pd.DataFrame) -> dict[tuple[str, str], float]:
    """The rate of each pair of nodes that a line joins."""
    lines: dict[tuple[str, str], float] = {}
    for source, target, rate in zip(links["source"], links["target"], links["rate_gbs"], strict=True):
        one, other = sorted((str(source), str(target)))
        lines[one, other] = max(float(rate), lines.get((one, other), 0.0))
    return lines


def _widths(links: pd.DataFrame, thinner: float) -> dict[float, float]:
    rates = links["rate_gbs"].unique()
    widest = max(rates, default=1.0)
    return {rate: thinner * (NARROWEST + (WIDEST - NARROWEST) * rate / widest) for rate in rates}


def _legend(widths: Mapping[float, float], idle: bool, has_switch: bool) -> list[Line2D]:
    rates = sorted(widths, reverse=True)
    shown = rates if len(rates) <= MOST_RATES else [rates[0], rates[-1]]
    handles = [Line2D([], [], marker="o", linestyle="", color=BLUE, label="GPU")]
    if idle:
        handles.append(Line2D([], [], marker="o", linestyle="", color=SKY, label="GPU, not used"))
    if has_switch:
        handles.append(Line2D([], [], marker="s", linestyle="", color=ORANGE, label="switch"))
    return handles + [Line2D([], [], color=LINE, linewidth=widths[rate], label=f"{rate:.4g} GB/s") for rate in shown]
