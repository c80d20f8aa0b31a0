"""The lines above an answer: what the scenario asks, what was changed in it, and what runs where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..scenarios.loader import Resolved
    from ..scenarios.workload import Workload

WITHOUT_EFFECT = ("name", "question", "engine", "trace")
"""Keys of a scenario on which no answer depends."""
NAMED_ELSEWHERE = ("name", "question", "machine", "engine", "trace")
"""Keys of a scenario whose changes an answer says in another place."""


def asked(resolved: Resolved) -> list[str]:
    """Name and question of a scenario, then the values that an option or a call put in the place of its own."""
    changed = ", ".join(f"{path} = {value}" for path, value in _changed(resolved))
    return [question(resolved), *([f"changed: {changed}"] if changed else [])]


def question(resolved: Resolved) -> str:
    """Name and question of a scenario; of one that was changed, the question is said to be that of the file."""
    given = {} if resolved.given is None else resolved.given[1]
    written = ", as written" if _changes(resolved) and "question" not in given else ""
    return f"{resolved.scenario.name}{written}: {resolved.scenario.question}"


def scenario_fields(resolved: Resolved) -> dict[str, Any]:
    """What `--json` says of a scenario: its name, its question as it is written, and the values that were changed."""
    name, asks = resolved.scenario.name, resolved.scenario.question
    changed = [f"{path} = {_shown(value)}" for path, value in _changes(resolved).items()]
    return {"scenario": name, "question": asks, "changed": changed}


def _changes(resolved: Resolved) -> dict[str, Any]:
    """What an option or a call gave in the place of the scenario's own values, those of its machine included."""
    given = {} if resolved.given is None else resolved.given[1]
    return {path: value for path, value in given.items() if path.split(".")[0] not in WITHOUT_EFFECT}


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
    if hasattr(value, "model_dump"):  # a machine, or a part of one
        return str(getattr(value, "name", type(value).__name__))
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_shown(inner) for inner in value) + "]"
    return "null" if value is None else str(value)
