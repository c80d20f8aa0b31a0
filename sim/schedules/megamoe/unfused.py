"""The return of rows as a kernel of its own: every SM stores whole rows of finished m-blocks to their source ranks."""

from __future__ import annotations

import numpy as np

from ...program import SIGNAL, STORE, WAIT
from ...program_builder import ProgramBuilder, Seat
from .emit import Op, op_rows
from .returns import Returns
from .tiles import Rank


def add_return(builder: ProgramBuilder, rank: Rank, returns: Returns) -> None:
    """A task `return` for each m-block, striped over the SMs; each waits until its kernel has been launched."""
    blocks, kernel = rank.blocks, rank.kernel
    n = blocks.n_blocks
    if not n:
        return
    ops: list[Op] = [{"kind": WAIT, "counter": rank.links.go_return, "count": 1}]
    ops += [
        {
            "kind": STORE,
            "target": returns.row[:, step],
            "bytes": returns.bytes[:, step],
            "duration_ps": returns.issue_ps[:, step],
            "counter": returns.visible,
            "stride": returns.stride,
        }
        for step in range(kernel.steps)
    ]
    ops.append({"kind": SIGNAL, "counter": rank.links.l2_done, "count": 1})
    runs = builder.runs(op_rows(builder, ops, n), len(ops))
    tasks = np.arange(n) + builder.tasks(
        runs + np.arange(n), 1, phase="return", expert=blocks.expert, m_block=np.arange(n)
    )
    sms = min(kernel.sms, n)
    striped = [tasks[sm::sms] for sm in range(sms)]
    queues = builder.queues(np.concatenate(striped), [len(mine) for mine in striped])
    plans = builder.private_plans(queues, sms) + np.arange(sms)
    builder.groups(gpu=blocks.gpu, plan=plans, seats=[Seat("store", sm=np.arange(sms), start_ps=rank.start_ps)])
