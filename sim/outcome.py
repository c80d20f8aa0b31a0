"""What an engine hands back: plain arrays, the same from both engines to the last digit.

An `Outcome` is raw: indices and picoseconds. `trace.Trace` puts it into tables with names, units and tags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import program as p

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
