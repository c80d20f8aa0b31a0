"""Runs of ops that have the same form in many variants: one for each m-block, or each tile.

>>> from xstage.sim.program import COMPUTE, RELEASE
>>> builder = ProgramBuilder(1)
>>> compute = {"kind": COMPUTE, "duration_ps": [10, 20, 30]}
>>> mma = op_variants(builder, 3, [compute, {"kind": RELEASE, "counter": 0, "count": 1}])
>>> mma.first.tolist(), mma.n_ops
([0, 2, 4], 2)
>>> runs_by_seat(builder, [mma, mma]).tolist()
[0, 2, 4]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..program import NO_COUNTER
from ..program_builder import ProgramBuilder

COLUMNS = ("kind", "counter", "count", "target", "stride", "bytes", "duration_ps", "flags")

Ints = NDArray[np.int64]
Op = Mapping[str, Any]
"""Keywords of `ProgramBuilder.ops`; each is one value, or one for each variant."""


@dataclass(frozen=True, eq=False)
class OpVariants:
    """The first op of each variant, [variants], and how many ops each has."""

    first: Ints
    n_ops: int


def op_variants(builder: ProgramBuilder, variants: int, ops: Sequence[Op]) -> OpVariants:
    """Append `ops`, in order, for each of `variants`."""
    table = {name: np.zeros((variants, len(ops)), dtype=np.int64) for name in COLUMNS}
    table["counter"][:] = NO_COUNTER
    for place, op in enumerate(ops):
        for name, value in op.items():
            table[name][:, place] = value
    first = builder.ops(**table)
    return OpVariants(first + len(ops) * np.arange(variants), len(ops))


def runs_by_seat(builder: ProgramBuilder, seats: Sequence[OpVariants]) -> Ints:
    """Runs of the variants, one for each seat of a group: the first run of each variant, [variants]."""
    firsts = np.stack([seat.first for seat in seats], axis=1)
    first = builder.runs(firsts, np.broadcast_to([seat.n_ops for seat in seats], firsts.shape))
    return first + len(seats) * np.arange(len(firsts))
