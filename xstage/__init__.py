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
    from .api import Run, catalogue, load_machine, load_scenario, run
    from .audited import BurstAudit, audit
    from .beside_trace import Beside, beside
    from .comparison import Comparison, compare
    from .diagnosis import doctor
    from .difference import Difference, diff
    from .explanation import Explanation, explain
    from .figure_set import Figures, figures
    from .hw_validate.readers.read import read_trace
    from .hw_validate.validate import calibrate, validate
    from .layer_times import Layer, layer
    from .machine_fit import MachineFit, fit_machine
    from .needed import Needs, needs
    from .paper_calls import paper_speedups
    from .paper_l2_tiles import paper_tiles
    from .paper_leads import paper_lead
    from .plots.traces.write import write_trace
    from .predictions import Published, published
    from .report_page import Report, report
    from .run_estimate import RunEstimate, estimate_run
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
    "api": ("Run", "catalogue", "load_machine", "load_scenario", "run"),
    "audited": ("BurstAudit", "audit"),
    "beside_trace": ("Beside", "beside"),
    "comparison": ("Comparison", "compare"),
    "diagnosis": ("doctor",),
    "difference": ("Difference", "diff"),
    "explanation": ("Explanation", "explain"),
    "figure_set": ("Figures", "figures"),
    "hw_validate.readers.read": ("read_trace",),
    "hw_validate.validate": ("calibrate", "validate"),
    "layer_times": ("Layer", "layer"),
    "machine_fit": ("MachineFit", "fit_machine"),
    "needed": ("Needs", "needs"),
    "paper_calls": ("paper_speedups",),
    "paper_l2_tiles": ("paper_tiles",),
    "paper_leads": ("paper_lead",),
    "plots.traces.write": ("write_trace",),
    "predictions": ("Published", "published"),
    "report_page": ("Report", "report"),
    "run_estimate": ("RunEstimate", "estimate_run"),
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
    "Beside",
    "BurstAudit",
    "Comparison",
    "DeadlockError",
    "Difference",
    "Estimate",
    "Explanation",
    "Figures",
    "InputError",
    "Layer",
    "LimitError",
    "Machine",
    "MachineFit",
    "Needs",
    "Program",
    "ProgramBuilder",
    "ProgramError",
    "Published",
    "Report",
    "Run",
    "RunEstimate",
    "Scenario",
    "Sweep",
    "Topology",
    "Tuning",
    "XstageError",
    "audit",
    "beside",
    "build_program",
    "calibrate",
    "catalogue",
    "compare",
    "diff",
    "doctor",
    "estimate",
    "estimate_run",
    "explain",
    "figures",
    "fit_machine",
    "layer",
    "load_machine",
    "load_scenario",
    "needs",
    "paper_lead",
    "paper_speedups",
    "paper_tiles",
    "published",
    "read_trace",
    "report",
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
