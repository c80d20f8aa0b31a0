"""Microbenchmark of what ops cost a core (`op_costs`): a lane with random ops between small stores, beside idle lanes.

The time from the end of one store to the begin of the next is what the ops between them cost, and the second store. Which
ops follow each other is random, as in a program, so that the processor cannot foresee them as it could one op over and over.
Costs are those that fit all such times best by least squares.

The first store goes into the core's cache and the second leaves the core, as the parts of a STORE to all ranks do; both are
as large as one of the small isolated bursts of the calibration. How much longer the second takes than they did, in a loop
that does nothing else, is what noting a store costs in a Program.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...sim import program as p
from ...sim.calibrate import BurstTimes
from ...sim.program import Program
from ...sim.program_builder import ProgramBuilder, Seat
from ..centre import centre
from ..measuring import DisturbedError
from ..schedules import RANKS
from . import lane
from .architecture import LINE_BYTES
from .bench import Bench, RanProgram
from .onto_cores import NO_TIMES, onto_cores
from .op_costs import KINDS, OpCosts
from .tables import CoreTables

LANES = (2, 6, 12, 24)
"""Lanes of the core. All but one are idle: a lane that is idle costs a look at its clock, and at its counter if it waits."""
LOADING_LANES, LOADED_BYTES, LOAD_EVERY_PS = 4, 2048, 5_000_000
"""Of the idle lanes so many load now and then in the second measurement, about as often as lanes of MegaMoE pull rows."""
PROGRAMS, SEQUENCES, MOST_BETWEEN = 4, 40, 8
"""Several short programs rather than a long one: a core is seldom quiet for a millisecond."""
REPEATS, MOST_S = 16, 10.0
QUANTILE = 0.75
"""A core keeps to the costs in three of four cases; in the fourth it is late, and catches up when it is next idle."""
PAUSE_PS, LONG_PAUSE_PS = (300_000, 3_000_000), (4_000_000, 16_000_000)
"""Range of the pauses before sequences; long ones give other lanes the time for several loads."""
PLENTY = 1_000_000
"""Of the slot that is taken and given: no ACQUIRE ever waits."""
SMALL_IN_KNEES = 0.55
"""Isolated bursts of up to this size are well below the soft knee."""
_DRAWN = tuple(kind for kind in KINDS if kind != "note")


@dataclass(frozen=True, eq=False)
class _Alone:
    """Small isolated bursts of the calibration: their sizes in bytes, and the ticks that they took."""

    sizes: Any
    ticks: Any


@dataclass(frozen=True, eq=False)
class _Sequences:
    """Random ops between two stores: how many of each kind [sequences, kinds], the Program that runs them all, and what the
    second stores take as bursts of the calibration, in ticks [sequences]."""

    counts: Any
    program: Program
    alone_ticks: Any


def measure_op_costs(bench: Bench, times: BurstTimes, knee_bytes: float, beside_loads: bool) -> OpCosts:
    """What each kind of op costs a core of `bench`, by the number of its lanes. `times` and knee are of the calibration.

    With `beside_loads`, other lanes load between the sequences: they drive what ops need out of the core's nearest cache.
    """
    rng = np.random.default_rng(0)
    cores = min(RANKS, bench.producers)
    small = times.isolated & (times.burst_bytes <= SMALL_IN_KNEES * knee_bytes)
    alone = _Alone(times.burst_bytes[small].astype(int), times.centre_ns()[small] * bench.clock.ticks_per_ns)
    costs = []
    for lanes in LANES:
        programs = [_sequences(cores, lanes, beside_loads, alone, rng) for _ in range(PROGRAMS)]
        costs.append(_costs_ns(bench, programs, cores))
    return OpCosts(LANES, tuple(costs))


def quiet_runs(bench: Bench, tables: CoreTables, repeats: int) -> list[RanProgram]:
    """`repeats` runs of a Program that were not disturbed. Raises `DisturbedError` if runs still are after `MOST_S`."""
    found: list[RanProgram] = []
    give_up = time.monotonic() + MOST_S
    while len(found) < repeats:
        ran = bench.run_program(tables, drain_ns=1000.0)
        if not ran.disturbed:
            found.append(ran)
        elif time.monotonic() > give_up:
            raise DisturbedError(
                f"only {len(found)} of {repeats} runs of a program were quiet in {MOST_S:g} s; "
                "try again when less runs on this computer"
            )
    return found


def _costs_ns(bench: Bench, programs: Sequence[_Sequences], cores: int) -> tuple[float, ...]:
    """What things cost in ns, in the order of `KINDS`."""
    notes, counts, typical = [], [], []
    for each in programs:
        tables = CoreTables(onto_cores(each.program, cores, NO_TIMES), bench.clock)
        runs = quiet_runs(bench, tables, REPEATS)
        notes += [_last_stores_ticks(tables, run) - each.alone_ticks for run in runs]
        took = np.array([_between_ticks(tables, run, len(each.counts)) for run in runs])
        seen = np.isfinite(took).any(axis=0)
        counts.append(each.counts[seen])
        typical.append(np.nanquantile(took[:, seen], QUANTILE, axis=0))
    costs, *_ = np.linalg.lstsq(np.concatenate(counts), np.concatenate(typical), rcond=None)
    return tuple(float(bench.clock.ns(max(0.0, cost))) for cost in (*costs, centre(np.ravel(notes))))


def _last_stores_ticks(tables: CoreTables, run: RanProgram) -> Any:
    """What the second stores of the sequences of lane 0 took."""
    ran, number = run.records[:, lane.RECORD_LANE], run.records[:, lane.RECORD_OP]
    rows = run.records[(ran == 0) & (tables.ops[number, 0] == lane.OP_STORE)]
    last = rows[tables.pieces[tables.ops[rows[:, lane.RECORD_OP], 1], lane.PIECE_AREA] >= 0]  # only they leave the core
    return last[:, lane.RECORD_END] - last[:, lane.RECORD_BEGUN]


def _between_ticks(tables: CoreTables, run: RanProgram, count: int) -> Any:
    """Ticks of each sequence from the end of its first store to the begin of its second, without stores and loads between;
    NaN where another lane had the core in between."""
    code = tables.ops[run.records[:, lane.RECORD_OP], 0]
    first = run.records[:, lane.RECORD_LANE] == 0
    beside = np.isin(run.records[:, lane.RECORD_LANE], tables.lanes_of_core[0]) & ~first
    others = np.sort(run.records[beside & (code == lane.OP_LOAD), lane.RECORD_END])
    mine = run.records[first & np.isin(code, (lane.OP_STORE, lane.OP_LOAD, lane.OP_COMPUTE))]
    pause = (tables.ops[mine[:, lane.RECORD_OP], 0] == lane.OP_COMPUTE) & (tables.ops[mine[:, lane.RECORD_OP], 1] > 0)
    found = np.full(count, np.nan)
    for number, rows in enumerate(np.split(mine, np.flatnonzero(pause))[1:]):
        access = rows[tables.ops[rows[:, lane.RECORD_OP], 0] != lane.OP_COMPUTE]
        ended, began = access[:, lane.RECORD_END], access[:, lane.RECORD_BEGUN]
        since, until = ended[0], began[-1]
        if np.searchsorted(others, since) == np.searchsorted(others, until):
            found[number] = until - since - (ended[1:-1] - began[1:-1]).sum()
    return found


def _sequences(cores: int, lanes: int, beside_loads: bool, alone: _Alone, rng: np.random.Generator) -> _Sequences:
    """Each of `cores` (1 or 2) has a rank of its own, whose lane 0 runs sequences, beside `lanes` - 1 other lanes."""
    builder = ProgramBuilder(RANKS)
    counters = _Counters(*(builder.counters(home=range(RANKS), cause="inputs") for _ in range(2)))
    size_of = np.arange(SEQUENCES) % len(alone.sizes)
    counts = [
        _add_rank(builder, rank, lanes, beside_loads, counters, alone.sizes[size_of], rng) for rank in range(cores)
    ]
    return _Sequences(counts[0], builder.build(), alone.ticks[size_of])


class _Counters(NamedTuple):
    """The first of a counter a rank each: one to signal, and one that says that the rank's sequences have ended."""

    signalled: int
    end: int


def _add_rank(
    builder: ProgramBuilder, rank: int, lanes: int, beside_loads: bool, counters: _Counters, sizes: Any,
    rng: np.random.Generator,
) -> Any:  # fmt: skip
    """The lane that runs sequences. Of the others every second waits until they end, and the rest compute until then; with
    `beside_loads` some load as well. Returns how many ops of each kind are in a sequence."""
    ops = _ops(builder, rank, counters)
    counts = np.zeros((SEQUENCES, len(_DRAWN)), dtype=np.int64)
    counts[:, _DRAWN.index("store")] = 1  # the second one
    pauses_ps = rng.integers(*(LONG_PAUSE_PS if beside_loads else PAUSE_PS), size=SEQUENCES).tolist()
    runs: list[list[dict[str, Any]]] = [[]]
    for sequence, pause in enumerate(pauses_ps):
        own, away = (_store(builder, to, int(sizes[sequence])) for to in (rank, 1 - rank))
        runs[-1] += [{"kind": p.COMPUTE, "duration_ps": pause}, own]
        for kind in rng.integers(len(_DRAWN), size=int(rng.integers(MOST_BETWEEN + 1))).tolist():
            counts[sequence, kind] += _DRAWN[kind] != "task" or bool(runs[-1])  # a task of no ops costs nothing
            if _DRAWN[kind] != "task":
                runs[-1].append(ops[_DRAWN[kind]])
            elif runs[-1]:
                runs.append([])
        runs[-1].append(away)
    runs[-1].append({"kind": p.SIGNAL, "counter": counters.end + rank, "count": 1})
    tasks = [builder.tasks(builder.op_list(run), 1) for run in runs]
    builder.groups(rank, builder.plan(repeat=[builder.queue(tasks)]), [Seat("busy", window=1)], slots=[PLENTY])
    wait = [{"kind": p.WAIT, "counter": counters.end + rank, "count": 1}]
    for number in range(lanes - 1):
        idle = wait if number % 2 else [{"kind": p.COMPUTE, "duration_ps": sum(pauses_ps)}]
        if beside_loads and number < LOADING_LANES:
            idle = [op for _ in range(sum(pauses_ps) // LOAD_EVERY_PS) for op in _load_and_pause(1 - rank, rng)]
        task = builder.tasks(builder.op_list(idle), 1)
        builder.groups(rank, builder.plan(repeat=[builder.queue([task])]), [Seat("idle", window=1)])
    return counts


def _ops(builder: ProgramBuilder, rank: int, counters: _Counters) -> dict[str, dict[str, Any]]:
    """An op of each kind that can go on at once."""
    here, there = counters.signalled + rank, counters.signalled + 1 - rank
    return {
        "compute": {"kind": p.COMPUTE, "duration_ps": 0},
        "store": _store(builder, rank, LINE_BYTES),
        "load": {"kind": p.LOAD, "target": 1 - rank, "bytes": LINE_BYTES},
        "signal": {"kind": p.SIGNAL, "counter": here, "count": 1},
        "remote_signal": {"kind": p.SIGNAL, "counter": there, "count": 1},
        "wait": {"kind": p.WAIT, "counter": here, "count": 0},
        "acquire": {"kind": p.ACQUIRE, "counter": 0, "count": 1},
        "release": {"kind": p.RELEASE, "counter": 0, "count": 1},
    }


def _store(builder: ProgramBuilder, to: int, size: int) -> dict[str, Any]:
    return {"kind": p.STORE, "target": builder.destination({to: size}), "bytes": size}


def _load_and_pause(owner: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    pause = round(LOAD_EVERY_PS * rng.uniform(0.5, 1.5))
    return [{"kind": p.LOAD, "target": owner, "bytes": LOADED_BYTES}, {"kind": p.COMPUTE, "duration_ps": pause}]
