"""The commands that look at a schedule: `xstage compare`, `xstage explain`, `xstage needs` and `xstage tune`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..sim.compilation import compile_engine
from ..terminal.output import tell, took
from ..terminal.progress import counted_progress
from .options import AsJson, Overrides, Scenario, names

if TYPE_CHECKING:
    from ..scenarios.loader import Resolved

Policies = Annotated[str | None, typer.Option(metavar="A,B,...", help="Policies of the workload, by default all.")]
Compared = Annotated[
    str | None,
    typer.Option(metavar="A,B,...", help="Policies of the workload, by default all. The first is the baseline."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (compare, explain, needs, tune):
        app.command()(command)


def compare(
    scenario: Scenario, policies: Compared = None, overrides: Overrides = None, as_json: AsJson = False
) -> None:
    """Run a scenario under several policies and put them side by side."""
    from ..answers.comparison import compare as compared

    started, resolved = time.perf_counter(), _loaded(scenario, overrides)
    with counted_progress(f"Comparing policies of {resolved.scenario.name}") as progress:
        done = compared(resolved, names(policies, "--policies"), progress=progress)
    _print(done, started, resolved, as_json)


def explain(
    scenario: Scenario,
    policy: Annotated[str | None, typer.Option(help="A policy of the workload, in place of the scenario's.")] = None,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Limits to remove, in this order, of degraded_link, slow_gpu, late_ranks, capacity or Q, drain_rate or R, "
            "links, issue or T_iss0, latency, fp4_unpack, l2_cache, hbm, l2_feed, imbalance, sending; by default all of "
            "them.",
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show where a scenario's time goes, as bars that add up: one limit removed after another, then what is left."""
    from ..answers.explanation import explain as explained

    started, resolved = time.perf_counter(), _loaded(scenario, overrides)
    with counted_progress(f"Explaining {resolved.scenario.name}") as progress:
        done = explained(resolved, policy, order=names(order, "--order"), progress=progress)
    _print(done, started, resolved, as_json)


def needs(scenario: Scenario, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Find how much drain rate and how much room in the stage are enough, all else being as it is."""
    from ..answers.needs import needs as needed

    started, resolved = time.perf_counter(), _loaded(scenario, overrides)
    with counted_progress(f"Searching what {resolved.scenario.name} needs") as progress:
        done = needed(resolved, progress=progress)
    _print(done, started, resolved, as_json)


def tune(
    scenario: Scenario,
    policies: Policies = None,
    most_runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            min=2,
            help="Refine no further after so many runs of a policy (default: 40); a coarse grid always runs.",
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Find the best policy and its settings, and what to change in the kernel."""
    from ..answers.tuning import MOST_RUNS
    from ..answers.tuning import tune as tuned

    started, resolved = time.perf_counter(), _loaded(scenario, overrides)
    with counted_progress(f"Tuning {resolved.scenario.name}") as progress:
        done = tuned(resolved, names(policies, "--policies"), most_runs=most_runs or MOST_RUNS, progress=progress)
    _print(done, started, resolved, as_json)


def _loaded(scenario: str, overrides: list[str] | None) -> Resolved:
    from ..scenarios.loader import load_scenario, parse_overrides

    resolved = load_scenario(scenario, parse_overrides(overrides or []), label="--set")
    if resolved.scenario.engine == "compiled":
        compile_engine()
    return resolved


def _print(done: Any, started: float, resolved: Resolved, as_json: bool) -> None:
    tell(done.as_dict(), lambda: [*done.printed(), *took(started)], started, as_json, resolved.scenario.seed)
