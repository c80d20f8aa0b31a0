"""Which kernel runs: its tile, its clusters, and how its epilogue is cut.

sm100   clusters of two CTAs: one lane issues the MMA of both, each CTA has an epilogue lane; two TMEM buffers a CTA
sm90    one lane a CTA: the math warps run their own epilogue; clusters of two share weights by multicast; FP4 weights are
        unpacked to FP8 by the math warps
portable   one CTA a group, with the lanes of sm100 and two accumulators in shared memory: the bf16 kernel of
           hw_validate/cuda/kernels/megamoe.cu, which runs on any GPU from SM80 on
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...tile_cost import needed
from . import grouped_gemm, rules, rules_sm90
from .shape import Alternating, ExpertWave, GroupedGemm, Lag, MegaMoe, Policy, Split, Unfused, policy_name

if TYPE_CHECKING:
    from ...machine import Machine

Family = Literal["sm90", "sm100", "portable"]
WaveTile = Literal["wide", "narrow", "by_rows"]
"""Tile of the SM90 wave kernel: 64 x 256, that of its first form, or by the rule of a later one, see `choose`."""
SM90_WAVE_TILE = (64, 256)
"""BM and BN of the wave kernel, https://github.com/deepseek-ai/DeepGEMM/pull/323."""
SM90_NARROW_TILE = (64, 128)
"""That of its first form, which has one math warpgroup instead of two: https://github.com/qiushixiaoyu/DeepGEMM, commit
7149778, csrc/jit_kernels/heuristics/mega_moe.hpp."""
MATH_WARPGROUPS = 2
SM90_FP4_ROW_BYTES = 80
"""128 FP4 weights, their scales and padding: https://github.com/AichenF/DeepGEMM, MXFP4_SM90_OPTIMIZATION.md, 5.5."""
SM100_DISPATCH_WARPS = 4
PORTABLE_TILE, PORTABLE_STEP_ROWS, PORTABLE_DISPATCH_WARPS = (64, 128), 32, 2
"""BM and BN, rows of an epilogue step and dispatch warps of megamoe.cu."""
MMA_ROWS = 16
SWAPPED_ROWS = 8
"""Rows of one MMA: 16 on SM100 and of mma.sync; steps of N of the warp-group MMA where it takes weights as A (swapAB)."""


@dataclass(frozen=True)
class Kernel:
    """Tile of one CTA, CTAs of a group, rows of one epilogue step, dispatch warps of an SM; `swap_ab`: see `choose`.

    `block_n` is the columns of a tile, `l1_block_n` those of an L1 tile if they are others (0: the same). `publish_rows`,
    `early_combine`: see `Lag`. `math_warpgroups` of sm90 issue the MMA and run the epilogue. `gemm` is the layout of
    separate GEMMs, where `sharing` CTAs bring in the rows of a tile together.
    """

    family: Family
    block_m: int
    block_n: int
    cluster: int
    step_rows: int
    dispatch_warps: int
    sms: int
    l1_n_blocks: int
    l2_n_blocks: int
    swap_ab: bool = False
    publish_rows: int = 1
    early_combine: bool = False
    l1_block_n: int = 0
    math_warpgroups: int = MATH_WARPGROUPS
    gemm: GroupedGemm | None = None
    sharing: int = 1

    @property
    def steps(self) -> int:
        """Epilogue steps of a full tile."""
        return -(-self.block_m // self.step_rows)

    @property
    def groups(self) -> int:
        return self.sms // self.cluster

    @property
    def l1_tasks(self) -> int:
        """L1 tasks of an m-block."""
        return self.l1_n_blocks // self.cluster

    @property
    def l2_tasks(self) -> int:
        return self.l2_n_blocks // self.cluster

    def columns(self, l2: NDArray[np.bool_] | bool) -> NDArray[np.int64]:
        """Columns of a tile."""
        return np.where(l2, self.block_n, self.l1_block_n or self.block_n)

    def n_blocks(self, l2: NDArray[np.bool_] | bool) -> NDArray[np.int64]:
        return np.where(l2, self.l2_n_blocks, self.l1_n_blocks)

    def computed_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows that the MMA works on: valid rows rounded up to 16, on SM90 whole tiles, or to 8 with swapAB.

        Separate GEMMs on SM90: see `grouped_gemm`.
        """
        if self.gemm:
            return grouped_gemm.multiplied_rows(self.gemm, rows, self.block_m)
        if self.family == "sm90" and not self.swap_ab:
            return np.full_like(rows, self.block_m)
        step = SWAPPED_ROWS if self.swap_ab else MMA_ROWS
        return -(-rows // step) * step

    def unpacks(self, shape: MegaMoe) -> bool:
        """Whether the math warps turn FP4 weights, which those of shared experts are not, into FP8."""
        return self.family == "sm90" and shape.format.weight_bits == 4

    def warpgroups(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Math warpgroups that have rows of a tile with so many valid ones."""
        if self.gemm and self.math_warpgroups > 1:
            return np.maximum(1, self.computed_rows(rows) // grouped_gemm.WARPGROUP_ROWS)
        return np.full_like(rows, self.math_warpgroups)

    def epilogue_elements(self, rows: NDArray[np.int64], l2: bool) -> NDArray[np.int64]:
        """Elements that two math warpgroups turn over while those of this kernel turn over a tile with valid `rows`.

        None in a separate GEMM, which only hands its accumulators to an asynchronous store.
        """
        if self.gemm:
            return np.zeros_like(rows)
        return rows * self.columns(l2) * MATH_WARPGROUPS // self.math_warpgroups

    def weight_bytes(
        self, shape: MegaMoe, l2: NDArray[np.bool_], is_shared: NDArray[np.bool_] | bool = False
    ) -> NDArray[np.int64]:
        """Bytes of the weights of one tile; scales count only where they lie in the same rows."""
        elements = self.columns(l2) * self.depth(shape, l2)
        if self.unpacks(shape):
            routed = elements * SM90_FP4_ROW_BYTES // rules_sm90.K_BLOCK
        else:
            routed = elements * shape.format.weight_bits // 8
        return np.where(is_shared, elements * shape.format.shared_bits // 8, routed)

    def depth(self, shape: MegaMoe, l2: NDArray[np.bool_]) -> NDArray[np.int64]:
        """K of the GEMM."""
        return np.where(l2, shape.intermediate, shape.hidden)

    def feed_bytes(
        self,
        shape: MegaMoe,
        l2: NDArray[np.bool_],
        rows: NDArray[np.int64],
        shares_weights: NDArray[np.bool_],
        is_shared: NDArray[np.bool_] | bool = False,
    ) -> NDArray[np.int64]:
        """Bytes that a CTA takes in from L2 for one tile.

        SM100: its weights and half of the activations, which the two CTAs exchange. SM90: both operands, or half of the
        weights where the cluster's other CTA brings the other half; of separate GEMMs all rows of the tile, shared or not.
        """
        weights = self.weight_bytes(shape, l2, is_shared)
        activations = self.computed_rows(rows) * self.depth(shape, l2) * shape.format.activation_bits // 8
        if self.family == "sm100":
            return np.asarray(weights + activations // 2)
        if self.gemm:
            loaded = self.block_m * self.depth(shape, l2) * shape.format.activation_bits // 8
            return np.asarray(weights + loaded // self.sharing)
        return np.asarray(np.where(shares_weights, weights // 2, weights) + activations)


def choose(
    machine: Machine,
    shape: MegaMoe,
    policy: Policy,
    release: rules.Release,
    swap_ab: bool = False,
    tile: WaveTile = "wide",
) -> Kernel:
    """The kernel that the machine's family runs for this shape. Raises `InputError` where shape or policy do not fit it.

    `swap_ab` takes the variant for small batches that some SM90 kernels have: weights are the operand with the fixed 64
    rows, so that few tokens are not padded to a tile (https://github.com/sgl-project/DeepGEMM/pull/48). `tile` is that of
    the SM90 wave kernel: `narrow` in its first form, `by_rows` by `sm90_wave_tile`.
    """
    family: Family = needed(machine, "kernels")
    _check_form(family, policy, swap_ab, tile)
    gemm = policy.gemm if isinstance(policy, Unfused) else None
    if gemm:
        _check_gemm(gemm, family, shape, swap_ab)
    expected = rules.expected_rows_per_expert(shape.tokens, shape.ranks, shape.topk, shape.experts)
    if family == "sm100":
        form = _sm100(shape, policy, release, expected)
    elif family == "portable":
        form = _portable(shape, policy)
    else:
        form = _sm90(machine, shape, policy, tile, expected)
    block_m, block_n, cluster = form.block_m, form.block_n, form.cluster
    sms = machine.sms - machine.sms % cluster
    if sms < 1:
        raise InputError("is less than a cluster", field="compute.sms", value=machine.sms, allowed=f"{cluster} or more")
    l1_block_n = _l1_columns(shape, policy, sms) if isinstance(policy, Split) and not swap_ab else block_n
    _check_divides(shape, block_n * cluster)
    return Kernel(
        family=family,
        block_m=block_m,
        block_n=block_n,
        cluster=cluster,
        step_rows=form.step_rows,
        dispatch_warps=form.dispatch_warps,
        sms=sms,
        l1_n_blocks=2 * shape.intermediate // l1_block_n,
        l2_n_blocks=shape.hidden // block_n,
        swap_ab=swap_ab,
        l1_block_n=l1_block_n if l1_block_n != block_n else 0,
        math_warpgroups=form.math_warpgroups,
        gemm=gemm,
        sharing=form.sharing,
        **(_lag_features(policy, shape, family, block_m, block_n) if isinstance(policy, Lag) else {}),
    )


class _Form(NamedTuple):
    """What the families differ in; see `Kernel`."""

    block_m: int
    block_n: int
    cluster: int
    step_rows: int
    dispatch_warps: int
    math_warpgroups: int = MATH_WARPGROUPS
    sharing: int = 1


def _sm100(shape: MegaMoe, policy: Policy, release: rules.Release, expected: float) -> _Form:
    if isinstance(policy, (Lag, Split)):
        name = policy_name(policy)
        raise InputError("is a schedule of SM90 kernels", field="policy", value=name, allowed="a machine with sm90")
    tile = rules.sm100_tile(release, expected, shape.local_experts)
    step = tile.store_block_m * (tile.epilogue_warps // 4)
    return _Form(tile.block_m, tile.block_n, rules.SM100_CLUSTER, step, SM100_DISPATCH_WARPS)


def _portable(shape: MegaMoe, policy: Policy) -> _Form:
    if shape.numbers != "bf16" or shape.combine != "bf16":
        given = f"{shape.numbers}, combine {shape.combine}"
        raise InputError("are not those of the portable kernel", field="numbers", value=given, allowed="bf16")
    if isinstance(policy, Split):
        raise InputError("is a schedule of SM90 kernels", field="policy", value="split", allowed="a machine with sm90")
    return _Form(*PORTABLE_TILE, 1, PORTABLE_STEP_ROWS, PORTABLE_DISPATCH_WARPS)


def _sm90(machine: Machine, shape: MegaMoe, policy: Policy, tile: WaveTile, expected: float) -> _Form:
    gemm = policy.gemm if isinstance(policy, Unfused) else None
    if isinstance(policy, Alternating):
        raise InputError("is a schedule of SM100 kernels", field="policy", value="alternating", allowed="sm100")
    if shape.format.math == "fp4":
        raise InputError("needs FP4 Tensor Cores", field="numbers", value=shape.numbers, allowed="w4a8, w8a8, bf16")
    if shape.format.weight_bits == 4:
        needed(machine, "fp4_unpack")
    if (tile == "narrow" or gemm) and shape.format.math == "fp8":
        needed(machine, "promotion")
    (block_m, block_n), cluster, math_warpgroups, sharing = SM90_WAVE_TILE, 1, MATH_WARPGROUPS, 1
    if gemm:
        block_m, block_n, math_warpgroups, sharing = grouped_gemm.tile_of(gemm, expected)
    elif isinstance(policy, Lag):
        sizes = {"hidden": shape.hidden, "intermediate": shape.intermediate}
        block_m, block_n, cluster = rules.sm90_lag_tile(expected, **sizes)
    elif tile == "narrow":
        (block_m, block_n), math_warpgroups = SM90_NARROW_TILE, 1
    elif tile == "by_rows":
        block_m, block_n, math_warpgroups = rules_sm90.sm90_wave_tile(expected, shape.intermediate)
    return _Form(block_m, block_n, cluster, block_m, rules_sm90.DISPATCH_WARPS, math_warpgroups, sharing)


def _l1_columns(shape: MegaMoe, policy: Split, sms: int) -> int:
    """Columns of an L1 tile of the kernel with two launches, as asked for or as it chooses. Raises `InputError`."""
    asked = policy.l1_block_n
    l1_block_n = split_of(shape, sms).l1_block_n if asked is None else asked
    if l1_block_n not in rules_sm90.SPLIT_L1_BLOCK_N or 2 * shape.intermediate % l1_block_n:
        allowed = [n for n in rules_sm90.SPLIT_L1_BLOCK_N if 2 * shape.intermediate % n == 0]
        raise InputError("is no tile of this kernel", field="l1_block_n", value=l1_block_n, allowed=allowed)
    return l1_block_n


def _check_divides(shape: MegaMoe, columns: int) -> None:
    """Raises `InputError` with all sizes that do not divide into tasks of so many columns, and the next that do."""
    odd = [
        (name, size, divisor)
        for name, size, divisor in (
            ("intermediate", shape.intermediate, columns // 2),
            ("hidden", shape.hidden, columns),
        )
        if size % divisor
    ]
    if not odd:
        return
    wanted = [f"a multiple of {divisor}, {size + -size % divisor} is the next" for _, size, divisor in odd]
    others = [f"{name} = {size}" for name, size, _ in odd[1:]]
    allowed = "; for ".join([wanted[0], *(f"{other} {want}" for other, want in zip(others, wanted[1:], strict=True))])
    raise InputError("does not divide into tiles", field=odd[0][0], value=odd[0][1], allowed=allowed)


def _check_form(family: Family, policy: Policy, swap_ab: bool, tile: WaveTile) -> None:
    """Raises `InputError` for a form that the kernel of this family and policy does not have."""
    if swap_ab and family != "sm90":
        raise InputError("is a variant of SM90 kernels", field="swap_ab", value=swap_ab, allowed="a machine with sm90")
    if tile not in get_args(WaveTile):
        raise InputError("is unknown", field="tile", value=tile, allowed=get_args(WaveTile))
    if tile != "wide" and (family != "sm90" or swap_ab or not isinstance(policy, ExpertWave)):
        raise InputError("is a form of the SM90 wave kernel", field="tile", value=tile, allowed="wide")


def _check_gemm(gemm: GroupedGemm, family: Family, shape: MegaMoe, swap_ab: bool) -> None:
    """Raises `InputError` where there is no such grouped GEMM."""
    if family != "sm90":
        raise InputError("is a kernel of SM90", field="gemm", value=gemm, allowed="none, or a machine with sm90")
    if gemm not in get_args(GroupedGemm):
        raise InputError("is unknown", field="gemm", value=gemm, allowed=get_args(GroupedGemm))
    if shape.format.weight_bits == 4:
        raise InputError("has no FP4 weights", field="gemm", value=gemm, allowed="none, or numbers w8a8 or bf16")
    if swap_ab:
        raise InputError("is a variant of fused kernels", field="swap_ab", value=swap_ab, allowed="no gemm")


def split_of(shape: MegaMoe, sms: int) -> rules_sm90.SplitSchedule:
    """What the public kernel with two launches chooses for this shape."""
    return rules_sm90.split_schedule(
        tokens=shape.tokens,
        k=shape.topk,
        local_experts=shape.local_experts,
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        sms=sms,
    )


def _lag_features(policy: Lag, shape: MegaMoe, family: Family, block_m: int, block_n: int) -> dict[str, Any]:
    """Batches of arrivals and early combine, as given or as the kernel chooses; early combine is for SM90."""
    rows, early = policy.publish_rows, policy.early_combine
    if rows is not None and rows < 1:
        raise InputError("must be at least 1", field="publish_rows", value=rows)
    if family == "portable":
        if early:
            raise InputError("is a feature of SM90 kernels", field="early_combine", value=early, allowed="false")
        return {"publish_rows": 1 if rows is None else rows, "early_combine": False}
    sizes = {"hidden": shape.hidden, "intermediate": shape.intermediate, "k": shape.topk}
    return {
        "publish_rows": rules_sm90.publish_rows(shape.tokens) if rows is None else rows,
        "early_combine": rules_sm90.combines_early(block_m, block_n, **sizes) if early is None else early,
    }
