"""The command that compares two things: `xstage diff`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..terminal.output import tell
from .options import AsJson

WHAT = (
    "A name from `xstage scenarios`, a .yaml file, an answer saved as .json, a trace as .parquet, a Program as .npz, "
    "or the folder of a sweep."
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(diff)


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help=WHAT, show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Another of the same kind.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show what differs between two runs, scenarios, machines, studies, Programs or sweeps; a difference is no failure."""
    from ..differences.diff import diff as found_difference

    started = time.perf_counter()
    found = found_difference(old, new)
    tell(found.as_dict(), found.printed, started, as_json)
