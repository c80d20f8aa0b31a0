"""A metric of a sweep over the axes of its study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from .study_figures import label, shown
from .style import AMBER, BLUE, GREEN, INK, ORANGE, PINK, SKY, house_style

if TYPE_CHECKING:
    import pandas as pd

COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MOST_LINES, MOST_PANELS = 7, 6


def axes_figure(data: pd.DataFrame, axes: Sequence[str], metric: str) -> Figure:
    """`metric` over the axis with most values, a line for each value of the next axis, a panel for each of the third.

    Of further axes, and of lines and panels beyond what can be told apart, the smallest value of the metric is taken.
    """
    ordered = sorted(axes, key=lambda name: (-data[name].nunique(), list(axes).index(name)))
    x, *rest = ordered
    line = next((name for name in rest if data[name].nunique() <= MOST_LINES), None)
    panel = next((name for name in rest if name != line and data[name].nunique() <= MOST_PANELS), None)
    panes = _values(data, panel)
    across = min(2, len(panes))
    down = -(-len(panes) // across)
    with house_style():
        figure = Figure(figsize=(5.0, 1.2 + 2.1 * down))
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        numeric = data[x].map(lambda value: isinstance(value, (int, float))).all()
        places = {value: at for at, value in enumerate(_values(data, x))}
        for unused in panels[len(panes) :]:
            unused.set_axis_off()
        for lowest in panels[max(0, len(panes) - across) : len(panes)]:
            lowest.tick_params(labelbottom=True)
        for chart, value in zip(panels, panes, strict=False):
            mine = data if panel is None else data[data[panel] == value]
            for number, one in enumerate(_values(mine, line)):
                chosen = mine if line is None else mine[mine[line] == one]
                least = chosen.groupby(x, sort=False)[metric].min()
                least = least.sort_index() if numeric else least
                at = list(least.index) if numeric else [places[name] for name in least.index]
                chart.plot(
                    at, least, MARKERS[number % len(MARKERS)] + "-", color=COLOURS[number % len(COLOURS)], linewidth=1.2,
                    markersize=4, label=shown(one) if line else None,
                )  # fmt: skip
            if panel is not None:
                chart.set_title(f"{label(panel)}: {shown(value)}", fontsize="small")
            if not numeric:
                chart.set_xticks(list(places.values()), [str(name) for name in places], rotation=30, ha="right")
        figure.supxlabel(label(x), fontsize="medium")
        figure.supylabel(label(metric), fontsize="medium")
        if line is not None:
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(
                handles, labels, loc="outside upper center", ncols=4, title=label(line), title_fontsize="small"
            )
    return figure


def _values(data: pd.DataFrame, name: str | None) -> list[Any]:
    return [None] if name is None else list(dict.fromkeys(data[name]))
