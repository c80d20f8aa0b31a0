"""The command that looks at the installation and the computer: `xstage doctor`."""

from __future__ import annotations

import time

import typer

from ..terminal.output import table, tell
from .options import AsJson


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Check versions, processors, the compiled engine's cache and GPUs."""
    from ..answers.diagnosis import doctor as diagnose

    started = time.perf_counter()
    found = diagnose()
    rows = [(check.name, check.found if check.ok else f"FAILS: {check.found}") for check in found.checks]
    tell(found.as_dict(), lambda: [table("", ("", ""), rows)], started, as_json)
    if not found.ok:
        raise typer.Exit(1)
