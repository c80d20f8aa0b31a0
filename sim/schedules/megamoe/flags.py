"""Flags: what counts returned rows together, so that somebody knows when they have all come.

A kernel that combines behind barrier 2 needs one flag a GPU. One that combines early has a flag for each expert of each rank
at every GPU, and each token waits for those of its experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...placement import Placement
from ...program_builder import ProgramBuilder
from ...routing import Routing
from .combine import Done
from .kernel import Kernel
from .shape import MegaMoe
from .tiles import Rank

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Flags:
    """`arrivals` is how many STOREs raise each flag at each GPU, [flags, gpus]; `visible` + its place counts them.

    `last` is where the last tile that raises a flag stands in the nominal order of its rank, [flags]. Both are filled in
    by `note`. `experts` is the flags of a rank, 0 where all share one.
    """

    visible: int
    arrivals: Ints
    last: Ints
    experts: int

    @classmethod
    def make(cls, builder: ProgramBuilder, kernel: Kernel, shape: MegaMoe, placed: Placement, n_ranks: int) -> Flags:
        """Those of `n_ranks` ranks; shared experts have flags of their own."""
        experts = shape.shared_experts + placed.replicas_per_rank if kernel.early_combine else 0
        count, n_gpus = max(1, n_ranks * experts), builder.n_gpus
        visible = builder.counters(home=np.tile(np.arange(n_gpus), count), cause="barrier")
        return cls(visible, np.zeros((count, n_gpus), dtype=np.int64), np.zeros(count, dtype=np.int64), experts)

    def of_experts(self, index: int, expert: Ints) -> Ints:
        """Flags of experts of the rank number `index`, shared ones counted first."""
        flag: Ints = index * self.experts + expert if self.experts else np.zeros_like(expert)
        return flag

    def counters(self, flag: Ints) -> Ints:
        """First of a flag's counters, one for each GPU."""
        first: Ints = self.visible + flag * self.arrivals.shape[1]
        return first

    def note(self, index: int, rank: Rank, arrivals: Ints) -> None:
        """What the blocks of the rank number `index` cause at each GPU, [blocks, gpus]."""
        flag = self.of_experts(index, rank.blocks.expert)
        np.add.at(self.arrivals, flag, arrivals)
        if self.experts:
            np.maximum.at(self.last, flag[rank.order.block], np.arange(len(rank.order.block)))

    def done(
        self, shape: MegaMoe, routing: Routing, placed: Placement, ranks: Sequence[Rank], receivers: Sequence[int]
    ) -> list[Done]:
        """When each receiver may combine its tokens early; nothing where kernels combine behind a barrier."""
        if not self.experts:
            return []
        counters = self.counters(np.arange(len(self.arrivals)))
        tokens = self._of_tokens(shape, routing, placed, [rank.blocks.rank for rank in ranks])
        return [
            Done(_left(rank), _busy(rank), flags, counters + gpu, self.arrivals[:, gpu], self.last)
            for rank, flags, gpu in zip(ranks, tokens, receivers, strict=True)
        ]

    def _of_tokens(self, shape: MegaMoe, routing: Routing, placed: Placement, ranks: Sequence[int]) -> list[Ints]:
        """Flags of the tokens of each simulated rank, [ranks] of [tokens, experts]; -1 where masked.

        One rank that stands for all takes the experts of the others for its own.
        """
        replica = placed.choose_replica(routing.topk)[ranks].astype(np.int64)
        owner, mine = np.divmod(replica, placed.replicas_per_rank)
        owner = owner if len(ranks) > 1 else np.zeros_like(owner)
        flags = np.where(replica >= 0, self.of_experts(0, owner * self.experts + shape.shared_experts + mine), -1)
        shared = np.broadcast_to(np.arange(shape.shared_experts), (shape.tokens, shape.shared_experts))
        return [np.concatenate([flags[i], self.of_experts(i, shared)], axis=1) for i in range(len(ranks))]


def left_of(builder: ProgramBuilder, kernel: Kernel, receiver: int) -> Ints | None:
    """Counters at a receiver that tell which SMs have no tiles left, [sms]; none where nobody combines early."""
    if not kernel.early_combine:
        return None
    return builder.counters(home=np.full(kernel.sms, receiver), cause="peer") + np.arange(kernel.sms)


def _left(rank: Rank) -> Ints:
    assert rank.left is not None
    return rank.left


def _busy(rank: Rank) -> int:
    """SMs of a rank that have tiles, the first ones."""
    tasks = len(rank.order.block) // rank.kernel.cluster
    return min(rank.kernel.groups, tasks) * rank.kernel.cluster
