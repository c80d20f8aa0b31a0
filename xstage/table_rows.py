"""Rows of a DataFrame as plain mappings, and its cells as plain values and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as mappings from column to value."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain values, None where there is none."""
    return [{str(name): plain(value) for name, value in row.items()} for row in table.to_dict("records")]


def errors(points: pd.DataFrame) -> pd.DataFrame:
    """Each error of a sweep once, with how many points have it and which is the first; empty where all points are done."""
    found = points.reindex(columns=["point", "error_type", "error"]).dropna(subset="error")
    grouped = found.groupby(["error_type", "error"], sort=False)["point"].agg(["size", "min"]).reset_index()
    named = {"size": "points", "min": "first point", "error_type": "error", "error": "what it says"}
    return grouped[list(named)].set_axis(list(named.values()), axis=1)


def plain(value: Any) -> Any:
    """A cell as JSON can have it, None where there is none."""
    import pandas as pd

    if value is None or value is pd.NA or value != value:
        return None
    return value.item() if hasattr(value, "item") else value


def one_decimal(value: float | None) -> str:
    """A number for a person, empty where there is none."""
    return "" if value is None or value != value else f"{value:.1f}"


def signed(value: float | None) -> str:
    """The same with its sign, as errors are shown."""
    return "" if value is None or value != value else f"{value:+.1f}"
