"""Counters that tie the phases of one rank together: who signals what, and who waits for how many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...program_builder import ProgramBuilder
from .blocks import Blocks
from .kernel import Kernel
from .order import Order
from .shape import Policy, Split, Unfused

Ints = NDArray[np.int64]
NONE = -1


@dataclass(frozen=True, eq=False)
class Links:
    """Of one rank. Arrays are [blocks], or [blocks, parts] where a block's L1 output is published in parts (k-blocks).

    The `go_*` counters stand between launches; a fused kernel has none (-1), two launches have `go_l2`, separate kernels
    have all. `claimed` counts L1 tasks begun, for policies whose L2 tasks are guarded by it. `l1_freed` and `l2_issued`
    exist where there is a ring.
    """

    started: int  # 1 once rows may be pulled
    arrived: Ints  # rows of the block that have been pulled
    l1_done: Ints  # L1 tiles of the block's part that have been published
    l1_freed: int  # first of [blocks]: L1 tiles that no longer need their input slot
    l2_issued: int  # first of [blocks]: L2 tiles that no longer need their input slot
    l2_done: int  # L2 tiles of the rank whose stores have been issued, and then rows that a kernel of its own returned
    pulled: int  # rows of the rank, counted where the pull is a kernel of its own
    l1_total: int  # L1 tiles of the rank, counted where L2 has a launch of its own
    claimed: int
    go_l1: int
    go_l2: int
    go_return: int

    @property
    def parts(self) -> int:
        return int(self.l1_done.shape[1])

    @property
    def separate(self) -> bool:
        """Whether pull, L1, L2 and return are kernels of their own."""
        return self.go_return != NONE

    @property
    def l2_launched(self) -> bool:
        """Whether L2 has a launch of its own."""
        return self.go_l2 != NONE


def links_of(builder: ProgramBuilder, blocks: Blocks, order: Order, parts: int, policy: Policy) -> Links:
    """Make the counters of one rank; all have their home on its GPU."""
    separate, launched = isinstance(policy, Unfused), isinstance(policy, (Unfused, Split))
    m = blocks.n_blocks

    def make(cause: str, count: int = 1, initial: Ints | int = 0) -> int:
        return builder.counters(home=np.full(count, blocks.gpu), cause=cause, initial=initial) if count else NONE

    ring = order.ring > 0
    index = np.arange(m)
    arrived = make("inputs", m, np.where(blocks.is_shared, blocks.rows, 0)) + index
    l1_done = (make("inputs", m * parts) + np.arange(m * parts)).reshape(m, parts)
    return Links(
        started=make("barrier"),
        arrived=arrived,
        l1_done=l1_done,
        l1_freed=make("ring", m) if ring else NONE,
        l2_issued=make("ring", m) if ring else NONE,
        l2_done=make("barrier"),
        pulled=make("barrier") if separate else NONE,
        l1_total=make("barrier") if launched else NONE,
        claimed=make("inputs") if order.dynamic else NONE,
        go_l1=make("barrier") if separate else NONE,
        go_l2=make("barrier") if launched else NONE,
        go_return=make("barrier") if separate else NONE,
    )


def tiles_of_part(kernel: Kernel, parts: int) -> Ints:
    """L1 tiles of a block that feed each part. [parts]"""
    return np.bincount(part_of_tile(kernel, parts), minlength=parts)


def part_of_tile(kernel: Kernel, parts: int) -> Ints:
    """Part of the L1 output that each n-block feeds. [l1_n_blocks]"""
    return np.arange(kernel.l1_n_blocks) * parts // kernel.l1_n_blocks
