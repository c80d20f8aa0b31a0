"""The GEMMs of separate kernels on Hopper: DeepGEMM's grouped GEMM, and the buffers between the kernels.

    contiguous   each expert's rows are filled up to a multiple of 128, and filled rows are multiplied like others: the
                 counts that the GEMM gets are those of DeepEP's `Buffer`, which are rounded up
    psum         the same places, but the GEMM gets the ends of valid rows: DeepEP's `ElasticBuffer`, expanded. No CPU waits
                 for counts, so that SwiGLU goes through the buffer of the worst case
    masked       a buffer of its own for each expert with a count of valid rows: DeepEP's low-latency kernels

A tile is 128 x 128 in clusters of two CTAs that share the rows of their m-block by multicast; each of its two math
warpgroups has 64 rows, and is idle where all of them lie behind the last valid row. `masked` takes 64 x 128, with one
warpgroup and no clusters, while 64 rows an expert or fewer are expected. The epilogue brings BF16 into shared memory, 256
clocks for a tile, and leaves the rest to an asynchronous TMA store: it takes the machine's `epilogue_floor`.

Sources: https://github.com/deepseek-ai/DeepGEMM, `csrc/jit_kernels/heuristics/sm90.hpp` and `runtime.hpp` (tiles, alignment,
multicast), `scheduler.cuh` (`is_computation_valid`) and `sm90_fp8_gemm_1d2d.cuh`; https://github.com/deepseek-ai/DeepEP,
`csrc/elastic/buffer.hpp` (worst case); `tests/test_mega_moe_hopper.py` of https://github.com/sgl-project/DeepGEMM (the
pipelines). Left out: other widths than 128, which its heuristic takes where they fill the last round of the SMs better.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .shape import GroupedGemm, MegaMoe

Ints = NDArray[np.int64]
ALIGNED_ROWS = 128
BLOCK_N = 128
WARPGROUP_ROWS = 64
CLUSTER = 2


class Tile(NamedTuple):
    """Rows and columns of a tile, its math warpgroups, and CTAs that bring in the rows together."""

    block_m: int
    block_n: int
    math_warpgroups: int
    sharing: int


def tile_of(gemm: GroupedGemm, expected_rows: float) -> Tile:
    """The tile for so many expected rows an expert."""
    if gemm == "masked" and expected_rows <= WARPGROUP_ROWS:
        return Tile(WARPGROUP_ROWS, BLOCK_N, 1, 1)
    return Tile(ALIGNED_ROWS, BLOCK_N, ALIGNED_ROWS // WARPGROUP_ROWS, CLUSTER)


def multiplied_rows(gemm: GroupedGemm, rows: Ints, block_m: int) -> Ints:
    """Rows of tiles that warpgroups work on, of so many valid ones."""
    if gemm == "contiguous":
        return np.full_like(rows, block_m)
    return -(-rows // WARPGROUP_ROWS) * WARPGROUP_ROWS


def activated_rows(gemm: GroupedGemm | None, shape: MegaMoe, received: int, experts: int) -> int:
    """Rows that SwiGLU goes through of the routed ones that a rank with L `experts` received: these, or for `psum`
    P cap min(k, L) + 127 L, rounded up to 128."""
    if gemm != "psum":
        return received
    most = shape.ranks * shape.most_tokens * min(shape.topk, experts) + (ALIGNED_ROWS - 1) * experts
    return -(-most // ALIGNED_ROWS) * ALIGNED_ROWS


def expanded_bytes(gemm: GroupedGemm | None, shape: MegaMoe, received: int) -> int:
    """Bytes that a kernel of its own reads and writes to bring received rows to those of their experts; shared experts
    take theirs where they are."""
    return 2 * received * shape.format.activation_bytes(shape.hidden) if gemm == "psum" else 0
