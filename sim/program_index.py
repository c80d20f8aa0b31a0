"""Who runs what in a Program: the groups that visit a queue, its GPU and its tasks, and how often each op runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import program as p

if TYPE_CHECKING:
    from .program import Program

Index = np.ndarray[Any, np.dtype[np.int64]]


def expand(first: Index, count: Index) -> tuple[Index, Index]:
    """Concatenated ranges: `owner` (which range) and `index` (the values first .. first + count - 1 of each)."""
    count = np.asarray(count, dtype=np.int64)
    owner = np.repeat(np.arange(len(count)), count)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    return owner, np.asarray(first, dtype=np.int64)[owner] + offset


def distinct(*columns: Index) -> list[Index]:
    """The distinct rows of equally long columns of numbers from 0, sorted: as np.unique by rows, but on one integer key."""
    sizes = [int(column.max(initial=0)) + 1 for column in columns]
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column, size in zip(columns, sizes, strict=True):
        key = key * size + column
    key.sort()
    key = key[np.append(True, key[1:] != key[:-1])] if len(key) else key
    found = []
    for size in reversed(sizes):
        key, column = np.divmod(key, size)
        found.append(column)
    return found[::-1]


def visits(program: Program) -> tuple[Index, Index]:
    """Which groups visit which queues, as two equally long arrays without repeats."""
    plans = program.plans
    plan, step = expand(plans["first_step"], plans["n_prefix"].astype(np.int64) + plans["n_repeat"])
    both = np.concatenate([program.steps["queue"][step], program.steps["otherwise"][step]]).astype(np.int64)
    used = both != p.NO_QUEUE
    plan, queue = distinct(np.concatenate([plan, plan])[used], both[used])
    groups_of_plan = np.argsort(program.groups["plan"], kind="stable")
    count = (
        np.bincount(program.groups["plan"], minlength=len(plans)) if len(program.groups) else np.zeros(len(plans), int)
    )
    first = np.cumsum(count) - count
    owner, index = expand(first[plan], count[plan])
    return groups_of_plan[index], queue[owner]


def gpu_of_queue(program: Program, visited: tuple[Index, Index] | None = None) -> Index:
    """The GPU whose groups visit each queue, -1 if none does. `visited` is what `visits` gives, if it is known already."""
    group, queue = visits(program) if visited is None else visited
    found = np.full(len(program.queues), -1, dtype=np.int64)
    found[queue] = program.groups["gpu"][group]  # groups of one GPU, see program_check.py
    return found


def tasks_of_queues(program: Program) -> tuple[Index, Index]:
    """The queue of each task that stands in one, and the task, queue by queue in their order."""
    queue, place = expand(program.queues["first"], program.queues["n_tasks"])
    return queue, program.queue_tasks[place].astype(np.int64)


def share_of_gpu(program: Program, row: Index, gpu: Index) -> Index:
    """Which of `shares` each `row` of destinations has for a `gpu`, -1 if none; a row has one for each of its GPUs."""
    owner, share = expand(program.destinations["first"], program.destinations["n_shares"])
    if not len(share):
        return np.full(len(row), -1, dtype=np.int64)
    key = owner * program.n_gpus + program.shares["gpu"][share]
    order = np.argsort(key, kind="stable")
    wanted = np.asarray(row, dtype=np.int64) * program.n_gpus + gpu
    place = order[np.minimum(np.searchsorted(key, wanted, sorter=order), len(key) - 1)]
    return np.where(key[place] == wanted, share[place], -1)


def op_repeats(program: Program) -> Index:
    """How often each row of `ops` is executed, if every task in a queue is run once. [n_ops]."""
    _, task = tasks_of_queues(program)
    _, run = expand(program.tasks["first_run"][task], program.tasks["n_runs"][task])
    in_runs = np.bincount(run, minlength=len(program.runs))
    first, n_ops = program.runs["first_op"], program.runs["n_ops"].astype(np.int64)
    change = np.zeros(len(program.ops) + 1, dtype=np.int64)  # from one op to the next
    np.add.at(change, first[n_ops > 0], in_runs[n_ops > 0])
    np.subtract.at(change, (first + n_ops)[n_ops > 0], in_runs[n_ops > 0])
    return np.cumsum(change[:-1])


def phase_number(program: Program, name: str) -> int:
    """What tasks of a phase have in their column, -1 if the Program has none."""
    return program.phases.index(name) if name in program.phases else -1


def run_ps(program: Program, counted: Any = True) -> Index:
    """Durations of the ops of each run together, of those that are `counted`, ps. [n_runs]"""
    until: Index = np.append(0, np.cumsum(np.where(counted, program.ops["duration_ps"], 0)))
    first = program.runs["first_op"].astype(np.int64)
    durations: Index = until[first + program.runs["n_ops"]] - until[first]
    return durations


def ran_parts(program: Program, span_first: Index, group: Index) -> tuple[Index, Index, Index]:
    """Of every part of a task that ran: the task, the lane that ran it, and its row of the spans, in order of rows.

    `group` is that of each row of the spans, -1 where it never ran.
    """
    task, row = expand(span_first, program.tasks["n_runs"])
    ran = group[row] >= 0
    task, row = task[ran], row[ran]
    return task, program.groups["first_lane"][group[row]] + row - span_first[task], row


def op_gpus(program: Program) -> Index:
    """The GPU that runs each op, one of them where several do; -1 where none does. [n_ops]."""
    queue, task = tasks_of_queues(program)
    of_task, of_run, of_op = (np.full(len(t), -1, np.int64) for t in (program.tasks, program.runs, program.ops))
    of_task[task] = gpu_of_queue(program)[queue]
    for rows, first, count, above, below in (
        (program.tasks, "first_run", "n_runs", of_task, of_run),
        (program.runs, "first_op", "n_ops", of_run, of_op),
    ):
        owner, index = expand(rows[first], rows[count])
        used = above[owner] >= 0
        below[index[used]] = above[owner[used]]
    return of_op
