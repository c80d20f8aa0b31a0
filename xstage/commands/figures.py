"""The commands that make what people look at: `xstage figures` and `xstage report`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..sim.compilation import announce_compilation
from ..terminal.counted_progress import counted_progress
from ..terminal.output import print_json, show, with_common_fields

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(figures)
    app.command()(report)


def figures(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where figures and their tables go.")
    ] = Path("out/figures"),
    only: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Draw only these; a wrong name lists all.", show_default=False)
    ] = None,
    formats: Annotated[str, typer.Option("--format", metavar="A,B,...", help="png, svg, pdf.")] = "png,svg",
    redraw: Annotated[bool, typer.Option("--redraw", help="From the tables in DIR, without a simulation.")] = False,
    calls: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="`calls` from what `xstage paper speedups -o DIR` wrote.", show_default=False),
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="`published` from `xstage published --json`.", show_default=False),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that simulate at the same time.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Draw the figures that teach the model, each beside its table as CSV."""
    from ..gallery.figures import figure_parts
    from ..gallery.figures import figures as draw

    started = time.perf_counter()
    announce_compilation()
    with counted_progress("Drawing figures") as progress:
        done = draw(
            output, _names(only), formats=_names(formats) or (), redraw=redraw, calls=calls, published=published,
            workers=workers, progress=progress,
        )  # fmt: skip
    wall_s = time.perf_counter() - started
    if as_json:
        print_json(with_common_fields(done.as_dict(), {"wall_s": wall_s}))
    else:
        show(*figure_parts(done), "", f"Done in {wall_s:.1f} s.")


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
    answer = done.as_dict()
    if as_json:
        print_json(with_common_fields(answer, {"wall_s": time.perf_counter() - started}))
    else:
        show(
            f"{done.title}",
            f"written to {output}: {done.tables} tables, {done.figures} figures, {done.bytes / 1e3:.0f} kB",
        )


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
