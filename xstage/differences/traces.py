"""What a trace file and a Program say as numbers, under the names that `xstage run` uses for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..sim import program as p
from ..sim.program_index import op_repeats

if TYPE_CHECKING:
    import pandas as pd

    from ..sim.program import Program

TASK_WAIT = "task"
"""`kind` of a row that is no op: the lane waited for its group to take a task."""


def trace_metrics(ops: pd.DataFrame) -> dict[str, Any]:
    """Metrics of an op table (see `Trace.ops`): sender_visible_us, ops, stall_total_us, bytes_stored, bytes_loaded,
    roles and spans.

    The names are those of `xstage run --json`. Means are over the lanes that appear, and sender_visible_us is the last end
    of an op, which bytes on their way may outlast.
    """
    real = ops[ops["kind"] != TASK_WAIT]
    spans = (
        real[real["task"] >= 0]
        .groupby("task", observed=True)
        .agg({"phase": "first", "start_us": "min", "end_us": "max"})
    )
    spans["us"] = spans["end_us"] - spans["start_us"]
    moved = real.groupby("kind", observed=True)["bytes"].sum()
    return {
        "sender_visible_us": float(ops["end_us"].max()) if len(ops) else 0.0,
        "ops": len(real),
        "stall_total_us": float(ops["stall_us"].sum()),
        "bytes_stored": int(moved.get("store", 0)),
        "bytes_loaded": int(moved.get("load", 0)),
        "roles": {str(role): _role(mine) for role, mine in ops.groupby("role", observed=True)},
        "spans": {
            str(phase) or "untagged": {
                "median_us": float(np.median(mine["us"])),
                "p95_us": float(np.percentile(mine["us"], 95)),
                "tasks": len(mine),
            }
            for phase, mine in spans.groupby("phase", observed=True)
        },
    }  # fmt: skip


def program_facts(program: Program) -> dict[str, Any]:
    """What a schedule is made of: GPUs, lanes by role, tasks by phase, ops by kind, bytes and work, and its meta."""
    repeats, kind = op_repeats(program), program.ops["kind"]
    lanes = np.bincount(program.lanes["role"], minlength=len(program.roles)).tolist()
    tasks = np.bincount(program.tasks["phase"], minlength=len(program.phases)).tolist()
    return {
        "gpus": program.n_gpus,
        "lanes": dict(zip(program.roles, lanes, strict=True)),
        "tasks": {phase or "untagged": count for phase, count in zip(program.phases, tasks, strict=True)},
        "ops": {name: int(repeats[kind == number].sum()) for number, name in enumerate(p.KIND_NAMES)},
        "bytes_stored": int((program.ops["bytes"] * repeats)[kind == p.STORE].sum()),
        "bytes_loaded": int((program.ops["bytes"] * repeats)[kind == p.LOAD].sum()),
        "busy_total_us": float((program.ops["duration_ps"] * repeats).sum()) / 1e6,
        "rows": {name: len(rows) for name, rows in program.tables()},
        "meta": program.meta,
    }


def _role(mine: pd.DataFrame) -> dict[str, Any]:
    lanes = int(mine["lane"].nunique())
    busy = (mine["end_us"] - mine["start_us"] - mine["stall_us"] - mine["wait_us"]).sum()
    waits = mine[mine["wait_us"] > 0].groupby("cause", observed=True)["wait_us"].sum()
    return {
        "lanes": lanes,
        "busy_mean_us": float(busy / lanes),
        "stall_mean_us": float(mine["stall_us"].sum() / lanes),
        "wait_mean_us": {str(cause): float(us / lanes) for cause, us in waits.items()},
    }
