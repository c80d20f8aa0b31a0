"""What `--plan` of `xstage calibrate` and `xstage validate` does: a plan for the collector, in a file.

Programs of such a plan are drawn for a machine that is known beforehand, and judged on the one that was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...sim.errors import InputError
from ...sim.files import check_output
from ...sim.machine import Machine
from ...sim.program import Program
from .container import SUFFIXES, Container, save
from .options import OnGpus
from .parts import PARTS
from .planning import plan
from .transport import AUTO
from .unseen import Ranks, unseen_traces

FOR_A_FILE = tuple(PARTS)
"""A node is seldom at hand twice: a plan that is written to a file measures everything."""


@dataclass(frozen=True)
class Planned:
    """A plan that was written, and what to do with it."""

    path: Path
    plan: Container

    def as_dict(self) -> dict[str, Any]:
        header = self.plan.header
        rows = {name: part["rows"] for name, part in header["parts"].items()}
        return {"plan": str(self.path), "rows": rows, "programs": len(header["programs"]), "next": self.next}

    @property
    def next(self) -> str:
        return f"python hw_validate/cuda/run_here.py collect {self.path} -o RESULTS.npz"


def write_plan(
    path: Path,
    on_gpus: OnGpus,
    *,
    producers: int = 1,
    quick: bool = False,
    seed: int = 0,
    machine: Machine | None = None,
    programs: int = 0,
) -> Planned:
    """Plan everything that there is to measure and, for the stage of `machine`, that many Programs on all of its SMs.

    Raises `InputError` for options that make no sense together.
    """
    on_gpus.check(producers)
    check_output(path, "--plan", SUFFIXES)
    for name in ("results", "keep"):
        if getattr(on_gpus, name) is not None:
            raise InputError("exclude each other", field=f"--plan and --{name}")
    if on_gpus.gpus is not None:
        raise InputError("is for the collector to say", field="--gpus", value=on_gpus.gpus)
    drawn: list[Program] = []
    transport = on_gpus.transport or AUTO
    if machine is not None:
        rng = np.random.default_rng([seed, 1])
        drawn = [trace.program for trace in unseen_traces(machine, machine.sms, programs, rng, _ranks(transport))]
    made = plan(quick, seed, transport, FOR_A_FILE, None, drawn)
    save(made, path)
    return Planned(path, made)


def _ranks(transport: str) -> Ranks:
    """Ranks that are there wherever the plan runs: two GPUs, or parts of one."""
    return Ranks(transport, 2) if transport == "peer" else Ranks("host", 2)
