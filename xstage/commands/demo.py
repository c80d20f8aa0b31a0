"""The command that shows what the project is about: `xstage demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..sim.compilation import compile_engine
from ..terminal.output import tell
from .options import AsJson


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(demo)


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where the figures and their data go.")
    ] = Path("out/demo"),
    as_json: AsJson = False,
) -> None:
    """Run the paper's microbenchmarks and a MegaMoE layer, compare with the paper, and draw the figures."""
    from ..demo.run import demo as run_demo
    from ..demo.run import demo_parts

    started = time.perf_counter()
    compile_engine()
    done = run_demo(output)
    tell(done.as_dict(), lambda: demo_parts(done), started, as_json, timing=done.timing)
    if not done.ok:
        raise typer.Exit(1)
