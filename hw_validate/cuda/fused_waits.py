"""When what the lanes of a fused kernel wait for was there, as the records of those who bumped its counters tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim import program as p
from ...sim.program import Program
from ...sim.program_index import expand

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, np.dtype[Any]]
_NEVER = 2**31
"""More than any counter reaches."""


def reached_us(program: Program, table: pd.DataFrame) -> Callable[[Array, Array], Array]:
    """A function of counters and counts: when each counter had reached its count in the run of an op table, in us. -inf for
    no counter, inf where it took loads or other GPUs, because their arrival is not noted."""
    rows = table[table["op"] >= 0]
    gpu = program.lanes["gpu"][rows["lane"].to_numpy()]
    counter, total, time = _bumps(program, gpu, rows["op"].to_numpy(), rows["end_us"].to_numpy())
    place = counter * _NEVER + total

    def reached(counter: Array, count: Array) -> Array:
        found = time[np.searchsorted(place, counter.astype(np.int64) * _NEVER + count)]
        return np.where(counter < 0, -np.inf, found)

    return reached


def late_inputs(program: Program, table: pd.DataFrame) -> dict[str, float]:
    """Sum and 95 % over the WAITs of L2 main loops, in us: how long after the last SIGNAL that it needed, or after it began,
    each saw that its inputs are there. {} for a kernel that has no such WAITs.

    A SIGNAL is given once what its SM stored before has landed, remote stores of other tiles too. That delay shows here, and
    in no stall of a store.
    """
    mine = table[(table["phase"] == "l2") & (table["role"] == "mma") & (table["kind"] == "wait")]
    if not len(mine):
        return {}
    ops = program.ops[mine["op"].to_numpy()]
    there = reached_us(program, table)(ops["counter"], ops["count"])
    late = mine["end_us"] - np.clip(there, mine["start_us"], mine["end_us"])
    return {"l2_inputs_late_total_us": float(late.sum()), "l2_inputs_late_p95_us": float(late.quantile(0.95))}


def _bumps(program: Program, gpu: Array, op: Array, end: Array) -> tuple[Array, Array, Array]:
    """By counter and time: counter, its value from then on, and the time when a SIGNAL or STORE of its own GPU made it so.

    `op` ran on `gpu` until `end` us. Counters have their initial value before everything, and `_NEVER` after.
    """
    ops, every = program.ops[op], np.arange(len(program.counters))
    signals = np.flatnonzero(ops["kind"] == p.SIGNAL)
    signals = signals[program.counters["home"][ops["counter"][signals]] == gpu[signals]]
    stores = np.flatnonzero((ops["kind"] == p.STORE) & (ops["counter"] >= 0))
    destination = program.destinations[ops["target"][stores]]
    owner, share = expand(destination["first"], destination["n_shares"])
    stores = stores[owner[program.shares["gpu"][share] == gpu[stores][owner]]]
    of_stores = ops["counter"][stores] + ops["stride"][stores] * gpu[stores]
    counter = np.concatenate([every, ops["counter"][signals], of_stores, every]).astype(np.int64)
    amount = np.concatenate(
        [program.counters["initial"], ops["count"][signals], np.ones(len(stores)), np.full(len(every), _NEVER)]
    ).astype(np.int64)
    time = np.concatenate([np.full(len(every), -np.inf), end[signals], end[stores], np.full(len(every), np.inf)])
    order = np.lexsort((time, counter))
    counter, amount, time = counter[order], amount[order], time[order]
    total = np.cumsum(amount)
    first = np.searchsorted(counter, every)
    return counter, np.minimum(total - (total[first] - amount[first])[counter], _NEVER - 1), time
