"""A study as a picture: a line over one axis, a heat map over two, a panel for each value of a third."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from ..sim.errors import InputError
from .style import BLUE, house_style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

MOST_AXES = 3
MOST_PANELS = 12
MOST_WRITTEN = 120
"""In a larger heat map the numbers do not fit into its cells."""
LOG_FROM = 30
"""Colours follow the logarithm where the largest value is this many times the smallest."""
LONGEST_UPRIGHT = 4
"""Characters under a column that fit side by side."""
COLOURS = "cividis"  # to the same order of brightness for every kind of colour vision
WIDEST_TITLE = 70


def study_figure(data: pd.DataFrame, axes: Sequence[str], metric: str, title: str) -> Figure:
    """`data`: a row a point, with a column for each of `axes` (one to three) and the `metric`.

    Two axes are the rows and columns of a heat map, the longer one across; of three, the shortest is one panel a value.
    Raises `InputError` for more axes or panels than can be drawn.
    """
    if not 1 <= len(axes) <= MOST_AXES:
        raise InputError(
            "cannot be drawn together",
            field="axes",
            value=", ".join(axes),
            allowed="one to three; fix the others by `at`",
        )
    with house_style():
        if len(axes) == 1:
            return _lines(data, axes[0], metric, title)
        by_length = sorted(axes, key=lambda axis: data[axis].nunique(), reverse=True)
        return _heat_maps(data, by_length, metric, title)


def _lines(data: pd.DataFrame, axis: str, metric: str, title: str) -> Figure:
    figure = Figure()
    plot = figure.add_subplot(xlabel=label(axis), ylabel=label(metric), title=_wrapped(title))
    if data[axis].dtype.kind in "iuf":
        ordered = data.sort_values(axis)
        plot.plot(ordered[axis], ordered[metric], "o-", color=BLUE)
    else:
        plot.bar(data[axis].astype(str), data[metric], color=BLUE)
    plot.set_ylim(0)
    return figure


def _heat_maps(data: pd.DataFrame, axes: Sequence[str], metric: str, title: str) -> Figure:
    across, down = axes[0], axes[1]
    panels: list[Any] = list(dict.fromkeys(data[axes[2]])) if len(axes) == MOST_AXES else [None]
    if len(panels) > MOST_PANELS:
        raise InputError(
            f"would be {len(panels)} panels",
            field="axes",
            value=axes[2],
            allowed=f"at most {MOST_PANELS}; fix it by `at`",
        )
    known = data[metric].dropna()
    norm = _norm(known.to_numpy(dtype=float))
    columns, rows = (_ordered(data, axis) for axis in (across, down))
    figure = Figure(figsize=(max(4.8, 1.9 + len(panels) * (0.3 + 0.48 * len(columns))), 1.5 + 0.34 * max(3, len(rows))))
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for plot, panel in zip(grid, panels, strict=True):
        mine = data if panel is None else data[data[axes[2]] == panel]
        values = mine.pivot(index=down, columns=across, values=metric).reindex(index=rows, columns=columns)
        image = _heat_map(plot, values.to_numpy(dtype=float), norm)
        names = [shown(value) for value in columns]
        plot.set_xticks(range(len(columns)), names, rotation=90 if max(map(len, names)) > LONGEST_UPRIGHT else 0)
        plot.set_yticks(range(len(rows)), [shown(value) for value in rows])
        plot.set_xlabel(label(across))
        if panel is not None:
            plot.set_title(f"{label(axes[2])}: {shown(panel)}")
    grid[0].set_ylabel(label(down))
    figure.colorbar(image, ax=list(grid), label=label(metric))
    figure.suptitle(_wrapped(title), fontsize="medium")
    return figure


def _heat_map(plot: Axes, values: Any, norm: Normalize) -> AxesImage:
    image = plot.imshow(np.ma.masked_invalid(values), norm=norm, cmap=COLOURS, aspect="auto", origin="lower")
    plot.grid(visible=False)
    if values.size <= MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                dark = norm(value) < 0.55
                plot.annotate(
                    _written(value), (column, row), ha="center", va="center", fontsize="x-small",
                    color="white" if dark else "black",
                )  # fmt: skip
    return image


def _written(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _norm(values: Any) -> Normalize:
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    return LogNorm(low, high) if low > 0 and high / low >= LOG_FROM else Normalize(low, high)


def _ordered(data: pd.DataFrame, axis: str) -> list[Any]:
    """Values of an axis: numbers by size, anything else in the order of the study."""
    values = list(dict.fromkeys(data[axis]))
    return sorted(values) if data[axis].dtype.kind in "iuf" else values


def label(column: str) -> str:
    """A column's name for a person: 'machine.stage.gap_us' is 'gap, us'."""
    name = column.rpartition(".")[2]
    for unit, written in (("_us", "µs"), ("_bytes", "bytes"), ("_gbs", "GB/s"), ("_pct", "%")):
        if name.endswith(unit):
            return f"{name.removesuffix(unit).replace('_', ' ')}, {written}"
    return name.replace("_", " ")


def shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _wrapped(title: str) -> str:
    import textwrap

    return textwrap.fill(title, WIDEST_TITLE)
