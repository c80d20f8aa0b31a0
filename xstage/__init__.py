"""Simulate fused GPU communication-computation kernels, and the finite stage that their remote stores pass.

    import xstage as xs

    xs.run("isolated-burst")                            # a scenario of the catalogue, or a YAML file
    xs.compare("megamoe-flash-wave")                    # its policies side by side; xs.explain, xs.tune
    xs.audit("hgx-b200", producers=148, burst="32 KiB", gap="4 us")
    xs.catalogue()                                      # what there is to run, as a DataFrame

Names are loaded when they are first used: `import xstage` itself costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Run, audit, catalogue, load_machine, load_scenario, run
    from .comparison import Comparison, compare
    from .diagnosis import doctor
    from .explanation import Explanation, explain
    from .hw_validate.readers.read import read_trace
    from .hw_validate.validate import calibrate, validate
    from .machine_fit import MachineFit, fit_machine
    from .plots.traces.write import write_trace
    from .predictions import Published, published
    from .scenarios.loader import build_program
    from .scenarios.schema import Scenario
    from .sim.errors import DeadlockError, InputError, LimitError, ProgramError, XstageError
    from .sim.machine import Machine
    from .sim.program import Program
    from .sim.program_builder import ProgramBuilder
    from .sweeps.estimate import Estimate, estimate
    from .sweeps.run import Sweep, sweep
    from .topology_view import Topology, topology
    from .tuning import Tuning, tune

    __version__: str

_HOMES = {
    "api": ("Run", "audit", "catalogue", "load_machine", "load_scenario", "run"),
    "comparison": ("Comparison", "compare"),
    "diagnosis": ("doctor",),
    "explanation": ("Explanation", "explain"),
    "hw_validate.readers.read": ("read_trace",),
    "hw_validate.validate": ("calibrate", "validate"),
    "machine_fit": ("MachineFit", "fit_machine"),
    "plots.traces.write": ("write_trace",),
    "predictions": ("Published", "published"),
    "scenarios.loader": ("build_program",),
    "scenarios.schema": ("Scenario",),
    "sim.errors": ("DeadlockError", "InputError", "LimitError", "ProgramError", "XstageError"),
    "sim.machine": ("Machine",),
    "sim.program": ("Program",),
    "sim.program_builder": ("ProgramBuilder",),
    "sweeps.estimate": ("Estimate", "estimate"),
    "sweeps.run": ("Sweep", "sweep"),
    "topology_view": ("Topology", "topology"),
    "tuning": ("Tuning", "tune"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Comparison",
    "DeadlockError",
    "Estimate",
    "Explanation",
    "InputError",
    "LimitError",
    "Machine",
    "MachineFit",
    "Program",
    "ProgramBuilder",
    "ProgramError",
    "Published",
    "Run",
    "Scenario",
    "Sweep",
    "Topology",
    "Tuning",
    "XstageError",
    "audit",
    "build_program",
    "calibrate",
    "catalogue",
    "compare",
    "doctor",
    "estimate",
    "explain",
    "fit_machine",
    "load_machine",
    "load_scenario",
    "published",
    "read_trace",
    "run",
    "sweep",
    "topology",
    "tune",
    "validate",
    "write_trace",
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
