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
