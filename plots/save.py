"""A figure on disk: drawings and, beside them, the numbers that are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sim.errors import InputError
from ..sim.files import write_whole
from .figure_file import FORMATS
from .style import house_style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Drawing the same data twice gives the same bytes, so no file holds the time at which it was made.
_METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def save(
    figure: Figure, data: pd.DataFrame, folder: str | Path, name: str, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Write folder/name.FORMAT for each of `formats`, and `data` as folder/name.csv. Returns the paths, drawings first.

    Each file appears whole or not at all. Raises `InputError` for a format that is not png, svg or pdf.
    """
    written = save_drawings(figure, folder, name, formats)
    table = Path(folder) / f"{name}.csv"
    save_table(data, table)
    return [*written, table]


def save_drawings(figure: Figure, folder: str | Path, name: str, formats: Sequence[str]) -> list[Path]:
    """As `save`, without the table."""
    for kind in formats:
        if kind not in FORMATS:
            raise InputError("is no format of a figure", field="formats", value=kind, allowed=FORMATS)
    with house_style():
        figure.draw_without_rendering()
        # Each draw would move things a little, so that a file depended on the one before.
        figure.set_layout_engine("none")
    written = [Path(folder) / f"{name}.{kind}" for kind in formats]
    for path, kind in zip(written, formats, strict=True):
        with house_style(), write_whole(path) as temporary:
            figure.savefig(temporary, format=kind, metadata=_METADATA[kind])
    return written


def save_table(data: pd.DataFrame, file: str | Path) -> None:
    """`data` as CSV with seven digits, whole or not at all."""
    with write_whole(file) as temporary:
        data.to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")
