"""Plans for the collector: microbenchmarks, and Programs to replay.

Needs NumPy alone, so that a bare node can plan its own microbenchmarks. Programs are kept as they are, and lowered where
they run: only there it is known how many SMs there are, how much shared memory, and which GPUs reach each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ...sim.errors import InputError
from ...sim.program import Program
from .container import Container
from .parts import CALIBRATION_PARTS, FULL, PARTS, QUICK, Extent, microbenchmarks
from .transport import AUTO, TRANSPORTS


def plan(
    quick: bool = False,
    seed: int = 0,
    transport: str = AUTO,
    parts: tuple[str, ...] = CALIBRATION_PARTS,
    extent: Extent | None = None,
    programs: Sequence[Program] = (),
    repeats: tuple[int, int] | None = None,
) -> Container:
    """A plan of microbenchmarks and Programs; `seed` draws the order of rows and of repeats.

    `repeats` is how often each Program runs, far and as the control. Raises `InputError` for an unknown part or transport.
    """
    if transport not in (AUTO, *TRANSPORTS):
        raise InputError("is no transport", field="transport", value=transport, allowed=(AUTO, *TRANSPORTS))
    for name in parts:
        if name not in PARTS:
            raise InputError("is no microbenchmark", field="parts", value=name, allowed=tuple(PARTS))
    chosen = extent or (QUICK if quick else FULL)
    made = microbenchmarks(chosen, seed, parts)
    header: dict[str, Any] = {
        "seed": seed,
        "transport": transport,
        "extent": asdict(chosen),
        "parts": {part.name: {"groups": part.groups, "rows": len(part.table)} for part in made},
        "programs": [],
    }
    if repeats is not None:
        header["replay"] = {"repeats": repeats[0], "control_repeats": repeats[1]}
    arrays: dict[str, np.ndarray[Any, Any]] = {f"part/{part.name}/table": part.table for part in made}
    return with_programs(Container("plan", header, arrays), programs)


def with_programs(plan: Container, programs: Sequence[Program]) -> Container:
    """The plan with these Programs to replay, in place of those that it had."""
    header = {**plan.header, "programs": [_told(program) for program in programs]}
    arrays = {name: array for name, array in plan.arrays.items() if not name.startswith("program/")}
    for number, program in enumerate(programs):
        arrays |= {f"program/{number}/{name}": table for name, table in program.tables()}
    return Container("plan", header, arrays)


def _told(program: Program) -> dict[str, Any]:
    return {"n_gpus": program.n_gpus, "roles": program.roles, "phases": program.phases, "meta": program.meta}
