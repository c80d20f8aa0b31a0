"""What lanes and ports did over time and why lanes stood still: Tensor Cores, egress, stalls and waits, phases.

Everything is counted over whole arrays of a `Trace`. Shares are of the lanes that there are: an SM that is reserved for
communication has no Tensor Core lane and is left out, so compare the makespans too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import program as p
from .errors import InputError
from .program_index import run_ps, share_of_gpu
from .topology import PLAIN, SCATTER
from .units import PS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from .trace import Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TENSOR_ROLES = ("mma", "math")
"""Roles that keep Tensor Cores busy. `math` warps (SM90) run the epilogue too, and its computation counts as theirs."""


def tensor_lanes(trace: Trace) -> NDArray[np.bool_]:
    """Which lanes have a role of `TENSOR_ROLES`. bool [n_lanes]."""
    roles = [number for number, name in enumerate(trace.program.roles) if name in TENSOR_ROLES]
    return np.isin(trace.program.lanes["role"], roles)


def lanes_of_role(program: p.Program, number: int) -> NDArray[np.bool_]:
    """Which lanes are counted for the role `number`. bool [n_lanes].

    All that have it; where one rank stands for all, those of the rank, or of its mirror for a role that only that has.
    """
    mine = program.lanes["role"] == number
    if program.meta.get("ranks") != "symmetric":
        return np.asarray(mine)
    own = mine & (program.lanes["gpu"] == 0)
    return np.asarray(own if own.any() else mine)


def compute_by_lane(trace: Trace) -> Ints:
    """Time of all COMPUTE ops that each lane ran, ps. int64 [n_lanes]."""
    return _by_lane(trace, trace.program.ops["kind"] == p.COMPUTE)


def main_loops_by_lane(trace: Trace) -> Ints:
    """The same without what `math` lanes of an SM90 schedule compute in their epilogues. int64 [n_lanes].

    Their main loops come behind a wait for inputs or for a launch, their epilogues behind anything else. What other Programs
    compute is taken as it is, whatever their roles are called.
    """
    program = trace.program
    if not has_epilogues_in_math(program):
        return compute_by_lane(trace)
    is_math = np.array([name == "math" for name in program.roles], dtype=bool)[program.lanes["role"]]
    return np.where(is_math, _by_lane(trace, _behind_inputs(program)), compute_by_lane(trace))


def has_epilogues_in_math(program: p.Program) -> bool:
    """Whether it is a schedule for SM90 of sim/schedules, in which `math` lanes compute epilogues, too."""
    kernel = program.meta.get("kernel")
    return isinstance(kernel, dict) and kernel.get("family") == "sm90"


def tile_compute_us(trace: Trace, phase: str) -> Floats:
    """Computation of each Tensor Core lane in each task of `phase`, us: T_mma. Raises `InputError` as `store_spans_us`."""
    task, lane, time = _compute_by_task(trace, trace.program.ops["kind"] == p.COMPUTE)
    wanted = (trace.program.tasks["phase"][task] == _phase(trace, phase)) & tensor_lanes(trace)[lane]
    return np.asarray(time[wanted] / PS_PER_US)


def _behind_inputs(program: p.Program) -> NDArray[np.bool_]:
    """Which ops are COMPUTE with a WAIT for anything but a ring before them, apart from slots. bool [n_ops]."""
    kind, counter = program.ops["kind"], program.ops["counter"]
    opens = kind == p.WAIT
    opens[opens] = program.counters["cause"][counter[opens]] != p.CAUSES.index("ring")
    position = np.arange(len(kind))
    last = np.maximum.accumulate(np.where(kind != p.ACQUIRE, position, 0))
    before = last[np.maximum(position - 1, 0)]
    return np.asarray((kind == p.COMPUTE) & opens[before])


def _by_lane(trace: Trace, counted: NDArray[np.bool_]) -> Ints:
    total = np.zeros(len(trace.program.lanes), dtype=np.int64)
    _, lane, time = _compute_by_task(trace, counted)
    np.add.at(total, lane, time)
    return total


def _compute_by_task(trace: Trace, counted: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Task, lane and time of its COMPUTE ops that are `counted` (ps) for every part of a task that ran."""
    program = trace.program
    task, lane, row = trace.parts()
    return task, lane, run_ps(program, counted)[program.tasks["first_run"][task] + row - trace.layout.span_first[task]]


def _phase(trace: Trace, phase: str) -> int:
    if phase not in trace.program.phases:
        raise InputError("is no phase of this program", field="phase", value=phase, allowed=trace.program.phases)
    return trace.program.phases.index(phase)


def tensor_core_use_pct(trace: Trace) -> float | None:
    """Mean share of the makespan that Tensor Core lanes compute, percent; None where there are none."""
    return _pct_of_tensor_lanes(trace, compute_by_lane(trace))


def main_loops_pct(trace: Trace) -> float | None:
    """The same of their main loops alone: `math` lanes compute their epilogues, too."""
    return _pct_of_tensor_lanes(trace, main_loops_by_lane(trace))


def _pct_of_tensor_lanes(trace: Trace, by_lane: Ints) -> float | None:
    lanes = tensor_lanes(trace)
    return float(100 * by_lane[lanes].mean() / max(1, trace.makespan_ps)) if lanes.any() else None


def timeline(trace: Trace, bins: int = 200, until_us: float | None = None) -> pd.DataFrame:
    """Use of Tensor Cores and egress in `bins` equal parts of the time to `until_us` (default: the makespan).

    Columns: time_us (where a part begins), tensor_core_pct (share of it that a lane computes, mean over Tensor Core
    lanes), egress_pct (bytes that were drained in it over what the egress ports in use drain in that time). A granule
    counts when its last byte has left its route, so that a part may hold a little more than 100 %. Needs a full trace.
    Raises `InputError` for less than one part, or a time that is not above 0.
    """
    import pandas as pd

    if trace.level != "full":
        raise InputError("is too little for a timeline", field="trace", value=trace.level, allowed=["full"])
    if bins < 1:
        raise InputError("must be at least 1", field="bins", value=bins)
    until = trace.makespan_ps if until_us is None else until_us * PS_PER_US
    if until <= 0:
        raise InputError("must be above 0", field="until_us", value=until_us)
    edges = np.linspace(0, until, bins + 1)
    return pd.DataFrame(
        {
            "time_us": edges[:-1] / PS_PER_US,
            "tensor_core_pct": 100 * _tensor_core_share(trace, edges),
            "egress_pct": 100 * _egress_share(trace, edges),
        }
    )


def busy_share(start: Ints, end: Ints, edges: Floats) -> Floats:
    """Total time of the intervals start..end inside each part between neighbouring `edges`, over the part's length."""
    return np.asarray(np.diff(_elapsed(end, edges, start)) / np.diff(edges))


def _elapsed(end: Ints, edges: Floats, start: Ints) -> Floats:
    """Sum over intervals of the time that has passed of each by every edge: [t - start]+ - [t - end]+."""

    def past(moments: Ints) -> Floats:
        ordered = np.sort(moments).astype(np.float64)
        before = np.searchsorted(ordered, edges)
        return np.asarray(before * edges - np.concatenate([[0.0], np.cumsum(ordered)])[before])

    return past(start) - past(end)


def _tensor_core_share(trace: Trace, edges: Floats) -> Floats:
    lanes, records = tensor_lanes(trace), trace.outcome.op_records
    if not lanes.any():
        return np.zeros(len(edges) - 1)
    real = records[records["op"] >= 0]
    real = real[(trace.program.ops["kind"][real["op"]] == p.COMPUTE) & lanes[real["lane"]]]
    return np.asarray(busy_share(real["start_ps"], real["end_ps"], edges) / lanes.sum())


def _egress_share(trace: Trace, edges: Floats) -> Floats:
    fabric, records = trace.fabric, trace.outcome.granule_records
    moved = records[records["source"] != records["destination"]]
    if not len(moved):
        return np.zeros(len(edges) - 1)
    _, once = np.unique(moved["parcel"], return_index=True)  # the copies of a multicast leave once
    moved = moved[once]
    moved = moved[trace.first_ports(moved) < fabric.n_gpus]  # what a network interface reads from memory has no egress
    scattered = _is_scatter(trace, moved["op"], moved["source"])
    port = trace.first_ports(moved)
    service = moved["bytes"] * 1e9 / fabric.rates_kbs[port, np.where(scattered, SCATTER, PLAIN)]
    served, _ = np.histogram(moved["drained_ps"], edges, weights=service)
    return np.asarray(served / np.diff(edges) / max(1, len(np.unique(port))))


def _is_scatter(trace: Trace, op: Ints, source: Ints) -> NDArray[np.bool_]:
    """Whether ops of GPU `source` are stores dealt over several other GPUs, which leave at the rate of a scatter."""
    program = trace.program
    found = np.zeros(len(op), dtype=bool)
    stores = program.ops["kind"][op] == p.STORE
    target = program.ops["target"][op[stores]]
    rows = program.destinations[target]
    others = rows["n_shares"] - (share_of_gpu(program, target, source[stores]) >= 0)
    found[stores] = (others >= trace.fabric.scatter_from) & (rows["replicate"] == 0)
    return found


def breakdown(trace: Trace) -> list[dict[str, Any]]:
    """Where the time of a lane of each role goes, us, mean over its lanes: one row each for busy, stall, every wait, and
    what is left of the makespan before it starts or after it ends (`idle`). Rows of a role add up to the makespan.

    Keys: role, lanes, what (busy, stall, wait, idle), cause (of a wait, else None), mean_us.
    """
    totals, program, rows = trace.outcome.lanes, trace.program, []
    for number, role in enumerate(program.roles):
        mine = lanes_of_role(program, number)
        if not mine.any():
            continue
        lanes, kept = totals[mine], int(mine.sum())
        idle = trace.makespan_ps - (lanes["end_ps"] - program.lanes["start_ps"][mine])
        parts: list[tuple[str, str | None, Any]] = [
            ("busy", None, lanes["busy_ps"]),
            ("stall", None, lanes["stall_ps"]),
        ]
        parts += [("wait", cause, lanes["wait_ps"][:, column]) for column, cause in enumerate(p.CAUSES)]
        parts.append(("idle", None, idle))
        rows += [
            {"role": role, "lanes": kept, "what": what, "cause": cause, "mean_us": float(time.mean()) / PS_PER_US}
            for what, cause, time in parts
            if what != "wait" or time.any()
        ]
    return rows


def waits_us(trace: Trace) -> dict[str, float]:
    """Mean wait of a Tensor Core lane by cause, us; of all lanes where there are none. Causes without wait are left out."""
    chosen = tensor_lanes(trace)
    waits = trace.outcome.lanes["wait_ps"][chosen if chosen.any() else np.ones(len(chosen), dtype=bool)]
    mean = waits.mean(axis=0) / PS_PER_US if len(waits) else np.zeros(len(p.CAUSES))
    return {cause: float(wait) for cause, wait in zip(p.CAUSES, mean, strict=True) if wait > 0}


def phase_windows(trace: Trace) -> list[dict[str, Any]]:
    """When each phase was going on: phase, tasks, first_us (its first op begins), last_us (its last op ends)."""
    task, _, row = trace.parts()
    spans, phase = trace.outcome.spans[row], trace.program.tasks["phase"][task]
    windows = []
    for number, name in enumerate(trace.program.phases):
        mine = spans[phase == number]
        if len(mine):
            windows.append(
                {
                    "phase": name or "untagged",
                    "tasks": len(np.unique(task[phase == number])),
                    "first_us": float(mine["start_ps"].min() / PS_PER_US),
                    "last_us": float(mine["end_ps"].max() / PS_PER_US),
                }
            )
    return windows


def store_spans_us(trace: Trace, phase: str) -> Floats:
    """How long each lane that stores in a task of `phase` was at it, us: from its first computation or store to the end of
    its last, waiting for the accumulator before that left out. The per-tile span of arXiv 2607.23264. Needs a full trace.

    Raises `InputError` for a phase that the program does not have, or a trace that is not full.
    """
    if trace.level != "full":
        raise InputError("is too little for the spans of stores", field="trace", value=trace.level, allowed=["full"])
    number = _phase(trace, phase)
    records = trace.outcome.op_records
    records = records[records["op"] >= 0]
    kind = trace.program.ops["kind"][records["op"]]
    wanted = trace.program.tasks["phase"][records["task"]] == number
    working = wanted & np.isin(kind, (p.COMPUTE, p.STORE))
    records, stores = records[working], kind[working] == p.STORE
    key = records["task"].astype(np.int64) * len(trace.program.lanes) + records["lane"]
    _, which = np.unique(key, return_inverse=True)
    count = int(which.max(initial=-1)) + 1
    start, end, storing = np.full(count, 2**62), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    np.minimum.at(start, which, records["start_ps"])
    np.maximum.at(end, which, records["end_ps"])
    np.logical_or.at(storing, which, stores)
    return np.asarray((end - start)[storing] / PS_PER_US)
