"""The lines above an answer: what the scenario asks, what was changed in it, and what runs where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..scenarios.loader import Resolved
    from ..scenarios.workload import Workload

NAMED_ELSEWHERE = ("name", "question", "machine", "engine", "trace")
"""Keys of a scenario whose changes an answer says in another place."""


def asked(resolved: Resolved) -> list[str]:
    """Name and question of a scenario, then the values that an option or a call put in the place of its own."""
    scenario = resolved.scenario
    changed = ", ".join(f"{path} = {value}" for path, value in _changed(resolved))
    return [f"{scenario.name}: {scenario.question}", *([f"changed: {changed}"] if changed else [])]


def what_runs(workload: Workload) -> str:
    """The workload in a few words, with its policy."""
    return workload.title + (f", policy {workload.policy_name}" if workload.policy_name else "")


def what_runs_where(resolved: Resolved) -> str:
    """The same, with the GPUs that it takes and their machine."""
    workload = resolved.scenario.workload
    return f"{what_runs(workload)}, on {workload.gpus} GPUs of {resolved.machine.name}"


def _changed(resolved: Resolved, above: tuple[str, ...] = (), values: Any = None) -> Iterator[tuple[str, str]]:
    """Dotted path and value of each key that was given by an option; a whole mapping that was given stands for its keys."""
    if not above:
        values = resolved.scenario.model_dump(mode="json", exclude=set(NAMED_ELSEWHERE), exclude_unset=True)
    for key, value in values.items():
        path = (*above, key)
        if resolved.places(path).option:
            yield ".".join(path), _shown(value)
        elif isinstance(value, Mapping):
            yield from _changed(resolved, path, value)


def _shown(value: Any) -> str:
    """A value as it may stand in a scenario."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(inner)}" for key, inner in value.items() if inner is not None) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_shown(inner) for inner in value) + "]"
    return "null" if value is None else str(value)
