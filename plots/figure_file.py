"""Which files a figure can be drawn to, known without loading what draws."""

from __future__ import annotations

from pathlib import Path

from ..sim.files import check_output

FORMATS = ("png", "svg", "pdf")
SUFFIXES = tuple(f".{kind}" for kind in FORMATS)


def check_figure(file: str | Path, option: str) -> None:
    """Raises `InputError` if no figure, or not the table beside it, can be written to `file`; called before work begins."""
    check_output(file, option, SUFFIXES)
    check_output(Path(file).with_suffix(".csv"), option, (".csv",))
