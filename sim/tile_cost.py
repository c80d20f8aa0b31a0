"""What the tiles of a GEMM kernel cost: main loop and epilogue, from FLOPs, bytes and the order of the tiles.

    main loop = max( MMA       2 BM BN K FLOPs at one SM's share of the peak, times the efficiency of the data type, and what
                               the warps that issue it do in turn with it,
                     feed      bytes that come from L2 into the SM, by what one SM takes in,
                     L2        the same bytes and the SM's share of what HBM writes into L2, by its share of the throughput,
                     weights   bytes that the tiles running at the same time read from HBM, by its rate ) + fixed
    epilogue  = max(elements / epilogue rate, floor)

The data banks of L2 serve reads of SMs and fills from HBM alike (Nsight Compute counts both as `lts__d_sectors`, the latter
also as `lts__d_sectors_fill_device`). So a batch that reads each weight tile from HBM for the few m-blocks of its expert is
held up by both, and one that is bound by HBM alone, or finds its weights in L2, is not.

What math warps do in turn with their MMA, on Hopper: they unpack FP4 weights to FP8, for which its Tensor Cores have no
instruction (https://github.com/AichenF/DeepGEMM, MXFP4_SM90_OPTIMIZATION.md, section 7), and they add FP8 accumulators to
FP32 sums after each 128 of K. Two warpgroups hide the latter behind each other's MMA, a lone one does not (DeepSeek-V3,
arXiv 2412.19437, section 3.3.2).

Whether a weight tile comes from HBM is decided by its reuse distance in the nominal order of tiles: it is an L2 hit if the
distinct bytes touched since its last use fit into the share of L2 that keeps weights. Tiles that run at the same time (one
for each SM) fetch a weight tile once. So small batches are bound by streaming weights, and an order that crosses experts
can lose hits. Activations come from L2: they were written there shortly before.

Not modelled: clock and power limits (they are inside the efficiency), L2 slices, and the departure of the order that ran
from the nominal one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .units import PS_PER_US

if TYPE_CHECKING:
    from .machine import Machine

MathType = Literal["bf16", "fp8", "fp4"]
"""Data type in which the Tensor Cores multiply; mixed FP8 x FP4 runs at the FP8 rate."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Numbers = NDArray[np.number[Any]]

US_PER_S = 1e6


@dataclass(frozen=True)
class TileCosts:
    """Parameters of the model for one GPU and one math type. Rates are bytes, FLOPs or elements in a microsecond."""

    sms: int
    mma_flops_per_us: float  # of one SM, efficiency included
    feed_bytes_per_us: float  # into one SM
    hbm_bytes_per_us: float  # of the whole GPU, efficiency included
    l2_bytes: float  # that keep weight tiles
    fixed_us: float
    requantise_per_us: float  # L1 epilogue: elements of the accumulator, SwiGLU and requantisation
    scatter_per_us: float  # L2 epilogue: elements of the accumulator, conversion and staging without the stores
    epilogue_floor_us: float
    l2_bytes_per_us: float = np.inf  # of the whole GPU: reads of SMs and fills from HBM
    unpacked_per_us: float = np.nan  # FP4 weights that one SM turns into FP8
    promotion_us: float = np.nan  # of the accumulator of one K-block by a lone warpgroup

    @classmethod
    def of(cls, machine: Machine, math: MathType) -> TileCosts:
        """From a machine file. Raises `InputError` naming the first number that the machine does not have."""
        if math not in get_args(MathType):
            raise InputError("is unknown", field="math", value=math, allowed=get_args(MathType))

        def number(name: str) -> float:
            return float(needed(machine, name))

        sms = machine.sms
        peak = number(f"{math}_tflops") * 1e12 / US_PER_S
        return cls(
            sms=sms,
            mma_flops_per_us=peak * number(f"mma_efficiency_{math}") / sms,
            feed_bytes_per_us=number("sm_feed") * 1e3 / US_PER_S,
            hbm_bytes_per_us=number("hbm_rate") * 1e3 / US_PER_S * number("hbm_efficiency"),
            l2_bytes=number("l2") * number("l2_share"),
            fixed_us=number("tile_fixed") / PS_PER_US,
            requantise_per_us=number("epilogue_requantise") * 1e9 / US_PER_S,
            scatter_per_us=number("epilogue_scatter") * 1e9 / US_PER_S,
            epilogue_floor_us=number("epilogue_floor") / PS_PER_US,
            l2_bytes_per_us=_or(machine, "l2_throughput", np.inf) * 1e3 / US_PER_S,
            unpacked_per_us=_or(machine, "fp4_unpack", np.nan) * 1e9 / US_PER_S,
            promotion_us=_or(machine, "promotion", np.nan) / PS_PER_US,
        )


def needed(machine: Machine, name: str) -> Any:
    """A number of the machine's compute part. Raises `InputError` if it does not have it."""
    sourced = getattr(machine.compute, name)
    if sourced is None:
        allowed = f"a value with its source, in a machine file with base: {machine.name}"
        raise InputError(f"is not given for {machine.name}", field=f"compute.{name}", allowed=allowed)
    return sourced.value


def needed_wiring(machine: Machine, name: str, nor: str = "") -> int:
    """A number of the machine's interconnect. Raises `InputError` if it does not have it, `nor` the place that is named."""
    sourced = getattr(machine.interconnect, name)
    if sourced is None:
        reason = f"is not given for {machine.name}" + (f", nor by {nor}" if nor else "")
        raise InputError(reason, field=f"interconnect.{name}", allowed="a value with its source")
    return int(sourced.value)


def _or(machine: Machine, name: str, otherwise: float) -> float:
    sourced = getattr(machine.compute, name)
    return otherwise if sourced is None else float(sourced.value)


def main_loop_ps(
    costs: TileCosts, flops: Numbers, feed_bytes: Numbers, hbm_bytes: Numbers, in_turn_us: Floats | float = 0.0
) -> Ints:
    """Main loops of tiles in ps. `hbm_bytes` is what the GPU reads from HBM for a tile and its contemporaries, `in_turn_us`
    what the math warps do in turn with their MMA.
    """
    us = np.maximum(flops / costs.mma_flops_per_us + in_turn_us, feed_bytes / costs.feed_bytes_per_us)
    us = np.maximum(us, hbm_bytes / costs.hbm_bytes_per_us)
    us = np.maximum(us, (feed_bytes * costs.sms + hbm_bytes) / costs.l2_bytes_per_us)
    return _whole_ps(us + costs.fixed_us)


def epilogue_ps(costs: TileCosts, elements: Any, phase: Literal["requantise", "scatter"]) -> Ints:
    """Epilogues of tiles with `elements` valid accumulator elements in ps, without the time of issuing stores."""
    rate = costs.requantise_per_us if phase == "requantise" else costs.scatter_per_us
    us = np.maximum(np.asarray(elements, dtype=np.float64) / rate, costs.epilogue_floor_us)
    return _whole_ps(us)


def _whole_ps(us: Floats) -> Ints:
    return np.ceil(us * PS_PER_US).astype(np.int64)


def bytes_from_hbm(costs: TileCosts, weight_bytes: Ints, hits: NDArray[np.bool_]) -> Floats:
    """Bytes of weights that HBM gives for each tile and those that run at the same time, [tiles] in nominal order."""
    missed = weight_bytes * ~hits
    rounds = np.arange(len(missed)) // costs.sms
    by_round = np.bincount(rounds, weights=missed, minlength=1)
    return np.asarray(by_round[rounds])


def l2_hits(
    costs: TileCosts, weight: Ints, weight_bytes: Ints, activation: Ints, activation_bytes: Ints
) -> NDArray[np.bool_]:
    """Whether each tile finds its weights in L2, [tiles] in nominal order.

    `weight` and `activation` name the operand tiles ([tiles], any whole numbers); the same number is the same data.
    Touches within one round of the SMs count as one. The distinct bytes between two uses are taken as the bytes touched
    in between that were not touched in the round before; exact where the order sweeps through weights, too large where
    it comes back to the same data after more than a round.
    """
    before = previous_use(weight)
    fresh_weight = np.arange(len(weight)) - before > costs.sms
    fresh_activation = np.arange(len(weight)) - previous_use(activation) > costs.sms
    touched = np.cumsum(weight_bytes * fresh_weight + activation_bytes * fresh_activation)
    known = before >= 0
    distance = touched - touched[np.maximum(before, 0)]
    return known & (~fresh_weight | (distance <= costs.l2_bytes))


def previous_use(name: Ints) -> Ints:
    """Position of the last earlier entry with the same name; far below zero if there is none."""
    order = np.argsort(name, kind="stable")
    same = name[order][1:] == name[order][:-1]
    before = np.full(len(name), -(2**62), dtype=np.int64)
    before[order[1:][same]] = order[:-1][same]
    return before
