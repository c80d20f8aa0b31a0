"""What a worker is sent, what it computes, and what it sends back: plain data, so that any process can read it."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from ..scenarios.loader import Resolved
from ..scenarios.schema import Scenario
from ..sim.checked import Where, check, nowhere
from ..sim.errors import XstageError
from ..sim.machine import Machine
from .digest import model_digest

OUTSIDE_CAUSES = ("Timeout", "WorkerDied", "MemoryError")
"""Errors that say something about this computer rather than about the point: a later sweep tries these points again."""

CAUTIONS = "cautions"
"""The column of warnings about a point (scenarios/cautions.py); it is there if any point has one."""


@dataclass(frozen=True)
class Task:
    """A scenario and its machine as text and numbers, under the key of their record. `places` says where a person wrote
    them, so that an error can say it too.
    """

    key: str
    scenario: dict[str, Any]
    machine: dict[str, Any]
    places: Where = nowhere


@dataclass(frozen=True)
class Record:
    """What became of a task: metrics (flat), or the kind and the message of an error. `timing` is in seconds."""

    key: str
    metrics: dict[str, Any] | None = None
    error_type: str | None = None
    error: str | None = None
    timing: dict[str, float] = field(default_factory=dict)
    peak_bytes: int = 0

    @property
    def ok(self) -> bool:
        return self.metrics is not None


def compute(task: Task) -> Record:
    """Run one task. Whatever goes wrong in it is told in the record."""
    started = time.perf_counter()
    metrics, kind, message = None, None, None
    timing: dict[str, float] = {}
    try:
        from ..scenarios.cautions import cautions
        from ..sim.execute import simulate
        from ..sim.metrics import summarise
        from .loads import gpu_loads

        resolved = Resolved(check(Scenario, task.scenario), Machine.parse(task.machine), places=task.places)
        program, fabric = resolved.program(), resolved.fabric()
        built = time.perf_counter()
        trace = simulate(program, fabric, engine=resolved.scenario.engine, trace=resolved.scenario.trace)
        timing = {"build_s": built - started, "simulate_s": time.perf_counter() - built}
        metrics = flat(summarise(trace) | {"loads": gpu_loads(trace)})
        if said := cautions(resolved, program, trace):
            metrics[CAUTIONS] = "\n".join(said)
    except XstageError as error:
        kind, message = type(error).__name__, str(error)
    except Exception as error:  # one point's trouble, whatever it is, must not end the others
        kind, message = type(error).__name__, f"unexpected: {error}"
    timing["wall_s"] = time.perf_counter() - started
    return Record(task.key, metrics, kind, message, timing, peak_bytes())


def compute_all(tasks: list[Task]) -> tuple[str, list[Record]]:
    """The model's digest here, and the records of some tasks."""
    return model_digest(), [compute(task) for task in tasks]


def identity() -> tuple[str, str]:
    """Version of xstage and digest of its model, in the process that is asked."""
    from importlib.metadata import version

    return version("xstage"), model_digest()


def peak_bytes() -> int:
    """The most memory that this process has held."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit if os.name == "posix" else 0


def flat(nested: dict[str, Any], above: str = "") -> dict[str, Any]:
    """{'roles': {'mma': {'lanes': 3}}} as {'roles.mma.lanes': 3}."""
    result: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            result |= flat(value, f"{above}{name}.")
        else:
            result[above + name] = value
    return result
