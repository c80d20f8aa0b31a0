"""A Program: a schedule as data, which every executor runs (two simulation engines, the CPU and the GPU validator).

A Program is a few tables (NumPy structured arrays) and nothing else. Read them from the top:

    queues   ordered lists of tasks. A queue of one group is a static schedule, a shared one an atomic cursor.
    plans    the order in which a group visits queues: a prefix of steps, then a repeated part.
    groups   an SM or a cluster of SMs. A group takes tasks by its plan; every lane of it runs its part of each.
    lanes    sequential actors (gpu, sm, role), contiguous by group: a lane's position in its group is its seat.
    tasks    up to two guards, tags for people, and for each seat a run of ops (`first_run + seat`).
    runs     slices of the op table. Tasks may share a run, runs may share ops.
    ops      COMPUTE, STORE, LOAD, SIGNAL, WAIT, ACQUIRE, RELEASE.
    destinations, shares   where the bytes of a STORE go: per-GPU shares dealt granule by granule in the order listed
             (a scatter), or one payload replicated to every GPU listed (a multicast).
    counters monotone numbers with a home GPU and a cause (what a lane that waits for one is waiting for).
    slots    semaphores that belong to a group: staging buffers, TMEM, rings.

Meaning of the columns of an op, by kind (an unused column is 0, or -1 for `counter`):

    COMPUTE  duration_ps
    STORE    target = destinations row, bytes = all bytes issued, duration_ps = issue time without backpressure,
             counter + stride * gpu is bumped once for each GPU reached, when its last byte is visible there;
             flags & REDUCE: the receiver adds instead of overwriting; flags & UNDIVIDED: no other lane of the SM issues
             between its granules; flags & WITH_NEXT: nor between it and the next op of the run, a STORE too;
             flags & FROM_MEMORY: a network interface reads it from memory, past stages and the GPUs' own ports
    LOAD     target = owner GPU, bytes, counter is bumped once when the last byte has arrived
    SIGNAL   counter, count, duration_ps = cost of the release; towards another GPU it travels as a small store behind
             the lane's earlier stores to that GPU
    WAIT     counter, count = value to wait for
    ACQUIRE  counter = slot of the group, count = how many to take
    RELEASE  counter = slot of the group, count = how many to give

Build one with `ProgramBuilder` (sim/program_builder.py); `validate` (sim/program_check.py) runs on every construction.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ProgramError
from .files import write_whole

FORMAT_VERSION = 1

COMPUTE, STORE, LOAD, SIGNAL, WAIT, ACQUIRE, RELEASE = range(7)
KIND_NAMES = ("compute", "store", "load", "signal", "wait", "acquire", "release")

REDUCE = 1
"""Flag of a STORE: the receiver adds."""
UNDIVIDED = 2
"""Flag of a STORE: the lane keeps the issue port from its first granule to its last, as a CPU core does."""
WITH_NEXT = 4
"""Flag of a STORE: when it is issued, the lane keeps the issue port for its next op, a STORE that belongs to it."""
FROM_MEMORY = 8
"""Flag of a STORE: no SM moves the bytes, a network interface reads them from memory. It takes no room in a stage, and
passes the links of its route only, not the GPUs' own ports: there it would queue behind the stores of all SMs, which leave
over NVLink. A route without links is passed whole. It is no multicast, and signals of its lane do not stay behind it."""

NO_COUNTER = -1
NO_QUEUE = -1
UNTIL_EXHAUSTED = 0
"""Value of a step's `times`: stay at this step until its queues are empty."""
UNLIMITED_AHEAD = 2**30
"""Value of a group's `ahead`: a lane may run any number of tasks ahead of the slowest lane of its group."""

CAUSES = ("inputs", "slot", "ring", "peer", "barrier", "issue", "window", "task")
"""What a lane can wait for. Counters carry one of the first five; `issue` is the SM's issue port, `window` the lane's
limit of loads in flight, `task` the limit of tasks taken ahead. Waiting for room in the stage is not a wait but a stall."""
COUNTER_CAUSES = CAUSES[:5]

OP = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("counter", "i4"),
        ("count", "i4"),
        ("target", "i4"),
        ("stride", "i4"),
        ("bytes", "i8"),
        ("duration_ps", "i8"),
    ],
    align=True,
)
RUN = np.dtype([("first_op", "i4"), ("n_ops", "i4")])
TASK = np.dtype(
    [
        ("first_run", "i4"),
        ("n_runs", "i4"),
        ("guard_counter", "i4", (2,)),
        ("guard_count", "i4", (2,)),
        ("phase", "i4"),
        ("expert", "i4"),
        ("m_block", "i4"),
        ("n_block", "i4"),
    ]
)
QUEUE = np.dtype([("first", "i4"), ("n_tasks", "i4")])
STEP = np.dtype([("queue", "i4"), ("otherwise", "i4"), ("times", "i4")])
PLAN = np.dtype([("first_step", "i4"), ("n_prefix", "i4"), ("n_repeat", "i4")])
GROUP = np.dtype(
    [
        ("gpu", "i4"),
        ("first_lane", "i4"),
        ("n_lanes", "i4"),
        ("plan", "i4"),
        ("ahead", "i4"),
        ("first_slot", "i4"),
        ("n_slots", "i4"),
    ]
)
LANE = np.dtype(
    [("group", "i4"), ("gpu", "i4"), ("sm", "i4"), ("role", "i4"), ("window", "i4"), ("start_ps", "i8")], align=True
)
DESTINATION = np.dtype([("first", "i4"), ("n_shares", "i4"), ("replicate", "u1")], align=True)
SHARE = np.dtype([("gpu", "i4"), ("bytes", "i8")], align=True)
COUNTER = np.dtype([("home", "i4"), ("cause", "i4"), ("initial", "i4")])

_DTYPES: dict[str, np.dtype[Any]] = {
    "ops": OP,
    "runs": RUN,
    "tasks": TASK,
    "queues": QUEUE,
    "queue_tasks": np.dtype("i4"),
    "steps": STEP,
    "plans": PLAN,
    "groups": GROUP,
    "lanes": LANE,
    "destinations": DESTINATION,
    "shares": SHARE,
    "counters": COUNTER,
    "slots": np.dtype("i4"),
}

_BROKEN_FILE = (
    zipfile.BadZipFile,
    zlib.error,
    LookupError,
    ValueError,
    EOFError,
    OSError,
    TypeError,
    NotImplementedError,
)
"""What NumPy, zipfile and json raise on files that are cut, altered or something else."""

Table = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """A checked, immutable schedule. Raises `ProgramError` on construction if the tables contradict each other."""

    n_gpus: int
    ops: Table
    runs: Table
    tasks: Table
    queues: Table
    queue_tasks: Table
    steps: Table
    plans: Table
    groups: Table
    lanes: Table
    destinations: Table
    shares: Table
    counters: Table
    slots: Table
    roles: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from .program_check import validate

        for name, dtype in _DTYPES.items():
            table = np.ascontiguousarray(getattr(self, name))
            if table.dtype != dtype or table.ndim != 1:
                raise ProgramError(
                    f"table {name} has dtype {table.dtype} and {table.ndim} dimensions, not {dtype} and 1"
                )
            table.setflags(write=False)
            object.__setattr__(self, name, table)
        object.__setattr__(self, "meta", _as_json(self.meta))
        validate(self)

    def __repr__(self) -> str:
        schedule = f" {self.meta['schedule']}" if "schedule" in self.meta else ""
        return f"<Program{schedule}: {self.n_gpus} GPUs, {len(self.lanes)} lanes, {len(self.tasks)} tasks>"

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Every table with its name, in the order of the module's description."""
        return ((name, getattr(self, name)) for name in _DTYPES)

    def runs_of(self, task: int) -> range:
        """Rows of `runs` that belong to a task, one a seat."""
        first, count = self.tasks[task]["first_run"], self.tasks[task]["n_runs"]
        return range(first, first + count)

    def save(self, path: str | Path) -> None:
        """Write the whole Program as one `.npz`; the file appears whole or not at all, and has the same bytes each time."""
        header = {
            "format_version": FORMAT_VERSION,
            "n_gpus": self.n_gpus,
            "roles": self.roles,
            "phases": self.phases,
            "meta": self.meta,
        }
        text = json.dumps(header, sort_keys=True)
        with write_whole(path) as temporary, open(temporary, "wb") as stream:
            tables = {name: _without_padding(table) for name, table in self.tables()}
            np.savez(stream, header=np.array(text), **tables)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | Path) -> Program:
        """Read what `save` wrote. Raises `ProgramError` if the file is not a whole Program."""
        try:
            with np.load(path, allow_pickle=False) as file:
                header = json.loads(str(file["header"]))
                tables = {name: file[name] for name in _DTYPES}
        except FileNotFoundError:
            raise ProgramError(f"{path}: no such file") from None
        except _BROKEN_FILE as error:
            raise ProgramError(f"{path}: not a whole Program file ({error})") from error
        kinds = {"n_gpus": int, "roles": list, "phases": list, "meta": dict}
        if not isinstance(header, dict) or not all(isinstance(header.get(name), kinds[name]) for name in kinds):
            raise ProgramError(f"{path}: not a whole Program file (its header lacks one of {', '.join(kinds)})")
        if header.get("format_version") != FORMAT_VERSION:
            raise ProgramError(
                f"{path}: Program format {header.get('format_version')} cannot be read (allowed: {FORMAT_VERSION})"
            )
        return cls(
            n_gpus=header["n_gpus"],
            roles=tuple(header["roles"]),
            phases=tuple(header["phases"]),
            meta=header["meta"],
            **tables,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return all(
            np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs
            for mine, theirs in ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        )

    __hash__ = None  # type: ignore[assignment]

    def describe(self) -> str:
        """What the schedule is made of, as a few lines for a person."""
        from .program_view import describe

        return describe(self)

    def diff(self, other: Program) -> list[str]:
        """One line for each table or field in which `other` differs; empty if the two are the same schedule."""
        from .program_view import diff

        return diff(self, other)


def _without_padding(table: Table) -> Table:
    """Equal rows with zeros between the columns, where NumPy leaves whatever was in memory."""
    clean = np.zeros(table.shape, dtype=table.dtype)
    for name in table.dtype.names or (...,):
        clean[name] = table[name]
    return clean


def _as_json(meta: dict[str, Any]) -> dict[str, Any]:
    """`meta` as it will be when it comes back from a file: lists for tuples, plain numbers for NumPy's."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(meta, default=lambda value: value.item()))
    except (AttributeError, TypeError, ValueError) as error:
        raise ProgramError(f"meta cannot be kept in a file: {error}") from error
    return plain
