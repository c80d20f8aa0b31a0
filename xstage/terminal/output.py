"""How answers are printed: one JSON object for scripts, short tables for people."""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SCHEMA_VERSION = 1
"""Goes up when a field of an answer is renamed or removed, which is not planned."""


NUMBER = re.compile(r"[+-]?[\d,]+(\.\d+)?( [A-Za-z%/]+)?")
"""A number, and a unit after it."""
_NO_LIMIT = 10_000
_NOTEBOOK = 160
"""Characters of a line of text in a notebook."""


class Printed:
    """An answer as a person sees it: what its command prints is also what a notebook shows."""

    def printed(self) -> list[Any]:
        """Text and tables, one below the other."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return parts_html(self.printed())


class OutputLostError(Exception):
    """Standard output cannot be written, for example because the disk is full."""


@contextmanager
def to_standard_output() -> Iterator[None]:
    """What is written in the block is out at its end. Raises `OutputLostError`, or `BrokenPipeError` if nobody reads."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLostError(f"the answer cannot be written: {error.strerror}") from None


def print_json(answer: dict[str, Any]) -> None:
    """One JSON object on standard output. Raises ValueError for NaN and infinity, which JSON does not allow."""
    text = json.dumps(answer, indent=2, allow_nan=False) + "\n"
    with to_standard_output():
        sys.stdout.write(text)


def tell(
    answer: Mapping[str, Any],
    printed: Callable[[], Iterable[Any]],
    started: float,
    as_json: bool,
    seed: int | None = None,
    timing: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Print an answer: as one JSON object for scripts, or as text and tables for people.

    `started` is when the command began, as `time.perf_counter` has it; `timing` are other times of it, in seconds.
    """
    if as_json:
        print_json(with_common_fields(answer, {**timing, "wall_s": time.perf_counter() - started}, seed))
    else:
        show(*printed())


def took(started: float) -> list[str]:
    """An empty line and how long the command took, for one that may take long."""
    return ["", f"Done in {time.perf_counter() - started:.1f} s."]


def with_common_fields(
    answer: Mapping[str, Any], timing: Mapping[str, float], seed: int | None = None
) -> dict[str, Any]:
    """`answer` with the fields that every JSON answer has; `seed` is null where nothing is random."""
    from .. import __version__
    from .invocation import command

    common: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "xstage_version": __version__, "seed": seed}
    if (line := command()) is not None:
        common["command"] = line
    return common | dict(answer) | {"timing": {name: round(seconds, 6) for name, seconds in timing.items()}}


def with_warnings(answer: dict[str, Any], warnings: Sequence[str]) -> dict[str, Any]:
    """`answer` with its warnings, where there are any."""
    return answer | ({"warnings": list(warnings)} if warnings else {})


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A plain table: text to the left, numbers, and text that is one with a unit, to the right. Cells may be empty."""
    from rich.table import Table
    from rich.text import Text

    from .narrow import Bar

    made = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    made.padding, made.show_header = (0, 2, 0, 0), any(columns)
    for position, column in enumerate(columns):
        filled = [row[position] for row in rows if row[position] != ""]
        numeric = bool(filled) and all(map(_is_number, filled))
        made.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        made.add_row(*(value if isinstance(value, Bar) else Text(_cell(value)) for value in row))
    return made


def folded(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int = 80) -> list[Table]:
    """A table of text as one, or as several of at most `width` characters that repeat the first column; none without rows.

    The title of all but the first says that they continue it. A single column that is wider stays whole.
    """
    widths = [max(len(line[at]) for line in (columns, *rows)) + 2 for at in range(len(columns))]
    parts: list[list[int]] = []
    for at in range(1, len(columns)):
        if not parts or sum(widths[i] for i in (0, *parts[-1], at)) - 2 > width:
            parts.append([])
        parts[-1].append(at)
    titles = [title, *[f"{title}, continued"] * len(parts)]
    return [
        table(titles[at], [columns[i] for i in (0, *part)], [[row[i] for i in (0, *part)] for row in rows])
        for at, part in enumerate(parts)
        if rows
    ]


def show(*parts: Any) -> None:
    """Text and tables for a person, on standard output. Only a terminal has a width: elsewhere a line is never broken."""
    from rich.console import Console

    with to_standard_output():
        if sys.stdout.isatty():
            _print(Console(highlight=False), parts)
            return
        console = Console(file=io.StringIO(), highlight=False, width=_NO_LIMIT)
        _print(console, parts)
        sys.stdout.write(_without_trailing_blanks(console.file.getvalue()))  # type: ignore[attr-defined]


def warn(sentences: Iterable[str]) -> None:
    """Print warnings on standard error: worth knowing, but not failures."""
    for sentence in sentences:
        print(f"xstage: warning: {sentence}", file=sys.stderr)


def warning_parts(warnings: Sequence[str]) -> list[str]:
    """An empty line and a line for each warning; nothing where there are none."""
    return ["", *(f"warning: {sentence}" for sentence in warnings)] if warnings else []


def counted(count: int, what: str) -> str:
    """'1 figure', '2 figures'."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def parts_html(parts: Iterable[Any]) -> str:
    """Text and tables as HTML, for notebooks. Sentences wrap, rows of tables do not."""
    from rich.console import Console

    console = Console(record=True, width=_NO_LIMIT, file=io.StringIO(), highlight=False)
    _print(console, parts, sentences=_NOTEBOOK)
    return _without_trailing_blanks(console.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))


def _print(console: Console, parts: Iterable[Any], sentences: int | None = None) -> None:
    """Print on a console of some width. Sentences, and other text of one line, wrap between words, at `sentences`
    characters if that is given; text of several lines is a file, which is shown as it is.
    """
    from rich.table import Table
    from rich.text import Text

    from .narrow import in_width

    for part in parts:
        if isinstance(part, str):  # text is printed as it is: brackets are no markup
            console.print(Text(part), soft_wrap="\n" in part, width=sentences)
        elif isinstance(part, Table):
            title, part.title = part.title, None  # rich would wrap it into the width of its table
            if title:
                console.print(Text(str(title), style="bold"))
            for one in in_width(part, console.width):
                console.print(one)
            part.title = title
        else:
            console.print(part)


def _without_trailing_blanks(text: str) -> str:
    """Each line without blanks at its end, a style's closing tag apart."""
    return re.sub(r"[ \t]+((?:</span>)?)$", r"\1", text, flags=re.MULTILINE)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, str) and NUMBER.fullmatch(value) is not None)


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
