"""How long a core needs for what the law of the X-Stage does not tell: loads, stores into its cache, and noting a store.

Measured as ops of a Program on a core, each after a pause, since that is how they are used, and in quiet runs alone, told by
their small bursts like those of a replay. What ops cost, and noting a store, is measured first (`bookkeeping`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...sim import program as p
from ...sim.calibrate import BurstTimes
from ...sim.program_builder import ProgramBuilder, Seat
from . import lane
from .bench import Bench
from .bookkeeping import measure_op_costs, quiet_runs
from .onto_cores import NO_TIMES, AccessTime, AccessTimes, onto_cores
from .tables import CoreTables

SIZES = (1024, 2048, 4096, 8192, 16384, 32768)
REPEATS, TIMES_EACH = 40, 4
PAUSE_PS = 2_000_000
MOST_RATE_GBS = 1000.0
"""A time that does not grow with the size is that of this rate."""


def measure_access(bench: Bench, times: BurstTimes, knee_bytes: float) -> AccessTimes:
    """Times of loads and own stores, and costs of ops. `times` and knee are those of the calibration."""
    ops, beside_loads = (measure_op_costs(bench, times, knee_bytes, loads) for loads in (False, True))
    note_ticks = bench.clock.ticks_per_ns * ops.ps(1)["note"] / 1000
    return AccessTimes(_line(bench, "load", note_ticks), _line(bench, "own", note_ticks), ops, beside_loads)


def _line(bench: Bench, what: str, note_ticks: float) -> AccessTime:
    """The straight line through the median times less those of noting them, by least squares; a negative start is none."""
    ns = (_times_ticks(bench, what, SIZES) - note_ticks) / bench.clock.ticks_per_ns
    size = np.array(SIZES, dtype=float)
    slope, start = np.polyfit(size, ns, 1)
    if start < 0:
        slope, start = float(np.sum(size * ns) / np.sum(size * size)), 0.0
    return AccessTime(float(start), float(min(MOST_RATE_GBS, 1 / max(slope, 1e-9))))


def _times_ticks(bench: Bench, what: str, sizes: tuple[int, ...]) -> Any:
    """Median ticks of a load ("load") or a store into the cache ("own") of each size, [sizes]."""
    tables = CoreTables(onto_cores(_program(what, sizes), 1, NO_TIMES), bench.clock)
    code = lane.OP_LOAD if what == "load" else lane.OP_STORE
    found = []
    for run in quiet_runs(bench, tables, REPEATS):
        chosen = run.records[tables.ops[run.records[:, lane.RECORD_OP], 0] == code]
        found.append(
            (chosen[:, lane.RECORD_END] - chosen[:, lane.RECORD_BEGUN]).reshape(TIMES_EACH + 1, -1)[1:]
        )  # the first of each size is cold
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
            row = builder.destination({0: size})
            ops.append({"kind": p.STORE, "target": row, "bytes": size})
    task = builder.tasks(builder.op_list(ops), 1)
    builder.groups(0, builder.plan(repeat=[builder.queue([task])]), [Seat("core", window=1)])
    return builder.build()
