"""Numbers that sum up a run: how long, how much of it stall, waiting for what, how full the stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import program as p
from .activity import lanes_of_role
from .kept_bytes import kept_bytes
from .program_index import op_repeats
from .units import PS_PER_US

if TYPE_CHECKING:
    from .trace import Trace


OF_SCHEDULE = ("m_block_fill", "routed")
"""What a schedule says of itself, and its runs are seldom understood without."""


def summarise(trace: Trace) -> dict[str, Any]:
    """A plain dictionary, ready for JSON. Times are microseconds and sizes bytes.

    `stall_total_us` and `bytes_stored` add up all lanes; `bytes_stored_to_others` is what left the GPU that stored it.
    `roles` gives means over the lanes of a role (where one rank stands for all, over that rank's), which add up to the
    makespan with `not_running_mean_us`, the time before a lane starts and after it ends. `spans` gives the median and the
    95th percentile, over the tasks of a phase, of the time from a task's first op to its last. `m_block_fill` is there for
    MegaMoE: rows of an m-block, and the mean of those that hold a token. So is `routed`: rows of the busiest expert and of
    the busiest rank over their means, as they were drawn and placed.
    """
    outcome, program = trace.outcome, trace.program
    stored = total(outcome.lanes["stored_bytes"])
    return {
        "makespan_us": trace.makespan_ps / PS_PER_US,
        "sender_visible_us": outcome.lanes_end_ps / PS_PER_US,
        "remote_visible_us": outcome.arrived_ps / PS_PER_US,
        "ops": int(op_repeats(program).sum()),
        "events": outcome.events,
        "stall_total_us": total(outcome.lanes["stall_ps"]) / PS_PER_US,
        "roles": _roles(trace),
        "spans": _spans(trace),
        "occupancy_peak_bytes": int(outcome.peak_gpu_bytes.max(initial=0)),
        "bytes_stored": stored,
        "bytes_stored_to_others": stored - kept_bytes(program),
        "bytes_loaded": total(outcome.lanes["loaded_bytes"]),
        "egress_use_pct": _use_pct(trace, slice(0, trace.fabric.n_gpus)),
        "ingress_use_pct": _use_pct(trace, slice(trace.fabric.n_gpus, 2 * trace.fabric.n_gpus)),
        **{name: program.meta[name] for name in OF_SCHEDULE if name in program.meta},
    }


def total(values: Any) -> int:
    """Sum over lanes; a sum of times may leave 64 bits where no time of the run does."""
    return int(values.sum(dtype=object))


def _roles(trace: Trace) -> dict[str, Any]:
    roles = {}
    for number, role in enumerate(trace.program.roles):
        counted = lanes_of_role(trace.program, number)
        mine = trace.outcome.lanes[counted]
        there_ps = mine["end_ps"] - trace.program.lanes["start_ps"][counted]
        waits = mine["wait_ps"].mean(axis=0) / PS_PER_US
        roles[role] = {
            "lanes": len(mine),
            "busy_mean_us": float(mine["busy_ps"].mean() / PS_PER_US),
            "stall_mean_us": float(mine["stall_ps"].mean() / PS_PER_US),
            "wait_mean_us": {cause: float(wait) for cause, wait in zip(p.CAUSES, waits, strict=True) if wait > 0},
            "not_running_mean_us": float((trace.makespan_ps - there_ps).mean() / PS_PER_US),
        }
    return roles


def _spans(trace: Trace) -> dict[str, Any]:
    if trace.level == "off":
        return {}
    phase, spans = task_spans(trace)
    by_phase = ((name, spans[phase == number]) for number, name in enumerate(trace.program.phases))
    return {
        name or "untagged": {
            "median_us": float(np.median(mine) / PS_PER_US),
            "p95_us": float(np.percentile(mine, 95) / PS_PER_US),
            "tasks": len(mine),
        }
        for name, mine in by_phase
        if len(mine)
    }


def task_spans(trace: Trace) -> tuple[Any, Any]:
    """Phase and length (ps) of every task: from the first op of its first lane to the last op of its last."""
    tasks, rows = trace.program.tasks, trace.outcome.spans
    task, _, row = trace.parts()
    start = np.full(len(tasks), np.iinfo(np.int64).max)
    end = np.full(len(tasks), -1, dtype=np.int64)
    np.minimum.at(start, task, rows["start_ps"][row])
    np.maximum.at(end, task, rows["end_ps"][row])
    known = end >= 0
    return tasks["phase"][known], (end - start)[known]


def _use_pct(trace: Trace, ports: slice) -> float:
    """Mean busy share of the ports that carried anything, in percent of the makespan."""
    busy = trace.outcome.ports["busy_ps"][ports]
    used = busy[busy > 0]
    return float(100 * used.mean() / max(1, trace.makespan_ps)) if len(used) else 0.0
