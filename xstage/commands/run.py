"""The command that simulates one scenario: `xstage run`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..sim.compilation import compile_engine
from ..terminal.output import tell, warn
from ..terminal.progress import share_progress, working
from .options import AsJson, Overrides, Scenario
from .trace import write

if TYPE_CHECKING:
    from ..answers.built import Built


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(run)


def run(
    scenario: Scenario,
    engine: Annotated[
        str | None,
        typer.Option(help="simpy (readable) or compiled (fast); by default what the scenario says, or else compiled."),
    ] = None,
    overrides: Overrides = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write every op of every lane: .parquet, .pftrace (Perfetto) or .json (Kineto)."
        ),
    ] = None,
    gpu: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --trace: write only this GPU's ops; a .pftrace is then without counters and arrivals.",
            show_default=False,
        ),
    ] = None,
    parts: Annotated[
        bool, typer.Option("--parts", "--explain", help="Print what each part of the scenario became.")
    ] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Do not run; estimate ops, memory and time.")] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a scenario and print where the time goes."""
    from ..answers.built import Built
    from ..plots.traces.write import check_file
    from ..scenarios.loader import load_scenario, parse_overrides
    from ..sim.files import check_not_read

    started = time.perf_counter()
    if gpu is not None and trace is None:
        raise typer.BadParameter("needs --trace FILE", param_hint="--gpu")
    if estimate and parts:
        raise typer.BadParameter("does not go with --estimate", param_hint="--parts")
    if trace is not None:
        check_file(trace, "--trace")
        check_not_read(trace, "--trace", scenario)
    changes = parse_overrides(overrides or [])
    resolved = load_scenario(scenario, changes, label="--set")
    with working(f"Building {resolved.scenario.name}"):
        built = Built.of(resolved)
    if gpu is not None:
        _check_gpu(gpu, built)
    if (engine or resolved.scenario.engine) == "compiled":
        compile_engine()
    level = "full" if trace else None
    if estimate:
        _estimate(built, engine, level, started, as_json)
    else:
        _simulate(built, engine, level, trace, gpu, parts, started, as_json)


def _check_gpu(gpu: int, built: Built) -> None:
    from ..sim.errors import InputError

    if gpu >= built.program().n_gpus:
        raise InputError(
            "is not a GPU of this run", field="--gpu", value=gpu, allowed=f"0 to {built.program().n_gpus - 1}"
        )


def _estimate(built: Built, engine: str | None, level: str | None, started: float, as_json: bool) -> None:
    from ..answers.run_estimate import estimate_run

    scenario = built.scenario
    with working(f"Watching the first seconds of {scenario.name}"):
        found = estimate_run(built, engine, level)
    answer = {"scenario": scenario.name, "estimate": found.as_dict()}
    tell(answer, found.printed, started, as_json, scenario.seed)


def _simulate(
    built: Built,
    engine: str | None,
    level: str | None,
    trace: Path | None,
    gpu: int | None,
    with_parts: bool,
    started: float,
    as_json: bool,
) -> None:
    from ..answers.api import run as simulated
    from ..answers.run import run_parts
    from ..answers.run_estimate import cost_parts, peak_memory

    with share_progress(f"Simulating {built.scenario.name}") as progress:
        done = simulated(built, engine=engine, trace=level, progress=progress)  # type: ignore[arg-type]
    answer, parts = done.as_dict(), []
    if done.warnings:
        warn(done.warnings)
    if with_parts:
        from ..answers.scenario_parts import scenario_parts, shown_parts

        answer["explain"] = scenario_parts(done.resolved, done.program, done.fabric)
        parts += shown_parts(answer["explain"])
    if trace is not None:
        write(done.trace if gpu is None else done.trace.ops().query("gpu == @gpu"), trace)
        answer["trace"] = str(trace)
    timing = done.timing | {"wall_s": time.perf_counter() - started} | peak_memory()
    tell(
        answer, lambda: [*parts, *run_parts(done), *cost_parts(timing)], started, as_json, built.scenario.seed, timing
    )  # fmt: skip
