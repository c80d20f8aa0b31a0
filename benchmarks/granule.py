"""How fine must a store be cut? Error against the law and cost, by granule, on hgx-b200.

    python benchmarks/granule.py

For each granule: the largest error of isolated bursts, of free-running periods and of synchronised bursts against the
closed forms, the number of model events, and the time relative to the finest. The default granule of the machine files is
chosen from this table: the coarsest that keeps every error below 1 %.
"""

from __future__ import annotations

import time
from itertools import product

import numpy as np
from xstage.scenarios.machine_files import load_machine
from xstage.sim import burst_gap
from xstage.sim.execute import simulate
from xstage.sim.machine import Machine
from xstage.sim.schedules.burst_train import BurstTrain, build
from xstage.sim.trace import Trace

KIB = 1 << 10
US = 1_000_000
GRANULES = (8192, 4096, 2048, 1024, 512, 256)
PRODUCERS, SIZES, GAPS = (148, 100, 32), (8 * KIB, 32 * KIB, 64 * KIB), (0, US, 4 * US, 8 * US)


def run(machine: Machine, granule: int, **shape: object) -> Trace:
    train = BurstTrain(**shape)  # type: ignore[arg-type]
    return simulate(build(machine, train), machine.fabric(2, granule))


def spans(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Start and length (ps) of every burst, as [producer, burst]."""
    tasks = trace.program.tasks
    mine = np.flatnonzero(tasks["phase"] == trace.program.phases.index("burst"))
    rows = trace.outcome.spans[trace.layout.span_first[mine]].reshape(tasks["m_block"][mine].max() + 1, -1).T
    return rows["start_ps"], rows["end_ps"] - rows["start_ps"]


def errors(machine: Machine, granule: int) -> tuple[list[float], int]:
    """Largest absolute error in percent of isolated, free-running and synchronised bursts; model events of all runs."""
    stage, events = machine.x_stage(), 0
    worst = [0.0, 0.0, 0.0]

    def note(index: int, trace: Trace, measured: float, law: float) -> None:
        nonlocal events
        events += trace.outcome.events
        worst[index] = max(worst[index], abs(100 * (measured / law - 1)))

    for size in (KIB * k for k in (8, 16, 24, 32, 33, 34, 36, 40, 48, 64, 96, 128)):
        trace = run(machine, granule, producers=148, burst_bytes=size, mode="isolated")
        note(0, trace, spans(trace)[1].max(), burst_gap.issue_time(stage, 148, size, mode="isolated"))
    for k, size, gap in product(PRODUCERS, SIZES, GAPS):
        trace = run(machine, granule, producers=k, burst_bytes=size, gap_ps=gap, bursts=120)
        start, _ = spans(trace)
        note(1, trace, (start[:, 100] - start[:, 40]).mean() / 60, burst_gap.period(stage, k, size, gap))
        trace = run(machine, granule, producers=k, burst_bytes=size, gap_ps=gap, bursts=60, mode="synchronised")
        note(2, trace, spans(trace)[1][:, -1].max(), burst_gap.issue_time(stage, k, size, gap, "synchronised"))
    return worst, events


def main() -> None:
    machine = load_machine("hgx-b200")
    errors(machine, GRANULES[0])  # compiles
    rows = []
    for granule in GRANULES:
        started = time.perf_counter()
        worst, events = errors(machine, granule)
        rows.append((granule, worst, events, time.perf_counter() - started))
    print(f"default granule: {machine.granule_bytes} B")
    print("granule  isolated %  free %  synchron. %        events  time")
    for granule, worst, events, seconds in rows:
        print(
            f"{granule:>8} {worst[0]:>11.2f} {worst[1]:>8.2f} {worst[2]:>12.2f} {events:>12,} {seconds / rows[-1][3]:>6.2f}"
        )


if __name__ == "__main__":
    main()
