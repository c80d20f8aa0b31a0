"""A simulated Program as lists of steps for real cores: one core a lane, ops in the order in which the simulation ran them.

    COMPUTE          spin until its time is over
    STORE            the bytes for other GPUs are non-temporal stores, those for the lane's own GPU ordinary ones
    SIGNAL, WAIT     an atomic addition to a counter of the lane's own GPU, and a loop that reads it
    ACQUIRE, RELEASE the same for a slot of the lane's group
    guards           waits at the start of a task

What such a list cannot say is refused by name: a LOAD; a STORE that bumps a counter when it is visible, and a SIGNAL to
another GPU; a STORE that adds; one that a network interface reads from memory; a multicast; several lanes of one SM; lanes
of several GPUs. Programs with loads, counters, several GPUs or several lanes an SM are mapped by `onto_cores` and run as
tables instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...sim import program as p
from ...sim.errors import ProgramError
from ...sim.outcome import OP_OF_TASK_WAIT
from ...sim.program import Program
from ...sim.trace import Trace
from . import lane
from .architecture import LINE_BYTES
from .bench import Costs
from .clock import Clock
from .yardstick import Steps

WORDS_APART = 8
"""Counters lie on cache lines of their own."""


@dataclass(frozen=True, eq=False)
class LoweredLane:
    """The steps of a lane. Op i of the lane is steps `first[i]` up to `last[i]`; `records` are its rows of op records."""

    steps: Steps
    first: Steps
    last: Steps
    records: Steps


@dataclass(frozen=True, eq=False)
class Lowered:
    """Lists of steps by lane, and the counters and slots that they share, with initial values to be set before each run."""

    lanes: list[LoweredLane]
    words: Steps
    initial: Steps

    def reset(self) -> None:
        self.words[: WORDS_APART * len(self.initial) : WORDS_APART] = self.initial


def lower(trace: Trace, clock: Clock, costs: Costs) -> Lowered:
    """Steps for the Program of a full `trace`.

    Raises `ProgramError` for what cores cannot do.
    """
    program = trace.program
    refuse_unsupported(program)
    initial = np.concatenate([program.counters["initial"], program.slots]).astype(np.int64)
    words = np.zeros(WORDS_APART * (1 + len(initial)), dtype=np.int64)
    records = trace.outcome.op_records
    lanes = []
    for number in range(len(program.lanes)):
        rows = np.flatnonzero((records["lane"] == number) & (records["op"] != OP_OF_TASK_WAIT))
        builder = _LaneBuilder(program, number, clock, costs, words.ctypes.data)
        builder.begin()
        for row in rows:
            builder.add(int(records["task"][row]), int(records["op"][row]))
        lanes.append(builder.done(rows))
    return Lowered(lanes, words, initial)


def refuse_unsupported(program: Program) -> None:
    """Raise `ProgramError` naming the first op, lane or destination that cores cannot run."""
    ops, lanes = program.ops, program.lanes
    _refuse_op(ops["kind"] == p.LOAD, "LOAD", "a core has no other GPU to load from")
    store = ops["kind"] == p.STORE
    no_notice = "a core gets no notice of when its stores are visible"
    _refuse_op(store & (ops["counter"] != p.NO_COUNTER), "STORE that bumps a counter", no_notice)
    _refuse_op(store & (ops["flags"] & p.REDUCE != 0), "STORE that adds", "non-temporal stores overwrite")
    _refuse_op(
        store & (ops["flags"] & p.FROM_MEMORY != 0), "STORE that goes FROM_MEMORY", "a core issues all its stores"
    )
    replicated = np.zeros(len(ops), dtype=bool)
    replicated[store] = program.destinations["replicate"][ops["target"][store]] == 1
    _refuse_op(replicated, "multicast STORE", "a core stores to one memory")
    places, counts = np.unique(np.stack([lanes["gpu"], lanes["sm"]]), axis=1, return_counts=True)
    if (counts > 1).any():
        gpu, sm = places[:, np.argmax(counts > 1)]
        raise ProgramError(
            f"the CPU replay cannot run {counts.max()} lanes on SM {sm} of GPU {gpu}: a core is one lane"
        )
    if len(np.unique(lanes["gpu"])) > 1:
        raise ProgramError("the CPU replay cannot run lanes of several GPUs: the cores share one memory")
    signal = ops["kind"] == p.SIGNAL
    if len(lanes):
        remote = np.zeros(len(ops), dtype=bool)
        remote[signal] = program.counters["home"][ops["counter"][signal]] != lanes["gpu"][0]
        _refuse_op(remote, "SIGNAL to another GPU", no_notice)


def _refuse_op(bad: Any, what: str, why: str) -> None:
    if bad.any():
        raise ProgramError(f"the CPU replay cannot run ops[{int(np.argmax(bad))}], a {what}: {why}")


class _LaneBuilder:
    """Collects the steps of one lane."""

    def __init__(self, program: Program, number: int, clock: Clock, costs: Costs, words: int) -> None:
        self.program, self.clock, self.costs, self.words = program, clock, costs, words
        self.lane = program.lanes[number]
        group = program.groups[self.lane["group"]]
        self.first_slot = len(program.counters) + int(group["first_slot"])
        self.steps: list[tuple[int, int, int, int]] = []
        self.first: list[int] = []
        self.last: list[int] = []
        self.task = -1
        self.stored = False  # the step before noted its time after stores, which costs some

    def begin(self) -> None:
        start = self.clock.ticks(int(self.lane["start_ps"]) / 1000)
        self.steps.append((lane.AT, start - round(self.costs.overshoot_ticks), 0, 0))

    def add(self, task: int, number: int) -> None:
        if task != self.task:
            self.task = task
            self._guards(self.program.tasks[task])
        op = self.program.ops[number]
        first = len(self.steps)
        _ADD[int(op["kind"])](self, op)
        self.first.append(first)
        self.last.append(len(self.steps))
        self.stored = op["kind"] == p.STORE

    def done(self, rows: Steps) -> LoweredLane:
        steps = np.array(self.steps, dtype=np.int64).reshape(-1, 4)
        return LoweredLane(steps, np.array(self.first, dtype=np.int64), np.array(self.last, dtype=np.int64), rows)

    def _guards(self, task: Any) -> None:
        for counter, count in zip(task["guard_counter"], task["guard_count"], strict=True):
            if counter != p.NO_COUNTER:
                self.steps.append((lane.WAIT, self._address(int(counter)), int(count), 0))

    def _address(self, word: int) -> int:
        return self.words + 8 * WORDS_APART * word

    def _compute(self, op: Any) -> None:
        already = self.costs.overshoot_ticks + (self.costs.store_ticks if self.stored else 0)
        ticks = self.clock.ticks(int(op["duration_ps"]) / 1000) - round(already)
        self.steps.append((lane.SPIN, max(0, ticks), 0, 0))

    def _store(self, op: Any) -> None:
        row = self.program.destinations[op["target"]]
        shares = self.program.shares[row["first"] : row["first"] + row["n_shares"]]
        own = shares["gpu"] == self.lane["gpu"]
        there, here = int(shares["bytes"][~own].sum()), int(shares["bytes"][own].sum())
        if here:
            self.steps.append((lane.CACHED, -(-here // LINE_BYTES), 0, 0))
        if there or not here:
            self.steps.append((lane.STORE, -(-there // LINE_BYTES), 0, 0))

    def _counter(self, op: Any) -> None:
        code = lane.SIGNAL if op["kind"] == p.SIGNAL else lane.WAIT
        self.steps.append((code, self._address(int(op["counter"])), int(op["count"]), 0))

    def _slot(self, op: Any) -> None:
        code = lane.ACQUIRE if op["kind"] == p.ACQUIRE else lane.RELEASE
        self.steps.append((code, self._address(self.first_slot + int(op["counter"])), int(op["count"]), 0))


_ADD: Mapping[int, Any] = {
    p.COMPUTE: _LaneBuilder._compute,
    p.STORE: _LaneBuilder._store,
    p.SIGNAL: _LaneBuilder._counter,
    p.WAIT: _LaneBuilder._counter,
    p.ACQUIRE: _LaneBuilder._slot,
    p.RELEASE: _LaneBuilder._slot,
}
