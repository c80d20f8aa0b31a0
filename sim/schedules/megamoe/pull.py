"""The dispatch pull: every dispatch warp fetches rows of its rank's pool from their source ranks, one at a time.

Warp w of SM s takes rows s D + w, + G D, ... of the pool (D dispatch warps an SM, G SMs). For each it loads the row, waits
until it is there, and publishes it: that costs `pull_row` (local store, metadata, release) and adds to the arrivals of its
m-block. With a ring it waits first until the block that had the slot before has been through L1.

The lag kernel publishes in batches from 8192 tokens a rank on: a warp keeps up to 16 rows back (fewer at first, see
`publish_limit`) and publishes them with one release while it waits for its next row. A release takes a round trip to L2,
the machine's `local_latency` twice, which is a part of `pull_row`. A warp that waits for its ring slot keeps its rows: the
kernel publishes them first, but they lie so far ahead of the L1 tiles that run that none waits for them (`fits_ring`).

Left out: the padding that the kernels add to the arrivals of a last block; here a block is full with its valid rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from ...errors import InputError
from ...program import COMPUTE, LOAD, SIGNAL, WAIT
from ...program_builder import ProgramBuilder, Seat
from ...tile_cost import needed
from ..op_variants import Op, op_variants
from . import rules_sm90 as rules
from .blocks import Blocks, Ints
from .kernel import Kernel
from .links import NONE
from .order import Order
from .shape import Lag, Policy
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
    loaded = builder.counters(home=np.full(lanes, blocks.gpu), cause="inputs")
    n_rows = rows // lanes + (np.arange(lanes) < rows % lanes)
    if kernel.publish_rows > 1:
        first_op, n_ops = _in_batches(builder, rank, loaded, n_rows)
    else:
        first_op, n_ops = _row_by_row(builder, rank, loaded, n_rows)
    start_op = builder.ops(WAIT, counter=links.started, count=1)
    start_runs = builder.runs(np.full(lanes, start_op), 1)
    pull_runs = builder.runs(first_op, n_ops)
    sm = np.arange(kernel.sms)
    starts = builder.tasks(start_runs + sm * warps, warps, phase="barrier") + sm
    pulls = builder.tasks(pull_runs + sm * warps, warps, phase="dispatch") + sm
    queues = builder.queues(np.stack([starts, pulls], axis=1).ravel(), np.full(kernel.sms, 2))
    plans = builder.private_plans(queues, kernel.sms) + sm
    seats = [Seat(ROLE, sm, window=1, start_ps=rank.start_ps) for _ in range(warps)]
    builder.groups(gpu=blocks.gpu, plan=plans, seats=seats)


def _row_by_row(builder: ProgramBuilder, rank: Rank, loaded: int, n_rows: Ints) -> tuple[Ints, Ints]:
    """First op and number of ops of every warp, if it publishes each row on its own."""
    blocks, links, lanes = rank.blocks, rank.links, len(n_rows)
    turns = np.arange(-(-blocks.n_pulled // lanes))
    by_lane = (np.arange(lanes)[:, None] + lanes * turns).ravel()  # a warp's rows one after the other
    by_lane = by_lane[by_lane < blocks.n_pulled]
    lane, turn = by_lane % lanes, by_lane // lanes
    block = blocks.pulled_block[by_lane]
    ops: list[Op] = []
    if links.l1_freed != NONE:
        ops.append(_slot(rank, block))
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
    first = op_variants(builder, len(by_lane), ops).first[0]
    return first + (np.cumsum(n_rows) - n_rows) * len(ops), n_rows * len(ops)


def _slot(rank: Rank, block: Ints) -> Op:
    """Wait until the block that had a ring slot before has been through L1."""
    ring = rank.order.ring
    return {
        "kind": WAIT,
        "counter": rank.links.l1_freed + np.maximum(block - ring, 0),
        "count": np.where(block >= ring, rank.kernel.l1_n_blocks, 0),
    }


# Batches --------------------------------------------------------------------------------------------------------------


def batch_that_fits(kernel: Kernel, policy: Policy, ranks: Sequence[tuple[Order, Blocks]]) -> int:
    """Rows that a warp publishes at a time: 1 where the kernel's choice is more than a rank's ring can do without.

    Raises `InputError` if the policy asked for more than that.
    """
    asked = isinstance(policy, Lag) and policy.publish_rows is not None
    lanes = kernel.sms * kernel.dispatch_warps
    for order, blocks in ranks:
        experts = int(blocks.expert.max(initial=-1)) + 1
        sizes = {"lanes": lanes, "ring_m_blocks": order.ring, "local_experts": experts, "block_m": kernel.block_m}
        wraps = 0 < order.ring < blocks.n_blocks
        if kernel.publish_rows == 1 or not wraps or rules.fits_ring(kernel.publish_rows, **sizes):
            continue
        if not asked:
            return 1
        too_many = bisect_left(range(kernel.publish_rows), True, 2, key=lambda n: not rules.fits_ring(n, **sizes))
        raise InputError(
            "rows kept back are more than the ring can do without",
            field="publish_rows",
            value=kernel.publish_rows,
            allowed=f"1 to {too_many - 1}, or a larger ring",
        )
    return kernel.publish_rows


def _in_batches(builder: ProgramBuilder, rank: Rank, loaded: int, n_rows: Ints) -> tuple[Ints, Ints]:
    """The same with rows kept back. All warps do the same in turn; some have one row less."""
    lanes = len(n_rows)
    first_op, n_ops = np.zeros(lanes, dtype=np.int64), np.zeros(lanes, dtype=np.int64)
    for rows in np.unique(n_rows).tolist():
        mine = np.flatnonzero(n_rows == rows)
        steps = steps_of_warp(rows, rank.kernel.publish_rows, has_ring=rank.links.l1_freed != NONE)
        if steps:
            first = _batched_ops(builder, rank, loaded, mine, lanes, steps)
            first_op[mine], n_ops[mine] = first + np.arange(len(mine)) * len(steps), len(steps)
    return first_op, n_ops


SLOT, ASK, PUBLISH, PUBLISH_FIRST, ARRIVED, KEEP = range(6)


def steps_of_warp(rows: int, batch: int, has_ring: bool) -> list[tuple[int, int]]:
    """What a warp with so many rows does, as (step, row); a batch is published once the next row has been asked for."""
    steps: list[tuple[int, int]] = []
    kept: list[int] = []

    def publish() -> None:
        steps.extend((PUBLISH_FIRST if row == kept[0] else PUBLISH, row) for row in kept)
        kept.clear()

    for row in range(rows):
        steps += [(SLOT, row)] * has_ring + [(ASK, row)]
        if len(kept) >= rules.publish_limit(row, batch):
            publish()
        steps += [(ARRIVED, row), (KEEP, row)]
        kept.append(row)
    if kept:
        publish()
    return steps


def _batched_ops(
    builder: ProgramBuilder, rank: Rank, loaded: int, mine: Ints, lanes: int, steps: list[tuple[int, int]]
) -> int:
    """Ops of the warps `mine`, one after the other; returns the first."""
    blocks, links = rank.blocks, rank.links
    step, turn = np.array(steps).T
    row = mine[:, None] + lanes * turn  # [warps, steps]
    block = blocks.pulled_block[row]
    release = 2 * rank.machine.interconnect.local_latency.value
    keep = max(0, int(needed(rank.machine, "pull_row")) - release)
    publish = (step == PUBLISH) | (step == PUBLISH_FIRST)
    counter, count = np.full(row.shape, NONE), np.zeros(row.shape, dtype=np.int64)
    if links.l1_freed != NONE:
        slot = _slot(rank, block)
        counter, count = np.where(step == SLOT, slot["counter"], counter), np.where(step == SLOT, slot["count"], count)
    counter = np.where((step == ASK) | (step == ARRIVED), loaded + mine[:, None], counter)
    counter = np.where(publish, links.pulled if links.separate else links.arrived[block], counter)
    return builder.ops(
        np.broadcast_to(np.array([WAIT, LOAD, SIGNAL, SIGNAL, WAIT, COMPUTE])[step], row.shape),
        counter=counter,
        count=np.where(publish, 1, np.where(step == ARRIVED, turn + 1, count)),
        target=np.where(step == ASK, blocks.pulled_from[row], 0),
        bytes=np.where(step == ASK, rank.shape.pull_bytes, 0),
        duration_ps=np.where(step == KEEP, keep, np.where(step == PUBLISH_FIRST, release, 0)),
    )
