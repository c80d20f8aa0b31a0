"""The dispatch pull: every dispatch warp fetches rows of its rank's pool from their source ranks, one at a time.

Warp w of SM s takes rows s D + w, + G D, ... of the pool (D dispatch warps an SM, G SMs). For each it loads the row, waits
until it is there, and publishes it: that costs `pull_row` (local store, metadata, release) and adds to the arrivals of its
m-block. With a ring it waits first until the block that had the slot before has been through L1.

Left out: publication in batches of 16 rows (lag kernels, from 8192 tokens a rank on), and the padding that the kernels add
to the arrivals of a last block; here a block is full with its valid rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...program import LOAD, SIGNAL, WAIT
from ...program_builder import ProgramBuilder, Seat
from ...tile_cost import needed
from .emit import Op, op_rows
from .links import NONE
from .tiles import Rank

ROLE = "dispatch"


def add_pull(builder: ProgramBuilder, rank: Rank) -> None:
    """Groups of dispatch lanes, an SM each, with two tasks: wait for the barrier, pull."""
    kernel, blocks, links = rank.kernel, rank.blocks, rank.links
    rows = blocks.n_pulled
    if not rows:
        return
    warps = kernel.dispatch_warps
    lanes = kernel.sms * warps
    by_lane = np.argsort(np.arange(rows) % lanes, kind="stable")
    lane, turn = by_lane % lanes, by_lane // lanes
    block = blocks.pulled_block[by_lane]
    loaded = builder.counters(home=np.full(lanes, blocks.gpu), cause="inputs")
    ops: list[Op] = []
    if links.l1_freed != NONE:
        ring = rank.order.ring
        ops.append({
            "kind": WAIT,
            "counter": links.l1_freed + np.maximum(block - ring, 0),
            "count": np.where(block >= ring, kernel.l1_n_blocks, 0),
        })  # fmt: skip
    ops += [
        {
            "kind": LOAD,
            "target": blocks.pulled_from[by_lane],
            "bytes": rank.shape.pull_bytes,
            "counter": loaded + lane,
        },
        {"kind": WAIT, "counter": loaded + lane, "count": turn + 1},
        {
            "kind": SIGNAL,
            "counter": links.pulled if links.separate else links.arrived[block],
            "count": 1,
            "duration_ps": int(needed(rank.machine, "pull_row")),
        },
    ]
    first = op_rows(builder, ops, rows)
    n_rows = np.bincount(lane, minlength=lanes)
    first_op: Any = first[0] + (np.cumsum(n_rows) - n_rows) * len(ops)
    start_op = builder.ops(WAIT, counter=links.started, count=1)
    start_runs = builder.runs(np.full(lanes, start_op), 1)
    pull_runs = builder.runs(first_op, n_rows * len(ops))
    sm = np.arange(kernel.sms)
    starts = builder.tasks(start_runs + sm * warps, warps, phase="barrier") + sm
    pulls = builder.tasks(pull_runs + sm * warps, warps, phase="dispatch") + sm
    queues = builder.queues(np.stack([starts, pulls], axis=1).ravel(), np.full(kernel.sms, 2))
    plans = builder.private_plans(queues, kernel.sms) + sm
    seats = [Seat(ROLE, sm, window=1, start_ps=rank.start_ps) for _ in range(warps)]
    builder.groups(gpu=blocks.gpu, plan=plans, seats=seats)
