"""Rows of a DataFrame as plain mappings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as mappings from column to value."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain values, None where there is none."""
    import pandas as pd

    return [
        {
            str(name): None if value is None or value is pd.NA or value != value else _plain(value)
            for name, value in row.items()
        }
        for row in table.to_dict("records")
    ]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
