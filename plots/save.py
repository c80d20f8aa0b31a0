"""A figure on disk: drawings and, beside them, the numbers that are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sim.errors import InputError
from ..sim.files import write_whole
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
    for kind in formats:
        if kind not in _METADATA:
            raise InputError("is no format of a figure", field="formats", value=kind, allowed=tuple(_METADATA))
    written = [Path(folder) / f"{name}.{kind}" for kind in (*formats, "csv")]
    for path, kind in zip(written, formats, strict=False):
        with house_style(), write_whole(path) as temporary:
            figure.savefig(temporary, format=kind, metadata=_METADATA[kind])
    with write_whole(written[-1]) as temporary:
        data.to_csv(temporary, index=False, float_format="%.7g", lineterminator="\n")
    return written
