"""How many granules each op sends, counted before a run: what a run takes, and how much of it is done, follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import program as p
from .program_check import expand, visits
from .program_view import op_repeats

if TYPE_CHECKING:
    from .program import Program
    from .topology import Fabric

Array = np.ndarray[Any, np.dtype[Any]]


def total_granules(program: Program, fabric: Fabric) -> int:
    """Tickets that a run will give, if no op is run by several GPUs."""
    return int((op_granules(program, fabric, op_gpus(program)) * op_repeats(program)).sum())


def op_gpus(program: Program) -> Array:
    """The GPU that runs each op, one of them where several do; -1 where none does. int64 [n_ops]."""
    group, queue = visits(program)
    of_queue = np.full(len(program.queues), -1, dtype=np.int64)
    of_queue[queue] = program.groups["gpu"][group]  # a queue belongs to groups of one GPU
    in_queue, place = expand(program.queues["first"], program.queues["n_tasks"])
    of_task, of_run, of_op = (np.full(len(t), -1, np.int64) for t in (program.tasks, program.runs, program.ops))
    of_task[program.queue_tasks[place]] = of_queue[in_queue]
    for rows, first, count, above, below in (
        (program.tasks, "first_run", "n_runs", of_task, of_run),
        (program.runs, "first_op", "n_ops", of_run, of_op),
    ):
        owner, index = expand(rows[first], rows[count])
        used = above[owner] >= 0
        below[index[used]] = above[owner[used]]
    return of_op


def op_granules(program: Program, fabric: Fabric, gpu: Array) -> Array:
    """Granules that each op sends when it runs on its `gpu`, as tickets are given: int64 [n_ops].

    A store sends none to its own GPU, nor does a signal; a load is a request and its replies, one reply from its own GPU.
    """
    ops, rows = program.ops, program.destinations
    granules = np.zeros(len(ops), dtype=np.int64)
    row, share = expand(rows["first"], rows["n_shares"])
    pieces = -(-program.shares["bytes"][share] // fabric.granule_bytes)
    of_row = np.zeros(len(rows), dtype=np.int64)
    np.add.at(of_row, row, pieces)
    key = row * program.n_gpus + program.shares["gpu"][share]  # a row has one share for each of its GPUs
    order = np.argsort(key, kind="stable")
    store, load, signal = (np.flatnonzero(ops["kind"] == kind) for kind in (p.STORE, p.LOAD, p.SIGNAL))
    if len(key):
        target = ops["target"][store].astype(np.int64)
        wanted = target * program.n_gpus + gpu[store]
        place = order[np.minimum(np.searchsorted(key, wanted, sorter=order), len(key) - 1)]
        granules[store] = of_row[target] - np.where(key[place] == wanted, pieces[place], 0)
    own = ops["target"][load] == gpu[load]
    granules[load] = 1 + np.where(own, 1, -(-ops["bytes"][load].astype(np.int64) // fabric.granule_bytes))
    granules[signal] = program.counters["home"][ops["counter"][signal]] != gpu[signal]
    return granules
