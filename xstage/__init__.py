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
    from .answers.api import catalogue, run
    from .answers.audit import BurstAudit, audit
    from .answers.comparison import Comparison, compare
    from .answers.diagnosis import Diagnosis, doctor
    from .answers.explanation import Explanation, explain
    from .answers.layer import Layer, layer
    from .answers.needs import Needs, needs
    from .answers.run import Run
    from .answers.run_estimate import RunEstimate, estimate_run
    from .answers.topology import Topology, topology
    from .answers.tuning import Tuning, tune
    from .differences.beside import Beside, beside
    from .differences.diff import Difference, diff
    from .gallery.figures import Figures, figures
    from .hw_validate.calibrated import Calibrated
    from .hw_validate.readers.read import read_trace
    from .hw_validate.validate import calibrate, validate
    from .hw_validate.validation import Validation
    from .pages.report import Report, report
    from .paper.calls import Speedups, paper_speedups
    from .paper.l2_tiles import TileComparison, paper_tiles
    from .paper.leads import LeadCurve, paper_lead
    from .plots.traces.write import write_trace
    from .predictions.machine_fit import MachineFit, fit_machine
    from .predictions.published import Published, published
    from .scenarios.loader import Resolved, build_program, load_scenario
    from .scenarios.machine_files import load_machine
    from .scenarios.schema import Scenario
    from .sim.errors import DeadlockError, InputError, LimitError, ProgramError, XstageError
    from .sim.execute import simulate
    from .sim.machine import Machine
    from .sim.program import (
        ACQUIRE,
        COMPUTE,
        FROM_MEMORY,
        LOAD,
        REDUCE,
        RELEASE,
        SIGNAL,
        STORE,
        UNDIVIDED,
        WAIT,
        WITH_NEXT,
        Program,
    )
    from .sim.program_builder import ProgramBuilder, Seat
    from .sim.trace import Trace
    from .sweeps.estimate import Estimate, estimate
    from .sweeps.run import Sweep, sweep

    __version__: str

_OPS = ("COMPUTE", "STORE", "LOAD", "SIGNAL", "WAIT", "ACQUIRE", "RELEASE")
_FLAGS = ("REDUCE", "UNDIVIDED", "WITH_NEXT", "FROM_MEMORY")
_HOMES = {
    "answers.api": ("catalogue", "run"),
    "answers.audit": ("BurstAudit", "audit"),
    "answers.comparison": ("Comparison", "compare"),
    "answers.diagnosis": ("Diagnosis", "doctor"),
    "answers.explanation": ("Explanation", "explain"),
    "answers.layer": ("Layer", "layer"),
    "answers.needs": ("Needs", "needs"),
    "answers.run": ("Run",),
    "answers.run_estimate": ("RunEstimate", "estimate_run"),
    "answers.topology": ("Topology", "topology"),
    "answers.tuning": ("Tuning", "tune"),
    "differences.beside": ("Beside", "beside"),
    "differences.diff": ("Difference", "diff"),
    "gallery.figures": ("Figures", "figures"),
    "hw_validate.readers.read": ("read_trace",),
    "hw_validate.calibrated": ("Calibrated",),
    "hw_validate.validate": ("calibrate", "validate"),
    "hw_validate.validation": ("Validation",),
    "pages.report": ("Report", "report"),
    "paper.calls": ("Speedups", "paper_speedups"),
    "paper.l2_tiles": ("TileComparison", "paper_tiles"),
    "paper.leads": ("LeadCurve", "paper_lead"),
    "plots.traces.write": ("write_trace",),
    "predictions.machine_fit": ("MachineFit", "fit_machine"),
    "predictions.published": ("Published", "published"),
    "scenarios.loader": ("Resolved", "build_program", "load_scenario"),
    "scenarios.machine_files": ("load_machine",),
    "scenarios.schema": ("Scenario",),
    "sim.errors": ("DeadlockError", "InputError", "LimitError", "ProgramError", "XstageError"),
    "sim.execute": ("simulate",),
    "sim.machine": ("Machine",),
    "sim.program": ("Program", *_OPS, *_FLAGS),
    "sim.program_builder": ("ProgramBuilder", "Seat"),
    "sim.trace": ("Trace",),
    "sweeps.estimate": ("Estimate", "estimate"),
    "sweeps.run": ("Sweep", "sweep"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ACQUIRE",
    "COMPUTE",
    "FROM_MEMORY",
    "LOAD",
    "REDUCE",
    "RELEASE",
    "SIGNAL",
    "STORE",
    "UNDIVIDED",
    "WAIT",
    "WITH_NEXT",
    "Beside",
    "BurstAudit",
    "Calibrated",
    "Comparison",
    "DeadlockError",
    "Diagnosis",
    "Difference",
    "Estimate",
    "Explanation",
    "Figures",
    "InputError",
    "Layer",
    "LeadCurve",
    "LimitError",
    "Machine",
    "MachineFit",
    "Needs",
    "Program",
    "ProgramBuilder",
    "ProgramError",
    "Published",
    "Report",
    "Resolved",
    "Run",
    "RunEstimate",
    "Scenario",
    "Seat",
    "Speedups",
    "Sweep",
    "TileComparison",
    "Topology",
    "Trace",
    "Tuning",
    "Validation",
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
    "simulate",
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
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})
