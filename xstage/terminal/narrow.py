"""Tables in a terminal that is narrower than they are: headers wrap, then text and bars give way, then columns go below.

A number never wraps, so that it can be read and copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.table import Column, Table
    from rich.text import Text

GAP = 2
"""Blanks between columns."""
TEXT = 26
"""A column whose cells are longer holds text that may wrap, into no fewer characters than these."""
SHORTEST_BAR = 8


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
    widths, spare = {at: least[at] for at in chosen}, width - _width([least[at] for at in chosen])
    for at in sorted(chosen, key=lambda at: not _gives_way(table.columns[at])):
        more = max(0, min(spare, natural[at] - widths[at]))
        widths[at], spare = widths[at] + more, spare - more
    for at in chosen:
        column = table.columns[at]
        made.add_column(column.header, justify=column.justify, width=widths[at])
    for cells in zip(*(table.columns[at].cells for at in chosen), strict=True):
        made.add_row(*cells)
    return made


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
