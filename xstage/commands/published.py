"""The command `xstage published`: predict measurements of others, or fit a machine to those set aside for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..terminal.output import print_json, show, with_common_fields
from ..terminal.progress import counted_progress
from .options import AsJson, Workers


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(published)


def published(
    data: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Judge this table instead; machines are taken as they are.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="GPU", help="Only rows of this GPU; an unknown name prints the list.", show_default=False),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only these variants or versions, such as 'sm90_*'.", show_default=False),
    ] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GPU=MACHINE", help="Predict rows of this GPU on another machine, by name or file. Repeatable."
        ),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE",
            help="Fit a machine's free numbers to the rows set aside for it; an unknown name lists those that have any.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.yaml", help="With --fit: write the machine file here."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write everything to this page.", show_default=False),
    ] = None,
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Predict published measurements and say how well, by family, machine and number of tokens."""
    from ..pages.report import report_answer
    from ..sim.compilation import compile_engine
    from ..sim.files import check_not_read

    _check(fit, output, report, {"--data": data, "--gpu": gpu, "--variant": variant, "--report": report,
                               "--machine": machine or None})  # fmt: skip
    if report is not None:
        check_not_read(report, "--report", data)
    compile_engine()
    started = time.perf_counter()
    if fit is not None:
        answer, parts = _fit(fit, output)
    else:
        answer, parts = _published(data, gpu, variant, _machines(machine or []), workers)
    wall_s = time.perf_counter() - started
    answer = with_common_fields(answer, {"wall_s": wall_s}, 0)
    written = ""
    if report is not None:
        answer["report"] = str(report_answer(answer, report).file)
        written = f"Written to {report}. "
    if as_json:
        print_json(answer)
    else:
        show(*parts(), "", f"{written}Done in {wall_s:.1f} s.")


def _check(fit: str | None, output: Path | None, report: Path | None, not_with_fit: dict[str, Any]) -> None:
    """Raises `InputError` for options that do not go together, and files of other kinds."""
    from ..pages.report import SUFFIXES
    from ..sim.errors import InputError
    from ..sim.files import check_output

    if fit is not None and any(given is not None for given in not_with_fit.values()):
        raise InputError(
            "goes with the published rows alone", field="--fit", value=fit, allowed=f"none of {', '.join(not_with_fit)}"
        )
    if report is not None:
        check_output(report, "--report", SUFFIXES)
    if output is not None:
        check_output(output, "--output", (".yaml", ".yml"))
        if fit is None:
            raise InputError("is for a machine file", field="--output", value=str(output), allowed="with --fit MACHINE")


Shown = tuple[dict[str, Any], Callable[[], list[Any]]]


def _machines(given: list[str]) -> dict[str, str]:
    """GPU and machine of each GPU=MACHINE."""
    pairs = [text.partition("=") for text in given]
    for gpu, equals, machine in pairs:
        if not (gpu and equals and machine):
            raise typer.BadParameter(f"'{gpu}{equals}{machine}' is not GPU=MACHINE", param_hint="--machine")
    return {gpu: machine for gpu, _, machine in pairs}


def _published(
    data: Path | None, gpu: str | None, variant: str | None, machines: dict[str, str], workers: int
) -> Shown:
    from ..predictions.published import published as predict

    with counted_progress("Predicting published measurements") as progress:
        done = predict(data, gpu=gpu, variant=variant, machines=machines, workers=workers, progress=progress)
    return done.as_dict(), done.printed


def _fit(machine: str, output: Path | None) -> Shown:
    from ..predictions.machine_fit import fit_machine, write_fit

    with counted_progress(f"Fitting {machine}") as progress:
        done = fit_machine(machine, progress)
    if output is not None:
        write_fit(done, output)
    return done.as_dict() | ({"file": str(output)} if output else {}), done.printed
