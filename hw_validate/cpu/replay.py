"""Run simulated Programs on real cores and note when each op ended: a measured trace with the columns of `Trace.ops()`.

A Program whose lanes have an SM each and store to one other GPU runs as a list of steps a core (`lower`), which costs least
between two ops. One that `onto_cores` has mapped runs as its tables say (`CoreTables`): several lanes a core, and the order
of tasks as it comes.

All Programs of a call are run once in random order, then again, and so on, so that a disturbance does not hit one Program
alone. Runs that were disturbed do not count, and are made up for by further runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...sim.errors import InputError
from ...sim.trace import Trace
from ..measuring import DisturbedError, Progress, silent
from .bench import Bench
from .lane import RECORD_BEGUN, RECORD_END, RECORD_LANE, RECORD_OP, RECORD_START
from .lower import LoweredLane, lower
from .microbenchmark import MOST_ROUNDS, disturbed_so_far
from .onto_cores import judged_ops
from .tables import CoreTables
from .yardstick import Steps

if TYPE_CHECKING:
    import pandas as pd

LEAST_REPEATS = 3


def replay(
    traces: Sequence[Trace],
    bench: Bench,
    repeats: int,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> list[pd.DataFrame | None]:
    """For each simulated trace (a full one) the measured one: its op table once for each quiet repeat, numbered by `repeat`.

    Every Program gets at least `repeats` quiet ones, unless that takes more than three times as many runs. One that has
    fewer than 3 even then was not measured: None stands in its place.

    `stall_us` of a store is its time less T_iss0 of its Program, so it may lie a little below 0.
    Raises `ProgramError` for ops that cores cannot run, `InputError` for more lanes than cores, `DisturbedError` if more
    than half of the Programs could not be measured.
    """
    if repeats < LEAST_REPEATS:
        raise InputError("are too few", field="repeats", value=repeats, allowed=f"{LEAST_REPEATS} or more")
    prepared = [_prepared(trace, bench) for trace in traces]
    quiet: list[list[Any]] = [[] for _ in traces]
    turns, fewest = 0, 0
    while fewest < repeats and turns < MOST_ROUNDS * repeats:
        ran, kept = turns * len(traces), sum(len(each) for each in quiet)
        progress(f"replaying {len(traces)} programs" + disturbed_so_far(ran - kept, ran, "runs"),
                 max(fewest / repeats, turns / (MOST_ROUNDS * repeats)))  # fmt: skip
        for i in rng.permutation(len(traces)).tolist():
            noted = prepared[i].run(bench)
            quiet[i] += [] if noted is None else [noted]
        turns, fewest = turns + 1, min((len(each) for each in quiet), default=repeats)
    found = [_measured(each, runs, bench) for each, runs in zip(prepared, quiet, strict=True)]
    missing = sum(table is None for table in found)
    if missing > len(traces) / 2:
        raise DisturbedError(
            f"{missing} of {len(traces)} programs had fewer than {LEAST_REPEATS} quiet repeats; "
            "try again when less runs on this computer"
        )
    return found


class _Prepared(Protocol):
    """A Program made ready: `run` runs it once (None if that was disturbed), `table` makes an op table of what it noted."""

    def run(self, bench: Bench) -> Any: ...

    def table(self, noted: Any, bench: Bench) -> pd.DataFrame: ...


def _prepared(trace: Trace, bench: Bench) -> _Prepared:
    mapped = "cores" in trace.program.meta
    cores = int(trace.program.lanes["sm"].max(initial=-1)) + 1 if mapped else len(trace.program.lanes)
    if cores > bench.producers:
        raise InputError("more lanes than cores", field="lanes", value=cores, allowed=f"1 to {bench.producers}")
    return _Mapped(trace, bench) if mapped else _Listed(trace, bench)


def _measured(prepared: _Prepared, runs: list[Any], bench: Bench) -> pd.DataFrame | None:
    import pandas as pd

    if len(runs) < LEAST_REPEATS:
        return None
    tables = [prepared.table(noted, bench) for noted in runs]
    for number, table in enumerate(tables):
        table.insert(0, "repeat", number)
    return pd.concat(tables, ignore_index=True)


class _Listed:
    """A Program as a list of steps a lane, in the order in which the simulation ran them."""

    def __init__(self, trace: Trace, bench: Bench) -> None:
        self.lowered = lower(trace, bench.clock, bench.costs)
        rows = np.concatenate([each.records for each in self.lowered.lanes])
        self.base = trace.ops().iloc[rows].reset_index(drop=True)
        self.unhindered_us = _unhindered_us(self.base)
        self.is_store = (self.base["kind"] == "store").to_numpy()
        self.waits = self.base["kind"].isin(["wait", "acquire"]).to_numpy()

    def run(self, bench: Bench) -> Any:
        self.lowered.reset()
        stamps, disturbed = bench.run_watched([each.steps for each in self.lowered.lanes])
        return None if disturbed else stamps

    def table(self, noted: Any, bench: Bench) -> pd.DataFrame:
        start_us, end_us = _times_us(self.lowered.lanes, noted, self.is_store, bench)
        took = end_us - start_us
        return self.base.assign(
            start_us=start_us,
            end_us=end_us,
            stall_us=np.where(self.is_store, took - self.unhindered_us, 0.0),
            wait_us=np.where(self.waits, took, 0.0),
        )


class _Mapped:
    """A Program that `onto_cores` has mapped, as tables. An op is told by its task and number, whichever lane ran it."""

    def __init__(self, trace: Trace, bench: Bench) -> None:
        self.tables = CoreTables(trace.program, bench.clock)
        fabric = trace.fabric
        self.drain_ns = 1e6 * float(fabric.capacity_gpu[0]) / float(fabric.rates_kbs[0, 0])
        self.note_us = trace.program.meta["cores"]["costs_ps"]["note"] / 1e6
        self.base = judged_ops(trace)
        self.unhindered_us = _unhindered_us(self.base)
        self.row_of_op = np.full(len(trace.program.ops), -1)  # `onto_cores` gives every op that is run its own row
        self.row_of_op[self.base["op"]] = np.arange(len(self.base))
        self.is_store = (self.base["kind"] == "store").to_numpy()
        self.waits = self.base["kind"].isin(["wait", "acquire"]).to_numpy()

    def run(self, bench: Bench) -> Any:
        ran = bench.run_program(self.tables, self.drain_ns)
        return None if ran.disturbed else ran.records

    def table(self, noted: Any, bench: Bench) -> pd.DataFrame:
        """`wait_us` of a store or load is the time until its core began it."""
        row = self.row_of_op[self.tables.numbers[noted[:, RECORD_OP]]]
        order = np.argsort(row)
        lane = noted[order, RECORD_LANE].astype(int)
        per_us = 1000 * bench.clock.ticks_per_ns
        start, end, begun = (noted[order, time] / per_us for time in (RECORD_START, RECORD_END, RECORD_BEGUN))
        takes_core = self.is_store | (self.base["kind"] == "load").to_numpy()
        end = end - np.where(takes_core, self.note_us, 0.0)
        stall = np.where(self.is_store, end - begun - self.unhindered_us, 0.0)
        wait = np.where(takes_core, begun - start, np.where(self.waits, end - start, 0.0))
        lanes = self.tables.program.lanes[lane]
        times = {"start_us": start, "end_us": end, "stall_us": stall, "wait_us": wait, "begun_us": begun}
        return self.base.assign(lane=lane, gpu=lanes["gpu"], sm=lanes["sm"], **times)


def _unhindered_us(ops: pd.DataFrame) -> Any:
    return (ops["end_us"] - ops["start_us"] - ops["stall_us"] - ops["wait_us"]).to_numpy()


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
