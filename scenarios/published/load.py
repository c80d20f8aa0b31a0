"""Reading the published tables, and tables of one's own in the form in which published times are written down."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pandas as pd

from ...sim.errors import InputError
from ..document import shown_name
from .clean import CALLED, RAW_COLUMNS, clean
from .csv_lines import check_header, read_lines, typed
from .schema import COLUMNS, LINK_COLUMNS, Column, Kind, names


def load_published(kind: Kind) -> pd.DataFrame:
    """The measurements of one kind, indexed by their line in the file; `table` (the kind) and the columns of the schema.

    Raises `InputError` naming file, line, column, value and what is allowed for a cell that is not acceptable.
    """
    if kind not in COLUMNS:
        raise InputError("is no table of measurements", field="kind", value=kind, allowed=get_args(Kind))
    return _with_kind(_read(f"{kind}.csv", COLUMNS[kind]), kind)


def load_links() -> pd.DataFrame:
    """Measured link rates and latencies."""
    return _read("links.csv", LINK_COLUMNS).copy()


def load_like(path: str | Path) -> pd.DataFrame:
    """A table as published times are written down (one column a quantity), as `load_published` gives it.

    Which kind it is follows from its columns: `RAW_COLUMNS` of clean.py, further ones are passed over. An unknown variant is
    taken for the nearest known one, which `nearest_variant` names; `scope`, if given, then says what was timed. A GPU
    without a machine file stays, with `machine` empty.

    Raises `InputError` naming file, line, column, value and what is allowed.
    """
    file = Path(path)
    shown = shown_name(file)
    header, lines = read_lines(file)
    kind: Kind = "attention_tp" if "shape" in header or "kind" in header else "megamoe"
    check_header(header, RAW_COLUMNS[kind], shown)
    return _with_kind(typed(clean(lines, kind, shown), COLUMNS[kind], shown, CALLED[kind]), kind)


def _with_kind(table: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    table = table.copy()
    table.insert(0, "table", kind)
    return table


@cache
def _read(name: str, columns: tuple[Column, ...]) -> pd.DataFrame:
    file = files(__package__).joinpath(name)
    header, lines = read_lines(file)
    check_header(header, names(columns), shown_name(file))
    return typed(lines, columns, shown_name(file))
