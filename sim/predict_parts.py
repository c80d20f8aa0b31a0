"""Parts of a MegaMoE call as profilers and instrumented kernels report them, from the spans of a run.

    l1_launch          from the launch to the end of the last L1 tile: the first of two launches
    l2_launch          from there to the end
    dispatch_pull_end  the moment at which the last dispatch warp has published its last row
    dispatch_pull      what the slowest SM takes to pull its rows
    l1, l2             what the busiest SM works on tiles of that GEMM, stalls included, waits for inputs left out
    combine            what the slowest SM takes to add up the returned rows
    l1_gemm, l2_gemm   of separate kernels, from the launch of the GEMM to the end of its last tile
    swiglu             from there to the launch of the second GEMM, with the gaps before and behind it

Moments and launches are of the slowest rank that was simulated, the others the median over ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .program_index import expand
from .units import PS_PER_US

if TYPE_CHECKING:
    from .trace import Trace

Part = Literal[
    "l1_launch", "l2_launch", "dispatch_pull_end", "dispatch_pull", "l1", "l2", "combine", "l1_gemm", "swiglu", "l2_gemm"
]  # fmt: skip
_SEPARATE = ("l1_gemm", "swiglu", "l2_gemm")
_PHASES = {"l1_launch": "l1", "l2_launch": "l1", "dispatch_pull_end": "dispatch", "dispatch_pull": "dispatch"}


def part_of_run_us(trace: Trace, part: Part) -> float:
    """Time of one part in us. Needs spans. Raises `InputError` if the run has no such phase."""
    if part in _SEPARATE:
        return _separate_us(trace, part)
    phase = _PHASES.get(part, part)
    lanes = _lanes_of(trace, phase)
    if part in ("l1_launch", "dispatch_pull_end"):
        return float(lanes["end_ps"].max() / PS_PER_US)
    if part == "l2_launch":
        return float((trace.makespan_ps - lanes["end_ps"].max()) / PS_PER_US)
    spent = lanes["worked_ps"] if part in ("l1", "l2") else lanes["end_ps"] - lanes["start_ps"]
    gpus, group = np.unique(lanes["gpu"]), lanes["group"]
    worst = []
    for gpu in gpus:
        mine = lanes["gpu"] == gpu
        if part in ("l1", "l2"):
            worst.append(np.bincount(group[mine], weights=spent[mine]).max())
        else:
            worst.append(spent[mine].max())
    return float(np.median(worst) / PS_PER_US)


def _separate_us(trace: Trace, part: Part) -> float:
    """Time of a kernel of its own, or between two. Raises `InputError` if the run does not launch L1 and L2 apart."""
    launches, l1, l2 = (_lanes_of(trace, phase) for phase in ("launch", "l1", "l2"))
    took = []
    for gpu in np.unique(l1["gpu"]):
        go = np.sort(launches["end_ps"][launches["gpu"] == gpu])
        ends = [lanes["end_ps"][lanes["gpu"] == gpu].max() for lanes in (l1, l2)]
        if len(go) < 2:  # L1 first, then L2
            raise InputError("is not in this run", field="part", value=part, allowed="separate kernels")
        took.append({"l1_gemm": ends[0] - go[0], "swiglu": go[1] - ends[0], "l2_gemm": ends[1] - go[1]}[part])
    return float(np.median(took) / PS_PER_US)


def _lanes_of(trace: Trace, phase: str) -> dict[str, NDArray[np.int64]]:
    """First lanes of the tasks of one phase: gpu, group, start, end, and what the lane worked: durations and stall, ps."""
    if trace.level == "off":
        raise InputError("is too little for parts", field="trace", value="off", allowed=["summary", "full"])
    program, spans = trace.program, trace.outcome.spans
    number = program.phases.index(phase) if phase in program.phases else -1
    tasks = np.flatnonzero(program.tasks["phase"] == number)
    first = trace.layout.span_first[tasks]
    ran = spans["group"][first] >= 0
    tasks, first = tasks[ran], first[ran]
    if not len(tasks):
        raise InputError("is not in this run", field="phase", value=phase, allowed=program.phases)
    runs = program.runs[program.tasks["first_run"][tasks]]
    owner, op = expand(runs["first_op"], runs["n_ops"])
    busy = np.bincount(owner, weights=program.ops["duration_ps"][op], minlength=len(tasks)).astype(np.int64)
    group = spans["group"][first].astype(np.int64)
    return {
        "gpu": program.groups["gpu"][group].astype(np.int64),
        "group": group,
        "start_ps": spans["start_ps"][first],
        "end_ps": spans["end_ps"][first],
        "worked_ps": busy + spans["stall_ps"][first],
    }
