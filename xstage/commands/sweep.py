"""The command that runs many points: `xstage sweep`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..plots.figure_file import check_figure
from ..table_rows import errors, records
from ..terminal.output import counted, show, table, tell, warn
from ..terminal.progress import counted_progress
from .options import AsJson, Plot

if TYPE_CHECKING:
    from rich.table import Table

    from ..sweeps.run import Sweep

ERRORS_SHOWN = 5
POINTS_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(sweep)


def sweep(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A name from `xstage scenarios`, or a YAML file.")],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Output folder; an interrupted sweep resumes from it. Required unless --estimate is given.",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes, 1 or more; by default one for each processor.", show_default=False)
    ] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Use the Dask cluster of this scheduler instead of processes.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Give up a point that takes longer; by default never.", show_default=False
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="For all processes together, such as '8 GiB'; by default without limit."),
    ] = None,
    plot: Plot = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="What to print and draw: a column of the table; by default the study's metric."
        ),
    ] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Do not run; estimate points, memory and time.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run every point of a study and write one table of them.

    A point that fails is a row with its error and does not fail the sweep: the exit code is 1 only if no point could be run.
    """
    started = time.perf_counter()
    if estimate:
        _check_estimate(
            {"--dask": dask, "--timeout": timeout, "--max-memory": max_memory, "--plot": plot, "--metric": metric}
        )
        _estimate(study, output, workers, started, as_json)
        return
    if output is None:
        raise typer.BadParameter("is needed", param_hint="-o DIR")
    from ..sweeps.run import memory_limit
    from ..sweeps.run import sweep as swept

    if max_memory is not None:
        memory_limit(max_memory, "--max-memory")
    if plot is not None:
        check_figure(plot, "--plot")

    with counted_progress(f"Sweeping {Path(study).stem}") as progress:
        done = swept(
            study, output, workers=workers, dask=dask, timeout_s=timeout, max_memory=max_memory, metric=metric,
            progress=progress,
        )  # fmt: skip
    answer = done.as_dict()
    if warnings := [*done.idle_axes(), *done.cautions()]:
        answer["warnings"] = warnings
        warn(warnings)
    if plot is not None and done.done:
        answer["files"] = _drawn(done, plot, as_json)
    tell(answer, lambda: _parts(done, answer.get("files", [])), started, as_json, timing=done.timing)
    if not done.done:
        raise typer.Exit(1)


def _drawn(done: Sweep, plot: Path, as_json: bool) -> list[str]:
    """The files of the figure. Where it cannot be drawn, a person sees the sweep before the error."""
    from ..sim.errors import InputError

    try:
        return [str(file) for file in done.save(plot)]
    except InputError:
        if not as_json:
            show(*_parts(done, []))
        raise


def _check_estimate(without: dict[str, Any]) -> None:
    """Raises for an option that says how points are run, or what is shown of them: an estimate does neither."""
    for option, value in without.items():
        if value is not None:
            raise typer.BadParameter("does not go with --estimate", param_hint=option)


def _estimate(study: str, output: str | None, workers: int | None, started: float, as_json: bool) -> None:
    from ..sweeps.estimate import estimate as estimated

    found = estimated(study, output, workers)
    tell({"estimate": found.as_dict()}, lambda: [table("", ("", ""), found.facts())], started, as_json)


def _parts(done: Sweep, files: Sequence[str]) -> list[Any]:
    """A sweep for a person: the question, how many points there are, what a few are, and the first errors."""
    facts = [
        ("points", done.points),
        ("done", done.done),
        ("failed", done.failed),
        ("of these computed before", done.resumed),
    ]
    parts: list[Any] = [
        f"{done.study.study.name}: {done.study.study.question}", "",
        table("", ("", ""), facts), "", *_few_points(done),
        f"written to {done.file}, in {done.timing['wall_s']:.1f} s", *(f"drawn in {file}" for file in files[:1]),
    ]  # fmt: skip
    if done.failed:
        parts += ["", _errors(done), "", _verdict(done)]
    return parts


def _errors(done: Sweep) -> Table:
    """Each error once, with how many points have it and which is the first."""
    failed = errors(done.frame)
    rows = list(failed.head(ERRORS_SHOWN).itertuples(index=False, name=None))
    title = "what failed" if len(rows) == len(failed) else f"the first {len(rows)} of {len(failed)} errors"
    return table(title, [str(name) for name in failed], rows)


def _few_points(done: Sweep) -> list[Any]:
    """The axes and the metric of a small study; nothing of a larger one, which is for a picture or a program."""
    frame, metric = done.frame, done.study.study.metric
    if metric not in frame:
        return []
    if len(frame) > POINTS_SHOWN:
        return [f"More than {POINTS_SHOWN} points are not listed here.", ""]
    columns = list(dict.fromkeys([*(axis.column for axis in done.study.axes), metric]))
    rows = [["" if value is None else value for value in row.values()] for row in records(frame[columns])]
    return [table("", columns, rows), ""]


def _verdict(done: Sweep) -> str:
    if not done.done:
        return "Every point failed, which is exit code 1."
    return f"{counted(done.failed, 'point')} of {done.points} failed; the others are complete, so the exit code is 0."
