"""The arrays of a Program that `lane.run_core` reads, and the state that it changes.

They say the same as the Program's own tables, in ticks and lines, with counters, slots and cursors as words of one block of
memory: first the counters, a word for each core, then the slots, then a cursor for each queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...sim import program as p
from ...sim.errors import ProgramError
from ...sim.program import Program
from ...sim.program_index import visits
from . import lane
from .clock import Clock
from .onto_cores import NOTICE, SENDER, lines_of, memory_of
from .op_costs import KINDS

Ints = np.ndarray[Any, np.dtype[np.int64]]

MOST_AREAS = 64

_CODES = {
    p.COMPUTE: lane.OP_COMPUTE,
    p.STORE: lane.OP_STORE,
    p.LOAD: lane.OP_LOAD,
    p.SIGNAL: lane.OP_SIGNAL,
    p.WAIT: lane.OP_WAIT,
    p.ACQUIRE: lane.OP_ACQUIRE,
    p.RELEASE: lane.OP_RELEASE,
}


@dataclass(frozen=True, eq=False)
class CoreTables:
    """A Program made by `onto_cores`, ready to run; `lanes_of_core` has the lanes of each core, notice lanes excepted.

    `ops` has no row for what is nothing but a cost of another op, since a core has that anyway: row i is op `numbers[i]` of
    the Program. `costs` are ticks by kind.

    Raises `ProgramError` for a Program that is not from `onto_cores`, or too large.
    """

    program: Program
    clock: Clock
    ops: Ints = field(init=False)
    numbers: Ints = field(init=False)
    costs: Ints = field(init=False)
    pieces: Ints = field(init=False)
    notices: Ints = field(init=False)
    runs: Ints = field(init=False)
    tasks: Ints = field(init=False)
    queues: Ints = field(init=False)
    queue_tasks: Ints = field(init=False)
    steps: Ints = field(init=False)
    groups: Ints = field(init=False)
    lanes: Ints = field(init=False)
    initial: Ints = field(init=False)
    lanes_of_core: list[Ints] = field(init=False)

    def __post_init__(self) -> None:
        program = self.program
        if "cores" not in program.meta:
            raise ProgramError("the CPU replay cannot run this Program as it is: map it with `onto_cores` first")
        if self.ranks > MOST_AREAS - 1:
            raise ProgramError(f"the CPU replay has room for {MOST_AREAS - 1} ranks, not {self.ranks}")
        notice = program.roles.index(NOTICE) if NOTICE in program.roles else -1
        acting = program.lanes["role"] != notice
        cores = int(program.lanes["sm"][acting].max(initial=-1)) + 1
        by_core = [np.flatnonzero(acting & (program.lanes["sm"] == core)) for core in range(cores)]
        made = self._ops() | self._order(cores)
        counters = np.zeros((len(program.counters), cores), dtype=np.int64)
        counters[:, :1] = program.counters["initial"][:, None]
        cursors = np.zeros(len(program.queues), dtype=np.int64)
        made["initial"] = np.concatenate([counters.ravel(), program.slots, cursors]).astype(np.int64)
        if len(made["notices"]) > lane.MOST_PENDING:
            raise ProgramError(f"the CPU replay can hold back {lane.MOST_PENDING} notices, not {len(made['notices'])}")
        for name, value in [*made.items(), ("lanes_of_core", by_core)]:
            object.__setattr__(self, name, value)

    @property
    def ranks(self) -> int:
        return int(self.program.meta["cores"]["ranks"])

    @property
    def n_words(self) -> int:
        return len(self.initial)

    @property
    def most_stored_lines(self) -> int:
        """The largest piece of a store."""
        return int(self.pieces[:, lane.PIECE_LINES].max(initial=0))

    @property
    def most_loaded_lines(self) -> int:
        return int(self.ops[self.ops[:, 0] == lane.OP_LOAD, 2].max(initial=0))

    def state(self) -> State:
        """Fresh counters, slots, cursors, lanes and groups."""
        words = np.zeros(lane.WORDS_APART * (1 + self.n_words + len(self.lanes_of_core)), dtype=np.int64)
        first = (-words.ctypes.data // 8) % lane.WORDS_APART  # on a cache line of its own
        words[first : first + lane.WORDS_APART * self.n_words : lane.WORDS_APART] = self.initial
        most = max(1, len(self.program.queue_tasks))
        lanes = _rows(len(self.lanes))
        lanes[:, lane.TASK] = -1
        groups = _rows(len(self.groups))
        return State(
            words, words.ctypes.data + 8 * first, lanes, groups, np.zeros((len(self.groups), most, 2), np.int64)
        )

    def describe(self, number: int, state: State) -> str:
        """Where a lane stands that waited in vain, and for which counter."""
        row, at = self.program.lanes[number], state.lanes[number]
        who = f"lane {number} ({self.program.roles[row['role']]}) on core {row['sm']}"
        if at[lane.TASK] < 0:
            return f"{who} waited for its group's next task"
        code, a, b = (int(value) for value in self.ops[at[lane.OP], :3])
        if code == lane.OP_WAIT:
            value = sum(state.word(a * len(self.lanes_of_core) + core) for core in range(len(self.lanes_of_core)))
            return f"{who} waited in task {at[lane.TASK]} for counter {a} to be {b}, which stayed at {value}"
        if code == lane.OP_ACQUIRE:
            return f"{who} waited in task {at[lane.TASK]} for {b} of slot {a} of its group"
        return f"{who} stood at ops[{at[lane.OP]}] of task {at[lane.TASK]}"

    def _ops(self) -> dict[str, Ints]:
        program, found = self.program, self.program.meta["cores"]
        owner_and_bytes = {op: (owner, size) for op, owner, size in found["loads"]}
        remote, told, own = set(found["remote_signals"]), dict(found["told"]), dict(found["own_stores"])
        costing = [number for number, _ in found["costing"]]
        numbers = np.delete(np.arange(len(program.ops)), costing)
        ops = np.zeros((len(numbers), 5), dtype=np.int64)
        pieces: list[tuple[int, int]] = []
        notices: list[int] = []
        for i, number in enumerate(numbers.tolist()):
            op = program.ops[number]
            kind, counter, count = (int(op[name]) for name in ("kind", "counter", "count"))
            ticks = self._with_cost(op, number in remote)
            row: tuple[int, ...]
            if number in owner_and_bytes:
                owner, size = owner_and_bytes[number]
                row = (lane.OP_LOAD, owner, lines_of(size), 0, 0)
            elif kind == p.COMPUTE:
                row = (lane.OP_COMPUTE, ticks, 0, 0, 0)
            elif kind == p.STORE:
                shares = [(SENDER, own[number])] if number in own else self._shares(op)
                first, first_notice = len(pieces), len(notices)
                pieces += [(-1 if gpu == SENDER else gpu - memory_of(0), lines_of(size)) for gpu, size in shares]
                if counter != p.NO_COUNTER:
                    notices += [told[counter + gpu] for gpu, _ in shares if gpu != SENDER]
                row = (lane.OP_STORE, first, len(pieces) - first, first_notice, len(notices))
            elif kind == p.SIGNAL:
                row = (lane.OP_REMOTE_SIGNAL if number in remote else lane.OP_SIGNAL, counter, count, ticks, 0)
            else:
                row = (_CODES[kind], counter, count, 0, 0)
            ops[i] = row
        return {
            "ops": ops,
            "numbers": numbers,
            "costs": np.array(
                [self.clock.ticks(self._costs_ps[kind] / 1000) for kind in KINDS[: lane.N_COSTS]], dtype=np.int64
            ),
            "pieces": np.array(pieces, dtype=np.int64).reshape(-1, 2),
            "notices": np.array(notices, dtype=np.int64),
        }

    @property
    def _costs_ps(self) -> dict[str, int]:
        return dict(self.program.meta["cores"]["costs_ps"])

    def _with_cost(self, op: Any, is_remote: bool) -> int:
        """Ticks of a COMPUTE or SIGNAL, which began with what it costs the core; 0 if it has no duration of its own."""
        cost = self._costs_ps["remote_signal" if is_remote else p.KIND_NAMES[int(op["kind"])]]
        own = int(op["duration_ps"])
        return self.clock.ticks((own + cost) / 1000) if own > 0 else 0

    def _shared(self) -> Ints:
        """Whether groups on several cores visit a queue, by queue."""
        group, queue = visits(self.program)
        core = self.program.lanes["sm"][self.program.groups["first_lane"][group]]
        return np.array([len(np.unique(core[queue == q])) > 1 for q in range(len(self.program.queues))], dtype=np.int64)

    def _shares(self, op: Any) -> list[tuple[int, int]]:
        row = self.program.destinations[op["target"]]
        shares = self.program.shares[row["first"] : row["first"] + row["n_shares"]].tolist()
        return [(int(gpu), int(size)) for gpu, size in shares]

    def _order(self, cores: int) -> dict[str, Ints]:
        program, first_slot = self.program, len(self.program.counters) * cores
        kept = np.ones(len(program.ops) + 1, dtype=np.int64)
        kept[[number for number, _ in program.meta["cores"]["costing"]]] = 0
        row_of = np.cumsum(kept) - kept  # of the first op that is kept at or after an op
        first_op, n_ops = program.runs["first_op"], program.runs["n_ops"]
        plans = program.plans[program.groups["plan"]]
        first_cursor = first_slot + len(program.slots)
        queues, groups, lanes = program.queues, program.groups, program.lanes
        seat = np.arange(len(lanes)) - groups["first_lane"][lanes["group"]]
        starts = [self.clock.ticks(start / 1000) for start in lanes["start_ps"].tolist()]
        tables = {
            "runs": _table(
                {lane.RUN_FIRST_OP: row_of[first_op], lane.RUN_N_OPS: row_of[first_op + n_ops] - row_of[first_op]}
            ),
            "tasks": _table(
                {lane.TASK_FIRST_RUN: program.tasks["first_run"]}
                | {lane.TASK_GUARD_COUNTER + i: program.tasks["guard_counter"][:, i] for i in range(2)}
                | {lane.TASK_GUARD_COUNT + i: program.tasks["guard_count"][:, i] for i in range(2)}
            ),
            "queues": _table(
                {
                    lane.QUEUE_FIRST: queues["first"],
                    lane.QUEUE_N_TASKS: queues["n_tasks"],
                    lane.QUEUE_CURSOR: first_cursor + np.arange(len(queues)),
                    lane.QUEUE_IS_SHARED: self._shared(),
                }
            ),
            "steps": _table(
                {
                    lane.STEP_QUEUE: program.steps["queue"],
                    lane.STEP_OTHERWISE: program.steps["otherwise"],
                    lane.STEP_TIMES: program.steps["times"],
                }
            ),
            "groups": _table(
                {
                    lane.GROUP_FIRST_STEP: plans["first_step"],
                    lane.GROUP_N_PREFIX: plans["n_prefix"],
                    lane.GROUP_N_STEPS: plans["n_prefix"] + plans["n_repeat"],
                    lane.GROUP_AHEAD: groups["ahead"],
                    lane.GROUP_FIRST_LANE: groups["first_lane"],
                    lane.GROUP_N_LANES: groups["n_lanes"],
                    lane.GROUP_FIRST_SLOT: first_slot + groups["first_slot"],
                }
            ),
            "lanes": _table({lane.LANE_GROUP: lanes["group"], lane.LANE_SEAT: seat, lane.LANE_START: starts}),
        }
        return tables | {"queue_tasks": program.queue_tasks.astype(np.int64)}


def _table(columns: dict[int, Any]) -> Ints:
    """The columns, each in its place."""
    ordered = [np.asarray(columns[place], dtype=np.int64) for place in range(len(columns))]
    return np.ascontiguousarray(np.stack(ordered, axis=1))


def _rows(count: int) -> Ints:
    """Zeroed rows of state, each on cache lines of its own."""
    flat = np.zeros((count + 1) * lane.STATE_COLUMNS, dtype=np.int64)
    first = (-flat.ctypes.data // 8) % lane.STATE_COLUMNS
    return flat[first : first + count * lane.STATE_COLUMNS].reshape(count, lane.STATE_COLUMNS)


@dataclass(eq=False)
class State:
    """What changes in a run: words (`address` is that of the first), lanes, groups, and the tasks that groups have taken."""

    words: Ints
    address: int
    lanes: Ints
    groups: Ints
    taken: Ints

    def word(self, number: int) -> int:
        first = (self.address - self.words.ctypes.data) // 8
        return int(self.words[first + lane.WORDS_APART * number])
