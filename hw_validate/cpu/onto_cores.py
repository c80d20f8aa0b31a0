"""A Program of several ranks as this computer can run it: its lanes on cores, the memory of its ranks as areas.

What is mapped to what:

    core          an SM of GPU 0. The lanes of a group stay together on one; a rank has a core or several of its own, or
                  shares one with other ranks where there are more ranks than cores. As on an SM, lanes of a core compute
                  side by side (a COMPUTE is a deadline, not work) and store one after the other (one issue port, which a
                  store keeps until all of it is issued)
    memory of     an area of memory, GPU 1 + r. All cores store through one memory, so all share R, and Q as calibrated;
    rank r        the part of a STORE for the rank's own memory goes first, as a store of its own that stays in the core's
                  cache, in the time measured for such (behind the others it would wait for them: a core's stores leave
                  in order). A core does it in one go, and so does the simulation: as one byte, which is one granule and
                  cannot be cut, so that no store of another lane drains while it is half done
    LOAD          loads of the owner's area, in which the core does nothing else. The law knows no loads: in the simulation
                  it is such an own store too, which takes the issue port and nothing else, for the time that was
                  measured for as many bytes (`AccessTime`). The arrival is a SIGNAL behind it
    a counter     in the simulation it is bumped when a store is visible, by a `notice` lane of the memory. A core gets no
    that a STORE  such notice: some time after its last store, when its stage must be empty, it fences and adds to the
    bumps         counter itself. Notice lanes are there for the simulation only
    SIGNAL        an atomic addition; towards another rank a fence comes first
    any op        takes its core some time beside what it stands for, see `op_costs`; a COMPUTE goes on meanwhile

Everything else is as the Program says: plans, queues, guards, slots, and waits. Ops are laid out anew, one row for each
time that an op is run, since what is remote depends on the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...sim import program as p
from ...sim.errors import InputError, ProgramError
from ...sim.machine import Machine
from ...sim.program import Program
from ...sim.program_builder import ProgramBuilder, Seat
from ...sim.program_index import gpu_of_queue, tasks_of_queues
from ...sim.trace import Trace
from .architecture import LINE_BYTES
from .op_costs import AFTER, NO_COSTS, OpCosts

if TYPE_CHECKING:
    import pandas as pd

NOTICE = "notice"
"""Role of the lanes that tell of stores in the simulation."""
SENDER = 0
"""The GPU whose SMs are the cores."""
IN_ONE_GO = ((SENDER, 1),)
"""Shares of an own store in the simulation: one granule."""


@dataclass(frozen=True)
class AccessTime:
    """How long a core needs for `n` bytes: t0_ns + n / rate_gbs."""

    t0_ns: float
    rate_gbs: float

    def ps(self, size: int) -> int:
        return round(1000 * (self.t0_ns + size / self.rate_gbs))


@dataclass(frozen=True)
class AccessTimes:
    """What the law does not tell: loads of another rank's area, stores that stay in the core's cache, and what ops cost,
    by themselves and where lanes of the core load."""

    load: AccessTime
    own_store: AccessTime
    ops: OpCosts = NO_COSTS
    ops_beside_loads: OpCosts = NO_COSTS

    def costs_for(self, program: Program) -> OpCosts:
        return self.ops_beside_loads if (program.ops["kind"] == p.LOAD).any() else self.ops


NO_TIMES = AccessTimes(AccessTime(0, 1), AccessTime(0, 1))
"""Of a Program that is run to measure them: the simulation's part of it does not matter."""


def memory_of(rank: int) -> int:
    """The GPU that is the memory of a rank."""
    return 1 + rank


def machine_for(machine: Machine, ranks: int) -> Machine:
    """The calibrated machine with a memory for each of `ranks` ranks behind the same stage and drain rate."""
    data = machine.model_dump(mode="json", exclude_unset=True)
    data["interconnect"]["gpus"] = {"value": 1 + ranks, "assumed": True, "source": "the cores, and a memory a rank"}
    return Machine.parse(data)


def core_of_group(program: Program, cores: int) -> list[int]:
    """Core of each group: ranks share out the cores evenly, and the SMs of a rank the cores of the rank."""
    places = []
    for group in program.groups:
        rank, first = int(group["gpu"]), int(group["first_lane"])
        mine = [core for core in range(cores) if core % program.n_gpus == rank] or [rank % cores]
        places.append(mine[int(program.lanes["sm"][first]) % len(mine)])
    return places


def most_lanes(program: Program, core_of_group: list[int]) -> int:
    """Lanes of the core that plays most of them."""
    played = np.bincount(core_of_group, weights=program.groups["n_lanes"]) if core_of_group else np.zeros(1)
    return int(played.max())


def onto_cores(program: Program, cores: int, times: AccessTimes) -> Program:
    """The Program on `cores` cores, see the module. `meta["cores"]` keeps what the replay needs: loads, counters, the bytes
    of own stores and loads, the ops that are nothing but a cost, and the costs in picoseconds by kind.

    Raises `InputError` for no core, `ProgramError` for a store that adds, or a multicast.
    """
    if cores < 1:
        raise InputError("are too few", field="cores", value=cores, allowed="1 or more")
    _refuse(program)
    return _Mapping(program, core_of_group(program, cores), times).build()


def _refuse(program: Program) -> None:
    stores = program.ops["kind"] == p.STORE
    for bad, what in (
        (stores & (program.ops["flags"] & p.REDUCE != 0), "a STORE that adds: non-temporal stores overwrite"),
        (
            stores & (program.ops["flags"] & p.FROM_MEMORY != 0),
            "a STORE that goes FROM_MEMORY: a core issues all stores",
        ),
        (stores & _replicated(program), "a multicast STORE: a core stores to one memory at a time"),
    ):
        if bad.any():
            raise ProgramError(f"cores cannot run ops[{int(np.argmax(bad))}], {what}")


def _replicated(program: Program) -> Any:
    found = np.zeros(len(program.ops), dtype=bool)
    store = program.ops["kind"] == p.STORE
    found[store] = program.destinations["replicate"][program.ops["target"][store]] == 1
    return found


class _Op(NamedTuple):
    """A row of the new Program, as which kind it costs, and of a load or own store (rank that owns, bytes)."""

    row: dict[str, int]
    costs_as: str
    what: tuple[int, ...] = ()


class _Mapping:
    """The tables of the new Program while they are filled."""

    def __init__(self, program: Program, cores: list[int], times: AccessTimes) -> None:
        self.old, self.cores, self.times = program, cores, times
        self.costs = times.costs_for(program).ps(most_lanes(program, cores))
        self.costing: list[tuple[int, int]] = []  # op that is nothing but a cost, the op that it belongs to
        self.new = ProgramBuilder(1 + program.n_gpus)
        causes = program.counters["cause"].tolist()
        for home_cause, initial in zip(causes, program.counters["initial"].tolist(), strict=True):
            self.new.counters(home=SENDER, cause=p.COUNTER_CAUSES[home_cause], initial=initial)
        self.rows: dict[tuple[tuple[int, int], ...], int] = {}
        self.blocks: dict[
            tuple[int, int, int], int
        ] = {}  # (counter, stride, rank) -> first of the counters at memories
        self.bumps: dict[int, int] = {}  # counter at a memory -> how often it is bumped
        self.told: dict[int, int] = {}  # counter at a memory -> the Program's counter that it stands for
        self.loads: list[tuple[int, int, int]] = []  # op, rank that owns, bytes
        self.own_stores: list[tuple[int, int]] = []  # op, bytes
        self.remote: list[int] = []  # SIGNALs to another rank
        self.ops: list[dict[str, int]] = []
        self.runs: list[tuple[int, int]] = []

    def build(self) -> Program:
        rank_of_task = self._ranks_of_tasks()
        first_runs = []
        for task in range(len(self.old.tasks)):
            first_runs.append(len(self.runs))
            for run in self.old.runs_of(task):
                begin, (first, count) = len(self.ops), self.old.runs[run].item()
                made = [op for number in range(first, first + count) for op in self._ops(number, rank_of_task[task])]
                self._add_with_costs(made)
                self.runs.append((begin, len(self.ops) - begin))
        self._lay_out()
        for row, first_run in zip(self.old.tasks, first_runs, strict=True):
            self._task(row, first_run)
        self._queues_and_plans()
        self._groups()
        self._notice_lanes()
        return self.new.build(
            **self.old.meta,
            cores={
                "ranks": self.old.n_gpus,
                "core_of_group": self.cores,
                "loads": self.loads,
                "own_stores": self.own_stores,
                "remote_signals": self.remote,
                "costing": self.costing,
                "costs_ps": self.costs,
                "told": sorted(self.told.items()),
            },
        )

    def _ranks_of_tasks(self) -> list[int]:
        """Rank of the groups that visit a task's queue; the checks of a Program allow no other."""
        queue, task = tasks_of_queues(self.old)
        found = np.zeros(len(self.old.tasks), dtype=np.int64)
        found[task] = gpu_of_queue(self.old)[queue]
        return [int(rank) for rank in found]

    def _lay_out(self) -> None:
        """All ops and runs at once."""
        names = ("kind", "flags", "counter", "count", "target", "stride", "bytes", "duration_ps")
        unused = {"counter": p.NO_COUNTER}
        columns = {name: np.array([op.get(name, unused.get(name, 0)) for op in self.ops]) for name in names}
        if self.ops:
            self.new.ops(columns.pop("kind"), **columns)
        if self.runs:
            first, count = np.array(self.runs).T
            self.new.runs(first, count)

    def _ops(self, number: int, rank: int) -> list[_Op]:
        """What one op of a lane of `rank` becomes."""
        op = self.old.ops[number]
        kind = int(op["kind"])
        if kind == p.STORE:
            return self._store(op, rank)
        made = {name: int(op[name]) for name in ("kind", "counter", "count", "duration_ps")}
        if kind != p.LOAD:
            remote = kind == p.SIGNAL and self.old.counters["home"][op["counter"]] != rank
            return [_Op(made, "remote_signal" if remote else p.KIND_NAMES[kind])]
        size = int(op["bytes"])
        load = _Op(
            self._store_row(IN_ONE_GO) | {"duration_ps": self.times.load.ps(size)}, "load", (int(op["target"]), size)
        )
        if op["counter"] == p.NO_COUNTER:
            return [load]
        return [load, _Op({"kind": p.SIGNAL, "counter": int(op["counter"]), "count": 1}, "signal")]

    def _store(self, op: Any, rank: int) -> list[_Op]:
        row = self.old.destinations[op["target"]]
        shares = self.old.shares[row["first"] : row["first"] + row["n_shares"]].tolist()
        counter, stride, size = int(op["counter"]), int(op["stride"]), int(op["bytes"])
        own = sum(share for gpu, share in shares if gpu == rank)
        others = [(gpu, share) for gpu, share in shares if gpu != rank]
        found = []
        if own:
            row_of_own = self._store_row(IN_ONE_GO) | {"duration_ps": self.times.own_store.ps(own)}
            found.append(_Op(row_of_own, "store", (SENDER, own)))
            if counter != p.NO_COUNTER:
                found.append(_Op({"kind": p.SIGNAL, "counter": counter + stride * rank, "count": 1}, "signal"))
        if own and not others:
            return found
        made = self._store_row(tuple((memory_of(gpu), share) for gpu, share in others))
        made |= {"duration_ps": int(op["duration_ps"]) * (size - own) // max(1, size)}
        if counter != p.NO_COUNTER:
            first = self._block(counter, stride, rank)
            made |= {"counter": first, "stride": 1}
            for gpu, _ in others:
                at = first + memory_of(gpu)
                self.bumps[at] = self.bumps.get(at, 0) + 1
                self.told[at] = counter + stride * gpu
        return [*found, _Op(made, "store")]

    def _add_with_costs(self, made: list[_Op]) -> None:
        """The ops of a run, each with what it costs the core; the first one bears the cost of taking the task too."""
        taking = self.costs["task"]
        for op in made:
            cost = self.costs[op.costs_as] + (self.costs["note"] if op.costs_as in ("store", "load") else 0)
            before, after = (0, cost) if op.row["kind"] in AFTER else (cost, 0)
            takes_core = bool(op.row.get("bytes", 0))
            number = len(self.ops) + (taking > 0) + (before > 0 or takes_core)
            if taking:
                self._add_cost(taking, number)
            if takes_core:
                # Even at no cost: a core that has begun to look at a store goes on with it, and does not queue again.
                self._add_cost(before, number, p.WITH_NEXT)
            elif before:
                self._add_cost(before, number)
            self._add(op, before)
            if after:
                self._add_cost(after, number)
            taking = 0

    def _add(self, op: _Op, cost: int) -> None:
        """The op. What has a duration goes on while the core does what costs it `cost`; a store or load does not."""
        number, row = len(self.ops), op.row
        if op.costs_as == "load":
            owner, size = op.what
            self.loads.append((number, owner, size))
        elif op.costs_as == "store" and op.what:
            self.own_stores.append((number, op.what[1]))
        elif op.costs_as == "remote_signal":
            self.remote.append(number)
        if row["kind"] in (p.COMPUTE, p.SIGNAL):
            row = row | {"duration_ps": max(0, row.get("duration_ps", 0) - cost)}
        self.ops.append(row)

    def _add_cost(self, cost: int, belongs_to: int, flags: int = 0) -> None:
        self.costing.append((len(self.ops), belongs_to))
        self.ops.append(self._store_row(IN_ONE_GO) | {"duration_ps": cost, "flags": flags})

    def _store_row(self, placed: tuple[tuple[int, int], ...]) -> dict[str, int]:
        """A STORE of the shares (GPU, bytes)."""
        if placed not in self.rows:
            self.rows[placed] = self.new.destination(dict(placed))
        size = sum(share for _, share in placed)
        return {"kind": p.STORE, "flags": p.UNDIVIDED, "target": self.rows[placed], "bytes": size}

    def _block(self, counter: int, stride: int, rank: int) -> int:
        """A counter at every memory, for the stores of `rank` that bump `counter + stride * gpu`."""
        key = (counter, stride, rank)
        if key not in self.blocks:
            self.blocks[key] = self.new.counters(home=np.arange(1 + self.old.n_gpus), cause="peer")
        return self.blocks[key]

    def _task(self, row: Any, first_run: int) -> None:
        tags = {name: int(row[name]) for name in ("expert", "m_block", "n_block")}
        guards = [
            (int(counter), int(count))
            for counter, count in zip(row["guard_counter"], row["guard_count"], strict=True)
            if counter != p.NO_COUNTER
        ]
        self.new.tasks(first_run, int(row["n_runs"]), guards=guards, phase=self.old.phases[row["phase"]], **tags)

    def _queues_and_plans(self) -> None:
        for queue in self.old.queues:
            self.new.queue(self.old.queue_tasks[queue["first"] : queue["first"] + queue["n_tasks"]])
        for plan in self.old.plans:
            steps = self.old.steps[
                plan["first_step"] : plan["first_step"] + plan["n_prefix"] + plan["n_repeat"]
            ].tolist()
            self.new.plan(steps[: plan["n_prefix"]], steps[plan["n_prefix"] :])

    def _groups(self) -> None:
        for group, core in zip(self.old.groups, self.cores, strict=True):
            lanes = self.old.lanes[group["first_lane"] : group["first_lane"] + group["n_lanes"]]
            seats = [Seat(self.old.roles[lane["role"]], sm=core, start_ps=int(lane["start_ps"])) for lane in lanes]
            slots = self.old.slots[group["first_slot"] : group["first_slot"] + group["n_slots"]].tolist()
            self.new.groups(SENDER, int(group["plan"]), seats, slots=slots, ahead=int(group["ahead"]))

    def _notice_lanes(self) -> None:
        """One lane for each counter at a memory: it passes on every bump to the counter that the Program waits for."""
        for at, count in sorted(self.bumps.items()):
            first = next(first for first in self.blocks.values() if first <= at <= first + self.old.n_gpus)
            ops = [
                op
                for bump in range(1, count + 1)
                for op in (
                    {"kind": p.WAIT, "counter": at, "count": bump},
                    {"kind": p.SIGNAL, "counter": self.told[at], "count": 1},
                )
            ]
            task = self.new.tasks(self.new.op_list(ops), 1, phase=NOTICE)
            plan = self.new.plan(repeat=[self.new.queue([task])])
            self.new.groups(at - first, plan, [Seat(NOTICE)])


def judged_ops(trace: Trace) -> pd.DataFrame:
    """The op table of a Program on cores as it is compared: without notice lanes, with loads as such, with the bytes of own
    stores and loads, and with what an op costs its core as part of the op. `wait_us` of a store or load is the time in
    which its core did not do it, that of a WAIT or ACQUIRE all of its time; `begun_us` is when the core began."""
    ops, mapped = trace.ops(), trace.program.meta["cores"]
    cost_of = dict(mapped["costing"])
    is_cost = ops["op"].isin(cost_of)
    costs = ops[is_cost].assign(op=ops["op"].map(cost_of)).groupby("op").agg({"start_us": "min", "end_us": "max"})
    found = ops[~is_cost & (ops["kind"] != "task") & (ops["role"] != NOTICE)].reset_index(drop=True)
    since, until = (found["op"].map(costs[name]).fillna(found[name]) for name in ("start_us", "end_us"))
    begun = found["start_us"]
    start, end = np.minimum(begun, since), np.maximum(found["end_us"], until)
    is_store = found["kind"] == "store"  # loads too, which are stores in the simulation
    is_wait = found["kind"].isin(["wait", "acquire"])
    wait = np.where(is_store, begun - start, np.where(is_wait, end - start, 0.0))
    loads = {op: size for op, _, size in mapped["loads"]}
    size = found["op"].map(loads | dict(mapped["own_stores"])).fillna(found["bytes"]).astype("int64")
    kind = found["kind"].mask(found["op"].isin(loads), "load")
    return found.assign(kind=kind, bytes=size, start_us=start, end_us=end, wait_us=wait, begun_us=begun)


def lines_of(size: int) -> int:
    """Lines that `size` bytes take."""
    return -(-size // LINE_BYTES)
