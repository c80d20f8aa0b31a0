"""The rows that every rank receives, and the order in which they stand in its pool.

A row is one (token, top-k slot) pair. A MegaMoE kernel pulls the rows of its experts from their source ranks in pool
order, computes them in blocks, and returns them to where they came from, so this order decides which peers a burst of
loads or stores meets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .placement import Placement
from .routing import Routing, occurrence, stable_order


@dataclass(frozen=True, eq=False)
class Pools:
    """The rows of every rank in pool order, one rank after another; own-rank rows are rows too.

    Pool order is by replica; inside a replica the source ranks take turns in rank order, one row each from those that
    still have rows; rows of one source stay in token order. Rows of replica p are
    `replica_start[p]:replica_start[p + 1]`. `source_rank`, `source_token` and `slot` have shape [rows], int32.

    Source: the dispatch pull of DeepGEMM's `sm100_fp8_fp4_mega_moe.cuh` ("min peeling"),
    https://github.com/deepseek-ai/DeepGEMM. There an atomic counter decides the order of one source's tokens.
    """

    placement: Placement
    replica_start: NDArray[np.int64]
    source_rank: NDArray[np.int32]
    source_token: NDArray[np.int32]
    slot: NDArray[np.int32]

    @property
    def rows_per_replica(self) -> NDArray[np.int64]:
        """Rows of every replica (on the rank that holds it), [replicas]."""
        return np.diff(self.replica_start)

    @property
    def rank_start(self) -> NDArray[np.int64]:
        """First row of every owner rank, and the end, [ranks + 1]."""
        return self.replica_start[:: self.placement.replicas_per_rank]

    @property
    def rows_per_rank(self) -> NDArray[np.int64]:
        """Rows that every rank received, its own included, [ranks]."""
        return np.diff(self.rank_start)

    @property
    def replica(self) -> NDArray[np.int32]:
        """Replica of every row, [rows]."""
        return np.repeat(np.arange(self.placement.n_replicas, dtype=np.int32), self.rows_per_replica)

    @property
    def rows_between(self) -> NDArray[np.int64]:
        """Rows by owner rank and source rank, [owners, sources]."""
        ranks = self.placement.n_ranks
        pair = self.placement.rank_of_replica[self.replica] * ranks + self.source_rank
        return np.bincount(pair, minlength=ranks * ranks).reshape(ranks, ranks)

    def m_blocks(self, block_m: int) -> NDArray[np.int64]:
        """Blocks of `block_m` rows that every replica fills, the last one perhaps in part, [replicas]."""
        if block_m < 1:
            raise InputError("must be at least 1", field="block_m", value=block_m)
        return -(-self.rows_per_replica // block_m)


def pools(routing: Routing, placement: Placement) -> Pools:
    """Rows at their owners in pool order. Raises `InputError` if ranks or experts of the two differ."""
    for name, routed, placed in (
        ("n_ranks", routing.n_ranks, placement.n_ranks),
        ("n_experts", routing.n_experts, placement.n_experts),
    ):
        if routed != placed:
            raise InputError("of the placement differs from the routing", field=name, value=placed, allowed=[routed])
    chosen = placement.choose_replica(routing.topk).ravel()
    row = np.flatnonzero(chosen >= 0).astype(np.int32)
    replica = chosen[row]
    source_rank, rest = np.divmod(row, np.int32(routing.n_tokens * routing.k))
    turn = occurrence(replica * np.int32(routing.n_ranks) + source_rank, placement.n_replicas * routing.n_ranks)
    turns = int(turn.max(initial=0)) + 1
    by_turn = stable_order(turn, turns)  # rows come by source rank, and two stable sorts keep that among equals
    order = by_turn[stable_order(replica[by_turn], placement.n_replicas)]
    token, slot = np.divmod(rest[order], np.int32(routing.k))
    start = np.zeros(placement.n_replicas + 1, dtype=np.int64)
    np.cumsum(np.bincount(replica, minlength=placement.n_replicas), out=start[1:])
    return Pools(placement, start, source_rank[order], token, slot)
