"""The commands that put MegaMoE beside the X-Stage paper: `xstage paper tiles`, `speedups` and `lead`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..sim.compilation import compile_engine
from ..terminal.output import tell
from ..terminal.progress import counted_progress
from .options import AsJson, Workers

paper_app = typer.Typer(invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(paper_app, name="paper", help="Put simulated MegaMoE calls beside what the X-Stage paper measured.")


@paper_app.callback()
def paper(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@paper_app.command()
def tiles(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model of the paper, by default all; an unknown name prints the list. Repeatable."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per rank, which the paper's notes do not give.")] = 16384,
    exponent: Annotated[float, typer.Option(help="Zipf exponent of the experts' popularity, not given either.")] = 1.0,
    seeds: Annotated[int, typer.Option(min=1, help="Routings that are drawn and averaged over.")] = 3,
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Span of L2 tiles and exposed stall of four models, with the paper's main loops as input."""
    from ..paper.l2_tiles import paper_tiles

    made = partial(paper_tiles, model, tokens=tokens, exponent=exponent, seeds=seeds, workers=workers)
    _answer("Simulating L2 tiles", made, as_json)


@paper_app.command()
def speedups(
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Output folder, from which an interrupted run resumes; by default a folder below out/.",
        ),
    ] = None,
    routing: Annotated[list[str] | None, typer.Option(help="balanced or skewed; by default both.")] = None,
    tiles: Annotated[
        str, typer.Option(help="Where tile costs come from: machine (its file) or paper (its tiles of W8A8).")
    ] = "machine",
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Interleaved against expert-wave over the 84 kinds of calls of the paper."""
    from ..paper.calls import paper_speedups

    made = partial(paper_speedups, output, routing or ("balanced", "skewed"), tiles=tiles, workers=workers)
    _answer("Simulating MegaMoE calls", made, as_json)


@paper_app.command()
def lead(
    model: Annotated[str, typer.Option(help="A model; an unknown name prints the list.")] = "dsv4-flash",
    tokens: Annotated[int, typer.Option(min=64, help="Tokens per rank.")] = 8192,
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """What the row lead D of L1 over L2 costs and brings, and where its knee is."""
    from ..paper.leads import paper_lead

    _answer("Simulating leads", partial(paper_lead, model, tokens, workers=workers), as_json)


def _answer(doing: str, made: Callable[..., Any], as_json: bool) -> None:
    """Call `made` with `progress`, and print what it gives."""
    started = time.perf_counter()
    compile_engine()
    with counted_progress(doing) as progress:
        done = made(progress=progress)
    tell(done.as_dict(), done.printed, started, as_json, 0)
