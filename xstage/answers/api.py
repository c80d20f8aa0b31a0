"""`xstage run` as a function, and what there is to run: the catalogue, scenarios and machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..scenarios.loader import Resolved, load_scenario
from ..scenarios.machine_files import load_machine
from ..sim.errors import InputError
from ..sim.run_options import check_options
from .built import Built
from .run import Run, tile_of

if TYPE_CHECKING:
    import pandas as pd

    from ..scenarios.catalogue import Entry
    from ..scenarios.schema import Scenario
    from ..sim.run_options import EngineName, TraceLevel


def run(
    scenario: str | Path | Mapping[str, Any] | Scenario | Resolved | Built,
    *,
    engine: EngineName | None = None,
    overrides: Mapping[str, Any] | None = None,
    trace: TraceLevel | None = None,
    progress: Callable[[float], None] | None = None,
) -> Run:
    """Simulate a scenario: a name of the catalogue, a YAML file, a mapping, or a `Scenario`.

    `overrides` replaces values by dotted path, such as {'workload.burst': '64 KiB'}; `engine` and `trace` replace what the
    scenario says. `progress` is called now and then with the share of the simulation that is done. Raises `InputError` for
    what is not acceptable, `DeadlockError` if the schedule can never finish and `LimitError` if it would leave the range of
    times.
    """
    from ..sim.execute import simulate
    from ..sim.metrics import summarise
    from ..sim.roofs import roofs

    resolved = resolved_scenario(scenario.resolved if isinstance(scenario, Built) else scenario, overrides)
    chosen, level = engine or resolved.scenario.engine, trace or resolved.scenario.trace
    check_options(chosen, level)
    built = scenario if isinstance(scenario, Built) else Built.of(resolved)
    started = time.perf_counter()
    program, fabric = built.program(), built.fabric()
    ran = simulate(program, fabric, engine=chosen, trace=level, progress=progress)
    simulated = time.perf_counter()
    metrics = summarise(ran) | {"roofs": [roof.as_dict() for roof in roofs(ran, resolved.machine)]}
    if "rank_load" in program.meta:
        metrics["rank_load"] = program.meta["rank_load"]
    if tile := tile_of(program):
        metrics["tile"] = tile
    timing = {
        "wall_s": built.build_s + time.perf_counter() - started,
        "build_s": built.build_s,
        "simulate_s": simulated - started,
    }
    return Run(resolved, chosen, metrics, timing, program, fabric, ran)


def catalogue() -> pd.DataFrame:
    """The scenarios, studies and machines that come with xstage: kind, name, what it is.

    A file that cannot be read has the reason in its place.
    """
    import pandas as pd

    return pd.DataFrame(catalogue_rows())


def catalogue_rows() -> list[dict[str, str]]:
    """The rows of `catalogue`."""
    from ..scenarios.catalogue import entries

    return [{"kind": entry.kind, "name": entry.name, "text": _text_of(entry)} for entry in entries()]


def _text_of(entry: Entry) -> str:
    """What a file says of itself. A bad one stops only what needs it, and that is not the list."""
    from ..scenarios.study import load_study

    try:
        if entry.kind == "machine":
            return load_machine(entry.name).description
        if entry.kind == "scenario":
            return load_scenario(entry.name).scenario.question
        return load_study(entry.name).study.question
    except InputError as error:
        return f"UNREADABLE: {error}"


def resolved_scenario(
    scenario: str | Path | Mapping[str, Any] | Scenario | Resolved, overrides: Mapping[str, Any] | None
) -> Resolved:
    if not isinstance(scenario, Resolved):
        return load_scenario(scenario, overrides)
    if overrides:
        reason = "cannot change a loaded scenario; give them when it is loaded"
        raise InputError(reason, field="overrides", value=", ".join(overrides))
    return scenario
