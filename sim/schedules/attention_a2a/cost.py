"""How long a tile of FlashAttention takes, from its structure and a few numbers of the machine.

    step     = max( longer(MMA, softmax) + (1 - overlap) shorter(MMA, softmax),  K and V from L2 )
    tile     = max( steps * step + exposed * overlap * shorter + (Q in, O out) at one SM's share of HBM,
                    Q, O and the tile's share of its head's K and V, each once, at one SM's share of HBM )

with MMA = 2 bm bn (d + d_v) FLOPs at one SM's share of the peak, d and d_v as the kernel pads them (what is moved is not
padded), softmax = bm bn elements at the machine's rate. `overlap` is how much of the shorter of the two a KV step hides: the
two warp groups of FA3 take turns and hide part of it, the softmax warps of FA4 run beside the MMA warp. `exposed` counts
steps in which it is not hidden at all. In FA3 those are the steps on the diagonal of a causal mask. In FA4 the softmax warps
mask while the MMA warp goes on; but a CTA that runs one tile (contract `exit`) fills its pipeline with the first half of a
step and drains it with the last: half a step of two tiles that take turns, a whole one of a single tile. Such a CTA also
takes `cta_start` before its first MMA, and has to stay for its store, which is then what O costs and is not counted twice.

HBM counts with its whole rate here, and with `hbm_efficiency` of it in GEMMs: the numbers that are fitted to whole kernels
contain the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...tile_cost import needed
from ...units import KBS_PER_GBS, PS_PER_US
from .shape import ELEMENT_BYTES, Attention
from .tiles import Family, Inputs, Tile

if TYPE_CHECKING:
    from ...machine import Machine

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FAMILY_OF_KERNELS: dict[str, Family] = {"sm90": "fa3", "sm100": "fa4", "portable": "portable"}


@dataclass(frozen=True)
class AttentionCosts:
    """Rates of one SM: FLOPs, softmax elements and bytes in a microsecond."""

    mma_flops_per_us: float
    softmax_per_us: float
    overlap: float
    l2_bytes_per_us: float
    hbm_bytes_per_us: float
    cta_start_us: float
    launch_ps: int

    @classmethod
    def of(cls, machine: Machine, inputs: Inputs = "bf16") -> AttentionCosts:
        """From a machine file; the efficiency of the MMA is taken as the same for both types of `inputs`.

        Raises `InputError` naming the first number that the machine does not have.
        """

        def number(name: str) -> Any:
            return needed(machine, name)

        sms = machine.sms
        return cls(
            mma_flops_per_us=number(f"{inputs}_tflops") * 1e6 * number("attention_mma_efficiency") / sms,
            softmax_per_us=number("attention_softmax") * 1e3,
            overlap=number("attention_overlap"),
            l2_bytes_per_us=number("l2_rate") / 1e3 / sms,
            hbm_bytes_per_us=number("hbm_rate") / 1e3 / sms,
            cta_start_us=number("cta_start") / PS_PER_US,
            launch_ps=number("kernel_launch"),
        )


@dataclass(frozen=True, eq=False)
class TileTimes:
    """Times of the m-blocks of one head in ps: `total` and `resume` (until the output buffer is needed) by m-block.

    `steps` are those over K and V, in the mean of heads that are packed.
    """

    steps: Floats
    total: Ints
    resume: Ints


def family_of(machine: Machine, shape: Attention) -> Family:
    """The kernel family: the shape's, or else that of the machine's kernels. Raises `InputError` if neither is given."""
    return FAMILY_OF_KERNELS[needed(machine, "kernels")] if shape.family is None else shape.family


def tile_times(costs: AttentionCosts, tile: Tile, shape: Attention) -> TileTimes:
    """Times of the m-blocks of a head, [m-blocks], in row order; the last tile computes all its rows, valid or not."""
    steps = _kv_steps(tile, shape)
    step, shorter = _step_us(costs, tile, shape)
    q_in = tile.block_m * shape.head_dim * shape.input_bytes / costs.hbm_bytes_per_us
    exposed: Any
    if tile.contract == "exit":
        exposed, around = 0.5 / tile.softmax_share, costs.cta_start_us
    else:
        exposed = np.minimum(steps, -(-tile.block_m // tile.block_n)) if shape.causal else 0
        around = tile.block_m * shape.output_dim * ELEMENT_BYTES / costs.hbm_bytes_per_us
    computed = steps * step + exposed * costs.overlap * shorter + q_in + around
    total = np.maximum(computed, _tile_bytes(tile, shape) / costs.hbm_bytes_per_us)
    resume = np.minimum(total, q_in + tile.resume_steps * step)
    return TileTimes(steps, _whole_ps(total), _whole_ps(resume))


def _kv_steps(tile: Tile, shape: Attention) -> Floats:
    """Steps over K and V of each m-block, [m-blocks].

    A tile of g packed heads has the rows of bm / g tokens, and under a causal mask reaches to the last of them. Each m-block
    of g heads stands for g such tiles, of which the last m-block has fewer, and has the mean of their steps.
    """
    heads, block = tile.packed_heads, np.arange(tile.blocks(shape.tokens)) * tile.block_m
    first, end = (block[:, None] + tile.block_m * (np.arange(heads) + more) // heads for more in (0, 1))
    reach = np.minimum(shape.tokens, end) if shape.causal else shape.tokens
    is_there = (first < shape.tokens) | (heads == 1)  # a pair of CTAs computes as one
    return np.asarray((-(-reach // tile.block_n) * is_there).mean(axis=1))


def _tile_bytes(tile: Tile, shape: Attention) -> float:
    """What a tile must move between HBM and the SMs: Q, O, and its share of K and V, which all tiles of a KV head read."""
    keys = shape.tokens / tile.blocks(shape.tokens) / shape.heads_sharing_kv
    moved = tile.block_m * shape.head_dim + keys * (shape.head_dim + shape.output_dim)
    return moved * shape.input_bytes + tile.block_m * shape.output_dim * ELEMENT_BYTES


def attention_flops(shape: Attention) -> int:
    """FLOPs of one rank, 2 b h S^2 (d + d_v), half of it with a causal mask: as benchmarks count them."""
    full = 2 * shape.batch * shape.local_heads * shape.tokens**2 * (shape.head_dim + shape.output_dim)
    return full // 2 if shape.causal else full


def crossover_tokens(flops_per_s: float, drain_kbs: float, ranks: int) -> float:
    """Sequence length s* at which the All-to-All of the output takes as long on the wire as attention takes to compute.

    s* = rate (P-1) / (2 P R), of non-causal attention with 16-bit elements and d_v = d, whatever d, batch and heads; at a
    length s the wire takes s* / s of the time of attention.

        >>> round(crossover_tokens(650e12, 450e6, ranks=8))
        632
    """
    return flops_per_s * (ranks - 1) / ranks / (2 * drain_kbs / KBS_PER_GBS * 1e9)


def _step_us(costs: AttentionCosts, tile: Tile, shape: Attention) -> tuple[float, float]:
    """One KV step, and the shorter of its MMA and softmax times."""
    elements = tile.block_m * tile.block_n
    mma = 2 * elements * (tile.head_dim + tile.value_dim) / costs.mma_flops_per_us
    softmax = elements / (costs.softmax_per_us * tile.softmax_share)
    kv_bytes = tile.block_n * (shape.head_dim + shape.output_dim) * shape.input_bytes
    load = kv_bytes / tile.multicast / costs.l2_bytes_per_us
    shorter = min(mma, softmax)
    return max(max(mma, softmax) + (1 - costs.overlap) * shorter, load), shorter


def _whole_ps(us: Any) -> Ints:
    return np.asarray(np.ceil(np.asarray(us) * PS_PER_US), dtype=np.int64)
