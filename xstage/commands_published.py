"""The command `xstage published`: predict measurements of others, or fit a machine to those set aside for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from .counted_progress import counted_progress
from .output import print_json, show, with_common_fields


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(published)


def published(
    data: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Judge this table instead; machines are taken as they are.")
    ] = None,
    fit: Annotated[
        str | None, typer.Option(metavar="MACHINE", help="Fit a machine's free numbers to the rows set aside for it.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.yaml", help="With --fit: write the machine file here."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that simulate.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict published measurements and say how well, by family, machine and number of tokens."""
    from .sim.errors import InputError
    from .sweeps.run import compile_engine

    if fit is not None and data is not None:
        raise InputError("goes with the published rows alone", field="--fit", value=fit, allowed="no --data")
    if output is not None and fit is None:
        raise InputError("is for a machine file", field="--output", value=str(output), allowed="with --fit MACHINE")
    compile_engine()
    started = time.perf_counter()
    if fit is not None:
        answer, parts = _fit(fit, output)
    else:
        answer, parts = _published(data, workers)
    wall_s = time.perf_counter() - started
    if as_json:
        print_json(with_common_fields(answer, {"wall_s": wall_s}, 0))
    else:
        show(*parts(), "", f"Done in {wall_s:.1f} s.")


Shown = tuple[dict[str, Any], Callable[[], list[Any]]]


def _published(data: Path | None, workers: int) -> Shown:
    from .prediction_output import published_parts
    from .predictions import published as predict

    with counted_progress("Predicting published measurements") as progress:
        done = predict(data, workers=workers, progress=progress)
    return done.as_dict(), lambda: published_parts(done)


def _fit(machine: str, output: Path | None) -> Shown:
    from .machine_fit import fit_machine, fit_parts, write_fit

    with counted_progress(f"Fitting {machine}") as progress:
        done = fit_machine(machine, progress)
    if output is not None:
        write_fit(done, output)
    return done.as_dict() | ({"file": str(output)} if output else {}), lambda: fit_parts(done)
