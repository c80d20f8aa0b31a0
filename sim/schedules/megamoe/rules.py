"""What the public MegaMoE kernels choose from shape and token count: tiles, waves, warm-up, lag, rings.

Sources are files of https://github.com/deepseek-ai/DeepGEMM: SM100 releases `pr304` (commit 7f2a703), `pr316`
(891d57b), `june` (54e2261) and `sept` (0274ad7), and the lag-ordered SM90 kernel of pull request 440 (42604cb).

Sizes: H hidden, I intermediate (of the gate or the up half), E experts, L = E / P experts a rank, P ranks, T tokens a
rank, k top-k, G SMs. L1 is the first GEMM (N = 2I, K = H), L2 the second (N = H, K = I). A row is one (token, slot).
Capacity is the tokens a rank for which buffers were made. Arguments are whole numbers; `InputError` if one is below its
minimum (0 for tokens and rows, 1 for the rest) or does not divide.

The other SM90 kernels are in `rules_sm90`. Not modelled: NVFP4 and BF16 shared-memory layouts, shared experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import InputError

Release = Literal["pr304", "pr316", "june", "sept"]

SM100_BLOCK_N = 128
SM100_CLUSTER = 2
WAVE_IMBALANCE = 2  # a wave is made this many times larger than an even load needs

LAG_BLOCK_M = 128
LAG_UNIT_M_BLOCKS = 8
LAG_UNIT_ROWS = LAG_UNIT_M_BLOCKS * LAG_BLOCK_M
LAG_GROUP_UNITS = 4
LAG_RING_MARGIN = 4
LAG_MIN_CAPACITY = 1_024
LAG_ONE_WAVE_TOKENS = 256


@dataclass(frozen=True)
class Sm100Tile:
    """One CTA's tile; two CTAs of a cluster share an m-block and take neighbouring n-blocks."""

    block_m: int
    store_block_m: int  # rows that a warpgroup stages at a time in its epilogue
    epilogue_warps: int
    block_n: int = SM100_BLOCK_N


def expected_rows_per_expert(tokens: int, ranks: int, k: int, experts: int) -> float:
    """e = T P k / E: rows of one expert under balanced routing."""
    _check(0, tokens=tokens)
    _check(1, ranks=ranks, k=k, experts=experts)
    return tokens * ranks * k / experts


def sm100_tile(release: Release, expected_rows: float, local_experts: int) -> Sm100Tile:
    """Tile by expected rows e of an expert, FP8 activations.

    pr304: BM 192 always. pr316, june: BM 16 / 32 / 64 / 96 / 128 up to e = 8.5 / 16.5 / 32.5 / 64.5 / 96.5, else 192.
    sept: BM 16 up to e = 10, 32 up to 24, else c = e + sqrt(e) rows are covered by the fewest blocks of at most 240 rows
    (two instead of one if c > 192 and L < 14) with the smallest of 64, 128, 192, 240.
    Source: `csrc/jit_kernels/heuristics/mega_moe.hpp`.
    """
    _check_release(release)
    _check(1, local_experts=local_experts)
    if not expected_rows >= 0:
        raise InputError("must not be negative", field="expected_rows", value=expected_rows)
    if release == "sept":
        block_m = _sept_block_m(expected_rows, local_experts)
        store = next(rows for limit, rows in ((16, 8), (64, 16), (192, 32), (240, 40)) if block_m <= limit)
        return Sm100Tile(block_m, store, 8)
    if release == "pr304":
        expected_rows = math.inf
    for limit, tile in (
        (8.5, Sm100Tile(16, 8, 8)),
        (16.5, Sm100Tile(32, 16, 8)),
        (32.5, Sm100Tile(64, 32, 4)),
        (64.5, Sm100Tile(96, 16, 8)),
        (96.5, Sm100Tile(128, 32, 8)),
    ):
        if expected_rows <= limit:
            return tile
    return Sm100Tile(192, 32, 8)


def _sept_block_m(expected_rows: float, local_experts: int) -> int:
    if expected_rows <= 24:
        return 16 if expected_rows <= 10 else 32
    covered = expected_rows + math.sqrt(expected_rows)
    blocks = math.ceil(covered / 240)
    if blocks == 1 and covered > 192 and local_experts < 14:
        blocks = 2
    return next(block_m for block_m in (64, 128, 192, 240) if blocks * block_m >= covered)


# The wave schedule of SM100, up to june -----------------------------------------------------------------------------


def worst_case_rows(experts: int, block_m: int, *, capacity: int, ranks: int, k: int) -> int:
    """Most pool rows that `experts` local experts can hold: P cap for one expert, else the smaller of P cap experts
    (every token to every expert) and P cap k + experts (BM - 1) rounded up to BM (every row here, each expert padded).

    Source: `get_num_wave_pool_tokens` in `heuristics/mega_moe.hpp`.
    """
    _check(1, experts=experts, block_m=block_m, capacity=capacity, ranks=ranks, k=k)
    all_tokens = capacity * ranks
    if experts == 1:
        return all_tokens
    return min(all_tokens * experts, _align(all_tokens * k + experts * (block_m - 1), block_m))


def experts_per_wave(
    release: Release,
    block_m: int,
    *,
    tokens: int,
    k: int,
    local_experts: int,
    intermediate: int,
    sms: int,
    block_n: int = SM100_BLOCK_N,
) -> int:
    """W: consecutive local experts in a wave, from T k / L expected rows an expert.

    b = max(1, ceil(ceil(T k / L) / BM)) * 2I / BN L1 tiles an expert; W0 = ceil(2 G / b), or L if T k / L < 1. pr304,
    pr316: W0, at most L, rounded up to a divisor of L. june: L if W0 >= L; W0 if b >= G; else, of W0 .. min(L, 2 W0), the
    first whose last wave is fullest (a whole one is fullest). Source: `get_num_experts_per_wave_for_mega_moe` in
    `heuristics/mega_moe.hpp`; that pr304 did as pr316 is assumed. Left out: a ring of June that holds fewer experts.
    """
    _check_release(release)
    _check(0, tokens=tokens)
    _check(1, block_m=block_m, k=k, local_experts=local_experts, intermediate=intermediate, sms=sms, block_n=block_n)
    m_blocks = max(1, -(-tokens * k // (local_experts * block_m)))
    tiles = m_blocks * _divide(2 * intermediate, block_n, "2I")
    least = local_experts if tokens * k < local_experts else -(-WAVE_IMBALANCE * sms // tiles)
    if release == "sept":
        raise InputError("has no waves", field="release", value=release, allowed="pr304, pr316, june")
    if release != "june":
        return next(w for w in range(min(least, local_experts), local_experts + 1) if local_experts % w == 0)
    if least >= local_experts:
        return local_experts
    if tiles >= sms:
        return least
    return max(range(least, min(local_experts, 2 * least) + 1), key=lambda w: ((local_experts % w) or w) / w)


# The interleaved schedule of SM100, july and sept ---------------------------------------------------------------------


def warm_up_waves(m_blocks: int, clusters: int, n1: int, n2: int) -> int:
    """W1: L1 tasks that every cluster takes before it alternates L2, L1.

    min( max( ceil(ceil(C / n2) n1 / C), ceil((n1 + (M - 1) max(0, n1 - n2)) / C) + 1 ), ceil(M n1 / C) ): enough for
    the first wave of L2 tasks, and for the last m-block not to be overtaken; never more than there are. Source:
    `scheduler/mega_moe.cuh`, sept.
    """
    _check(0, m_blocks=m_blocks)
    _check(1, clusters=clusters, n1=n1, n2=n2)
    if m_blocks == 0:
        return 0
    first_l2_wave = _ceil(_ceil(clusters, n2) * n1, clusters)
    no_overtaking = _ceil(n1 + (m_blocks - 1) * max(0, n1 - n2), clusters) + 1
    return min(max(first_l2_wave, no_overtaking), _ceil(m_blocks * n1, clusters))


def most_live_m_blocks(m_blocks: int, clusters: int, n1: int, n2: int) -> int:
    """Bound on m-blocks whose L1 has begun and whose L2 has not ended, which sizes the ring.

    min(M, ceil(min(W1 C, M n1) / n1) + [n2 > n1] ceil(M (n2 - n1) / n2) + ceil(C / min(n1, n2))).
    Source: `get_num_max_live_pool_blocks` in `scheduler/mega_moe.cuh`, sept.
    """
    warm_up = min(warm_up_waves(m_blocks, clusters, n1, n2) * clusters, m_blocks * n1)
    growth = _ceil(m_blocks * (n2 - n1), n2) if n2 > n1 else 0
    return min(m_blocks, _ceil(warm_up, n1) + growth + _ceil(clusters, min(n1, n2)))


# The lag-ordered schedule of SM90 -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LagSchedule:
    """L1(U0)..L1(U_lag), then `group` L2 units after every `group` further L1 units, then the remaining L2 units.

    `units` is the number that lag was chosen for (from the token bound, not the routing); a ring slot is one m-block.
    """

    units: int
    lag: int
    group: int
    ring_slots: int

    @property
    def ring_rows(self) -> int:
        return self.ring_slots * LAG_BLOCK_M


def lag_schedule(*, capacity: int, k: int, local_experts: int) -> LagSchedule:
    """Lag rule: units = L max(1, ceil(cap k / (L 1024))), lag = 0.45 units rounded (half up) and kept in 8 .. 64,
    group = 4, ring slots = 8 (lag + group) + 4. A ring larger than the whole pool is cut to the pool by the kernel.

    Source: `heuristics/sm90_fused_mega_moe.hpp`, https://github.com/deepseek-ai/DeepGEMM/pull/440.
    """
    _check(1, capacity=capacity, k=k, local_experts=local_experts)
    units = local_experts * max(1, _ceil(capacity * k, local_experts * LAG_UNIT_ROWS))
    lag = min(max((45 * units + 50) // 100, 8), 64)
    return LagSchedule(units, lag, LAG_GROUP_UNITS, LAG_UNIT_M_BLOCKS * (lag + LAG_GROUP_UNITS) + LAG_RING_MARGIN)


def sm90_runs_lag_order(tokens: int, *, capacity: int, ranks: int, local_experts: int, k: int, block_m: int) -> bool:
    """Whether a call is lag-ordered: from a capacity of 1024 tokens a rank on, except calls bounded to at most 256
    tokens a rank whose worst-case pool fits the ring, which run as one wave of all experts. Source as `lag_schedule`.
    """
    _check(0, tokens=tokens)
    if capacity < LAG_MIN_CAPACITY:
        return False
    ring_rows = lag_schedule(capacity=capacity, k=k, local_experts=local_experts).ring_rows
    pool = worst_case_rows(local_experts, block_m, capacity=_align(max(tokens, 1), block_m), ranks=ranks, k=k)
    return tokens > LAG_ONE_WAVE_TOKENS or pool > ring_rows


def sm90_lag_tile(expected_rows: float, *, hidden: int, intermediate: int) -> tuple[int, int, int]:
    """(BM, BN, CTAs a cluster): 128 x 256 from 64 expected rows an expert on, in clusters of 2 that share the weights
    if both GEMMs have an even number of n-blocks; else 64 x 256 without clusters. Source as `lag_schedule`.

    The kernel also has a 64 x 128 tile with A and B swapped, for some decode shapes; it is left out here.
    """
    _check(1, hidden=hidden, intermediate=intermediate)
    if expected_rows < 64:
        return 64, 256, 1
    even = 2 * intermediate % 512 == 0 and hidden % 512 == 0
    return 128, 256, 2 if even else 1


def _check_release(release: str) -> None:
    if release not in get_args(Release):
        raise InputError("is no known release", field="release", value=release, allowed=get_args(Release))


def _check(least: int, **counts: int) -> None:
    for name, count in counts.items():
        if count < least:
            raise InputError(f"must be at least {least}", field=name, value=count)


def _divide(value: int, by: int, name: str) -> int:
    if value % by:
        raise InputError("does not divide into tiles", field=name, value=value, allowed=f"a multiple of {by}")
    return value // by


def _ceil(value: int, by: int) -> int:
    return -(-value // by)


def _align(value: int, to: int) -> int:
    return _ceil(value, to) * to
