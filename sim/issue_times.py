"""A Program whose stores take the time to issue that a machine says, in place of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .program import FROM_MEMORY, STORE, WITH_NEXT, Program

if TYPE_CHECKING:
    from .machine import Machine


def issued_by(program: Program, machine: Machine) -> Program:
    """`program` with T_iss0 = t0 + B/w of `machine` for each STORE of B bytes; all else stays, a SIGNAL's cost, too.

    A STORE is a burst of its own, and so pays t0, unless the op before it goes WITH_NEXT: then it belongs to that one.
    """
    ops, stores = program.ops.copy(), issued_by_sms(program)
    times = machine.issue_time_ps(ops["bytes"])
    belongs = np.append(False, (stores & (ops["flags"] & WITH_NEXT > 0))[:-1])[: len(ops)]
    belongs[program.runs["first_op"][program.runs["n_ops"] > 0]] = False
    ops["duration_ps"][stores] = (times - np.where(belongs, machine.stage.t0.value, 0))[stores]
    return replace(program, ops=ops)


def issued_by_sms(program: Program) -> NDArray[np.bool_]:
    """Which ops are STOREs of something that an SM issues, rather than a network interface. bool [n_ops]."""
    ops = program.ops
    return np.asarray((ops["kind"] == STORE) & (ops["bytes"] > 0) & (ops["flags"] & FROM_MEMORY == 0))
