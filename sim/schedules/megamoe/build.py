"""The Program of one MegaMoE call: counts, barrier, pull, L1, L2 with its scatter, barrier, combine.

All ranks are simulated, or one against its mirror image (`ranks="symmetric"`): GPU 0 runs the busiest rank, GPU 1 stands
for all others. A call ends with its slowest rank, which is about the one with the most m-blocks: ranks with equally many
rows differ in them, as a last block is computed whole. Run it on `mirror.mirrored(fabric)`, where both directions share
GPU 0's egress and one ingress, so that what the peers would pull from the rank and store to it competes with its own
traffic as in the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ... import tile_cost
from ...errors import InputError
from ...placement import Placement, compare_load, contiguous, max_over_mean
from ...pools import Pools, pools
from ...program import Program
from ...program_builder import ProgramBuilder
from ...routing import Routing
from .blocks import blocks_of
from .collective import Receivers, add_collective
from .combine import rows_to_combine
from .departure import nominal_hits_pct
from .flags import Flags, left_of
from .kernel import Kernel, WaveTile, choose
from .links import links_of
from .memory import memory_bytes
from .order import check_rings, order_of
from .pull import add_pull, batch_that_fits
from .returns import pieces_of, returns_of
from .rules import Release
from .shape import Interleaved, MegaMoe, Policy, Ranks, Split, Unfused, policy_name
from .tiles import Rank, add_tiles
from .unfused import add_return

if TYPE_CHECKING:
    from ...machine import Machine

Ints = NDArray[np.int64]
LARGEST_IMBALANCE = 1.05
LEAST_SYMMETRIC_TOKENS = 64
K_BLOCK_PARTS = 4
"""Parts in which an m-block's L1 output is published under `k_block` readiness; the kernels use one a 128 columns."""


def build(
    machine: Machine,
    shape: MegaMoe,
    policy: Policy,
    routing: Routing,
    placement: Placement | None = None,
    *,
    ranks: Ranks = "all",
    release: Release = "june",
    starts_ps: Sequence[int] = (),
    swap_ab: bool = False,
    tile: WaveTile = "wide",
) -> Program:
    """The Program. `placement` is contiguous if not given; `starts_ps` delays the launch of ranks, in rank order; `swap_ab`
    and `tile` are forms of the kernel, see `choose`.

    Raises `InputError` if routing or placement differ from the shape, if the kernel family cannot run it, if a ring is too
    small for its order, or if a symmetric run would stand for ranks that are not alike.
    """
    _check(shape, routing, ranks, starts_ps)
    placed = contiguous(shape.experts, shape.ranks) if placement is None else placement
    rows = pools(routing, placed)
    shape = replace(shape, experts=placed.n_replicas)  # a copy of an expert is one of the experts that the kernel knows
    kernel = choose(machine, shape, policy, release, swap_ab, tile)
    if ranks == "symmetric":
        _check_alike(rows, shape)
        simulated, receivers = [_busiest(rows, kernel)], [min(1, shape.ranks - 1)]
        gpu_of_rank = (np.arange(shape.ranks) != simulated[0]).astype(np.int64)
    else:
        gpu_of_rank = np.arange(shape.ranks)
        simulated, receivers = list(range(shape.ranks)), list(range(shape.ranks))
    n_gpus = int(gpu_of_rank.max()) + 1
    blocks = [blocks_of(rows, kernel, shape, rank, int(gpu_of_rank[rank]), gpu_of_rank, n_gpus) for rank in simulated]
    orders = [order_of(kernel, shape, policy, release, mine) for mine in blocks]
    check_rings(kernel, list(zip(orders, blocks, strict=True)))
    kernel = replace(kernel, publish_rows=batch_that_fits(kernel, policy, list(zip(orders, blocks, strict=True))))

    builder = ProgramBuilder(n_gpus)
    flags = Flags.make(builder, kernel, shape, placed, len(simulated))
    costs = tile_cost.TileCosts.of(machine, shape.format.math)
    parts, separate = _parts(kernel, policy), isinstance(policy, Unfused)
    built = []
    for index, (mine, order) in enumerate(zip(blocks, orders, strict=True)):
        visible = flags.counters(flags.of_experts(index, mine.expert))
        rank = Rank(
            machine=machine,
            kernel=kernel,
            shape=shape,
            costs=costs,
            blocks=mine,
            order=order,
            links=links_of(builder, mine, order, parts, policy),
            returns=returns_of(
                builder, machine, shape, mine, visible, kernel.block_n, separate, asynchronous=kernel.gemm is not None
            ),
            token_rows=rows_to_combine(routing.topk[mine.rank], shape),
            start_ps=starts_ps[mine.rank] if starts_ps else 0,
            launch_gap_ps=_launch_gap_ps(machine, policy),
            left=left_of(builder, kernel, receivers[index]),
        )
        flags.note(index, rank, _add_rank(builder, rank, visible))
        built.append(rank)
    early = flags.done(shape, routing, placed, built, receivers)
    add_collective(builder, machine, shape, built, Receivers(receivers, flags, early))
    meta = _meta(shape, policy, kernel, release, ranks, built)
    return builder.build(**meta, routed=_evenness(routing, rows), **_rank_load(routing, placed))


def _add_rank(builder: ProgramBuilder, rank: Rank, visible: Ints) -> Ints:
    """Tiles and pull of one rank; returns the arrivals that each block causes at each GPU, [blocks, gpus]."""
    add_tiles(builder, rank)
    add_pull(builder, rank)
    if not rank.links.separate:
        return rank.returns.sent * rank.kernel.l2_n_blocks
    pieces = pieces_of(builder, rank.shape, rank.blocks, rank.kernel.sms)
    add_return(builder, rank, pieces, visible)
    return pieces.sent


def _launch_gap_ps(machine: Machine, policy: Policy) -> int:
    """Between two launches; 0 where there is one."""
    if isinstance(policy, Split) and policy.launch_gap_ps is not None:
        if policy.launch_gap_ps < 0:
            raise InputError("must not be negative", field="launch_gap_ps", value=policy.launch_gap_ps)
        return policy.launch_gap_ps
    return int(tile_cost.needed(machine, "kernel_gap")) if isinstance(policy, (Split, Unfused)) else 0


def _parts(kernel: Kernel, policy: Policy) -> int:
    if isinstance(policy, (Unfused, Split)) or policy.readiness == "block":
        return 1
    if isinstance(policy, Interleaved) and policy.ready:
        raise InputError("cannot be guarded by single k-blocks", field="readiness", value="k_block", allowed="block")
    return min(K_BLOCK_PARTS, kernel.l1_n_blocks)


def _check(shape: MegaMoe, routing: Routing, ranks: str, starts_ps: Sequence[int]) -> None:
    if ranks not in ("all", "symmetric"):
        raise InputError("is unknown", field="ranks", value=ranks, allowed="all, symmetric")
    for name, has, needs in (
        ("ranks", routing.n_ranks, shape.ranks),
        ("tokens", routing.n_tokens, shape.tokens),
        ("topk", routing.k, shape.topk),
        ("experts", routing.n_experts, shape.experts),
    ):
        if has != needs:
            raise InputError("of the routing differs from the shape", field=name, value=has, allowed=[needs])
    if starts_ps and len(starts_ps) != shape.ranks:
        raise InputError("needs one start a rank", field="starts_ps", value=len(starts_ps), allowed=[shape.ranks])
    if ranks == "symmetric" and len(set(starts_ps)) > 1:
        raise InputError("makes ranks differ", field="starts_ps", value=list(starts_ps), allowed="ranks: all")


def _check_alike(rows: Pools, shape: MegaMoe) -> None:
    """A mirror stands for the other ranks only if they do about the same."""
    if shape.tokens < LEAST_SYMMETRIC_TOKENS:
        raise InputError(
            "is too few for ranks: symmetric",
            field="tokens",
            value=shape.tokens,
            allowed=f"{LEAST_SYMMETRIC_TOKENS} or more, or ranks: all",
        )
    if not are_alike(rows.rows_per_rank, shape.tokens):
        raise InputError(
            "rank loads differ too much for ranks: symmetric",
            field="busiest over idlest rank",
            value=round(_imbalance(rows.rows_per_rank), 3),
            allowed=f"at most {LARGEST_IMBALANCE}, or ranks: all",
        )


def are_alike(rows_per_rank: Ints, tokens: int) -> bool:
    """Whether one rank may stand for all: each has enough tokens, and about as many rows to compute as the others."""
    return tokens >= LEAST_SYMMETRIC_TOKENS and _imbalance(rows_per_rank) <= LARGEST_IMBALANCE


def _imbalance(rows_per_rank: Ints) -> float:
    return float(rows_per_rank.max() / max(1, rows_per_rank.min()))


def _busiest(rows: Pools, kernel: Kernel) -> int:
    """The rank with the most m-blocks; of several that with the most rows, and the first of these."""
    m_blocks = rows.m_blocks(kernel.block_m).reshape(rows.placement.n_ranks, -1).sum(axis=1)
    return int(np.lexsort((-rows.rows_per_rank, -m_blocks))[0])


def _evenness(routing: Routing, rows: Pools) -> dict[str, float]:
    """Rows of the busiest expert and of the busiest rank over their means, as they were drawn and placed."""
    return {
        "expert_max_over_mean": routing.max_over_mean,
        "rank_max_over_mean": max_over_mean(rows.rows_per_rank),
    }


def _rank_load(routing: Routing, placed: Placement) -> dict[str, object]:
    """Rows of each rank with experts in order and as they are placed; nothing if they are in order, or cannot be."""
    if placed.n_experts % placed.n_ranks:
        return {}
    in_order = contiguous(placed.n_experts, placed.n_ranks)
    if np.array_equal(placed.phy2log, in_order.phy2log):
        return {}
    return {"rank_load": asdict(compare_load(routing.expert_rows, in_order, placed))}


def _fill(kernel: Kernel, built: Sequence[Rank]) -> dict[str, float]:
    """Rows of an m-block, and how many of them hold a token in the mean: the others are computed for nothing."""
    rows = sum(int(rank.blocks.rows.sum()) for rank in built)
    return {"block_m": kernel.block_m, "mean_rows": rows / max(1, sum(rank.blocks.n_blocks for rank in built))}


def _meta(
    shape: MegaMoe, policy: Policy, kernel: Kernel, release: Release, ranks: str, built: Sequence[Rank]
) -> dict[str, object]:
    leads = [min(rank.order.lead_blocks, rank.blocks.n_blocks) * kernel.block_m for rank in built]
    return {
        "schedule": "megamoe",
        "shape": asdict(shape),
        "policy": {"name": policy_name(policy), **asdict(policy)},
        "kernel": asdict(kernel),
        "release": release,
        "ranks": ranks,
        "ring_m_blocks": max((rank.order.ring for rank in built), default=0),
        "m_blocks": [rank.blocks.n_blocks for rank in built],
        "lead_rows": leads if isinstance(policy, Interleaved) else None,
        "m_block_fill": _fill(kernel, built),
        "math": shape.format.math,
        "flops": [shape.flops(int(rank.blocks.rows.sum())) for rank in built],
        "memory_bytes": [memory_bytes(rank) for rank in built],
        "weight_hits_pct": [
            nominal_hits_pct(kernel, shape, rank.costs, rank.order.tiles, rank.blocks.expert) for rank in built
        ],
    }
