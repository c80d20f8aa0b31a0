"""What an engine hands back: plain arrays, the same from both engines to the last digit.

An `Outcome` is raw: indices and picoseconds. `trace.Trace` puts it into tables with names, units and tags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import program as p
from .program_check import expand
from .program_view import op_repeats

if TYPE_CHECKING:
    from .program import Program
    from .topology import Fabric

Array = np.ndarray[Any, np.dtype[Any]]

LANE_TOTAL = np.dtype(
    [
        ("end_ps", "i8"),
        ("busy_ps", "i8"),
        ("stall_ps", "i8"),
        ("wait_ps", "i8", (len(p.CAUSES),)),
        ("stored_bytes", "i8"),
        ("loaded_bytes", "i8"),
    ]
)
SPAN = np.dtype([("group", "i8"), ("start_ps", "i8"), ("end_ps", "i8"), ("stall_ps", "i8")])
PORT_TOTAL = np.dtype([("busy_ps", "i8"), ("bytes", "i8")])
OP_RECORD = np.dtype(
    [
        ("lane", "i4"),
        ("task", "i4"),
        ("op", "i4"),
        ("cause", "i4"),
        ("start_ps", "i8"),
        ("end_ps", "i8"),
        ("stall_ps", "i8"),
        ("wait_ps", "i8"),
    ]
)
GRANULE_RECORD = np.dtype(
    [
        ("ticket", "i8"),
        ("parcel", "i8"),  # the copies of a multicast granule share a place in the stage: the ticket of the first
        ("lane", "i4"),
        ("op", "i4"),
        ("source", "i4"),
        ("destination", "i4"),
        ("bytes", "i8"),
        ("admitted_ps", "i8"),
        ("drained_ps", "i8"),
        ("visible_ps", "i8"),
    ]
)
OP_OF_TASK_WAIT = -1
"""`op` of a record that is no op: the lane waited for its group to take a task."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Totals by lane, by (task, seat), by port, by stage; records of ops and granules if the trace was full."""

    lanes: Array  # LANE_TOTAL [n_lanes]
    spans: Array  # SPAN [sum of runs over tasks]: first to last op of a seat's part of a task; group -1 if never run
    ports: Array  # PORT_TOTAL [n_ports]
    peak_sm_bytes: Array  # [n_sms] in the order of `Layout.sm_gpu`
    peak_gpu_bytes: Array  # [n_gpus] of the stage that each GPU uses
    counters: Array  # final values
    events: int  # model events: lane turns, ports passed, drains, arrivals
    granules: int  # tickets given
    lanes_end_ps: int  # the last lane is free: sender-visible end
    arrived_ps: int  # the last byte is visible: remote-visible end
    op_records: Array  # OP_RECORD in order of completion, empty unless full
    granule_records: Array  # GRANULE_RECORD by ticket, empty unless full

    def same_as(self, other: Outcome) -> list[str]:
        """Names of the fields in which two outcomes differ; empty if they agree to the last digit."""
        return [
            name
            for name in self.__dataclass_fields__
            if not np.array_equal(np.asarray(getattr(self, name)), np.asarray(getattr(other, name)))
        ]


@dataclass(frozen=True)
class Stuck:
    """A lane that can never go on: `op` is the op at which it stands, -1 if it waits for a task."""

    lane: int
    task: int
    op: int


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
        rows = program.destinations
        owner, share = expand(rows["first"], rows["n_shares"])
        pieces = -(-program.shares["bytes"][share] // fabric.granule_bytes)
        granules_of_row = np.bincount(owner, weights=pieces, minlength=len(rows)).astype(np.int64)
        kind = program.ops["kind"]
        granules = np.zeros(len(kind), dtype=np.int64)
        granules[kind == p.STORE] = granules_of_row[program.ops["target"][kind == p.STORE]]
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
