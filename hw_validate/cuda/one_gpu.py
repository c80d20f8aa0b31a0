"""Several ranks on one GPU, as the simulator sees them: ONE egress and ONE stage for all.

A Program of n ranks runs on one GPU as n ranges of its SMs. Whatever a rank sends to another goes to far memory (the
host's), so all ranks share the way there, and its Q. Simulated as it stands, on n GPUs, each rank would have an egress and
a Q of its own. `folded` is the same schedule, lane for lane and task for task, for the machine that calibration on one GPU
makes: GPU 0 is that GPU, with all ranks on SMs of their own, GPU 1 is the far memory, for whichever rank it stands.

What cannot be told so is refused by name: counters that one rank bumps and another waits for. Nothing runs on the far side
that could see a store arrive there. Ops stand in the table once for each rank, because one op may mean another destination
to each: op i of rank r is row r * (number of ops) + i.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...sim import program as p
from ...sim.errors import ProgramError
from ...sim.program import Program
from ...sim.program_check import expand, visits

Array = np.ndarray[Any, np.dtype[Any]]
HERE, FAR = 0, 1


def folded(program: Program, sms_per_rank: int) -> Program:
    """The Program with rank r on SMs r * sms_per_rank and following of GPU 0, and all other ranks' memory on GPU 1.

    Raises `ProgramError` for a lane on an SM that its rank does not have, a multicast, and a counter between ranks.
    """
    n, sm = program.n_gpus, program.lanes["sm"]
    if (sm >= sms_per_rank).any():
        raise ProgramError(f"a lane is on SM {sm.max()}, but each of {n} ranks on one GPU has {sms_per_rank} SMs")
    if program.destinations["replicate"].any():
        raise ProgramError("a multicast needs several GPUs: ranks on one GPU have one way out")
    lanes, groups, counters = program.lanes.copy(), program.groups.copy(), program.counters.copy()
    lanes["sm"] += lanes["gpu"] * sms_per_rank
    lanes["gpu"], groups["gpu"], counters["home"] = HERE, HERE, HERE
    tasks, runs = program.tasks.copy(), np.tile(program.runs, n)
    tasks["first_run"] += np.maximum(rank_of_task(program), 0) * len(program.runs)
    runs["first_op"] += np.repeat(np.arange(n), len(program.runs)) * len(program.ops)
    destinations, shares = _destinations(program)
    return replace(
        program, n_gpus=2, ops=_ops(program), runs=runs, tasks=tasks, groups=groups, lanes=lanes, counters=counters,
        destinations=destinations, shares=shares, meta={**program.meta, "ranks_on_one_gpu": n},
    )  # fmt: skip


def original_op(program: Program, op: Any) -> Any:
    """Rows of the op table before folding, of rows of the folded `program`."""
    return op % max(1, len(program.ops) // int(program.meta["ranks_on_one_gpu"]))


def rank_of_task(program: Program) -> Array:
    """The rank whose groups may take each task, [tasks]; -1 where none may."""
    group, queue = visits(program)
    rank_of_queue = np.full(len(program.queues), -1, dtype=np.int64)
    rank_of_queue[queue] = program.groups["gpu"][group]  # a queue belongs to groups of one GPU, as every Program does
    rank = np.full(len(program.tasks), -1, dtype=np.int64)
    in_queue, place = expand(program.queues["first"], program.queues["n_tasks"])
    rank[program.queue_tasks[place]] = rank_of_queue[in_queue]
    return rank


def _destinations(program: Program) -> tuple[Array, Array]:
    """For each rank and row: what stays here and what goes far, in this order, without shares of nothing."""
    n, rows = program.n_gpus, len(program.destinations)
    owner, index = expand(program.destinations["first"], program.destinations["n_shares"])
    gpu, size = program.shares["gpu"][index].astype(np.int64), program.shares["bytes"][index]
    by_side = np.zeros((n, rows, 2), dtype=np.int64)
    rank = np.repeat(np.arange(n), len(owner))
    side = np.where(np.tile(gpu, n) == rank, HERE, FAR)
    np.add.at(by_side, (rank, np.tile(owner, n), side), np.tile(size, n))
    kept = by_side.reshape(-1, 2) > 0
    shares = np.zeros(int(kept.sum()), dtype=p.SHARE)
    shares["gpu"] = np.nonzero(kept)[1]
    shares["bytes"] = by_side.reshape(-1, 2)[kept]
    destinations = np.zeros(n * rows, dtype=p.DESTINATION)
    destinations["n_shares"] = kept.sum(axis=1)
    destinations["first"] = np.cumsum(destinations["n_shares"]) - destinations["n_shares"]
    return destinations, shares


def _ops(program: Program) -> Array:
    n, count = program.n_gpus, len(program.ops)
    ops, rank = np.tile(program.ops, n), np.repeat(np.arange(n), count)
    store, load, signal = (ops["kind"] == kind for kind in (p.STORE, p.LOAD, p.SIGNAL))
    used = _ops_of_ranks(program)
    counted = (store | signal) & (ops["counter"] != p.NO_COUNTER) & used
    owner, index = expand(program.destinations["first"], program.destinations["n_shares"])
    elsewhere = np.zeros(len(program.destinations) * n, dtype=bool)
    gpu = program.shares["gpu"][index]
    for r in range(n):
        elsewhere[r * len(program.destinations) + owner[gpu != r]] = True
    crosses = np.zeros(len(ops), dtype=bool)
    row = ops["target"][store].astype(np.int64) + rank[store] * len(program.destinations)
    crosses[store] = elsewhere[row]
    crosses[signal] = program.counters["home"][ops["counter"][signal]] != rank[signal]
    if (crosses & counted).any():
        at = int(np.argmax(crosses & counted))
        kind = p.KIND_NAMES[ops["kind"][at]].upper()
        raise ProgramError(
            f"ops[{at % count}], a {kind} of rank {rank[at]}, bumps a counter of another rank: on one GPU nothing on the "
            "far side can see it arrive; replay it with transport peer"
        )
    bumps = store & counted
    ops["counter"][bumps] += ops["stride"][bumps] * rank[bumps]
    ops["counter"][store & ~bumps] = p.NO_COUNTER
    ops["stride"][store] = 0
    ops["target"][load] = np.where(ops["target"][load] == rank[load], HERE, FAR)
    ops["target"][store] += rank[store] * len(program.destinations)
    return ops


def _ops_of_ranks(program: Program) -> Array:
    """Whether a rank uses an op, [ranks * ops]."""
    used = np.zeros(program.n_gpus * len(program.ops), dtype=bool)
    rank = rank_of_task(program)
    tasks = np.flatnonzero(rank >= 0)
    of_task, run = expand(program.tasks["first_run"][tasks], program.tasks["n_runs"][tasks])
    of_run, op = expand(program.runs["first_op"][run], program.runs["n_ops"][run])
    used[rank[tasks][of_task][of_run] * len(program.ops) + op] = True
    return used
