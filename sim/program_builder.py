"""Fill the tables of a Program, many rows at a time.

Every method takes scalars or arrays, broadcasts them, appends the rows and returns the index of the first one; row i of
that call is `first + i`. A schedule of a million tiles is a handful of calls.

    >>> b = ProgramBuilder(n_gpus=2)
    >>> row = b.destination({1: 4096})
    >>> ops = b.ops(STORE, target=row, bytes=4096, duration_ps=100_000)
    >>> task = b.tasks(first_run=b.runs(ops, 1), n_runs=1)
    >>> plan = b.plan(repeat=[b.queue([task])])
    >>> group = b.groups(gpu=0, plan=plan, seats=[Seat("epilogue", sm=0)])
    >>> b.build().lanes["sm"].tolist()
    [0]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from . import program as p
from .errors import ProgramError
from .program import STORE as STORE
from .program import Program

ArrayLike = Any


@dataclass(frozen=True)
class Seat:
    """A lane's place in each group of one call of `groups`; every field but `role` is a scalar or an array by group."""

    role: str
    sm: ArrayLike = 0
    window: ArrayLike = 0
    start_ps: ArrayLike = 0


Step = int | tuple[int, int, int]
"""A queue (visited once), or (queue, otherwise, times)."""


class ProgramBuilder:
    """Collects rows; `build` checks them and gives the Program. Names of roles and phases are numbered as they appear."""

    def __init__(self, n_gpus: int) -> None:
        self.n_gpus = n_gpus
        self._chunks: dict[str, list[Any]] = {name: [] for name in p._DTYPES}
        self._sizes: dict[str, int] = dict.fromkeys(p._DTYPES, 0)
        self._roles: dict[str, int] = {}
        self._phases: dict[str, int] = {}

    def counters(self, home: ArrayLike, cause: str, initial: ArrayLike = 0) -> int:
        """Counters with a home GPU each. `cause` is one of `COUNTER_CAUSES`."""
        return self._append("counters", home=home, cause=p.COUNTER_CAUSES.index(cause), initial=initial)

    def destination(self, shares: Mapping[int, int], replicate: bool = False) -> int:
        """One destinations row, dealt in the order of the mapping (bytes by GPU); shares of 0 bytes are left out."""
        kept = {gpu: size for gpu, size in shares.items() if size}
        return self.destinations([list(kept)], [list(kept.values())], replicate)

    def destinations(
        self,
        gpus: Sequence[Sequence[int]] | ArrayLike,
        sizes: Sequence[Sequence[int]] | ArrayLike,
        replicate: bool = False,
    ) -> int:
        """Destinations rows from lists of GPUs and bytes (ragged lists or [rows, shares] arrays without zeros)."""
        counts = [len(row) for row in gpus]
        return self.destinations_flat(np.concatenate([*gpus, []]), np.concatenate([*sizes, []]), counts, replicate)

    def destinations_flat(self, gpus: ArrayLike, sizes: ArrayLike, counts: ArrayLike, replicate: bool = False) -> int:
        """Destinations rows from flat arrays: row i owns the next `counts[i]` of the shares (gpu, bytes)."""
        counts = np.asarray(counts, dtype=np.int64)
        first = self._append("shares", gpu=gpus, bytes=sizes)
        offsets = first + np.cumsum(counts) - counts
        return self._append("destinations", first=offsets, n_shares=counts, replicate=int(replicate))

    def ops(
        self,
        kind: ArrayLike,
        *,
        counter: ArrayLike = p.NO_COUNTER,
        count: ArrayLike = 0,
        target: ArrayLike = 0,
        stride: ArrayLike = 0,
        bytes: ArrayLike = 0,
        duration_ps: ArrayLike = 0,
        flags: ArrayLike = 0,
    ) -> int:
        """Ops; see `program` for the meaning of the columns. Two-dimensional columns are laid out row by row."""
        return self._append(
            "ops",
            kind=kind,
            flags=flags,
            counter=counter,
            count=count,
            target=target,
            stride=stride,
            bytes=bytes,
            duration_ps=duration_ps,
        )

    def op_list(self, ops: Iterable[Mapping[str, Any]]) -> int:
        """One run of ops written one by one, each a mapping of the keywords of `ops`. Returns the run."""
        listed = list(ops)
        first = self._sizes["ops"]
        for op in listed:
            self.ops(**op)
        return self.runs(first, len(listed))

    def runs(self, first_op: ArrayLike, n_ops: ArrayLike) -> int:
        """Runs of ops: `n_ops` of them from `first_op` on, what one lane does in a task."""
        return self._append("runs", first_op=first_op, n_ops=n_ops)

    def tasks(
        self,
        first_run: ArrayLike,
        n_runs: ArrayLike,
        *,
        guards: Sequence[tuple[ArrayLike, ArrayLike]] = (),
        phase: str = "",
        expert: ArrayLike = -1,
        m_block: ArrayLike = -1,
        n_block: ArrayLike = -1,
    ) -> int:
        """Tasks of one phase. `guards` is up to two pairs (counter, count), each a scalar or an array by task."""
        counters, counts = zip(*guards, *[(p.NO_COUNTER, 0)] * (2 - len(guards)), strict=True)
        size = np.broadcast(first_run, n_runs, expert, m_block, n_block, *counters, *counts).size
        return self._append(
            "tasks",
            first_run=first_run,
            n_runs=n_runs,
            guard_counter=_side_by_side(counters, size),
            guard_count=_side_by_side(counts, size),
            phase=self._phases.setdefault(phase, len(self._phases)),
            expert=expert,
            m_block=m_block,
            n_block=n_block,
        )

    def queue(self, tasks: ArrayLike) -> int:
        """One queue that holds `tasks` in order."""
        tasks = np.asarray(tasks, dtype=np.int64)
        return self.queues(tasks, [len(tasks)])

    def queues(self, tasks: ArrayLike, n_tasks: ArrayLike) -> int:
        """Queues one after the other: queue i owns the next `n_tasks[i]` of `tasks`."""
        n_tasks = np.asarray(n_tasks, dtype=np.int64)
        first = self._sizes["queue_tasks"]
        tasks = _checked(np.asarray(tasks), np.dtype("i4"), "queue_tasks").astype("i4")
        self._chunks["queue_tasks"].append(tasks)
        self._sizes["queue_tasks"] += len(tasks)
        return self._append("queues", first=first + np.cumsum(n_tasks) - n_tasks, n_tasks=n_tasks)

    def plan(self, prefix: Sequence[Step] = (), repeat: Sequence[Step] = ()) -> int:
        """One plan. A step is a queue, or (queue, otherwise, times)."""
        steps = [step if isinstance(step, tuple) else (step, p.NO_QUEUE, 1) for step in [*prefix, *repeat]]
        columns = np.array(steps, dtype=np.int64).reshape(-1, 3).T
        first = self._append("steps", queue=columns[0], otherwise=columns[1], times=columns[2])
        return self._append("plans", first_step=first, n_prefix=len(prefix), n_repeat=len(repeat))

    def private_plans(self, first_queue: int, n_plans: int) -> int:
        """A plan for each of `n_plans` queues, which works through that queue alone: a static schedule."""
        queue = first_queue + np.arange(n_plans)
        first = self._append("steps", queue=queue, otherwise=p.NO_QUEUE, times=1)
        return self._append("plans", first_step=first + np.arange(n_plans), n_prefix=0, n_repeat=1)

    def groups(
        self,
        gpu: ArrayLike,
        plan: ArrayLike,
        seats: Sequence[Seat],
        *,
        slots: Sequence[int] = (),
        ahead: ArrayLike = p.UNLIMITED_AHEAD,
    ) -> int:
        """Groups of one shape: the same seats and slots (initial values) in each. Lanes are laid out group by group."""
        columns = [column for seat in seats for column in (seat.sm, seat.window, seat.start_ps)]
        n_groups = prod(np.broadcast_shapes(*map(np.shape, (gpu, plan, ahead, *columns))))
        first_group, index = self._sizes["groups"], np.arange(n_groups)
        gpu = np.broadcast_to(gpu, n_groups)
        first = self._append(
            "groups",
            gpu=gpu,
            first_lane=self._sizes["lanes"] + index * len(seats),
            n_lanes=len(seats),
            plan=plan,
            ahead=ahead,
            first_slot=self._sizes["slots"] + index * len(slots),
            n_slots=len(slots),
        )

        def by_lane(name: str) -> Any:
            return _side_by_side([getattr(seat, name) for seat in seats], n_groups).ravel()

        roles = [self._roles.setdefault(seat.role, len(self._roles)) for seat in seats]
        self._append(
            "lanes",
            group=np.repeat(first_group + index, len(seats)),
            gpu=np.repeat(gpu, len(seats)),
            sm=by_lane("sm"),
            role=np.tile(roles, n_groups),
            window=by_lane("window"),
            start_ps=by_lane("start_ps"),
        )
        values = _checked(np.asarray(slots), np.dtype("i4"), "slots").astype("i4")
        self._chunks["slots"].append(np.tile(values, n_groups))
        self._sizes["slots"] += n_groups * len(slots)
        return first

    def build(self, **meta: Any) -> Program:
        """The checked Program; `meta` is kept with it. Raises `ProgramError`."""
        tables = {name: _joined(chunks, p._DTYPES[name]) for name, chunks in self._chunks.items()}
        return Program(self.n_gpus, **tables, roles=tuple(self._roles), phases=tuple(self._phases), meta=meta)

    def _append(self, table: str, **columns: ArrayLike) -> int:
        dtype = p._DTYPES[table]
        single = {name: column for name, column in columns.items() if type(column) is int}
        arrays = {name: np.asarray(column) for name, column in columns.items() if name not in single}
        shapes = {a.shape[: a.ndim - len(dtype[name].shape)] for name, a in arrays.items()}
        rows = np.zeros(np.broadcast_shapes((1,), *shapes), dtype=dtype)
        for name, number in single.items():
            least, most = _limits(dtype[name].base)
            if not least <= number <= most:
                raise ProgramError(_out_of_range(number, dtype[name].base, f"{table}.{name}"))
            if number:
                rows[name] = number
        for name, column in arrays.items():
            rows[name] = _checked(column, dtype[name].base, f"{table}.{name}")
        first = self._sizes[table]
        self._chunks[table].append(rows.ravel())
        self._sizes[table] += rows.size
        return first


def _side_by_side(columns: Sequence[ArrayLike], size: int) -> Any:
    """Scalars and arrays of one dimension as the columns of a table. [size, columns]"""
    if all(type(column) is int for column in columns):
        return np.broadcast_to(columns, (size, len(columns)))
    return np.stack([np.broadcast_to(column, size) for column in columns], axis=1)


@cache
def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return limits.min, limits.max


def _checked(values: Any, dtype: np.dtype[Any], column: str) -> Any:
    """`values`, which must be whole numbers that the column can hold: NumPy would wrap or truncate them in silence."""
    if values.size:
        if values.dtype.kind not in "iub" and not (values == np.floor(values)).all():
            raise ProgramError(f"{column}: {values.ravel()[np.argmax(values != np.floor(values))]} is no whole number")
        (least, most), allowed = (values.min(), values.max()), _limits(dtype)
        if least < allowed[0] or most > allowed[1]:
            raise ProgramError(_out_of_range(most if most > allowed[1] else least, dtype, column))
    return values


def _out_of_range(value: Any, dtype: np.dtype[Any], column: str) -> str:
    least, most = _limits(dtype)
    return f"{column}: {value} is out of range (allowed: {least} to {most})"


def _joined(chunks: list[Any], dtype: np.dtype[Any]) -> Any:
    """The rows of all chunks, copied as bytes: NumPy would compare the columns of each chunk with those of the next."""
    if not chunks:
        return np.zeros(0, dtype=dtype)
    return np.concatenate([chunk.view(f"V{dtype.itemsize}") for chunk in chunks]).view(dtype)
