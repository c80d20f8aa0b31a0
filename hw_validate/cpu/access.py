"""How long a core needs for what the law of the X-Stage does not tell: loads, stores into its cache, and noting a store.

Measured as ops of a Program on a core, each after a pause, since that is how they are used, and in quiet runs alone, told by
their small bursts like those of a replay. What noting a store costs is how much longer than T_iss0 small isolated stores
take in that loop.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...sim import program as p
from ...sim.machine import Machine
from ...sim.program_builder import ProgramBuilder, Seat
from . import lane
from .bench import Bench
from .microbenchmark import PACE_LIMIT, usual_pace_ns
from .onto_cores import AccessTime, AccessTimes, onto_cores
from .small_bursts import pace_ns_of, small_bursts
from .tables import CoreTables

SIZES = (1024, 2048, 4096, 8192, 16384, 32768)
SMALL = (1024, 2048, 4096, 8192)
"""Isolated stores of these sizes do not stall on any processor that was tried."""
REPEATS, TIMES_EACH = 40, 4
PAUSE_PS = 2_000_000
MOST_RATE_GBS = 1000.0
"""A time that does not grow with the size is that of this rate."""
_NO_TIMES = AccessTimes(AccessTime(0, 1), AccessTime(0, 1))


def measure_access(bench: Bench, machine: Machine) -> AccessTimes:
    """Times of loads and own stores. Sets the cost of noting a store of `bench`, which is taken off them.

    `machine` is the calibrated one: its T_iss0 is what small stores take without that cost.
    """
    took = _times_ticks(bench, "remote", SMALL)
    issue = machine.issue_time_ps(np.array(SMALL, dtype=np.int64)) / 1000 * bench.clock.ticks_per_ns
    bench.costs = replace(bench.costs, mapped_store_ticks=max(0.0, float(np.median(took - issue))))
    return AccessTimes(load=_line(bench, "load"), own_store=_line(bench, "own"))


def _line(bench: Bench, what: str) -> AccessTime:
    """The straight line through the median times, by least squares; a negative start counts as none."""
    ns = (_times_ticks(bench, what, SIZES) - bench.costs.mapped_store_ticks) / bench.clock.ticks_per_ns
    size = np.array(SIZES, dtype=float)
    slope, start = np.polyfit(size, ns, 1)
    if start < 0:
        slope, start = float(np.sum(size * ns) / np.sum(size * size)), 0.0
    return AccessTime(float(start), float(min(MOST_RATE_GBS, 1 / max(slope, 1e-9))))


def _times_ticks(bench: Bench, what: str, sizes: tuple[int, ...]) -> Any:
    """Median ticks of a load ("load"), or a store into the cache ("own") or past it ("remote"), of each size, [sizes]."""
    tables = CoreTables(onto_cores(_program(what, sizes), 1, _NO_TIMES), bench.clock)
    code = lane.OP_LOAD if what == "load" else lane.OP_STORE
    prefix = small_bursts(bench)
    runs = [bench.run_program(tables, prefix, drain_ns=1000.0) for _ in range(REPEATS)]
    paces = [pace_ns_of(bench, run.prefix) for run in runs]
    most = PACE_LIMIT * usual_pace_ns(paces)
    found = []
    for run in (run for run, pace in zip(runs, paces, strict=True) if pace <= most):
        chosen = run.records[tables.ops[run.records[:, 2], 0] == code]
        found.append((chosen[:, 4] - chosen[:, 5]).reshape(TIMES_EACH + 1, -1)[1:])  # the first of each size is cold
    return np.median(np.concatenate(found), axis=0)


def _program(what: str, sizes: tuple[int, ...]) -> Any:
    """Rank 0 of two pauses and loads from rank 1, or pauses and stores to itself, all sizes again and again."""
    builder = ProgramBuilder(n_gpus=2)
    ops: list[dict[str, Any]] = []
    for size in sizes * (TIMES_EACH + 1):
        ops.append({"kind": p.COMPUTE, "duration_ps": PAUSE_PS})
        if what == "load":
            ops.append({"kind": p.LOAD, "target": 1, "bytes": size})
        else:
            row = builder.destination({0 if what == "own" else 1: size})
            ops.append({"kind": p.STORE, "target": row, "bytes": size})
    task = builder.tasks(builder.op_list(ops), 1)
    builder.groups(0, builder.plan(repeat=[builder.queue([task])]), [Seat("core", window=1)])
    return builder.build()
