"""Changes that change nothing: a value that was set and makes no other run, and why it cannot.

A value may make neither another schedule nor another interconnect; another interconnect may differ only in what this
schedule does not use; and what it uses may not have held anything up. The last is found out by running without the value,
which is done only where a run is short.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..scenarios.loader import Resolved, load_scenario
from ..scenarios.machine_files import IN_SCENARIO
from ..scenarios.own_program import fixed
from ..sim import program as p
from ..sim.errors import XstageError
from ..sim.topology import REDUCE_RATE, SCATTER
from ..sim.traffic import same_in_effect
from ..sim.units import format_size

if TYPE_CHECKING:
    from ..sim.outcome import Outcome
    from ..sim.program import Program
    from ..sim.topology import Fabric
    from ..sim.trace import Trace

HOW_IT_RUNS = ("engine", "trace", "name", "question")
"""Keys that are not meant to change what is simulated."""
SHORT_S = 1.0
"""A run that took longer is not done again to compare."""
PARTS = ("lanes", "peak_sm_bytes", "peak_gpu_bytes", "events", "granules", "lanes_end_ps", "arrived_ps")
"""Fields of an `Outcome` that must agree if two runs are the same; of ports, those that carried anything."""


def without_effect(
    scenario: str | Mapping[str, Any],
    overrides: Mapping[str, Any],
    program: Program,
    fabric: Fabric,
    trace: Trace | None = None,
) -> list[str]:
    """A sentence for each of `overrides` without which `scenario` would run as it does, with the reason.

    `program` and `fabric` are what it became with all of them, `trace` is the run if there was one.
    """
    found = []
    for path, value in overrides.items():
        if path in HOW_IT_RUNS:
            continue
        others = {key: kept for key, kept in overrides.items() if key != path}
        try:
            other = load_scenario(scenario, others)
            if fixed(other.scenario.workload, [path.removeprefix(IN_SCENARIO)]):
                continue  # cautions tell it
            reason = _reason(program, fabric, other, trace)
        except XstageError:  # nothing runs without this value, which may be what makes others acceptable
            continue
        if reason:
            found.append(f"{path} = {value} changes nothing: {reason}")
    return found


def _reason(program: Program, fabric: Fabric, other: Resolved, trace: Trace | None) -> str | None:
    """Why the run is the same as that of `other`; None if it is not, or if that is not known.

    Raises the `XstageError` of an `other` that cannot be built or run.
    """
    its_fabric = other.fabric()
    if its_fabric.n_gpus != fabric.n_gpus or program != other.program():
        return None
    if same_in_effect(fabric, its_fabric):
        return "schedule and interconnect are the same without it"
    unused, mine, its = [], fabric, its_fabric
    for what, blank in _unused(program):
        mine, its = replace(mine, **blank(mine)), replace(its, **blank(its))
        unused.append(what)
        if same_in_effect(mine, its):
            return f"the schedule has no {unused[-1]}"
    if trace is None:
        return None
    if _never_full(trace, its_fabric) and same_in_effect(mine, replace(its, **_room_of(mine))):
        held = format_size(int(trace.outcome.peak_gpu_bytes.max(initial=0)))
        return f"no store waits for room, the stage of a GPU holds {held} at most"
    return _same_run(trace, its_fabric)


def _unused(program: Program) -> list[tuple[str, Any]]:
    """What the schedule does not do, and the fields of a Fabric that then say nothing."""
    kind, flags = program.ops["kind"], program.ops["flags"]
    found: list[tuple[str, Any]] = []
    if not (kind == p.LOAD).any():
        found.append(("loads", lambda fabric: {"request_permille": 0, "fair_replies": False}))
    if not ((kind == p.STORE) & (flags & p.REDUCE > 0)).any():
        found.append(("stores that add", lambda fabric: {"rates_kbs": _without_column(fabric, REDUCE_RATE)}))
    if not (program.destinations["n_shares"] > 1).any():
        found.append(("scatter", lambda fabric: {"rates_kbs": _without_column(fabric, SCATTER)}))
    return found


def _without_column(fabric: Fabric, column: int) -> Any:
    rates = fabric.rates_kbs.copy()
    rates[:, column] = 1
    return rates


def _never_full(trace: Trace, other: Fabric) -> bool:
    """Whether nobody waited for room, here or in stages as large as those of `other`, where all would fit too."""
    outcome = trace.outcome
    gpus = trace.layout.sm_gpu
    fits = np.all(outcome.peak_sm_bytes <= other.capacity_sm[gpus]) and np.all(
        outcome.peak_gpu_bytes <= other.capacity_gpu[: len(outcome.peak_gpu_bytes)]
    )
    return bool(fits and not outcome.lanes["stall_ps"].any())


def _room_of(fabric: Fabric) -> dict[str, Any]:
    return {"capacity_sm": fabric.capacity_sm, "capacity_gpu": fabric.capacity_gpu}


def _same_run(trace: Trace, fabric: Fabric) -> str | None:
    """Run the schedule on another fabric, if that is quick, and see whether anything differs."""
    from ..sim.execute import simulate

    if trace.wall_s > SHORT_S:
        return None
    outcome = simulate(trace.program, fabric, trace.engine, "off").outcome  # type: ignore[arg-type]
    if not same_outcome(outcome, trace.outcome):
        return None
    return _full_first(trace, fabric) or "it holds nothing up here, all times are the same without it"


def _full_first(trace: Trace, other: Fabric) -> str | None:
    """Which room stores wait for, if it is not the one that differs from `other`; their times are the same with both."""
    if not trace.outcome.lanes["stall_ps"].any():
        return None
    mine = trace.fabric
    same_sm, same_gpu = (
        np.array_equal(one, its)
        for one, its in ((mine.capacity_sm, other.capacity_sm), (mine.capacity_gpu, other.capacity_gpu))
    )
    if same_sm == same_gpu:
        return None
    room, key = ("stage of an SM", "capacity_sm") if same_sm else ("stage of the GPU", "capacity_gpu")
    return f"stores wait for room in the {room}, which is full first; see machine.stage.{key}"


def same_outcome(one: Outcome, other: Outcome) -> bool:
    """Whether two runs of a schedule are the same, whatever ports there are that nothing passed."""
    used = [each.ports[each.ports["bytes"] > 0] for each in (one, other)]
    parts = [(getattr(one, part), getattr(other, part)) for part in PARTS]
    return all(np.array_equal(mine, its) for mine, its in [*parts, (used[0], used[1])])
