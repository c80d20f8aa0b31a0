"""The nominal order of a rank's tiles under each policy, and the smallest ring that it can run with.

An order is three equally long arrays of CTA tiles (L2 or L1, m-block, n-block). `cluster` neighbours make a task. Static
orders are striped over the groups; `n_static` tells where the ticketed tail begins. Dynamic policies draw L1 and L2 tasks
from two shared lists, each in this order; for them the order of both together is only nominal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from . import rules, rules_sm90
from .blocks import Blocks
from .kernel import Kernel, split_of
from .shape import Alternating, ExpertWave, Interleaved, Lag, MegaMoe, Policy, Split

Ints = NDArray[np.int64]
NEVER = 2**40
TASKS_HELD = 4
"""Tasks that a group has begun and not ended: two in the buffers, one in the main loop, one that waits."""


class Tiles(NamedTuple):
    """CTA tiles as equally long columns."""

    l2: NDArray[np.bool_]
    block: Ints
    n: Ints

    def take(self, chosen: Ints) -> Tiles:
        return Tiles(self.l2[chosen], self.block[chosen], self.n[chosen])


@dataclass(frozen=True, eq=False)
class Order:
    """Tiles of one rank in nominal order; a task is `cluster` neighbours."""

    tiles: Tiles
    n_static: int  # tasks in the striped list; the rest is drawn by tickets
    ring: int  # m-blocks, 0 for none
    dynamic: bool = False
    warm_up: int = 0  # alternating: L1 tasks that each group takes first
    lead_blocks: int = 0  # interleaved
    ready: bool = False  # L2 tasks are guarded by their inputs too

    @property
    def l2(self) -> NDArray[np.bool_]:
        return self.tiles.l2

    @property
    def block(self) -> Ints:
        return self.tiles.block

    @property
    def n(self) -> Ints:
        return self.tiles.n


def order_of(kernel: Kernel, shape: MegaMoe, policy: Policy, release: rules.Release, blocks: Blocks) -> Order:
    """The order of one rank. Whether its ring is large enough is asked by `check_rings`."""
    tiles = _all_tiles(kernel, blocks)
    l2, block, n = tiles
    if isinstance(policy, ExpertWave):
        wave = _wave_of_block(kernel, shape, policy, release, blocks)
        chosen = np.lexsort((n, block, l2, wave[block]))
        order = _static(kernel, tiles, chosen, len(chosen), policy.ring_m_blocks or 0)
    elif isinstance(policy, Split):
        order = _split(kernel, shape, policy, blocks, tiles)
    elif isinstance(policy, Lag) and _is_one_wave(kernel, shape, policy):
        order = _static(kernel, tiles, np.lexsort((block, n, blocks.expert[block], l2)), len(block), 0)
    elif isinstance(policy, Lag):
        order = _lag_order(kernel, shape, policy, blocks, tiles)
    elif isinstance(policy, Alternating):
        order = _alternating(kernel, policy, blocks, tiles)
    elif isinstance(policy, Interleaved):
        order = _interleaved(kernel, policy, blocks, tiles)
    else:
        chosen = np.lexsort((n, block, l2))
        order = _static(kernel, tiles, chosen, len(chosen), 0)
    return order


def _all_tiles(kernel: Kernel, blocks: Blocks) -> Tiles:
    l1, l2 = blocks.n_blocks * kernel.l1_n_blocks, blocks.n_blocks * kernel.l2_n_blocks
    is_l2 = np.arange(l1 + l2) >= l1
    index = np.arange(l1 + l2) - l1 * is_l2
    width = kernel.n_blocks(is_l2)
    return Tiles(is_l2, index // width, index % width)


def _static(kernel: Kernel, tiles: Tiles, chosen: Ints, static_tiles: int, ring: int) -> Order:
    return Order(tiles.take(chosen), static_tiles // kernel.cluster, ring)


def _wave_of_block(kernel: Kernel, shape: MegaMoe, policy: ExpertWave, release: rules.Release, blocks: Blocks) -> Ints:
    """Wave of each block; shared experts are a wave of their own, the first.

    The size is that of the family's rule; on SM100 June's where a later release has no waves.
    """
    size = policy.experts_per_wave
    sizes = {
        "tokens": shape.tokens,
        "k": shape.topk,
        "local_experts": shape.local_experts,
        "intermediate": shape.intermediate,
    }
    if size is None and kernel.family == "sm90":
        size = rules_sm90.sm90_experts_per_wave(**sizes, sms=kernel.sms, block_n=kernel.block_n, block_m=kernel.block_m)
    elif size is None:
        sm100 = "june" if release == "sept" else release
        size = rules.experts_per_wave(sm100, kernel.block_m, **sizes, sms=kernel.sms, block_n=kernel.block_n)
    if size < 1:
        raise InputError("must be at least 1", field="experts_per_wave", value=size)
    return np.where(blocks.is_shared, -1, (blocks.expert - shape.shared_experts) // size)


def _split(kernel: Kernel, shape: MegaMoe, policy: Split, blocks: Blocks, tiles: Tiles) -> Order:
    """All L1 tiles, then all L2 tiles, expert by expert; inside an expert by m-block, or by n-block where n-major."""
    rule = split_of(shape, kernel.sms)
    l1_n_major = rule.l1_n_major if policy.l1_n_major is None else policy.l1_n_major
    l2_n_major = rule.l2_n_major if policy.l2_n_major is None else policy.l2_n_major
    l2, block, n = tiles
    n_major = np.where(l2, l2_n_major, l1_n_major)
    outer, inner = np.where(n_major, n, block), np.where(n_major, block, n)
    chosen = np.lexsort((inner, outer, blocks.expert[block], l2))
    return _static(kernel, tiles, chosen, len(chosen), 0)


def _is_one_wave(kernel: Kernel, shape: MegaMoe, policy: Lag) -> bool:
    """Whether the public kernel runs a call of this size as one wave of all experts; not if a lag is asked for."""
    lag_ordered = rules.sm90_runs_lag_order(
        shape.tokens,
        capacity=shape.most_tokens,
        ranks=shape.ranks,
        local_experts=shape.local_experts,
        k=shape.topk,
        block_m=kernel.block_m,
    )
    return policy.lag is None and not lag_ordered


def _lag_order(kernel: Kernel, shape: MegaMoe, policy: Lag, blocks: Blocks, tiles: Tiles) -> Order:
    """`lag` L1 units, then `group` L1 units and `group` L2 units in turn: lag + group units between L1 and L2 at most, for
    which the rule's ring of 8 (lag + group) + 4 m-blocks is made.
    """
    rule = rules.lag_schedule(capacity=shape.most_tokens, k=shape.topk, local_experts=shape.local_experts)
    lag = rule.lag if policy.lag is None else policy.lag
    group = rule.group if policy.group is None else policy.group
    for name, value, least in (("lag", lag, 0), ("group", group, 1), ("unit", policy.unit, 1)):
        if value < least:
            raise InputError("is too small", field=name, value=value, allowed=f"{least} or more")
    ring = policy.unit * (lag + group) + rules.LAG_RING_MARGIN if policy.ring_m_blocks is None else policy.ring_m_blocks
    unit = _unit_of_block(blocks, policy.unit)
    units = int(unit.max(initial=-1)) + 1
    followed = max(0, units - lag) // group  # batches of L1 units that a batch of L2 units follows
    l2, block, n = tiles
    batch = np.where(l2, unit[block] // group, (unit[block] - lag) // group)
    time = np.where(l2, np.where(batch < followed, 2 * batch + 2, NEVER), np.where(unit[block] < lag, 0, 2 * batch + 1))
    chosen = np.lexsort((block, n, unit[block], time))
    return _static(kernel, tiles, chosen, int((time < NEVER).sum()), min(ring, blocks.n_blocks))


def _unit_of_block(blocks: Blocks, most: int) -> Ints:
    """Unit of each block: up to `most` neighbouring blocks of one expert."""
    starts = np.flatnonzero(np.diff(blocks.expert, prepend=-1))
    inside = np.arange(blocks.n_blocks) - np.repeat(starts, np.diff(np.append(starts, blocks.n_blocks)))
    return np.cumsum(inside % most == 0) - 1


def _alternating(kernel: Kernel, policy: Alternating, blocks: Blocks, tiles: Tiles) -> Order:
    n1, n2 = kernel.l1_tasks, kernel.l2_tasks
    warm_up = policy.warm_up
    if warm_up is None:
        warm_up = rules.warm_up_waves(blocks.n_blocks, kernel.groups, n1, n2)
    if blocks.n_blocks and warm_up < (least := least_warm_up(blocks.n_blocks, kernel.groups, n1, n2)):
        raise InputError(
            "is too small: every group would wait for L1 tasks that nobody takes any more",
            field="warm_up",
            value=warm_up,
            allowed=f"{least} or more",
        )
    l2, block, n = tiles
    task = (block * kernel.n_blocks(l2) + n) // kernel.cluster
    first = warm_up * kernel.groups
    time = np.where(l2, first + 2 * task, np.where(task < first, task, first + 2 * (task - first) + 1))
    return _dynamic(tiles, np.lexsort((n, time)), ring=policy.ring_m_blocks or 0, warm_up=warm_up)


def least_warm_up(m_blocks: int, groups: int, n1: int, n2: int) -> int:
    """Fewest L1 tasks a group with which alternating claims come to an end: ceil((n1 + (M - 1) max(0, n1 - n2)) / groups).

    Where M m-blocks have n1 L1 and n2 L2 tasks, all groups can stand in L2 tasks from task j on when j + warm_up groups L1
    tasks are done; the m-block of task j needs n1 (j // n2 + 1) of them. The public kernel takes one wave more.
    """
    return max(1, -(-(n1 + (m_blocks - 1) * max(0, n1 - n2)) // groups))


def _interleaved(kernel: Kernel, policy: Interleaved, blocks: Blocks, tiles: Tiles) -> Order:
    if policy.lead_rows is None:
        n1, n2 = kernel.l1_tasks, kernel.l2_tasks
        lead = -(-rules.warm_up_waves(blocks.n_blocks, kernel.groups, n1, n2) * kernel.groups // n1)
    elif policy.lead_rows < 0:
        raise InputError("must be 0 or more", field="lead_rows", value=policy.lead_rows)
    else:
        lead = -(-policy.lead_rows // kernel.block_m)
    l2, block, n = tiles
    order = np.lexsort((n, ~l2, np.where(l2, block + max(1, lead), block)))
    if policy.ring_m_blocks < 0:
        raise InputError("must be 0 or more", field="ring_m_blocks", value=policy.ring_m_blocks)
    return _dynamic(tiles, order, ring=policy.ring_m_blocks, lead_blocks=lead, ready=policy.ready)


def _dynamic(
    tiles: Tiles, chosen: Ints, ring: int = 0, warm_up: int = 0, lead_blocks: int = 0, ready: bool = False
) -> Order:
    return Order(tiles.take(chosen), 0, ring, True, warm_up, lead_blocks, ready)


def check_rings(kernel: Kernel, ranks: Sequence[tuple[Order, Blocks]]) -> None:
    """Raise `InputError` if a rank's order has more m-blocks between L1 and L2 at once than its ring."""
    needs = max((least_ring(kernel, order, blocks) for order, blocks in ranks if order.ring > 0), default=0)
    ring = max((order.ring for order, _ in ranks), default=0)
    if any(0 < order.ring < least_ring(kernel, order, blocks) for order, blocks in ranks):
        raise InputError(
            "cannot hold the m-blocks that this order has between L1 and L2 at once",
            field="ring_m_blocks",
            value=ring,
            allowed=f"{needs} or more, or 0 for none",
        )


def ring_of_lead(lead_blocks: int) -> int:
    """Fewest m-blocks of a ring for a lead of `lead_blocks` m-blocks: those of the lead, and the one whose L1 is going on.

    It is enough where every open L2 task is taken before the next L1 task.
    """
    return max(1, lead_blocks) + 1


def least_ring(kernel: Kernel, order: Order, blocks: Blocks) -> int:
    """Fewest m-blocks of a ring with which an order can always go on."""
    if not order.dynamic:
        return _least_of_static(order, blocks.n_blocks)
    if order.warm_up:
        return _least_of_alternating(kernel, order.warm_up, blocks.n_blocks)
    held = -(-TASKS_HELD * kernel.groups // kernel.l1_tasks) if order.ready else 0  # guarded tasks let as many L1 begin
    return min(blocks.n_blocks, ring_of_lead(order.lead_blocks) + held)


def _least_of_static(order: Order, n_blocks: int) -> int:
    """The L2 tiles of the block that had a slot before stand before the slot's next L1 tiles."""
    position = np.arange(len(order.block))
    last_l2 = np.zeros(n_blocks, dtype=np.int64)
    first_l1 = np.full(n_blocks, len(position), dtype=np.int64)
    np.maximum.at(last_l2, order.block[order.l2], position[order.l2])
    np.minimum.at(first_l1, order.block[~order.l2], position[~order.l2])
    done = np.searchsorted(np.maximum.accumulate(last_l2), first_l1)  # blocks whose L2 is over when this L1 begins
    return int((np.arange(n_blocks) - done + 1).max(initial=0))


def _least_of_alternating(kernel: Kernel, warm_up: int, n_blocks: int) -> int:
    """The bound of the public kernel, and the m-blocks that a longer warm-up than its own begins."""
    claims = (n_blocks, kernel.groups, kernel.l1_tasks, kernel.l2_tasks)
    longer = max(0, warm_up - rules.warm_up_waves(*claims))
    return rules.most_live_m_blocks(*claims) + -(-longer * kernel.groups // kernel.l1_tasks)
