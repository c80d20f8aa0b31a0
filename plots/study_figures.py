"""A study as a picture: a line over one axis, a heat map over two, a panel for each value of a third."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from ..sim.errors import InputError
from ..sim.quantities import SizeOrZero
from .style import BLUE, house_style, say_setting

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

MOST_AXES = 3
MOST_PANELS = 12
MOST_TICKS = 8
MOST_WRITTEN = 120
"""In a larger heat map the numbers do not fit into its cells."""
LOG_FROM = 30
"""Colours follow the logarithm where the largest value is this many times the smallest."""
UNITS = (("_us", "µs"), ("_bytes", "bytes"), ("_gbs", "GB/s"), ("_pct", "%"))
LABELS = {"stall_total_us": "stall, sum over lanes, µs"}
"""Of metrics whose names do not say what they are."""
MOST_LETTERS = 60  # of the names below the bars, side by side
LONGEST_UPRIGHT = 4
"""Characters under a column that fit side by side."""
COLOURS = "cividis"  # to the same order of brightness for every kind of colour vision
WIDEST_OF_LINE = 50  # characters of the title of a line figure, which is bold and begins at its axes
LONGEST_TITLE = 30  # of a panel, in one line
WIDTH_OF_LETTER, WIDTH_OF_TITLE = 0.075, 0.09  # inches, of small and of medium text
ROOM_BESIDE = 1.9  # inches for the labels on the left and the bar of colours
SIZE: Any = SizeOrZero
KEY, NAMING = re.compile(r"\w+="), ("kind", "name")
"""A mapping's own name stands under one of `NAMING`."""
WIDEST_FIGURE = 8.0  # inches; what would be wider is set in several rows
CELL, LOWEST_CELL, NARROWEST_WRITTEN = 0.48, 0.12, 0.3  # inches of a heat map's column; numbers need the last


@dataclass(frozen=True)
class _Axis:
    """A column whose values are places on an axis, and how each is written: with those of columns that move with it."""

    column: str
    label: str
    texts: Mapping[Any, str]
    values: list[Any]


def study_figure(
    data: pd.DataFrame,
    axes: Sequence[str],
    metric: str,
    title: str,
    together: Mapping[str, Sequence[str]] | None = None,
    setting: str = "",
    deviation: str | None = None,
) -> Figure:
    """`data`: a row a point, with a column for each of `axes` (one to three), the `metric`, and the columns in `together`:
    those that move with an axis and are named beside it. `setting` says what is the same for all points. The column
    `deviation` makes error bars over one axis.

    Two axes are the rows and columns of a heat map, the longer one across; of three, the shortest is one panel a value.
    Raises `InputError` for more axes or panels than can be drawn.
    """
    known = [_axis(data, (axis, *(together or {}).get(axis, ()))) for axis in axes]
    _check_axes({axis.column: len(axis.values) for axis in known})
    with house_style():
        if len(axes) == 1:
            return _lines(data, known[0], metric, title, setting, deviation)
        by_length = sorted(known, key=lambda axis: len(axis.values), reverse=True)
        return _heat_maps(data, by_length, metric, title, setting)


def _check_axes(values: Mapping[str, int]) -> None:
    """Raises `InputError` if axes with so many values each are more than a figure shows."""
    if not 1 <= len(values) <= MOST_AXES:
        raise InputError(
            "cannot be drawn together", field="axes", value=", ".join(values), allowed=f"one to {MOST_AXES}"
        )
    shortest = min(values, key=lambda axis: values[axis])
    if len(values) == MOST_AXES and values[shortest] > MOST_PANELS:
        raise InputError(
            f"would be {values[shortest]} panels", field="axes", value=shortest, allowed=f"at most {MOST_PANELS}"
        )


def _axis(data: pd.DataFrame, columns: Sequence[str]) -> _Axis:
    first = columns[0]
    values = list(dict.fromkeys(data[first]))
    rows = data.drop_duplicates(first).set_index(first, drop=False)
    text = written if len(columns) == 1 else valued
    texts = {value: ", ".join(dict.fromkeys(text(one, rows.loc[value, one]) for one in columns)) for value in values}
    numeric = data[first].dtype.kind in "iuf"
    return _Axis(first, axis_label(columns), _differing(texts), sorted(values) if numeric else values)


def _differing(texts: dict[Any, str]) -> dict[Any, str]:
    """Texts such as 'kind=islands nic_rate=43 GB/s nic_latency=3 us' with the keys in which they differ, one per line.

    The kind, or name, stays where other values are plain names. All keys of the only mapping are kept, and so is a text that
    would be nothing, or that of another value.
    """
    keys = {value: _keys(text) for value, text in texts.items()}
    mappings = [found for found in keys.values() if found]
    if not mappings:
        return texts
    every = dict.fromkeys(key for found in mappings for key in found)
    kept = {key for key in every if len({found.get(key) for found in mappings}) > 1}
    if len(mappings) < len(texts):
        kept |= set(every) if len(mappings) == 1 else every.keys() & set(NAMING)
    short = {
        value: "\n".join(_said(key, inner) for key, inner in keys[value].items() if key in kept) for value in texts
    }
    short = {value: text or texts[value] for value, text in short.items()}
    return short if len(set(short.values())) == len(set(texts.values())) else texts


def _said(key: str, value: str) -> str:
    """One entry of a mapping: 'islands', 'with rotation', 'nic_rate=43 GB/s'."""
    switched = {"True": "with", "False": "without"}.get(value)
    return value if key in NAMING else f"{switched} {key.replace('_', ' ')}" if switched else f"{key}={value}"


def _keys(text: str) -> dict[str, str]:
    """The keys and values of a mapping as a cell of a sweep has it; none of a plain name. A value in brackets is whole."""
    if not KEY.match(text):
        return {}
    found: dict[str, str] = {}
    depth = start = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter == " " and KEY.match(text, at + 1):
            found |= _pair(text[start:at])
            start = at + 1
    return found | _pair(text[start:])


def _pair(text: str) -> dict[str, str]:
    key, _, value = text.partition("=")
    return {key: value}


def _lines(data: pd.DataFrame, axis: _Axis, metric: str, title: str, setting: str, deviation: str | None) -> Figure:
    figure = Figure()
    plot = figure.add_subplot(xlabel=axis.label, ylabel=label(metric), title=_wrapped(title, WIDEST_OF_LINE))
    if data[axis.column].dtype.kind in "iuf":
        ordered = data.sort_values(axis.column)
        plot.errorbar(ordered[axis.column], ordered[metric], deviation and ordered[deviation], fmt="o-", color=BLUE)
        if axis.label != label(axis.column):  # a plain number of the first column would not say it all
            marked = axis.values[:: -(-len(axis.values) // MOST_TICKS)]
            plot.set_xticks(marked, [axis.texts[value] for value in marked], rotation=30, ha="right")
    else:
        names = [axis.texts[value] for value in data[axis.column]]
        plot.bar(names, data[metric], yerr=deviation and data[deviation], color=BLUE)
        if len(names) * _widest(names) > MOST_LETTERS:
            plot.set_xticks(range(len(names)), names, rotation=30, ha="right")
    plot.set_ylim(0)
    say_setting(figure, setting)
    return figure


def _heat_maps(data: pd.DataFrame, axes: Sequence[_Axis], metric: str, title: str, setting: str) -> Figure:
    across, down = axes[0], axes[1]
    third = axes[2] if len(axes) == MOST_AXES else None
    panels: list[Any] = third.values if third else [None]
    known = data[metric].dropna()
    norm = _norm(known.to_numpy(dtype=float))
    names = [across.texts[value] for value in across.values]
    longest = _widest(names)
    upright = longest > LONGEST_UPRIGHT
    titles = [_panel_title(third, panel) for panel in panels] if third else []
    widest = WIDTH_OF_LETTER * _widest(titles)
    cell = max(LOWEST_CELL, min(CELL, (WIDEST_FIGURE - ROOM_BESIDE) / len(names)))
    panel_wide = 0.3 + max(cell * len(names), widest)
    in_a_row = max(1, min(len(panels), int((WIDEST_FIGURE - ROOM_BESIDE + 0.3) / panel_wide)))
    rows = -(-len(panels) // in_a_row)
    wide = max(4.8, ROOM_BESIDE + in_a_row * panel_wide)
    below = WIDTH_OF_LETTER * longest if upright else 0.15
    panel_high = 0.34 * max(3, len(down.values)) + (0.35 if titles else 0)
    figure = Figure(figsize=(wide, 1.35 + below + rows * panel_high + (rows - 1) * 0.15))
    room = 0.16 if upright else WIDTH_OF_LETTER * (longest + 1)
    each = max(1, math.ceil(room / cell))
    places = figure.subplots(rows, in_a_row, sharey=True, squeeze=False).ravel()
    for plot in places[len(panels) :]:
        plot.set_axis_off()
    grid = places[: len(panels)]
    for number, (plot, panel) in enumerate(zip(grid, panels, strict=True)):
        mine = data if third is None else data[data[third.column] == panel]
        values = mine.pivot(index=down.column, columns=across.column, values=metric)
        values = values.reindex(index=down.values, columns=across.values)
        image = _heat_map(plot, values.to_numpy(dtype=float), norm, cell >= NARROWEST_WRITTEN)
        is_lowest = number + in_a_row >= len(panels)
        plot.set_xticks(range(0, len(names), each), names[::each] if is_lowest else [], rotation=90 if upright else 0)
        plot.set_yticks(range(len(down.values)), [down.texts[value] for value in down.values])
        if is_lowest:
            plot.set_xlabel(across.label)
        if number % in_a_row == 0:
            plot.set_ylabel(down.label)
        if third is not None:
            plot.set_title(titles[number], fontsize="small")
    figure.colorbar(image, ax=list(places), label=label(metric))
    said = [_wrapped(text, int(wide / WIDTH_OF_TITLE)) for text in (title, setting) if text]
    if said:
        figure.suptitle("\n".join(said), fontsize="medium")
    return figure


def _widest(texts: Sequence[str]) -> int:
    """Letters of the longest line."""
    return max((len(line) for text in texts for line in text.split("\n")), default=0)


def _panel_title(axis: _Axis, value: Any) -> str:
    one_line = axis.texts[value].replace("\n", ", ")
    told = one_line if len(one_line) <= LONGEST_TITLE else axis.texts[value]
    return f"{axis.label}: {told}" if len(axis.label) + 2 + len(told) <= LONGEST_TITLE else f"{axis.label}:\n{told}"


def _heat_map(plot: Axes, values: Any, norm: Normalize, has_room: bool) -> AxesImage:
    image = plot.imshow(np.ma.masked_invalid(values), norm=norm, cmap=COLOURS, aspect="auto", origin="lower")
    plot.grid(visible=False)
    if has_room and values.size <= MOST_WRITTEN:
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


def label(column: str) -> str:
    """A column's name for a person: 'machine.stage.gap_us' is 'gap, µs'."""
    if column in LABELS:
        return LABELS[column]
    name, unit = _name_and_unit(column)
    return f"{name}, {unit}" if unit else name


def axis_label(columns: Sequence[str]) -> str:
    """The name of an axis, or of several that move together, with the unit where `written` leaves it out."""
    if len(columns) == 1 and not columns[0].endswith("_bytes"):
        return label(columns[0])
    names = [_name_and_unit(column)[0] for column in columns]
    return " and ".join(names if len(set(names)) == len(names) else columns)


def valued(column: str, value: Any) -> str:
    """A value of an axis with its unit: '1434 GB/s', '15 KiB'."""
    text, unit = written(column, value), _name_and_unit(column)[1]
    return text if unit in ("", "bytes") or not _is_number(value) else f"{text} {unit}"


def written(column: str, value: Any) -> str:
    """A value of an axis as users write it, its unit left to the label but for sizes: 15360 bytes are '15 KiB'."""
    if not _is_number(value):
        return str(value)
    is_size = column.endswith("_bytes") and float(value).is_integer()
    return SIZE.__metadata__[0].write(int(value)) if is_size else f"{value:.6g}"


def _name_and_unit(column: str) -> tuple[str, str]:
    name = column.rpartition(".")[2]
    for ending, unit in UNITS:
        if name.endswith(ending):
            return name.removesuffix(ending).replace("_", " "), unit
    return name.replace("_", " "), ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _wrapped(title: str, widest: int) -> str:
    return textwrap.fill(title, widest)
