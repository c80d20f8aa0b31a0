"""What stores leave in the memory of the GPU that stores: it never leaves that GPU, and passes no port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import program as p
from .program_index import expand, gpu_of_queue, share_of_gpu, tasks_of_queues

if TYPE_CHECKING:
    from .program import Program

Array = np.ndarray[Any, np.dtype[Any]]


def kept_bytes(program: Program) -> int:
    """Bytes that a run of the whole schedule stores to the storing GPU itself.

    A multicast counts once, as its payload is issued once, and only where nobody else receives it.
    """
    gpu, op, times = _stores(program)
    if not len(op) or not len(program.shares):
        return 0
    row = program.ops["target"][op]
    share, of_row = share_of_gpu(program, row, gpu), program.destinations[row]
    stays = (share >= 0) & ((of_row["replicate"] == 0) | (of_row["n_shares"] == 1))
    kept = np.where(stays, program.shares["bytes"][share], 0)
    return int((kept * times).sum())


def _stores(program: Program) -> tuple[Array, Array, Array]:
    """GPU, op and how often, of every store; GPUs may share runs, so an op can be there for each of several."""
    queue, task = tasks_of_queues(program)
    in_task, run = expand(program.tasks["first_run"][task], program.tasks["n_runs"][task])
    gpu = gpu_of_queue(program)[queue[in_task]]
    key, counts = np.unique((gpu * len(program.runs) + run)[gpu >= 0], return_counts=True)
    runs = program.runs[key % max(1, len(program.runs))]
    in_runs, op = expand(runs["first_op"], runs["n_ops"])
    is_store = program.ops["kind"][op] == p.STORE
    in_runs = in_runs[is_store]
    return key[in_runs] // max(1, len(program.runs)), op[is_store], counts[in_runs]
