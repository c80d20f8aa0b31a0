"""What the SM90 MegaMoE kernels choose beyond the lag order: waves, the two launches, early combine, batches of arrivals.

Sources are files of https://github.com/deepseek-ai/DeepGEMM: the split kernels of pull request 383
(`heuristics/sm90_mega_moe.hpp`), and the lag-ordered kernel of pull request 440 (`heuristics/sm90_fused_mega_moe.hpp`,
`impls/sm90_fp8_fused_mega_moe.cuh`). Sizes as in `rules`; load = T k / L, the rows that a rank receives for one of
its experts if routing is balanced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .rules import experts_per_wave

WAVE_BLOCK_M = 64
LEAST_SMS_OF_HIGH_SM = 100
"""From so many SMs on the split kernels use the table that was tuned on H200, below it that of H20."""
SPLIT_L1_BLOCK_N = (256, 512)
WIDE_WAVE_INTERMEDIATE = 3_072
WAVES_OF_ONE_WAVE = 4
WAVE_TALL_ROWS = 64
"""Expected rows an expert from which the fused wave kernel takes tiles of 128 rows."""

K_BLOCK = 128
SMEM_BYTES = 232_448
DISPATCH_WARPS = 2
EARLY_COMBINE_HIDDEN_PER_SLOT = 512

PUBLISH_ROWS = 16
PUBLISH_MIN_TOKENS = 8_192
PUBLISH_RAMP_ROWS = 8
"""Rows after which a warp doubles the rows that it publishes at a time, up to `PUBLISH_ROWS`."""

ShapeFamily = Literal["compact", "wide", "generic"]


def sm90_experts_per_wave(
    *, tokens: int, k: int, local_experts: int, intermediate: int, sms: int, block_n: int, block_m: int = WAVE_BLOCK_M
) -> int:
    """W of the fused wave kernel: all L experts if load < 1 or load > 4, else by the rule of the SM100 waves.

    With a load of 1 to 4 it is also all of them where I >= 3072 and their L1 tiles are four rounds of the SMs or more.
    Raises `InputError` for a number below its minimum.
    """
    wave = experts_per_wave(
        "june",
        block_m,
        tokens=tokens,
        k=k,
        local_experts=local_experts,
        intermediate=intermediate,
        sms=sms,
        block_n=block_n,
    )
    rows = tokens * k
    if rows < local_experts or rows > 4 * local_experts:
        return local_experts
    tiles = local_experts * (2 * intermediate // block_n)
    if block_m == WAVE_BLOCK_M and intermediate >= WIDE_WAVE_INTERMEDIATE and tiles >= WAVES_OF_ONE_WAVE * sms:
        return local_experts
    return wave


def sm90_wave_tile(expected_rows: float, intermediate: int) -> tuple[int, int, int]:
    """(BM, BN, math warpgroups) of the fused wave kernel, by expected rows an expert.

    128 x 256 by four warpgroups from 64 rows on; below, two warpgroups share 64 rows of 256 columns where I >= 3072, and of
    128 elsewhere or below a quarter of a row. Source: `heuristics/sm90_mega_moe.hpp` of
    https://github.com/sgl-project/DeepGEMM; its pull request 69 takes the tall tile back on GPUs with few SMs.
    """
    if expected_rows >= WAVE_TALL_ROWS:
        return 128, 256, 4
    wide = intermediate >= WIDE_WAVE_INTERMEDIATE and expected_rows >= 0.25
    return WAVE_BLOCK_M, 256 if wide else 128, 2


@dataclass(frozen=True)
class SplitSchedule:
    """How the two launches walk their tiles. n-major: inside an expert neighbouring tiles share the weights, else the rows.

    The kernels also have waves of experts, which are left out: one launch has one phase, so they leave the order as it is.
    """

    l1_n_major: bool = False
    l2_n_major: bool = False
    l1_block_n: int = SPLIT_L1_BLOCK_N[0]  # columns of an L1 tile


def shape_family(hidden: int, intermediate: int) -> ShapeFamily:
    """compact: 3072 <= H < 5120 and 1536 <= I < 2560; wide: 5120 <= H <= 8192 and 2560 <= I <= 4096; else generic."""
    if 3072 <= hidden < 5120 and 1536 <= intermediate < 2560:
        return "compact"
    if 5120 <= hidden <= 8192 and 2560 <= intermediate <= 4096:
        return "wide"
    return "generic"


def split_schedule(
    *, tokens: int, k: int, local_experts: int, hidden: int, intermediate: int, sms: int
) -> SplitSchedule:
    """Order of the two launches, and columns of an L1 tile.

    From 100 SMs on L2 is n-major with a load in (12, 32], in (128, 256] and above 1024 for compact shapes, above 8 for wide
    ones, whose L1 is n-major too in (48, 192]. L1 tiles of wide shapes have 512 columns instead of 256 above a load of 8 but
    for (24, 48], if 2I is a multiple of 512. Fewer SMs: L2 of compact shapes is n-major from 256 on. Left out: stores from
    registers.
    """
    rows, family = tokens * k, shape_family(hidden, intermediate)

    def within(low: int, high: float) -> bool:
        """low < load <= high, in whole numbers."""
        return low * local_experts < rows <= high * local_experts

    if sms < LEAST_SMS_OF_HIGH_SM:
        return SplitSchedule(l2_n_major=family == "compact" and rows >= 256 * local_experts)
    if family == "compact":
        return SplitSchedule(l2_n_major=within(12, 32) or within(128, 256) or within(1024, float("inf")))
    if family == "wide" and within(8, float("inf")):
        has_wide_tiles = not within(24, 48) and 2 * intermediate % SPLIT_L1_BLOCK_N[1] == 0
        return SplitSchedule(within(48, 192), True, SPLIT_L1_BLOCK_N[has_wide_tiles])
    return SplitSchedule()


def lag_stages(block_m: int, block_n: int, *, hidden: int) -> int:
    """Main-loop stages of the lag kernel in 232,448 B: BM and BN times 128 bytes, scales of 4 BM, two barriers.

    Before them: pull buffers of two warps, H each, and the larger of L1 and L2 staging (a quarter of the L2 tile where
    BM = 128), each rounded up to 1 KiB. The tile table and the weight scales, a few KiB, are left out.
    """
    staging = max(block_m * block_n // 2, 2 * block_m * block_n // (4 if block_m == 128 else 1))
    fixed = _align(DISPATCH_WARPS * hidden, 1024) + _align(staging, 1024)
    stage = (block_m + block_n) * K_BLOCK + _align(4 * block_m, 128) + 16
    return (SMEM_BYTES - fixed) // stage


def combines_early(block_m: int, block_n: int, *, hidden: int, intermediate: int, k: int) -> bool:
    """Whether the lag kernel combines tokens before barrier 2: H >= 512 k, and both GEMMs have more k-blocks than stages."""
    stages = lag_stages(block_m, block_n, hidden=hidden)
    return hidden >= EARLY_COMBINE_HIDDEN_PER_SLOT * k and min(hidden, intermediate) // K_BLOCK > stages


def publish_rows(tokens: int) -> int:
    """Rows that a dispatch warp of the lag kernel publishes with one release: 16 from 8192 tokens a rank on, else 1."""
    return PUBLISH_ROWS if tokens >= PUBLISH_MIN_TOKENS else 1


def fits_ring(rows: int, *, lanes: int, ring_m_blocks: int, local_experts: int, block_m: int) -> bool:
    """Whether a ring leaves room for what `lanes` warps hold back, so that none waits for a row that another keeps:
    rows lanes < (ring - L - 1) BM.
    """
    return rows * lanes < (ring_m_blocks - local_experts - 1) * block_m


def publish_limit(turn: int, rows: int) -> int:
    """Rows that a warp may hold back at its row number `turn`: 1, doubled every 8 rows, up to `rows`."""
    return int(min(rows, 1 << min(turn // PUBLISH_RAMP_ROWS, 8)))


def _align(value: int, to: int) -> int:
    return -(-value // to) * to
