"""What both engines need to know of a Program on a Fabric before they start: SMs in use, rows of spans, most records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import program as p
from .granule_counts import pieces_of_rows
from .program_index import op_repeats

if TYPE_CHECKING:
    from .program import Program
    from .topology import Fabric

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Layout:
    """Numbers that both engines derive from a Program and a Fabric before they start."""

    lane_sm: Array  # [n_lanes] index of the lane's SM among those in use
    sm_gpu: Array  # [n_sms]
    span_first: Array  # [n_tasks] first row of `spans` of a task
    n_spans: int
    max_op_records: int
    max_granules: int

    @classmethod
    def of(cls, program: Program, fabric: Fabric) -> Layout:
        key = (
            program.lanes["gpu"].astype(np.int64) * (int(program.lanes["sm"].max(initial=0)) + 1) + program.lanes["sm"]
        )
        _, first, lane_sm = np.unique(key, return_index=True, return_inverse=True)
        n_runs = program.tasks["n_runs"].astype(np.int64)
        repeats = op_repeats(program)
        kind = program.ops["kind"]
        granules = np.zeros(len(kind), dtype=np.int64)
        granules[kind == p.STORE] = pieces_of_rows(program, fabric)[program.ops["target"][kind == p.STORE]]
        granules[kind == p.SIGNAL] = 1
        granules[kind == p.LOAD] = 1 - (-program.ops["bytes"][kind == p.LOAD] // fabric.granule_bytes)
        return cls(
            lane_sm=lane_sm.astype(np.int64).ravel(),
            sm_gpu=program.lanes["gpu"][first].astype(np.int64),
            span_first=np.cumsum(n_runs) - n_runs,
            n_spans=int(n_runs.sum()),
            max_op_records=int(repeats.sum()) + int(n_runs.sum()) + len(program.lanes),
            max_granules=int((granules * repeats).sum()),
        )
