"""The paper's microbenchmarks on a simulated machine, evaluated as measurements are: T_iss0, R, Q, knee and G* from times.

Isolated bursts of growing size give T_iss0, the knee and Q; trains without a gap give R; trains with growing gaps give G*.
Nothing here reads the machine's own T_iss0, R or Q, but that a free-running train spreads its starts over the period that
the closed form expects (sim/schedules/burst_train.py). Source of the method: arXiv 2607.23264, as reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..sim.execute import simulate
from ..sim.schedules.burst_train import BurstTrain, build
from ..sim.units import gbs, us

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..sim.machine import Machine
    from ..sim.run_options import EngineName, TraceLevel
    from ..sim.trace import Trace

BURSTS = 40
"""Bursts of a train; the steady state is looked for after the first half."""

TrainMode = Literal["free_running", "synchronised"]


class Point(NamedTuple):
    """How long a burst takes to issue, and how much of that it stalled."""

    burst_bytes: float
    t_iss_us: float
    stall_us: float


def run(machine: Machine, shape: BurstTrain, engine: EngineName = "compiled", trace: TraceLevel = "summary") -> Trace:
    """Simulate a burst train."""
    return simulate(build(machine, shape), machine.fabric(shape.gpus), engine, trace)


def isolated_burst(producers: int, burst_bytes: int) -> BurstTrain:
    """One burst into an empty stage."""
    return BurstTrain(producers, burst_bytes, mode="isolated")


def slowest(trace: Trace) -> Point:
    """The last burst of the producer that takes longest: of producers that start together, some wait for all the others."""
    last = _spans(trace)[:, -1]
    length = last["end_ps"] - last["start_ps"]
    row = int(length.argmax())
    size = trace.outcome.lanes["stored_bytes"][row] / _spans(trace).shape[1]
    return Point(float(size), us(int(length[row])), us(int(last["stall_ps"][row])))


def steady_t_iss_us(trace: Trace, mode: TrainMode) -> float:
    """T_iss in the steady state of a train: the mean of free-running producers, the slowest of those that start together."""
    spans = _spans(trace)
    n = spans.shape[1]
    steady = spans[:, n // 2 : n - n // 10]  # at the end some producers have finished, and the others meet less traffic
    length = steady["end_ps"] - steady["start_ps"]
    return us(float(length.mean() if mode == "free_running" else length.max(axis=0).mean()))


def drain_gbs(machine: Machine, producers: int, burst_bytes: int) -> float:
    """R from a train without a gap: the volume of a burst over the period of the steady state, the mean of all producers."""
    n = 5 * BURSTS
    starts = _spans(run(machine, BurstTrain(producers, burst_bytes, bursts=n)))["start_ps"][:, n // 4 : n * 3 // 4]
    period_ps = np.polyfit(np.arange(starts.shape[1]), starts.mean(axis=0), 1)[0]
    return gbs(producers * burst_bytes * 1e9 / float(period_ps))


def knee(points: Sequence[Point]) -> Point:
    """Where the line through the bursts that stalled meets the line through those that did not."""
    size, time, stall = np.array(points).T
    (rise, start), (steeper, offset) = (np.polyfit(size[part], time[part], 1) for part in (stall == 0, stall > 0))
    at = float((start - offset) / (steeper - rise))
    return Point(at, float(start + rise * at), 0.0)


def recovery_gap_us(gaps_us: NDArray[np.float64], t_iss_us: NDArray[np.float64]) -> float:
    """G* of free-running producers: where the line T_iss + G = constant of the trains that stall meets the plateau."""
    plateau = t_iss_us.min()
    stalls = t_iss_us > 1.2 * plateau
    return float((t_iss_us + gaps_us)[stalls].mean() - plateau)


def _spans(trace: Trace) -> Any:
    """start_ps, end_ps and stall_ps of every burst, [producer, burst]."""
    tasks = trace.program.tasks
    mine = np.flatnonzero(tasks["phase"] == trace.program.phases.index("burst"))
    rows = trace.outcome.spans[trace.layout.span_first[mine]]
    return rows.reshape(int(tasks["m_block"][mine].max()) + 1, -1).T
