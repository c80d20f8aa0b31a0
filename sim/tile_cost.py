"""What the tiles of a GEMM kernel cost: main loop and epilogue, from FLOPs, bytes and the order of the tiles.

    main loop = max( MMA       2 BM BN K FLOPs at one SM's share of the peak, times the efficiency of the data type, and what
                               the warps that issue it do in turn with it,
                     feed      bytes that come from L2 into the SM, by what one SM takes in,
                     L2        the same bytes and their part of what HBM writes into L2, by the SM's share of the throughput,
                     weights   its bytes that come from HBM, by the rate that HBM has for it ) + fixed
    epilogue  = max(elements / epilogue rate, floor)

HBM is shared between the tiles of a round, as many as there are SMs (`Rounds`): those that it holds up get one rate, the
highest with which HBM gives the round's bytes in the round's time; tiles that read the same weights get them together. What
a tile does not take because something else holds it up, others get (max-min fair). So tiles of one kind take the time of the
round's bytes. Where an order mixes tiles of L1 and L2, short ones are not charged with the bytes of long ones, and HBM has
always given its bytes by the time they are charged. Over many rounds that is what HBM needs; a round that stands alone is
charged up to half more.

The data banks of L2 serve reads of SMs and fills from HBM alike (Nsight Compute counts both as `lts__d_sectors`, the latter
also as `lts__d_sectors_fill_device`). So a batch that reads each weight tile from HBM for the few m-blocks of its expert is
held up by both, and one that is bound by HBM alone, or finds its weights in L2, is not.

What math warps do in turn with their MMA, on Hopper: they unpack FP4 weights to FP8, for which its Tensor Cores have no
instruction (https://github.com/AichenF/DeepGEMM, MXFP4_SM90_OPTIMIZATION.md, section 7), and they add FP8 accumulators to
FP32 sums after each 128 of K. Two warpgroups hide the latter behind each other's MMA, a lone one does not (DeepSeek-V3,
arXiv 2412.19437, section 3.3.2).

Whether a weight tile comes from HBM is decided by its reuse distance in the nominal order of tiles: it is an L2 hit if the
distinct bytes touched since its last use fit into the share of L2 that keeps weights. Tiles of a round fetch a weight tile
once, and wait for it together. So small batches are bound by streaming weights, and an order that crosses experts can lose
hits. Activations come from L2: they were written there shortly before.

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


class Rounds:
    """Which tiles run side by side. `of_tile` numbers the round of each tile, [tiles], from 0 in any order."""

    def __init__(self, of_tile: Ints) -> None:
        self.of_tile = of_tile
        self.tiles = np.bincount(of_tile)
        order = np.argsort(of_tile, kind="stable")
        self._place = np.empty(len(of_tile), dtype=np.int64)  # of each tile in its round
        self._place[order] = np.arange(len(of_tile)) - np.repeat(np.cumsum(self.tiles) - self.tiles, self.tiles)

    @classmethod
    def in_order(cls, sms: int, tiles: int) -> Rounds:
        """As many neighbours as there are SMs."""
        return cls(np.arange(tiles) // sms)

    def spread(self, values: Numbers) -> Floats:
        """A value of each tile as [rounds, most tiles of a round]; zero where a round has fewer."""
        spread = np.zeros((len(self.tiles), self.tiles.max(initial=0)))
        spread[self.of_tile, self._place] = values
        return spread

    def of_each(self, spread: Floats) -> Floats:
        """The value of each tile, [tiles], from what `spread` returned."""
        return np.asarray(spread[self.of_tile, self._place])


def main_loop_ps(
    costs: TileCosts,
    flops: Numbers,
    feed_bytes: Numbers,
    hbm_bytes: Numbers,
    in_turn_us: Floats | float = 0.0,
    users: Numbers | int = 1,
    rounds: Rounds | None = None,
) -> Ints:
    """Main loops of tiles in ps, [tiles] in nominal order. `hbm_bytes` is what a tile waits for from HBM, together with as
    many `users` of its round, itself included; `in_turn_us` what the math warps do in turn with their MMA. Without
    `rounds`, neighbours run side by side.
    """
    rounds = rounds or Rounds.in_order(costs.sms, len(hbm_bytes))
    us = np.maximum(flops / costs.mma_flops_per_us + in_turn_us, feed_bytes / costs.feed_bytes_per_us)
    us = np.maximum(us, _with_fills(costs, rounds, feed_bytes, hbm_bytes / users) * costs.sms / costs.l2_bytes_per_us)
    return _whole_ps(_held_up_by_hbm(costs, rounds, us, hbm_bytes, users) + costs.fixed_us)


def _with_fills(costs: TileCosts, rounds: Rounds, feed_bytes: Numbers, hbm_bytes: Numbers) -> Floats:
    """Bytes that L2 moves for each tile, the fills of a round in proportion to what SMs read: they slow all reads alike."""
    feed, fills = rounds.spread(feed_bytes), rounds.spread(hbm_bytes)
    share = np.zeros(feed.shape)
    total = feed.sum(axis=1, keepdims=True)
    np.divide(feed, total, out=share, where=total > 0)
    running = np.minimum(rounds.tiles, costs.sms)[:, None]
    moved = feed + share * fills.sum(axis=1, keepdims=True) * running / costs.sms
    return rounds.of_each(moved)


def _held_up_by_hbm(costs: TileCosts, rounds: Rounds, us: Floats, hbm_bytes: Numbers, users: Numbers | int) -> Floats:
    """`us` of each tile, or what HBM takes for its bytes where that is longer.

    For what it gives to a round of n tiles HBM needs n * bytes / rate of the SMs' time. Tiles take max(us, bytes * x), and
    x is the smallest with which they take that time in all. Their sum is convex and piecewise linear in x, the largest of
    the lines that belong to the k tiles with the least us / bytes, so x is the least of where these lines reach it. Alone a
    tile gets all that HBM gives.
    """
    alone, own = rounds.spread(us), rounds.spread(hbm_bytes)
    first_held_up = np.full(alone.shape, np.inf)
    np.divide(alone, own, out=first_held_up, where=own > 0)
    by_bound = np.argsort(first_held_up, axis=1)
    bytes_held_up = np.cumsum(np.take_along_axis(own, by_bound, axis=1), axis=1)
    others = alone.sum(axis=1, keepdims=True) - np.cumsum(np.take_along_axis(alone, by_bound, axis=1), axis=1)
    given = rounds.spread(hbm_bytes / users).sum(axis=1)
    needed_us = given * np.minimum(rounds.tiles, costs.sms) / costs.hbm_bytes_per_us
    reached = np.full(alone.shape, np.inf)
    np.divide(needed_us[:, None] - others, bytes_held_up, out=reached, where=bytes_held_up > 0)
    reads = own.any(axis=1, keepdims=True)
    us_of_byte = np.maximum(reached.min(axis=1, keepdims=True), 1 / costs.hbm_bytes_per_us)
    held_up = own * np.where(reads, us_of_byte, 0.0)
    return rounds.of_each(np.maximum(alone, held_up))


def epilogue_ps(costs: TileCosts, elements: Any, phase: Literal["requantise", "scatter"]) -> Ints:
    """Epilogues of tiles with `elements` valid accumulator elements in ps, without the time of issuing stores."""
    rate = costs.requantise_per_us if phase == "requantise" else costs.scatter_per_us
    us = np.maximum(np.asarray(elements, dtype=np.float64) / rate, costs.epilogue_floor_us)
    return _whole_ps(us)


def _whole_ps(us: Floats) -> Ints:
    return np.ceil(us * PS_PER_US).astype(np.int64)


def bytes_from_hbm(rounds: Rounds, weight: Ints, weight_bytes: Ints, hits: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Bytes of weights that each tile waits for from HBM, and how many of its round wait for them, [tiles] in nominal order.

    `weight` names weight tiles, as for `l2_hits`. Of a round, what one tile misses all tiles with these weights wait for.
    """
    names = rounds.of_tile * (weight.max(initial=0) + 1) + weight
    _, which, users = np.unique(names, return_inverse=True, return_counts=True)
    is_missed = np.zeros(len(users), dtype=bool)
    is_missed[which[~hits]] = True
    return weight_bytes * is_missed[which], users[which]


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
