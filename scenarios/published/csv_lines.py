"""CSV files as rows of text that know their line, and rows of text as a typed table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import pandas as pd

from ...sim.checked import closest
from ...sim.errors import InputError
from ..document import read_text, shown_name
from .schema import Column, names

File = Path | Traversable


@dataclass(frozen=True)
class Line:
    """One row: the line of the file on which it ends, and its cells by column."""

    number: int
    cells: Mapping[str, str]


def read_lines(file: File) -> tuple[list[str], list[Line]]:
    """Header and rows. Raises `InputError` if the file cannot be read, or a row has other columns than the header."""
    shown = shown_name(file)
    reader = csv.reader(io.StringIO(read_text(file, "utf-8-sig"), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if not header:
            raise InputError("is empty", file=shown)
        if twice := [name for name in header if header.count(name) > 1]:
            raise InputError("stands twice in the header", field=twice[0], file=shown, line=1)
        lines = []
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InputError(f"has {len(cells)} cells, the header {len(header)}", file=shown, line=reader.line_num)
            lines.append(Line(reader.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", file=shown, line=reader.line_num) from None
    return header, lines


def check_header(header: Iterable[str], needed: Sequence[str], file: str) -> None:
    """Raises `InputError` for the first column that is missing."""
    present = list(header)
    for name in needed:
        if name not in present:
            reason = f"is no column of the file{closest(name, present)}"
            raise InputError(reason, field=name, file=file, line=1, allowed=", ".join(needed))


def typed(
    lines: Iterable[Line], columns: Sequence[Column], file: str, called: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """The rows as a table with these columns, indexed by line.

    Raises `InputError` for the first bad cell of a column, which it names as `called` does if the file has another name.
    """
    rows = list(lines)
    index = pd.Index([row.number for row in rows], name="line", dtype="int64")
    series = {}
    for column in columns:
        values = []
        for row in rows:
            text = row.cells.get(column.name, "")
            try:
                values.append(column.parse(text))
            except ValueError as error:
                field = (called or {}).get(column.name, column.name)
                raise InputError(
                    str(error), field=field, value=text or None, allowed=column.allowed, file=file, line=row.number
                ) from None
        series[column.name] = pd.Series(values, index=index, dtype=_dtype(column))
    return pd.DataFrame(series, columns=list(names(columns)), index=index)


def _dtype(column: Column) -> Any:
    if column.kind == "flag":
        return "bool" if column.required else "boolean"
    return {"text": "object", "count": "Int64", "number": "float64"}[column.kind]
