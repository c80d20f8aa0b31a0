"""The command that looks at the installation and the computer: `xstage doctor`."""

from __future__ import annotations

import time

import typer

from ..terminal.output import print_json, show, table, with_common_fields
from .options import AsJson


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(doctor)


def doctor(as_json: AsJson = False) -> None:
    """Check versions, processors, the compiled engine's cache and GPUs."""
    from ..answers.diagnosis import doctor as diagnose

    started = time.perf_counter()
    found = diagnose()
    if as_json:
        print_json(with_common_fields(found.as_dict(), {"wall_s": time.perf_counter() - started}))
    else:
        rows = [(check.name, check.found if check.ok else f"FAILS: {check.found}") for check in found.checks]
        show(table("", ("", ""), rows))
    if not found.ok:
        raise typer.Exit(1)
