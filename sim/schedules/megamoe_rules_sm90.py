"""What the SM90 MegaMoE kernels choose beyond the lag order: waves, the two launches, early combine, batches of arrivals.

Sources are files of https://github.com/deepseek-ai/DeepGEMM: the split kernels of pull request 383
(`heuristics/sm90_mega_moe.hpp`), and the lag-ordered kernel of pull request 440 (`heuristics/sm90_fused_mega_moe.hpp`,
`impls/sm90_fp8_fused_mega_moe.cuh`). Sizes as in `megamoe_rules`; load = T k / L, the rows that a rank receives for one of
its experts if routing is balanced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import InputError
from .megamoe_rules import experts_per_wave

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
    """How the two launches walk their tiles. W divides L; one launch has one phase, so W leaves the order as it is.

    n-major: inside an expert neighbouring tiles share the weights, else the rows.
    """

    l1_experts_per_wave: int
    l2_experts_per_wave: int
    l1_n_major: bool = False
    l2_n_major: bool = False
    l1_block_n: int = 256  # columns of an L1 tile


def shape_family(hidden: int, intermediate: int) -> ShapeFamily:
    """compact: 3072 <= H < 5120 and 1536 <= I < 2560; wide: 5120 <= H <= 8192 and 2560 <= I <= 4096; else generic."""
    if 3072 <= hidden < 5120 and 1536 <= intermediate < 2560:
        return "compact"
    if 5120 <= hidden <= 8192 and 2560 <= intermediate <= 4096:
        return "wide"
    return "generic"


def split_schedule(
    *, tokens: int, k: int, local_experts: int, hidden: int, intermediate: int, sms: int, block_n: int
) -> SplitSchedule:
    """Waves and order of the two launches, W rounded up to a divisor of L.

    From 100 SMs on: compact W = 4 for a load in (12, 32], 32 in (128, 256] and above 1024; wide W = 16 above 8, but L1 8
    and L2 48 in (24, 48]. In these ranges L2 is n-major, and L1 too for wide shapes in (48, 192]. Fewer SMs: compact
    W = 16 in (8, 16), 8 in [96, 160], 16 in (160, 384], 32 above, L2 n-major from 256 on; wide W = 16 in (16, 48], L above.
    Elsewhere L if load < 1 or load > 4, else the wave rule. From 100 SMs on wide L1 tiles have 512 columns instead of 256
    above a load of 8 but for (24, 48], if 2I is a multiple of 512. Left out: stores from registers.
    """
    rows, family = tokens * k, shape_family(hidden, intermediate)

    def within(low: int, high: float) -> bool:
        """low < load <= high, in whole numbers."""
        return low * local_experts < rows <= high * local_experts

    generic = _divisor(
        local_experts
        if rows < local_experts or rows > 4 * local_experts
        else experts_per_wave(
            "june",
            WAVE_BLOCK_M,
            tokens=tokens,
            k=k,
            local_experts=local_experts,
            intermediate=intermediate,
            sms=sms,
            block_n=block_n,
        ),
        local_experts,
    )
    l1, l2, l1_n_major, l2_n_major, l1_block_n = 0, 0, False, False, SPLIT_L1_BLOCK_N[0]
    if sms >= LEAST_SMS_OF_HIGH_SM:
        if family == "compact" and within(12, 32):
            l1, l2 = 4, 4
        elif family == "compact" and (within(128, 256) or within(1024, float("inf"))):
            l1, l2 = 32, 32
        elif family == "wide" and within(24, 48):
            l1, l2 = 8, 48
        elif family == "wide" and within(8, float("inf")):
            l1, l2 = 16, 16
            l1_n_major = within(48, 192)
            l1_block_n = SPLIT_L1_BLOCK_N[2 * intermediate % SPLIT_L1_BLOCK_N[1] == 0]
        l2_n_major = bool(l2)
    elif family == "compact":
        if (within(8, 16) and rows < 16 * local_experts) or within(160, 384):
            l1 = 16
        elif 96 * local_experts <= rows <= 160 * local_experts:
            l1 = 8
        elif within(384, float("inf")):
            l1 = 32
        l2, l2_n_major = l1, rows >= 256 * local_experts
    elif family == "wide" and within(16, float("inf")):
        l1 = l2 = 16 if within(16, 48) else local_experts
    l1_wave, l2_wave = (_divisor(wave or generic, local_experts) for wave in (l1, l2))
    return SplitSchedule(l1_wave, l2_wave, l1_n_major, l2_n_major, l1_block_n)


def _divisor(wave: int, local_experts: int) -> int:
    """The smallest divisor of L from `wave` on, at most L."""
    if local_experts < 1:
        raise InputError("must be at least 1", field="local_experts", value=local_experts)
    return next(w for w in range(min(wave, local_experts), local_experts + 1) if local_experts % w == 0)


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
