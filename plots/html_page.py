"""One HTML page that needs nothing else: text, tables that sort by a click on a column, and figures drawn as SVG inside it.

The page fetches nothing. The same contents give the same bytes.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .names import shortened
from .style import house_style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MOST_ROWS = 400
"""Rows of a table that are shown; what is left out is said."""
LARGEST, SMALLEST = 1.25, 0.7
"""Sizes of a figure on a page over that in which it was drawn: on a narrow screen it scrolls sideways."""
QUANTITY = re.compile(r"([-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?) ?([^\s\d.:-][^\s\d]*)?")
"""A number, and a unit behind it: '8.4 %', '1936.3 TFLOPS', '2x'."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns. A column of numbers, all with the same unit or none, stands right and sorts as numbers.

    `left_out` rows are not shown.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    left_out: int = 0


@dataclass(frozen=True)
class Picture:
    """A figure and what it shows."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class Code:
    """Lines to be copied: commands, or a file."""

    text: str


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading. `folded` parts open by a click."""

    heading: str
    parts: Sequence[str | Table | Picture | Code]
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """`lead` is what a reader should take away; `about` the line under the title."""

    title: str
    about: str
    lead: str
    sections: Sequence[Section]

    def count(self, kind: type) -> int:
        """How many parts of a kind there are."""
        return sum(isinstance(part, kind) for section in self.sections for part in section.parts)


def facts(caption: str, values: Mapping[str, Any]) -> Table:
    """A table of names and values; see `flat`."""
    return Table(caption, ("", ""), list(flat(values).items()))


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name. Those of a mapping inside have its name and a dot before theirs, and a list is one text."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": one for inner, one in flat(value).items()}
        else:
            found[name] = _listed(value) if isinstance(value, (list, tuple)) else value
    return found


def _listed(values: Sequence[Any]) -> str:
    """'1, 2.5'; of mappings 'name 1, other 2.5, name 2'."""
    texts = (
        ", ".join(f"{name} {cell(one)}" for name, one in flat(value).items()) if isinstance(value, Mapping) else
        _listed(value) if isinstance(value, (list, tuple)) else cell(value)
        for value in values
    )  # fmt: skip
    return ", ".join(texts)


def table_of(caption: str, data: pd.DataFrame, most_rows: int = MOST_ROWS) -> Table:
    """A table of a DataFrame; of a long one the first rows."""
    shown = data.head(most_rows).astype(object)
    rows = shown.where(shown.notna(), None).to_numpy().tolist()
    return Table(caption, [str(name) for name in data.columns], rows, max(0, len(data) - most_rows))


def render(page: Page) -> str:
    """The page as HTML. The template is page.html.j2 beside this file."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"quantity": _sorts_as, "breakable": breakable}
    environment.tests |= {
        "table": lambda part: isinstance(part, Table),
        "picture": lambda part: isinstance(part, Picture),
        "code": lambda part: isinstance(part, Code),
        "number": is_number,
    }
    environment.globals["svg"] = lambda picture: svg(picture.figure)
    environment.globals |= {"numeric_columns": numeric_columns, "decimals": decimals, "cell": shown_cell}
    template = environment.from_string(files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(page=page) + "\n"


def svg(figure: Figure) -> str:
    """A figure as an SVG element of flexible size, but not so small that it cannot be read, and named by its titles and axes
    for readers who cannot see it."""
    from markupsafe import Markup, escape

    text = io.StringIO()
    with house_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # such a letter of a name is drawn as a box
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    drawn = re.sub(r"^.*?(?=<svg)", "", text.getvalue(), count=1, flags=re.DOTALL)
    drawn = re.sub(r"\s*<metadata>.*?</metadata>", "", drawn, count=1, flags=re.DOTALL)
    wide = float(figure.get_size_inches()[0])
    sizes = f"max-width:{wide * LARGEST:.2f}in;min-width:{wide * SMALLEST:.2f}in"
    opening = re.match(r"<svg[^>]*>", drawn)
    assert opening is not None
    kept = re.sub(r' (?:width|height)="[^"]*"', "", opening.group())
    named = f'<svg role="img" aria-label="{escape(_named(figure))}" style="{sizes}"{kept.removeprefix("<svg")}'
    return Markup(named + drawn[opening.end() :])


def _named(figure: Figure) -> str:
    """Title and axes of each panel: its caption stands below it and would be read twice."""
    panels = [(axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    return "; ".join(dict.fromkeys(" ".join(text.split()) for panel in panels for text in panel if text))


def numeric_columns(table: Table) -> list[bool]:
    """Which columns hold nothing but numbers, without a unit or all with the same, and cells without a value."""
    columns = [[row[at] for row in table.rows] for at in range(len(table.columns))]
    return [
        all(_sorts_as(value) is not None for value in column) and len({_unit(value) for value in column} - {None}) <= 1
        for column in columns
    ]


def decimals(table: Table) -> list[int | None]:
    """Digits behind the point that numbers of each column have: three as in a terminal, none where all are large or whole.
    None for a column that holds other things, too, or numbers that are too small for it.
    """
    if not any(table.columns):
        return [None] * len(table.columns)
    return [_decimals([row[at] for row in table.rows]) for at in range(len(table.columns))]


def _decimals(column: Sequence[Any]) -> int | None:
    there = [value for value in column if value is not None and value == value]
    sizes = [abs(value) for value in there if value and isinstance(value, float)]
    if not all(map(is_number, there)) or any(size < 0.001 or math.isinf(size) for size in sizes):
        return None
    is_whole = bool(sizes) and all(size.is_integer() for size in sizes)
    is_large = bool(sizes) and max(sizes) >= 1e6 and min(sizes) >= 1e3
    return 0 if is_whole or is_large else 3


def _sorts_as(value: Any) -> float | int | str | None:
    """The number that a cell begins with, '' for a cell without a value, None for other text."""
    if value is None or value == "" or value != value:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    found = QUANTITY.fullmatch(value) if isinstance(value, str) else None
    return float(found[1].replace(",", "")) if found else None


def _unit(value: Any) -> str | None:
    """What stands behind the number of a cell, '' for nothing; None for a cell without a value."""
    if _sorts_as(value) == "":
        return None
    found = QUANTITY.fullmatch(value) if isinstance(value, str) else None
    return (found[2] or "") if found else ""


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def shown_cell(value: Any, digits: int | None = None) -> str:
    """A cell as HTML: an address is a link with a short name, a number has `digits` behind its point if that is given."""
    from markupsafe import Markup, escape

    if isinstance(value, str) and value.startswith(("https://", "http://")):
        named = shortened(value.partition("://")[2], 40)
        return Markup(f'<a href="{escape(value)}">{escape(named)}</a>')
    if isinstance(value, float) and digits is not None and math.isfinite(value):
        return f"{value:,.{digits}f}"
    return breakable(cell(value))


def breakable(text: str) -> str:
    """Text as HTML in which a name such as makespan_median_us may be broken behind each _."""
    from markupsafe import Markup, escape

    return Markup(str(escape(text)).replace("_", "_<wbr>"))


def cell(value: Any) -> str:
    """A value as people read it: four digits, thousands apart, nothing for None."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)
