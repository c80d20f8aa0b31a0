"""What a MegaMoE call computes, and by which policy its tiles are ordered.

Sizes: hidden H, intermediate I (of the gate or the up half), `experts` E over `ranks` P, `tokens` T a rank, top-k.
A row is one (token, top-k slot) pair. L1 is the first GEMM (N = 2I, K = H), L2 the second (N = H, K = I).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from ...errors import InputError
from ...tile_cost import MathType

Numbers = Literal["w4a8", "w8a8", "bf16", "fp4"]
CombineType = Literal["bf16", "fp8", "fp4"]
Readiness = Literal["block", "k_block"]
GroupedGemm = Literal["contiguous", "psum", "masked"]
Ranks = Literal["all", "symmetric"]


@dataclass(frozen=True)
class NumberFormat:
    """Bits of weights and activations, the math type, and elements that share one scale byte (0: no scales).

    `shared_bits` is those of weights of shared experts.
    """

    math: MathType
    weight_bits: int
    activation_bits: int
    scale_group: int
    shared_bits: int

    def activation_bytes(self, elements: int) -> int:
        """Bytes of one row of activations with its scales."""
        scales = elements // self.scale_group if self.scale_group else 0
        return elements * self.activation_bits // 8 + scales


FORMATS: dict[Numbers, NumberFormat] = {
    "w4a8": NumberFormat("fp8", 4, 8, 32, 8),
    "w8a8": NumberFormat("fp8", 8, 8, 32, 8),
    "bf16": NumberFormat("bf16", 16, 16, 0, 16),
    "fp4": NumberFormat("fp4", 4, 4, 16, 4),
}
"""Scale groups: 32 elements for FP8 (DeepGEMM), 16 for FP4 (NVFP4). Beside FP4 experts, shared ones are FP8
(`sm100_fp8_fp4_mega_moe.cuh` of https://github.com/deepseek-ai/DeepGEMM); of NVFP4 it is assumed that all are alike."""

COMBINE_BITS_AND_GROUP: dict[CombineType, tuple[int, int]] = {"bf16": (16, 0), "fp8": (8, 128), "fp4": (4, 16)}
"""Bits of a returned element and elements a scale byte: FP8 has H + H/128 bytes a row in sgl-project/DeepGEMM."""


@dataclass(frozen=True)
class MegaMoe:
    """One call. `capacity` is the tokens a rank that buffers are made for (default: `tokens`).

    `l1_main_loop_ps` and `l2_main_loop_ps` are measured main loops of a full tile, to be used in place of the tile costs of
    the machine; one without the other is refused. Raises `InputError` for a size below its minimum, an unknown type, or
    more slots than experts.
    """

    hidden: int
    intermediate: int
    experts: int
    topk: int
    tokens: int
    ranks: int = 8
    numbers: Numbers = "w4a8"
    combine: CombineType = "bf16"
    shared_experts: int = 0
    capacity: int | None = None
    l1_main_loop_ps: int | None = None
    l2_main_loop_ps: int | None = None

    def __post_init__(self) -> None:
        least = {"tokens": 0, "shared_experts": 0}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < least.get(field.name, 1):
                raise InputError("is too small", field=field.name, value=value, allowed=f"{least.get(field.name, 1)}+")
        for name, kind in (("numbers", Numbers), ("combine", CombineType)):
            if getattr(self, name) not in get_args(kind):
                raise InputError("is unknown", field=name, value=getattr(self, name), allowed=get_args(kind))
        if (self.l1_main_loop_ps is None) != (self.l2_main_loop_ps is None):
            missing = "l1_main_loop_ps" if self.l1_main_loop_ps is None else "l2_main_loop_ps"
            raise InputError("is missing: main loops are given for both GEMMs or for neither", field=missing)
        if self.topk > self.experts:
            raise InputError("is more than the experts", field="topk", value=self.topk, allowed=f"1 to {self.experts}")
        if self.capacity is not None and self.capacity < self.tokens:
            raise InputError(
                "is less than the tokens", field="capacity", value=self.capacity, allowed=f"{self.tokens}+"
            )

    @property
    def format(self) -> NumberFormat:
        return FORMATS[self.numbers]

    @property
    def local_experts(self) -> int:
        """Routed experts of a rank. Where ranks are more than experts it is 1: each has a copy of one, see `placement`."""
        return max(1, self.experts // self.ranks)

    @property
    def most_tokens(self) -> int:
        return max(1, self.tokens if self.capacity is None else self.capacity)

    @property
    def pull_bytes(self) -> int:
        """Bytes that the pull of one row brings: activations, their scales, and the 4 B top-k weight."""
        return self.format.activation_bytes(self.hidden) + 4

    def return_bytes(self, elements: int) -> int:
        """Bytes of `elements` neighbouring elements of a returned row, with their scales."""
        bits, group = COMBINE_BITS_AND_GROUP[self.combine]
        return elements * bits // 8 + (elements // group if group else 0)

    def flops(self, rows: int) -> int:
        """FLOPs of a rank for the (token, top-k slot) pairs that it receives, its own included: 6 R H I.

        2 for multiply and add, 3 for the gate, up and down matrices. So counts the benchmark of the public kernels
        (`tests/test_mega_moe.py` of https://github.com/deepseek-ai/DeepGEMM): published TFLOPS follow from published times.
        """
        return 6 * rows * self.hidden * self.intermediate


# Policies. None means: as the public kernel chooses (rules.py).


@dataclass(frozen=True)
class Unfused:
    """Separate kernels: pull, L1, SwiGLU, L2, return, combine, with a launch gap between them.

    `gemm` is the layout of the rows on SM90, see `grouped_gemm`; without it both GEMMs have the tiles of the fused kernel.
    """

    gemm: GroupedGemm | None = None


@dataclass(frozen=True)
class ExpertWave:
    """All L1 tiles of `experts_per_wave` experts, then all their L2 tiles; one list striped over the SMs."""

    experts_per_wave: int | None = None
    ring_m_blocks: int | None = None
    readiness: Readiness = "block"


@dataclass(frozen=True)
class Lag:
    """L2 units follow L1 units at a distance of `lag` units of up to `unit` m-blocks, `group` units at a time; the tail of
    L2 units is handed out by tickets. SM90. `ring_m_blocks` 0: no ring. Without a `lag`, calls that the public kernel runs
    as one wave of all experts are run so. `publish_rows` is how many pulled rows a dispatch warp publishes with one
    release; with `early_combine` an SM that has no tiles left combines tokens whose experts are all done.
    """

    lag: int | None = None
    group: int | None = None
    unit: int = 8
    ring_m_blocks: int | None = None
    readiness: Readiness = "block"
    publish_rows: int | None = None
    early_combine: bool | None = None


@dataclass(frozen=True)
class Split:
    """Two launches: counts, pull and L1; then L2, the return and the combine. SM90. The first three: see `SplitSchedule`.

    Between the launches lies `launch_gap_ps`, the machine's `kernel_gap` if not given; 0 for the sum of both kernels' times,
    which profilers report.
    """

    l1_n_major: bool | None = None
    l2_n_major: bool | None = None
    l1_block_n: int | None = None
    launch_gap_ps: int | None = None


@dataclass(frozen=True)
class Alternating:
    """`warm_up` L1 tasks a cluster, then L2, L1, L2, L1, ... claimed from two shared lists. SM100, July and later."""

    warm_up: int | None = None
    ring_m_blocks: int | None = None
    readiness: Readiness = "k_block"


@dataclass(frozen=True)
class Interleaved:
    """Two cursors: the next L2 task once L1 leads it by `lead_rows` rows, else the next L1 task.

    The lead counts L1 tasks begun, so an L2 task may find its inputs unfinished, and waits for them inside the task;
    with `ready` it is also guarded by its inputs. A lead that is not given is that of the `Alternating` warm-up.
    `ring_m_blocks` is the room for m-blocks between L1 and L2, which a lead needs in proportion; 0 for as much as is needed.
    """

    lead_rows: int | None = None
    ready: bool = False
    ring_m_blocks: int = 0
    readiness: Readiness = "block"


Policy = Unfused | ExpertWave | Split | Lag | Alternating | Interleaved

POLICIES: dict[str, type[Policy]] = {
    "unfused": Unfused,
    "expert_wave": ExpertWave,
    "split": Split,
    "lag": Lag,
    "alternating": Alternating,
    "interleaved": Interleaved,
}


def policy_name(policy: Policy) -> str:
    """The name by which people know it."""
    name = next(name for name, kind in POLICIES.items() if type(policy) is kind)
    return "interleaved_ready" if isinstance(policy, Interleaved) and policy.ready else name
