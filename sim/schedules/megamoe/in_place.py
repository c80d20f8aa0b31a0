"""A MegaMoE call with its data in place: the same kernels and tiles, and nothing that travels takes time.

Where nothing has to be sent there is no count exchange, no barrier, no pull and no return, and nothing is launched for the
last two alone. L1, SwiGLU, L2 and the combine stay as they are, with the launches between them and the issue time of the
stores of an L2 epilogue, which a kernel that stores to its own memory pays as well.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...program import COMPUTE, LOAD, SIGNAL, WAIT
from ...program_index import expand

if TYPE_CHECKING:
    from ...program import Program

Ops = np.ndarray[Any, np.dtype[np.int64]]

PULL, RETURN, LAUNCH = "dispatch", "return", "launch"
TRAVEL = (PULL, RETURN, "count", "barrier")
"""Phases in which nothing is computed."""


def with_rows_in_place(program: Program) -> Program:
    """The Program of a MegaMoE call without what it takes to bring rows and to return them.

    Run it on a network without limits: the stores of the epilogues still go where they went.
    """
    ops = program.ops.copy()
    still = _ops_of(program, TRAVEL)
    ops["duration_ps"][still] = 0
    ops["duration_ps"][_launch_gaps(program)] = 0
    loads = still[ops["kind"][still] == LOAD]
    ops["kind"][loads], ops["count"][loads] = SIGNAL, 1
    ops["bytes"][loads] = ops["target"][loads] = 0
    return replace(program, ops=ops)


def _ops_of(program: Program, phases: Collection[str]) -> Ops:
    numbers = [number for number, name in enumerate(program.phases) if name in phases]
    tasks = program.tasks[np.isin(program.tasks["phase"], numbers)]
    _, run = expand(tasks["first_run"], tasks["n_runs"])
    _, op = expand(program.runs["first_op"][run], program.runs["n_ops"][run])
    return np.unique(op)


def _launch_gaps(program: Program) -> Ops:
    """COMPUTE ops of the launches behind a pull and before a return, which are kernels of their own.

    A launch waits for a counter of the kernel before it and then signals one that the next kernel waits for. The expansion
    of pulled rows, which is in the launch behind the pull, goes with the pull. Where every row is masked nothing is pulled,
    and that launch stays.
    """
    ops = program.ops
    pull, back, launches = (_ops_of(program, [phase]) for phase in (PULL, RETURN, LAUNCH))
    pulled = ops["counter"][pull[ops["kind"][pull] == SIGNAL]]
    returned = ops["counter"][back[ops["kind"][back] == WAIT]]
    kind, counter = ops["kind"][launches], ops["counter"][launches]
    bound = ((kind == WAIT) & np.isin(counter, pulled)) | ((kind == SIGNAL) & np.isin(counter, returned))
    launch = np.cumsum(kind == WAIT)  # each begins with its wait
    gaps: Ops = launches[(kind == COMPUTE) & np.isin(launch, launch[bound])]
    return gaps
