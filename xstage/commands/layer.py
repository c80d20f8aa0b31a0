"""The command `xstage layer`: one block of a model, end to end."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..plots.figure_file import check_figure
from ..sim.compilation import compile_engine
from ..terminal.output import tell, took
from ..terminal.progress import counted_progress
from .options import AsJson, MachineOverrides, Plot, names


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(layer)


def layer(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A model; leave it out to list them.", show_default=False),
    ] = None,
    machine: Annotated[
        str, typer.Option(metavar="NAME", help="Machine of the catalogue, or a YAML file.")
    ] = "hgx-b200",
    gpus: Annotated[int, typer.Option(min=1, help="Ranks that share the block.")] = 8,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of the whole sequence (deepseek-v3: of each rank), in place of the model's usual number.",
            show_default=False,
        ),
    ] = None,
    policies: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="By default all; speedups are over the first.")
    ] = None,
    overrides: MachineOverrides = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Time one block of a model end to end: share of each kernel, exposed communication, speedup of each policy."""
    from ..answers.layer import layer as timed
    from ..answers.layer import models_parts
    from ..scenarios.layers import BLOCKS
    from ..scenarios.loader import machine_overrides, parse_overrides

    started = time.perf_counter()
    if model is None:
        _check_alone(context)
        tell({"models": list(BLOCKS)}, models_parts, started, as_json)
        return
    if plot is not None:
        check_figure(plot, "--plot")
    changes = machine_overrides(parse_overrides(overrides or []))
    chosen = names(policies, "--policies")
    compile_engine()
    with counted_progress(f"Timing a block of {model}") as progress:
        done = timed(model, machine, gpus=gpus, tokens=tokens, policies=chosen, overrides=changes, progress=progress)
    files = [] if plot is None else [str(file) for file in done.save(plot)]
    answer = done.as_dict() | ({"files": files} if files else {})
    drawn = ["", f"drawn in {files[0]}"] if files else []
    tell(answer, lambda: [*done.printed(), *drawn, *took(started)], started, as_json, done.seed)


def _check_alone(context: typer.Context) -> None:
    """Raises if an option is given that needs a model."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE" and option.name != "as_json":
            raise typer.BadParameter("needs a MODEL", param_hint=option.opts[0])
