"""The order in which a rank works through its tiles, and so which receivers its output meets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .shape import ELEMENT_BYTES, Attention
from .tiles import Tile

Ints = NDArray[np.int64]


def tile_order(shape: Attention, tile: Tile, rank: int, rotation: bool) -> tuple[Ints, Ints]:
    """Head (batch * local heads + head) and m-block of each tile of a rank in the kernel's order, two arrays [tiles].

    Non-causal kernels run m-blocks fastest, then heads. Causal ones take the longest first: heads run fastest inside a
    section of heads whose K and V fit into L2, then m-blocks from the last one down.
    A section of few heads spreads the tiles of one moment over many m-blocks and so over receivers. Where query heads share
    K and V a section has more of them: all SMs of all ranks then work at the same rows, and aim at their owner.
    With `rotation` a rank comes to its own rows last: it begins each head at those of rank + 1, or where m-blocks run down
    of rank - 1.
    """
    heads, blocks = shape.batch * shape.local_heads, tile.blocks(shape.tokens)
    head, position = np.divmod(np.arange(heads * blocks), blocks)
    first = rank if tile.longest_first else rank + 1  # own rows lie above the first ones of a rank that runs down
    shift = first * blocks // shape.ranks if rotation else 0
    block = ((blocks - 1 - position if tile.longest_first else position) + shift) % blocks
    if not tile.longest_first:
        return head, block
    section = head // heads_per_section(shape, tile)
    order = np.lexsort((head, position, section))
    return head[order], block[order]


def heads_per_section(shape: Attention, tile: Tile) -> int:
    """Query heads of a rank that are worked through together: those of as many K and V heads as fit into the kernel's
    section of L2, rounded down to a power of two, at least one. A kernel that counts query heads takes each to have K and V
    of its own.

    Sources, in https://github.com/Dao-AILab/flash-attention: `DynamicPersistentTileScheduler` of hopper/tile_scheduler.hpp
    and `SingleTileLPTScheduler` of flash_attn/cute/tile_scheduler.py. Sections count through the heads of all sequences, so
    one may hold heads of two sequences.
    """
    kv_bytes = shape.tokens * (shape.head_dim + shape.output_dim) * shape.input_bytes
    fitting = max(1, tile.l2_section // kv_bytes)
    kv_heads = 1 << (fitting.bit_length() - 1)
    return kv_heads * (shape.heads_sharing_kv if tile.sections_of_groups else 1)


def owner_bytes(shape: Attention, tile: Tile) -> Ints:
    """Bytes of each store of an m-block by the rank that owns the rows, [m-blocks, stores, ranks].

    Row r of a sequence belongs to rank floor(r / (S / P)); rows beyond the sequence are not stored.
    """
    blocks = tile.blocks(shape.tokens)
    first = np.arange(blocks * tile.stores).reshape(blocks, tile.stores, 1) * tile.rows_per_store
    own = np.arange(shape.ranks) * shape.local_tokens
    low, high = np.maximum(first, own), np.minimum(first + tile.rows_per_store, own + shape.local_tokens)
    return np.asarray(np.maximum(0, high - low) * shape.output_dim * ELEMENT_BYTES)
