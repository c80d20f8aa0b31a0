"""Changes that change nothing: a value that was set and makes neither another schedule nor another fabric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .scenarios.loader import Resolved, load
from .sim.errors import InputError
from .sim.traffic import same_in_effect

if TYPE_CHECKING:
    from .sim.program import Program
    from .sim.topology import Fabric

HOW_IT_RUNS = ("engine", "trace", "name", "question")
"""Keys that are not meant to change what is simulated."""


def without_effect(
    scenario: str, overrides: Mapping[str, Any], resolved: Resolved, program: Program, fabric: Fabric
) -> list[str]:
    """A sentence for each of `overrides` without which `scenario` would become the same `program` on the same `fabric`."""
    found = []
    for path, value in overrides.items():
        if path in HOW_IT_RUNS or not _loads_without(scenario, overrides, path):
            continue
        other = load(scenario, {key: kept for key, kept in overrides.items() if key != path})
        if same_in_effect(fabric, other.fabric()) and program == other.program():
            found.append(f"{path} = {value} changes nothing: schedule and interconnect are the same without it")
    return found


def _loads_without(scenario: str, overrides: Mapping[str, Any], path: str) -> bool:
    """Whether the scenario is one without this override, which may be what makes others acceptable."""
    try:
        load(scenario, {key: kept for key, kept in overrides.items() if key != path}).fabric()
    except InputError:
        return False
    return True
