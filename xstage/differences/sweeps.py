"""Two sweeps side by side: their points are matched by the values of their axes, and each column is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..sim.errors import InputError
from ..table_rows import plain
from .change import Change

if TYPE_CHECKING:
    import pandas as pd

POINTS_NAMED = 3


@dataclass(frozen=True)
class Points:
    """How many points two sweeps have in common, which are those that are compared, and how many only one of them has."""

    both: int
    old_only: int
    new_only: int


def compare_tables(
    old: tuple[str, pd.DataFrame], new: tuple[str, pd.DataFrame]
) -> tuple[int, list[Change], list[str], Points]:
    """How many columns were compared, those that differ at some point, what is not in both, and how many points are.

    Raises `InputError` if the two vary different keys.
    """
    (old_name, before), (new_name, after) = old, new
    axes: list[str] = before.attrs["axes"]
    if set(axes) != set(after.attrs["axes"]):
        raise InputError(
            f"varies {', '.join(after.attrs['axes'])}, and {old_name} varies {', '.join(axes)}", field="new",
            value=new_name, allowed="sweeps with the same axes",
        )  # fmt: skip
    both = _values(before).merge(_values(after), on=axes, suffixes=(" old", " new"), validate="one_to_one")
    notes = []
    for name, mine, other in ((old_name, before, after), (new_name, after, before)):
        if missing := _missing(mine, other, axes):
            notes.append(missing.format(name=name))
    if before.attrs["model_digest"] != after.attrs["model_digest"]:
        notes.append("The two were computed by different versions of the model.")
    columns = [name for name in _values(before).columns if name not in axes and f"{name} new" in both]
    only = [name for name in dict.fromkeys([*_values(before), *_values(after)]) if name not in [*columns, *axes]]
    if only:
        notes.append(f"In one of the two only: {', '.join(only)}.")
    changes = [change for name in columns if (change := _column(both, name, axes)) is not None]
    points = Points(len(both), len(before) - len(both), len(after) - len(both))
    return len(columns), changes, ["", *notes] if notes else [], points


def _values(table: pd.DataFrame) -> pd.DataFrame:
    """The table without what differs from sweep to sweep: numbers of points, and times."""
    return table[
        [name for name in map(str, table) if name not in ("point", "error") and not name.startswith("timing.")]
    ]


def _missing(mine: pd.DataFrame, other: pd.DataFrame, axes: list[str]) -> str:
    found = mine.merge(other[axes].drop_duplicates(), on=axes, how="left", indicator=True)
    lonely = found[found["_merge"] == "left_only"]
    if lonely.empty:
        return ""
    shown = "; ".join(_where(row, axes) for _, row in lonely.head(POINTS_NAMED).iterrows())
    return f"{len(lonely)} of {len(mine)} points are in {{name}} only, such as {shown}."


def _column(both: pd.DataFrame, name: str, axes: list[str]) -> Change | None:
    """The change of one column at its worst point; None if it is the same at all points."""
    old, new = both[f"{name} old"], both[f"{name} new"]
    differs = (old != new) & ~(old.isna() & new.isna())
    if not differs.any():
        return None
    numbers = all(column.dtype.kind in "iuf" for column in (old, new))
    relative = 100.0 * (new - old).where(differs) / old.where(old != 0) if numbers else None
    known = relative is not None and relative.notna().any()
    worst: Any = relative.abs().idxmax() if relative is not None and known else differs.idxmax()
    pct = float(relative[worst]) if relative is not None and known else None
    row = both.loc[worst]
    return Change(name, plain(old[worst]), plain(new[worst]), pct, int(differs.sum()), _where(row, axes))


def _where(row: pd.Series[Any], axes: list[str]) -> str:
    return ", ".join(f"{axis}={plain(row[axis])}" for axis in axes)
