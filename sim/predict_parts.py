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

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .program_index import phase_number, run_ps
from .units import PS_PER_US

if TYPE_CHECKING:
    from .trace import Trace

Ints = NDArray[np.int64]

Part = Literal[
    "l1_launch", "l2_launch", "dispatch_pull_end", "dispatch_pull", "l1", "l2", "combine", "l1_gemm", "swiglu", "l2_gemm"
]  # fmt: skip


class _Lanes(NamedTuple):
    """The first lane of each task of one phase; `worked_ps`: durations and stall, waits left out. [tasks]"""

    gpu: Ints
    group: Ints
    start_ps: Ints
    end_ps: Ints
    worked_ps: Ints


def part_of_run_us(trace: Trace, part: Part) -> float:
    """Time of one part in us. Needs spans. Raises `InputError` if the run has no such phase."""
    match part:
        case "l1_launch":
            took = _lanes_of(trace, "l1").end_ps.max()
        case "l2_launch":
            took = trace.makespan_ps - _lanes_of(trace, "l1").end_ps.max()
        case "dispatch_pull_end":
            took = _lanes_of(trace, "dispatch").end_ps.max()
        case "l1" | "l2":
            lanes = _lanes_of(trace, part)
            group = np.unique(lanes.group)
            worked = np.bincount(lanes.group, weights=lanes.worked_ps)[group]
            took = np.median(_last(trace.program.groups["gpu"][group], worked))
        case "dispatch_pull" | "combine":
            lanes = _lanes_of(trace, part.removesuffix("_pull"))
            took = np.median(_last(lanes.gpu, lanes.end_ps - lanes.start_ps))
        case _:
            took = np.median(_separate_ps(trace, part))
    return float(took / PS_PER_US)


def _separate_ps(trace: Trace, part: Part) -> Ints:
    """A kernel of its own, or the time between two, [gpus]. Raises `InputError` if L1 and L2 are not launched apart."""
    launches, l1, l2 = (_lanes_of(trace, phase) for phase in ("launch", "l1", "l2"))
    go = np.sort(launches.end_ps[np.isin(launches.gpu, l1.gpu)].reshape(len(np.unique(l1.gpu)), -1))
    if go.shape[1] < 2:  # L1 first, then L2
        raise InputError("is not in this run", field="part", value=part, allowed="separate kernels")
    l1_end, l2_end = (_last(lanes.gpu, lanes.end_ps) for lanes in (l1, l2))
    return {"l1_gemm": l1_end - go[:, 0], "swiglu": go[:, 1] - l1_end, "l2_gemm": l2_end - go[:, 1]}[part]


def _last(gpu: Ints, value: Ints) -> Ints:
    """The largest value of each GPU that has some."""
    order = np.lexsort((value, gpu))
    is_last = np.diff(gpu[order], append=-1) != 0
    return np.asarray(value[order][is_last])


def _lanes_of(trace: Trace, phase: str) -> _Lanes:
    """Raises `InputError` where no task of the phase ran."""
    if trace.level == "off":
        raise InputError("is too little for parts", field="trace", value="off", allowed=["summary", "full"])
    program = trace.program
    task, lane, row = trace.parts()
    first = (row == trace.layout.span_first[task]) & (program.tasks["phase"][task] == phase_number(program, phase))
    task, lane, spans = task[first], lane[first], trace.outcome.spans[row[first]]
    if not len(task):
        raise InputError("is not in this run", field="phase", value=phase, allowed=program.phases)
    busy = run_ps(program)[program.tasks["first_run"][task]]
    return _Lanes(
        program.lanes["gpu"][lane], spans["group"], spans["start_ps"], spans["end_ps"], busy + spans["stall_ps"]
    )
