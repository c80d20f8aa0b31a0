"""Simulate fused GPU communication-computation kernels, and the finite stage that their remote stores pass.

    import xstage as xs

    xs.run("isolated-burst")                            # a scenario of the catalogue, or a YAML file
    xs.audit("hgx-b200", producers=148, burst="32 KiB", gap="4 us")
    xs.catalogue()                                      # what there is to run, as a DataFrame

Names are loaded when they are first used: `import xstage` itself costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Run, audit, catalogue, load_machine, load_scenario, run
    from .diagnosis import doctor
    from .hw_validate.validate import calibrate, validate
    from .scenarios.loader import build_program
    from .scenarios.schema import Scenario
    from .sim.errors import DeadlockError, InputError, LimitError, ProgramError, XstageError
    from .sim.machine import Machine
    from .sim.program import Program
    from .sim.program_builder import ProgramBuilder

    __version__: str

_HOMES = {
    "api": ("Run", "audit", "catalogue", "load_machine", "load_scenario", "run"),
    "diagnosis": ("doctor",),
    "hw_validate.validate": ("calibrate", "validate"),
    "scenarios.loader": ("build_program",),
    "scenarios.schema": ("Scenario",),
    "sim.errors": ("DeadlockError", "InputError", "LimitError", "ProgramError", "XstageError"),
    "sim.machine": ("Machine",),
    "sim.program": ("Program",),
    "sim.program_builder": ("ProgramBuilder",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "DeadlockError",
    "InputError",
    "LimitError",
    "Machine",
    "Program",
    "ProgramBuilder",
    "ProgramError",
    "Run",
    "Scenario",
    "XstageError",
    "audit",
    "build_program",
    "calibrate",
    "catalogue",
    "doctor",
    "load_machine",
    "load_scenario",
    "run",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("xstage")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
