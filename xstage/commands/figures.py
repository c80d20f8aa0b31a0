"""The commands that make what people look at: `xstage figures` and `xstage report`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..terminal.output import counted, tell, took
from ..terminal.progress import counted_progress
from .options import AsJson, Workers, names


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(figures)
    app.command()(report)


def figures(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where figures and their tables go.")
    ] = Path("out/figures"),
    only: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Draw only these; an unknown name prints the list.", show_default=False),
    ] = None,
    formats: Annotated[str, typer.Option("--format", metavar="A,B,...", help="png, svg, pdf.")] = "png,svg",
    redraw: Annotated[bool, typer.Option("--redraw", help="Redraw from the tables in DIR without simulating.")] = False,
    calls: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Draw `calls` from the folder that `xstage paper speedups -o DIR` wrote.",
            show_default=False,
        ),
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw `published` from what `xstage published --json` printed.", show_default=False
        ),
    ] = None,
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Draw the figures that teach the model, each beside its table as CSV."""
    from ..gallery.figures import figures as draw

    started = time.perf_counter()
    chosen, kinds = names(only, "--only"), names(formats, "--format")
    with counted_progress("Drawing figures") as progress:
        done = draw(
            output, chosen, formats=kinds or (), redraw=redraw, calls=calls, published=published,
            workers=workers, progress=progress,
        )  # fmt: skip
    tell(done.as_dict(), lambda: [*done.printed(), *took(started)], started, as_json)


def report(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="What a command printed with --json, a trace .parquet, or the folder of a sweep."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE.html", help="The page.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Turn a run, comparison, validation, sweep or trace into one HTML page that needs nothing else."""
    from ..pages.report import report as made

    started = time.perf_counter()
    done = made(path, output)
    written = f"written to {output}: {counted(done.tables, 'table')}, {counted(done.figures, 'figure')}"
    tell(done.as_dict(), lambda: [done.title, written], started, as_json)
