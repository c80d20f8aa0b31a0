"""The m-blocks of one rank: which rows they hold, and to which GPUs those rows go back.

Blocks are numbered in pool order (expert by expert). Blocks of the shared expert come first; its rows are the rank's own
tokens, so they are neither pulled nor returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...pools import Pools
from .kernel import Kernel
from .shape import MegaMoe

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Blocks:
    """One rank. `pulled_*` are by pool row in pool order."""

    rank: int
    gpu: int
    expert: Ints  # [blocks] local expert, shared experts first
    rows: Ints  # [blocks] valid rows
    is_shared: NDArray[np.bool_]  # [blocks]
    pulled_block: Ints  # [rows]
    pulled_from: Ints  # [rows] GPU of the source rank
    returned: Ints  # [blocks, steps, gpus] rows that an epilogue step returns to each GPU
    routed_experts: int  # that the rank holds, each copy of one counted

    @property
    def n_blocks(self) -> int:
        return len(self.rows)

    @property
    def n_pulled(self) -> int:
        return len(self.pulled_block)


def m_blocks_of_ranks(shape: MegaMoe, rows: Ints, block_m: int) -> Ints:
    """M-blocks of each rank's experts, shared ones first, [ranks, experts]; `rows` of each copy of an expert, [copies]."""
    routed = rows.reshape(shape.ranks, -1)
    shared = np.full((shape.ranks, shape.shared_experts), shape.tokens, dtype=np.int64)
    return -(-np.hstack([shared, routed]) // block_m)


def blocks_of(
    pools: Pools, kernel: Kernel, shape: MegaMoe, rank: int, gpu: int, gpu_of_rank: Ints, n_gpus: int
) -> Blocks:
    """The blocks of `rank`, which runs on `gpu`; `gpu_of_rank` says where the other ranks' rows come from."""
    per_rank = pools.placement.replicas_per_rank
    first, end = pools.rank_start[rank], pools.rank_start[rank + 1]
    routed = pools.rows_per_replica[rank * per_rank : (rank + 1) * per_rank]
    rows_of_expert = np.concatenate([np.full(shape.shared_experts, shape.tokens, dtype=np.int64), routed])
    m_blocks = -(-rows_of_expert // kernel.block_m)
    expert = np.repeat(np.arange(len(rows_of_expert)), m_blocks)
    first_block = np.cumsum(m_blocks) - m_blocks
    inside = np.arange(len(expert)) - first_block[expert]
    rows = np.minimum(kernel.block_m, rows_of_expert[expert] - inside * kernel.block_m)

    pool_expert = np.repeat(np.arange(per_rank), routed)
    pool_offset = np.arange(end - first) - (np.cumsum(routed) - routed)[pool_expert]
    block = first_block[shape.shared_experts + pool_expert] + pool_offset // kernel.block_m
    step = pool_offset % kernel.block_m // kernel.step_rows
    source = gpu_of_rank[pools.source_rank[first:end]]
    place = (block * kernel.steps + step) * n_gpus + source
    returned = np.bincount(place, minlength=len(expert) * kernel.steps * n_gpus)
    returned = returned.reshape(len(expert), kernel.steps, n_gpus)
    is_shared = expert < shape.shared_experts
    for s in range(kernel.steps):
        mine = np.clip(rows - s * kernel.step_rows, 0, kernel.step_rows)
        returned[is_shared, s, gpu] = mine[is_shared]
    return Blocks(rank, gpu, expert, rows, is_shared, block, source, returned, per_rank)
