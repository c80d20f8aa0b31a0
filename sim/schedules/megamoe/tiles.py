"""The tile tasks of one rank: main loops, epilogues, and their order in queues.

    sm100, one task = two CTA tiles of an m-block             sm90, one task = one CTA tile, or two that share weights
    (portable: one CTA tile, one epilogue)

    mma         wait inputs, take both buffers, compute, full  math   wait inputs, compute, epilogue, publish or store
    epilogue x2 wait full, compute and store step by step,
                give the buffer back before the last stores

Ops are made once for each kind of tile (a block, a main-loop time), runs once for each task and seat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ... import tile_cost
from ...program import ACQUIRE, COMPUTE, RELEASE, SIGNAL, STORE, UNTIL_EXHAUSTED, WAIT
from ...program_builder import ProgramBuilder, Seat
from ...routing import stable_order
from ..op_variants import Op, op_variants
from .blocks import Blocks
from .kernel import Kernel
from .links import NONE, Links, part_of_tile, tiles_of_part
from .order import Order, Tiles
from .returns import Returns
from .rules_sm90 import K_BLOCK
from .shape import MegaMoe

if TYPE_CHECKING:
    from ...machine import Machine

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rank:
    """Everything that the tasks of one rank are made from."""

    machine: Machine
    kernel: Kernel
    shape: MegaMoe
    costs: tile_cost.TileCosts
    blocks: Blocks
    order: Order
    links: Links
    returns: Returns
    token_rows: Ints  # rows that are added up for each of its tokens, [tokens]
    start_ps: int = 0
    launch_gap_ps: int = 0
    left: Ints | None = None  # counter of each SM to bump when it has no tiles left, [sms]


def main_loops_ps(rank: Rank) -> Ints:
    """Main loop of every tile, [tiles] in nominal order.

    Measured main loops, if the shape has them, are those of full tiles; others take the share of the bytes they bring in.
    """
    kernel, shape, tiles, blocks = rank.kernel, rank.shape, rank.order.tiles, rank.blocks
    rows, is_shared = blocks.rows[tiles.block], blocks.is_shared[tiles.block]
    if shape.l1_main_loop_ps is not None and shape.l2_main_loop_ps is not None:
        alone = np.zeros(len(rows), dtype=bool)
        feed = kernel.feed_bytes(shape, tiles.l2, rows, alone, is_shared)
        full = kernel.feed_bytes(shape, tiles.l2, np.full_like(rows, kernel.block_m), alone)
        given = np.where(tiles.l2, shape.l2_main_loop_ps, shape.l1_main_loop_ps)
        return np.ceil(given * (feed / full)).astype(np.int64)
    flops = 2.0 * kernel.computed_rows(rows) * kernel.columns(tiles.l2) * kernel.depth(shape, tiles.l2)
    feed = kernel.feed_bytes(shape, tiles.l2, rows, shares_weights(rank), is_shared)
    weights = weight_names(kernel, tiles, blocks.expert[tiles.block])
    weight_bytes = kernel.weight_bytes(shape, tiles.l2, is_shared)
    hits = weight_hits(kernel, shape, rank.costs, tiles, blocks.expert[tiles.block], rows)
    rounds = rounds_of(tiles, rank.costs.sms, rank.links.l2_launched)
    hbm, users = tile_cost.bytes_from_hbm(rounds, weights, weight_bytes, hits)
    return tile_cost.main_loop_ps(rank.costs, flops, feed, hbm, _in_turn_us(rank), users, rounds)


def rounds_of(tiles: Tiles, sms: int, l2_launched: bool) -> tile_cost.Rounds:
    """As many neighbours as there are SMs run side by side, but an L2 tile at the earliest in the round after its inputs'.

    A kernel that is launched for L2 begins a round of its own.
    """
    l2, block = tiles.l2, tiles.block
    rounds = np.arange(len(l2)) // sms
    if l2_launched:
        n_l1 = len(l2) - np.count_nonzero(l2)
        rounds[~l2] = np.arange(n_l1) // sms
        rounds[l2] = -(-n_l1 // sms) + np.arange(len(l2) - n_l1) // sms
    l1_ends = np.zeros(block.max(initial=-1) + 1, dtype=np.int64)
    np.maximum.at(l1_ends, block[~l2], rounds[~l2])
    rounds[l2] = np.maximum(rounds[l2], l1_ends[block[l2]] + 1)
    return tile_cost.Rounds(rounds)


def _in_turn_us(rank: Rank) -> Any:
    """What the math warps do in turn with their MMA: unpack weights, promote the accumulator of a lone warpgroup."""
    kernel, l2 = rank.kernel, rank.order.tiles.l2
    us = np.zeros(len(l2))
    depth = kernel.depth(rank.shape, l2)
    if kernel.unpacks(rank.shape):
        routed = ~rank.blocks.is_shared[rank.order.tiles.block]
        us += routed * kernel.columns(l2) * depth / rank.costs.unpacked_per_us
    alone = kernel.warpgroups(rank.blocks.rows[rank.order.tiles.block]) == 1
    if alone.any() and rank.shape.format.math == "fp8":
        us += alone * depth / K_BLOCK * rank.costs.promotion_us
    return us


def shares_weights(rank: Rank) -> NDArray[np.bool_]:
    """Whether all tiles of a cluster's task have the same weights, [tiles] in nominal order."""
    tiles, cluster = rank.order.tiles, rank.kernel.cluster
    pairs = np.stack([tiles.l2, rank.blocks.expert[tiles.block], tiles.n]).reshape(3, -1, cluster)
    return np.repeat((pairs == pairs[..., :1]).all(axis=(0, 2)) & (cluster > 1), cluster)


def weight_hits(
    kernel: Kernel, shape: MegaMoe, costs: tile_cost.TileCosts, tiles: Tiles, expert: Ints, rows: Ints
) -> NDArray[np.bool_]:
    """Whether tiles of one rank, in the order given, find their weights in L2; `expert` and `rows` are by tile."""
    return tile_cost.l2_hits(
        costs,
        weight_names(kernel, tiles, expert),
        kernel.weight_bytes(shape, tiles.l2, expert < shape.shared_experts),
        2 * tiles.block + tiles.l2,
        kernel.computed_rows(rows) * kernel.depth(shape, tiles.l2) * shape.format.activation_bits // 8,
    )


def weight_names(kernel: Kernel, tiles: Tiles, expert: Ints) -> Ints:
    """A number for the weights of each tile; `expert` is by tile."""
    return expert * (kernel.l1_n_blocks + kernel.l2_n_blocks) + np.where(tiles.l2, kernel.l1_n_blocks, 0) + tiles.n


def add_tiles(builder: ProgramBuilder, rank: Rank) -> None:
    """Tasks, queues, plans and groups of one rank's tiles."""
    kernel, order = rank.kernel, rank.order
    if not len(order.block):
        return
    by_task = (-1, kernel.cluster)
    l2 = order.l2.reshape(by_task)[:, 0]
    seats = _sm90_runs if kernel.family == "sm90" else _sm100_runs
    made = seats(builder, rank, main_loops_ps(rank).reshape(by_task))
    runs = builder.runs(made.first_op.ravel(), made.n_ops.ravel())
    n_seats = made.n_ops.shape[1]
    tasks = np.empty(len(l2), dtype=np.int64)
    for is_l2, phase in ((False, "l1"), (True, "l2")):
        mine = np.flatnonzero(l2 == is_l2)
        block = order.block.reshape(by_task)[mine, 0]
        if len(mine):
            tasks[mine] = np.arange(len(mine)) + builder.tasks(
                runs + mine * n_seats,
                n_seats,
                phase=phase,
                expert=rank.blocks.expert[block],
                m_block=block,
                n_block=order.n.reshape(by_task)[mine, 0],
                guards=_guards(rank, block) if is_l2 and order.dynamic else (),
            )
    _add_groups(builder, rank, tasks, l2)


def _guards(rank: Rank, block: Ints) -> list[tuple[Any, Any]]:
    """An L2 task of a dynamic policy is open once L1 has begun what lies `lead` blocks ahead, and its own block."""
    kernel, blocks, links = rank.kernel, rank.blocks, rank.links
    ahead = np.minimum(block + max(1, rank.order.lead_blocks), blocks.n_blocks)
    guards: list[tuple[Any, Any]] = [(links.claimed, ahead * kernel.l1_tasks)]
    if rank.order.ready:
        guards.append((links.l1_done[block, 0], kernel.l1_n_blocks))
    return guards


def _add_groups(builder: ProgramBuilder, rank: Rank, tasks: Ints, l2: NDArray[np.bool_]) -> None:
    kernel, cluster = rank.kernel, rank.kernel.cluster
    n_groups = min(kernel.groups, len(tasks))
    plans = (
        _shared_lists(builder, rank, tasks, l2) if rank.order.dynamic else _striped(builder, rank, tasks, l2, n_groups)
    )
    sm = np.arange(n_groups) * cluster
    if kernel.family == "sm90":
        roles = [("math", cta) for cta in range(cluster)]
        slots = [1] * cluster if cluster > 1 else []  # main loops that a CTA may begin
    else:
        roles = [("mma", 0), *(("epilogue", cta) for cta in range(cluster))]
        slots = [2] * cluster + [0] * cluster  # free buffers by CTA, full ones by CTA
    seats = [Seat(role, sm + cta, start_ps=rank.start_ps) for role, cta in roles]
    builder.groups(gpu=rank.blocks.gpu, plan=np.broadcast_to(plans, n_groups), seats=seats, slots=slots)


def _shared_lists(builder: ProgramBuilder, rank: Rank, tasks: Ints, l2: NDArray[np.bool_]) -> int:
    """The one plan of all groups, which draw L1 and L2 tasks from two lists."""
    first, second = builder.queue(tasks[~l2]), builder.queue(tasks[l2])
    if rank.order.warm_up:
        return builder.plan([(first, NONE, rank.order.warm_up)], [second, first])
    return builder.plan(repeat=[(second, first, 1)])


def _striped(builder: ProgramBuilder, rank: Rank, tasks: Ints, l2: NDArray[np.bool_], n_groups: int) -> Ints:
    """A plan for each group: its stripe of the static list, the ticketed tail, and what it says when it leaves."""
    n_static = rank.order.n_static
    position = np.arange(n_static)
    if rank.links.l2_launched:  # the second launch begins with its first tile on the first SM
        position -= np.where(l2[:n_static], np.count_nonzero(~l2), 0)
    group = position % n_groups
    stripes = builder.queues(tasks[stable_order(group, n_groups)], np.bincount(group, minlength=n_groups))
    tail = [builder.queue(tasks[n_static:])] if n_static < len(tasks) else []
    leave = [_leave(builder, rank, n_groups)] if rank.left is not None else []
    if not tail and not leave:
        return builder.private_plans(stripes, n_groups) + np.arange(n_groups)
    return np.array([
        builder.plan([(queue, NONE, UNTIL_EXHAUSTED) for queue in (stripes + g, *tail)], [last + g for last in leave])
        for g in range(n_groups)
    ])  # fmt: skip


def _leave(builder: ProgramBuilder, rank: Rank, n_groups: int) -> int:
    """A queue for each group with its last task: every CTA says that its SM has no tiles left."""
    assert rank.left is not None
    cluster = rank.kernel.cluster
    ops = builder.ops(SIGNAL, counter=rank.left[: n_groups * cluster], count=1)
    index = np.arange(n_groups)
    runs = builder.runs(ops + np.arange(n_groups * cluster), 1)
    tasks = builder.tasks(runs + index * cluster, cluster, phase="barrier") + index
    return builder.queues(tasks, np.ones(n_groups, dtype=np.int64))


# What a main loop waits for and signals, by block -------------------------------------------------------------------


def _inputs(rank: Rank, l2: bool, block: Ints) -> list[Op]:
    links, kernel = rank.links, rank.kernel
    launch = links.go_l2 if l2 else links.go_l1
    if launch != NONE:
        return [{"kind": WAIT, "counter": launch, "count": 1}]
    if not l2:
        return [{"kind": WAIT, "counter": links.arrived[block], "count": rank.blocks.rows[block]}]
    needed = tiles_of_part(kernel, links.parts)
    return [{"kind": WAIT, "counter": links.l1_done[block, part], "count": needed[part]} for part in range(links.parts)]


def _main_loop(rank: Rank, l2: bool, block: Ints, duration: Ints, take: list[Op], after: list[Op]) -> list[Op]:
    """Wait for inputs, `take` the buffer, compute; with parts, each wait is followed by its share of the work."""
    waits = _inputs(rank, l2, block)
    ops: list[Op] = []
    if not l2 and rank.links.claimed != NONE:
        ops.append({"kind": SIGNAL, "counter": rank.links.claimed, "count": 1})
    for part, wait in enumerate(waits):
        done, until = (duration * end // len(waits) for end in (part, part + 1))
        ops += [wait, *(take if part == 0 else []), {"kind": COMPUTE, "duration_ps": until - done}]
    if l2 and rank.links.l2_issued != NONE:
        ops.append({"kind": SIGNAL, "counter": rank.links.l2_issued + block, "count": 1})
    return [*ops, *after]


def _l1_epilogue(rank: Rank, block: Ints, part: Ints, free: list[Op]) -> list[Op]:
    """SwiGLU and requantisation; the accumulator is free before the last step is computed."""
    kernel, links, ring = rank.kernel, rank.links, rank.order.ring
    elements = kernel.epilogue_elements(rank.blocks.rows[block], l2=False)
    whole = tile_cost.epilogue_ps(rank.costs, elements, "requantise")
    last = whole // kernel.steps
    ops: list[Op] = []
    if links.l2_issued != NONE:
        before = np.maximum(block - ring, 0)
        ops.append({
            "kind": WAIT,
            "counter": links.l2_issued + before,
            "count": np.where(block >= ring, kernel.l2_n_blocks // _issuers(kernel), 0),
        })  # fmt: skip
    ops += [{"kind": COMPUTE, "duration_ps": whole - last}, *free, {"kind": COMPUTE, "duration_ps": last}]
    done = links.l1_total if links.l2_launched else links.l1_done[block, part]
    ops.append({"kind": SIGNAL, "counter": done, "count": 1})
    if links.l1_freed != NONE:
        ops.append({"kind": SIGNAL, "counter": links.l1_freed + block, "count": 1})
    return ops


def _issuers(kernel: Kernel) -> int:
    """L2 tiles that one main loop issues."""
    return kernel.cluster if kernel.family == "sm100" else 1


def _l2_epilogue(rank: Rank, block: Ints, free: list[Op]) -> list[Op]:
    """Conversion and stores step by step; the accumulator is free when the last step has been read, before its stores."""
    kernel, returns = rank.kernel, rank.returns
    elements = kernel.epilogue_elements(rank.blocks.rows[block], l2=True)
    whole = tile_cost.epilogue_ps(rank.costs, elements, "scatter")
    ops: list[Op] = []
    for step in range(kernel.steps):
        part = (rank.blocks.rows[block] > step * kernel.step_rows).astype(np.int64)
        share = np.minimum(np.maximum(rank.blocks.rows[block] - step * kernel.step_rows, 0), kernel.step_rows)
        ops.append({"kind": COMPUTE, "duration_ps": part * whole * share // np.maximum(1, rank.blocks.rows[block])})
        ops += free if step == kernel.steps - 1 else []
        ops.append({
            "kind": STORE,
            "target": returns.row[block, step],
            "bytes": returns.bytes[block, step],
            "duration_ps": returns.issue_ps[block, step],
            "counter": returns.visible[block],
            "stride": returns.stride,
        })  # fmt: skip
    return [*ops, {"kind": SIGNAL, "counter": rank.links.l2_done, "count": 1}]


# Seats --------------------------------------------------------------------------------------------------------------


def _variants(*columns: Ints) -> tuple[list[Ints], Ints]:
    """Distinct rows of the columns, and which of them each row is."""
    order = np.lexsort(columns[::-1])
    ordered = [np.asarray(column)[order] for column in columns]
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any([column[1:] != column[:-1] for column in ordered], axis=0)
    which = np.empty(len(order), dtype=np.int64)
    which[order] = np.cumsum(new) - 1
    return [column[new] for column in ordered], which


class _Runs:
    """First op and number of ops of each seat's part of each task, [tasks, seats]."""

    def __init__(self, builder: ProgramBuilder, tasks: int, seats: int) -> None:
        self.builder = builder
        self.first_op, self.n_ops = np.zeros((2, tasks, seats), dtype=np.int64)

    def fill(self, tasks: Ints, seat: int, columns: Sequence[Ints], ops_of: Callable[..., list[Op]]) -> None:
        """Ops of one seat in some tasks, made once for each distinct row of the columns."""
        kinds, which = _variants(*columns)
        ops = ops_of(*kinds)
        self.first_op[tasks, seat] = op_variants(self.builder, len(kinds[0]), ops).first[which]
        self.n_ops[tasks, seat] = len(ops)


def _sm100_runs(builder: ProgramBuilder, rank: Rank, duration: Ints) -> _Runs:
    """Seats: mma, then an epilogue for each CTA."""
    order, cluster = rank.order, rank.kernel.cluster
    runs = _Runs(builder, len(duration), 1 + cluster)
    take: list[Op] = [{"kind": ACQUIRE, "counter": cta, "count": 1} for cta in range(cluster)]
    full: list[Op] = [{"kind": RELEASE, "counter": cluster + cta, "count": 1} for cta in range(cluster)]
    for l2 in (False, True):
        tasks = np.flatnonzero(order.l2[::cluster] == l2)
        block = order.block[::cluster][tasks]
        mma = partial(_main_loop, rank, l2, take=take, after=full)
        runs.fill(tasks, 0, (block, duration[tasks].max(axis=1)), mma)
        for cta in range(cluster):
            wait: list[Op] = [{"kind": ACQUIRE, "counter": cluster + cta, "count": 1}]
            free: list[Op] = [{"kind": RELEASE, "counter": cta, "count": 1}]
            part = _part(rank, l2, order.n[cta::cluster][tasks])
            runs.fill(tasks, 1 + cta, (block, part), partial(_epilogue, rank, l2, wait, free))
    return runs


def _sm90_runs(builder: ProgramBuilder, rank: Rank, duration: Ints) -> _Runs:
    """Seats: the CTAs of a cluster, which begin a main loop when both have ended the last."""
    order, cluster = rank.order, rank.kernel.cluster
    runs = _Runs(builder, *duration.shape)
    for cta in range(cluster):
        mine: list[Op] = [{"kind": ACQUIRE, "counter": cta, "count": 1}] if cluster > 1 else []
        other: list[Op] = [{"kind": RELEASE, "counter": 1 - cta, "count": 1}] if cluster > 1 else []
        for l2 in (False, True):
            tasks = np.flatnonzero(order.l2[cta::cluster] == l2)
            block, n = order.block[cta::cluster][tasks], order.n[cta::cluster][tasks]
            columns = (block, _part(rank, l2, n), duration[tasks, cta])
            runs.fill(tasks, cta, columns, partial(_math, rank, l2, mine, other))
    return runs


def _part(rank: Rank, l2: bool, n: Ints) -> Ints:
    """Part of its block's L1 output that a tile makes; an L2 tile makes none."""
    return np.zeros_like(n) if l2 else part_of_tile(rank.kernel, rank.links.parts)[n]


def _math(rank: Rank, l2: bool, mine: list[Op], other: list[Op], block: Ints, part: Ints, duration: Ints) -> list[Op]:
    """Main loop and epilogue of a warpgroup, one after the other."""
    return [*_main_loop(rank, l2, block, duration, mine, other), *_epilogue(rank, l2, [], [], block, part)]


def _epilogue(rank: Rank, l2: bool, wait: list[Op], free: list[Op], block: Ints, part: Ints) -> list[Op]:
    return [*wait, *(_l2_epilogue(rank, block, free) if l2 else _l1_epilogue(rank, block, part, free))]
