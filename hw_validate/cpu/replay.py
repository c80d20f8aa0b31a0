"""Run simulated Programs on real cores and note when each op ended: a measured trace with the columns of `Trace.ops()`.

All Programs of a call are run once in random order, then again, and so on, so that a disturbance does not hit one Program
alone. Every run begins with a few small bursts as a yardstick, as a round of the microbenchmark does; runs in which these
took much longer than usual were disturbed, do not count, and are made up for by further runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...sim.errors import InputError
from ...sim.trace import Trace
from ..centre import centre
from ..measuring import DisturbedError, Progress, silent
from . import lane
from .bench import Bench, Steps
from .lower import Lowered, LoweredLane, lower
from .microbenchmark import MOST_ROUNDS, PACE_BURSTS, PACE_LIMIT, PACE_LINES, REST_NS

if TYPE_CHECKING:
    import pandas as pd

LEAST_REPEATS = 3


def replay(
    traces: Sequence[Trace],
    bench: Bench,
    repeats: int,
    rng: np.random.Generator,
    pace_ns: float | None = None,
    progress: Progress = silent,
) -> list[pd.DataFrame]:
    """For each simulated trace (a full one) the measured one: its op table once for each quiet repeat, numbered by `repeat`.

    Every Program gets at least `repeats` quiet ones, unless that takes more than three times as many runs.

    `stall_us` of a store is its time less T_iss0 of its Program, so it may lie a little below 0. `pace_ns` is what small
    bursts take when nothing disturbs them (default: what they took in the quietest quarter of runs).
    Raises `ProgramError` for ops that cores cannot run, `InputError` for more lanes than cores, `DisturbedError` if fewer
    than 3 repeats of a Program were quiet.
    """
    if repeats < LEAST_REPEATS:
        raise InputError("are too few", field="repeats", value=repeats, allowed=f"{LEAST_REPEATS} or more")
    prefix = _prefix(bench)
    lead = bench.clock.ticks((PACE_BURSTS + 3) * 1.5 * REST_NS)
    lowered = [lower(trace, bench.clock, bench.costs, lead, prefix) for trace in traces]
    for trace in traces:
        if len(trace.program.lanes) > bench.producers:
            raise InputError("more lanes than cores", field="lanes", value=len(trace.program.lanes),
                             allowed=f"1 to {bench.producers}")  # fmt: skip
    runs: list[list[_Run]] = [[] for _ in traces]
    quiet = runs
    turns, fewest = 0, 0
    while fewest < repeats and turns < MOST_ROUNDS * repeats:
        progress(f"replaying {len(traces)} programs", fewest / repeats)
        for i in rng.permutation(len(traces)).tolist():
            lowered[i].reset()
            stamps, disturbed = bench.run([each.steps for each in lowered[i].lanes])
            runs[i].append(_Run(stamps, np.inf if disturbed else _pace_ns(bench, stamps)))
        paces = np.array([run.pace_ns for each in runs for run in each])
        usual = pace_ns or float(np.quantile(paces[np.isfinite(paces)], 0.25)) if np.isfinite(paces).any() else 0.0
        quiet = [[run for run in each if run.pace_ns <= PACE_LIMIT * usual] for each in runs]
        turns, fewest = turns + 1, min((len(each) for each in quiet), default=repeats)
    return [_measured(*each, bench) for each in zip(traces, lowered, quiet, strict=True)]


class _Run(NamedTuple):
    """One run of one Program: the times noted by lane, and what the small bursts before it took; infinite if disturbed."""

    stamps: list[Steps]
    pace_ns: float


def _prefix(bench: Bench) -> Steps:
    steps = np.zeros((2 * PACE_BURSTS, 4), dtype=np.int64)
    steps[::2, 0], steps[::2, 1] = lane.SPIN, bench.clock.ticks(REST_NS)
    steps[1::2, 0], steps[1::2, 1] = lane.STORE, PACE_LINES
    return steps


def _pace_ns(bench: Bench, stamps_by_lane: list[Steps]) -> float:
    took = [centre(np.diff(stamps)[1 : 2 * PACE_BURSTS : 2]) for stamps in stamps_by_lane]
    return bench.clock.ns(float(np.mean(took)) - bench.costs.store_ticks)


def _measured(trace: Trace, lowered: Lowered, runs: list[_Run], bench: Bench) -> pd.DataFrame:
    import pandas as pd

    if len(runs) < LEAST_REPEATS:
        raise DisturbedError(
            f"only {len(runs)} repeats of a program were quiet (needed: {LEAST_REPEATS}); "
            "try again when less runs on this computer"
        )
    simulated = trace.ops()
    rows = np.concatenate([each.records for each in lowered.lanes])
    base = simulated.iloc[rows].reset_index(drop=True)
    unhindered = (base["end_us"] - base["start_us"] - base["stall_us"] - base["wait_us"]).to_numpy()
    is_store = (base["kind"] == "store").to_numpy()
    waits = base["kind"].isin(["wait", "acquire"]).to_numpy()
    tables = []
    for number, run in enumerate(runs):
        start_us, end_us = _times_us(lowered.lanes, run.stamps, is_store, bench)
        took = end_us - start_us
        table = base.assign(
            start_us=start_us,
            end_us=end_us,
            stall_us=np.where(is_store, took - unhindered, 0.0),
            wait_us=np.where(waits, took, 0.0),
        )
        table.insert(0, "repeat", number)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def _times_us(lanes: list[LoweredLane], run: list[Steps], is_store: Any, bench: Bench) -> tuple[Any, Any]:
    """Start and end of each op, lane by lane, from the moment at which the first lane began; noting a time is no storing."""
    begun = min(int(noted[each.first[0]]) for each, noted in zip(lanes, run, strict=True) if len(each.first))
    start = np.concatenate([noted[each.first] for each, noted in zip(lanes, run, strict=True)]) - begun
    end = np.concatenate([noted[each.last] for each, noted in zip(lanes, run, strict=True)]) - begun
    end = end - np.where(is_store, bench.costs.store_ticks, 0.0)
    after_store = np.concatenate([[False], is_store[:-1]])
    after_store[np.cumsum([0, *(len(each.first) for each in lanes[:-1])])] = False
    start = start - np.where(after_store, bench.costs.store_ticks, 0.0)
    per_us = 1000 * bench.clock.ticks_per_ns
    return start / per_us, end / per_us
