"""The command that shows what the project is about: `xstage demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..sim.compilation import compile_engine
from ..terminal.output import print_json, show, with_common_fields
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
    if as_json:
        print_json(with_common_fields(done.as_dict(), done.timing | {"wall_s": time.perf_counter() - started}))
    else:
        show(*demo_parts(done))
    if not done.ok:
        raise typer.Exit(1)
