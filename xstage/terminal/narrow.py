"""Tables in a terminal that is narrower than they are: headers wrap, then text and bars give way, then columns go below.

A number never wraps, so that it can be read and copied. Where the first column and one other are too wide together, names
break behind `.` and `_`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.measure import Measurement
    from rich.table import Column, Table
    from rich.text import Text

GAP = 2
"""Blanks between columns."""
TEXT = 26
"""A column whose cells are longer holds text that may wrap, into no fewer characters than these."""
SHORTEST_BAR = 8
SHORTEST_NAME = 8
"""Characters of a line of a name that has to break."""


@dataclass(frozen=True)
class Bar:
    """A cell that is a bar of `share` of `whole` characters. All bars of a column are shorter where there is less room.

    `longest` is the largest share of the column. A share below 0 is drawn with another letter; `seen` is the share from
    which on a bar has a character at least.
    """

    share: float
    longest: float
    whole: int
    seen: float = 0.0

    @property
    def most(self) -> int:
        """Characters of the longest bar of the column where there is room."""
        return max(1, round(self.whole * self.longest))

    def text(self, width: int | None = None) -> str:
        """The bar in a column of `width` characters, by default where there is room."""
        whole = self.whole if width is None or width >= self.most else width / self.longest
        least = int(self.share < 0 or 0 < self.seen <= self.share)
        return ("█" if self.share >= 0 else "░") * max(least, round(whole * abs(self.share)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        yield Text(self.text(options.max_width), no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(min(SHORTEST_BAR, self.most), self.most)


def in_width(table: Table, width: int) -> list[Table]:
    """`table` as one or more of at most `width` characters that repeat the first column, unless a column alone is wider."""
    natural, least = [_natural(column) for column in table.columns], [_least(column) for column in table.columns]
    if _width(natural) <= width:
        return [table]
    parts: list[list[int]] = [[0]] if len(natural) == 1 else []
    for at in range(1, len(natural)):
        if not parts or _width([least[i] for i in (*parts[-1], at)]) > width:
            parts.append([0])
        parts[-1].append(at)
    return [_part(table, part, natural, least, width) for part in parts]


def _part(table: Table, chosen: Sequence[int], natural: Sequence[int], least: Sequence[int], width: int) -> Table:
    """Some columns of a table: each as narrow as it may be, and what is left to text and bars first."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=table.show_header)
    widths = {at: least[at] for at in chosen}
    if _width(list(widths.values())) > width:
        widths = _narrowed(table, chosen, least, width)
    spare = width - _width(list(widths.values()))
    for at in sorted(chosen, key=lambda at: not _gives_way(table.columns[at])):
        more = max(0, min(spare, natural[at] - widths[at]))
        widths[at], spare = widths[at] + more, spare - more
    for at in chosen:
        column = table.columns[at]
        header = str(column.header)
        if max(map(len, header.split()), default=0) > widths[at]:
            header = broken(header, widths[at])
        made.add_column(header, justify=column.justify, width=widths[at])
    for cells in zip(*(table.columns[at].cells for at in chosen), strict=True):
        made.add_row(*(_fitted(cell, table.columns[at], widths[at]) for at, cell in zip(chosen, cells, strict=True)))
    return made


def _narrowed(table: Table, chosen: Sequence[int], least: Sequence[int], width: int) -> dict[int, int]:
    """Widths of a part that is too wide: as narrow as numbers allow, then what is left to parts of names, first of headers.

    Still more than `width` where a column alone is as wide.
    """
    widths = {at: _shortest(table.columns[at], least[at]) for at in chosen}
    spare = width - _width(list(widths.values()))
    parts = {at: min(least[at], max(map(len, _parts(str(table.columns[at].header))), default=0)) for at in chosen}
    for at, most in [*((at, parts[at]) for at in chosen[1:]), *((at, least[at]) for at in chosen)]:
        more = max(0, min(spare, most - widths[at]))
        widths[at], spare = widths[at] + more, spare - more
    return widths


def _shortest(column: Column, least: int) -> int:
    """Characters that a column needs if names in it break, its header included."""
    longest = max(map(_length, column.cells), default=0)
    if _bar(column) is not None or column.justify == "right":
        return min(longest, least)
    return min(longest, least, SHORTEST_NAME)


def _fitted(cell: RenderableType, column: Column, width: int) -> RenderableType:
    """A cell, of names broken where they are longer than their column."""
    from rich.text import Text

    if isinstance(cell, Bar) or column.justify == "right" or max(map(len, str(cell).split()), default=0) <= width:
        return cell
    return Text(broken(str(cell), width))


def broken(text: str, width: int) -> str:
    """Text in lines of at most `width` characters, broken between words, behind `.` and `_`, or else anywhere."""
    lines = [""]
    for part in _parts(text):
        if len(lines[-1] + part.rstrip()) > width and lines[-1]:
            lines.append("")
        while len(part.rstrip()) > width:
            lines[-1:] = [part[:width], ""]
            part = part[width:]
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _parts(text: str) -> list[str]:
    """What may stand on lines of its own: words, and names to each `.` or `_` that a letter follows; no part of a number."""
    return re.split(r"(?<=[._])(?=[A-Za-z])|(?<=\s)(?=\S)", text)


def _width(columns: Sequence[int]) -> int:
    return sum(columns) + GAP * (len(columns) - 1)


def _natural(column: Column) -> int:
    return max([len(str(column.header)), *map(_length, column.cells)])


def _least(column: Column) -> int:
    longest, bar = max(map(_length, column.cells), default=0), _bar(column)
    words = max(map(len, str(column.header).split()), default=0)
    if bar is not None:
        return max(words, min(SHORTEST_BAR, bar.most))
    return max(words, min(longest, TEXT) if _gives_way(column) else longest)


def _gives_way(column: Column) -> bool:
    """Whether a column may be narrower than its cells: a bar, or text of several words."""
    is_text = column.justify == "left" and any(len(str(cell)) > TEXT and " " in str(cell) for cell in column.cells)
    return is_text or _bar(column) is not None


def _bar(column: Column) -> Bar | None:
    return next((cell for cell in column.cells if isinstance(cell, Bar)), None)


def _length(cell: object) -> int:
    return cell.most if isinstance(cell, Bar) else max(map(len, str(cell).splitlines()), default=0)
