"""The command `xstage layer`: one block of a model, end to end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..plots.figure_file import check_figure
from ..sim.compilation import announce_compilation
from ..terminal.counted_progress import counted_progress
from ..terminal.output import print_json, show, with_common_fields


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(layer)


def layer(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A model; without one, those that there are.", show_default=False),
    ] = None,
    machine: Annotated[
        str, typer.Option(metavar="NAME", help="Machine of the catalogue, or a YAML file.")
    ] = "hgx-b200",
    gpus: Annotated[int, typer.Option(min=1, help="Ranks that share the block.")] = 8,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of the sequence, in place of the model's usual number.", show_default=False),
    ] = None,
    policies: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="All if left out; speedups are over the first.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="machine.PATH=VALUE", help="Replace a number of the machine. Repeatable."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it, too: .png, .svg or .pdf, with the table as .csv beside."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time one block of a model end to end: share of each kernel, exposed communication, speedup of each policy."""
    from ..answers.layer import layer as timed
    from ..answers.layer import layer_parts, models_parts
    from ..scenarios.layers import BLOCKS
    from ..scenarios.loader import machine_overrides, parse_overrides

    started = time.perf_counter()
    if model is None:
        if as_json:
            print_json(with_common_fields({"models": list(BLOCKS)}, {"wall_s": time.perf_counter() - started}))
        else:
            show(*models_parts())
        return
    if plot is not None:
        check_figure(plot, "--plot")
    changes = machine_overrides(parse_overrides(overrides or []))
    names = None if policies is None else [name.strip() for name in policies.split(",") if name.strip()]
    announce_compilation()
    with counted_progress(f"Timing a block of {model}") as progress:
        done = timed(model, machine, gpus=gpus, tokens=tokens, policies=names, overrides=changes, progress=progress)
    files = [] if plot is None else [str(file) for file in done.save(plot)]
    wall_s = time.perf_counter() - started
    if as_json:
        answer = done.as_dict() | ({"files": files} if files else {})
        print_json(with_common_fields(answer, done.timing | {"wall_s": wall_s}, done.seed))
    else:
        drawn = [f"drawn in {files[0]}"] if files else []
        show(*layer_parts(done), "", *drawn, f"Done in {wall_s:.1f} s.")
