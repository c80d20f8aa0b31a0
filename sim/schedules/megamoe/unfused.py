"""The return of rows as a kernel of its own: every SM stores its share of the rows, whole ones, to their source ranks."""

from __future__ import annotations

import numpy as np

from ...program import SIGNAL, STORE, WAIT
from ...program_builder import ProgramBuilder, Seat
from ..op_variants import Op, op_variants
from .returns import Ints, Pieces
from .tiles import Rank


def add_return(builder: ProgramBuilder, rank: Rank, pieces: Pieces, visible: Ints) -> None:
    """A task `return` for each piece of a block; each waits until its kernel has been launched.

    `visible` + GPU counts arrivals, [blocks]. `l2_done` counts the rows that were issued.
    """
    blocks, n = rank.blocks, len(pieces.rows)
    if not n:
        return
    size = pieces.rows * rank.shape.return_bytes(rank.shape.hidden)
    ops: list[Op] = [
        {"kind": WAIT, "counter": rank.links.go_return, "count": 1},
        {
            "kind": STORE,
            "target": pieces.target,
            "bytes": size,
            "duration_ps": rank.machine.issue_time_ps(size),
            "counter": visible[pieces.block],
            "stride": 1,
        },
        {"kind": SIGNAL, "counter": rank.links.l2_done, "count": pieces.rows},
    ]
    index = np.arange(n)
    runs = builder.runs(op_variants(builder, n, ops).first, len(ops)) + index
    expert = blocks.expert[pieces.block]
    tasks = builder.tasks(runs, 1, phase="return", expert=expert, m_block=pieces.block) + index
    sm, n_tasks = np.unique(pieces.sm, return_counts=True)
    plans = builder.private_plans(builder.queues(tasks, n_tasks), len(sm)) + np.arange(len(sm))
    builder.groups(gpu=blocks.gpu, plan=plans, seats=[Seat("store", sm=sm, start_ps=rank.start_ps)])
