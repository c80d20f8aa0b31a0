"""What the tiles of a rank move through its memory, in the nominal order that their costs are computed with.

Activations come from the L2 cache, where they were written shortly before; of HBM only weights and the combine are counted,
which are what the model charges its bandwidth with.
"""

from __future__ import annotations

import numpy as np

from .combine import combine_bytes
from .tiles import Rank, shares_weights, weight_hits, weight_names


def memory_bytes(rank: Rank) -> dict[str, int]:
    """Bytes of one rank: `hbm_weights` that are read from HBM, `hbm_weights_again` of them not for the first time,
    `hbm_combine` that the combine reads and writes, `l2_to_sm` operands that go from the L2 cache into SMs.
    """
    kernel, shape, tiles, blocks = rank.kernel, rank.shape, rank.order.tiles, rank.blocks
    rows, expert = blocks.rows[tiles.block], blocks.expert[tiles.block]
    is_shared = blocks.is_shared[tiles.block]
    weights = kernel.weight_bytes(shape, tiles.l2, is_shared)
    missed = ~weight_hits(kernel, shape, rank.costs, tiles, expert, rows)
    _, first = np.unique(weight_names(kernel, tiles, expert), return_index=True)
    read = int(weights[missed].sum())
    return {
        "hbm_weights": read,
        "hbm_weights_again": read - int(weights[first].sum()),
        "hbm_combine": int(combine_bytes(shape, rank.token_rows.sum(), shape.tokens)),
        "l2_to_sm": int(kernel.feed_bytes(shape, tiles.l2, rows, shares_weights(rank), is_shared).sum()),
    }
