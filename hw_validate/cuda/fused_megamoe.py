"""The tables of the fused MegaMoE kernel (kernels/megamoe.cu) for a Program: which data each task and each op works on.

The Program comes from `sim.schedules.megamoe.build` on a machine with the kernel family `portable`, for one policy; its
tables of lanes, queues and guards are those of the replay kernel (lower.py). What this adds:

    tiles   by task: GEMM, local expert, n-block, rows of the m-block, where they stand in the pools
    rows    by pool row of every rank: whose (token, slot) pair it is, and its place in the pools
    parts   by op, in `ticks`: slices of K of a main loop, rows of an epilogue step, the row that a dispatch op moves

Warps by lane are fixed (`WARPS`), because they share one kernel's registers. Pools are as large as the Program's ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...sim import program as p
from ...sim.errors import InputError, ProgramError
from ...sim.placement import Placement, contiguous
from ...sim.pools import Pools, pools
from ...sim.program import Program
from ...sim.program_index import expand, visits
from ...sim.routing import Routing
from ...sim.schedules.megamoe.blocks import Blocks, blocks_of
from ...sim.schedules.megamoe.kernel import Kernel
from ...sim.schedules.megamoe.links import part_of_tile
from ...sim.schedules.megamoe.shape import MegaMoe
from .fused_lower import JOINT, ops_of, with_warps
from .job import Array
from .lower import Lowered, Target, lower

BLOCK_M, BLOCK_N, SLICE = 64, 128, 64
"""Tile of megamoe.cu, and the depth of a slice of K (gemm.cuh)."""
WARPS: Mapping[str, int] = {"mma": 8, "epilogue": 3, "dispatch": 1, "combine": 1, "comm": 1}
"""Warps of a lane by role; with the courier 16 on an SM that has all of them and two of `dispatch`."""
MOST_WARPS = 16
STAGES = (3, 2)
"""Stages of the main loop that megamoe.cu has kernels for, best first."""
LEAST_REST = 26 << 10
"""Bytes of shared memory that the interpreter needs beside the work, for its lanes and some records."""

TILE = np.dtype(
    [(name, "u4") for name in ("kind", "expert", "n_block", "n_rows", "first_row", "pool_row")] + [("padding", "u4", 2)]
)
ROW = np.dtype([(name, "u4") for name in ("rank", "item", "pool_row", "padding")])
OTHER, L1, L2, PULL, COMBINE = range(5)
"""Kinds of a tile; see megamoe.cu, as for the structs."""
_NO_LIMIT = 1 << 50
_KIND_OF_PHASE = {"l1": L1, "l2": L2, "dispatch": PULL, "combine": COMBINE}


@dataclass(frozen=True, eq=False)
class FusedMegaMoe:
    """A Program lowered for megamoe.cu. `pool_rows` are the rows of the pools of each rank, [ranks]; `pools` say whose rows
    each rank computes, in pool order; `work_first` is where the work's part of shared memory begins."""

    lowered: Lowered
    tiles: Array  # TILE [tasks]
    rows: Array  # ROW [rows of all ranks]
    pool_rows: Array
    pools: Pools
    shape: MegaMoe
    stages: int
    work_first: int


def work_bytes(hidden: int, dispatch_lanes: int, stages: int) -> int:
    """Shared memory of the work on one SM: stages, two accumulators, a staged tile, a pulled row for each dispatch lane."""
    slices = stages * (BLOCK_M + BLOCK_N) * SLICE * 2
    return slices + 2 * BLOCK_M * BLOCK_N * 4 + BLOCK_M * BLOCK_N * 2 + dispatch_lanes * (hidden * 2 + 16)


def lower_megamoe(
    program: Program,
    routing: Routing,
    placement: Placement | None = None,
    *,
    is_one_gpu: bool = True,
    shared_bytes: int = 227 << 10,
    stages: int | None = None,
    warps: Mapping[str, int] = WARPS,
) -> FusedMegaMoe:
    """Lower a MegaMoE Program with the routing that it was built from.

    `shared_bytes` is what a CTA may have; what the work leaves of it holds the records. `stages`, if not given, is 3, or 2
    where they do not fit. Raises `ProgramError` for a Program that the kernel cannot run, `InputError` where
    shared memory is too small.
    """
    kernel, shape = _checked(program)
    placed = contiguous(shape.experts, shape.ranks) if placement is None else placement
    rows_of_ranks = pools(routing, placed)
    every = np.arange(shape.ranks)
    blocks = [blocks_of(rows_of_ranks, kernel, shape, rank, rank, every, shape.ranks) for rank in every.tolist()]
    if stages is None:
        fits = shared_bytes >= work_bytes(shape.hidden, kernel.dispatch_warps, STAGES[0]) + LEAST_REST
        stages = STAGES[0] if fits else STAGES[1]
    work = work_bytes(shape.hidden, kernel.dispatch_warps, stages)
    if shared_bytes < work + LEAST_REST:
        raise InputError(
            "is too little for the tiles",
            field="shared_bytes",
            value=shared_bytes,
            allowed=f"{work + LEAST_REST} or more",
        )
    lowered = lower(
        program,
        Target(store_warps=1, is_one_gpu=is_one_gpu, landing_bytes=_NO_LIMIT, source_bytes=_NO_LIMIT),
    )
    work_first = (shared_bytes - work) // 128 * 128
    lowered = with_warps(program, lowered, warps, MOST_WARPS, work_first, shared_bytes)
    ring = int(program.meta["ring_m_blocks"])
    rows = _rows(rows_of_ranks, blocks, shape, ring)
    tables = dict(lowered.tables)
    tables["ops"] = _parts(program, tables["ops"], kernel, shape, rows_of_ranks.rank_start)
    return FusedMegaMoe(
        lowered=replace(lowered, tables=tables),
        tiles=_tiles(program, blocks, kernel, shape, rows_of_ranks.rank_start, ring),
        rows=rows,
        pool_rows=np.array([BLOCK_M * max(1, min(ring, b.n_blocks) if ring else b.n_blocks) for b in blocks]),
        pools=rows_of_ranks,
        shape=shape,
        stages=stages,
        work_first=work_first,
    )


def _checked(program: Program) -> tuple[Kernel, MegaMoe]:
    meta = program.meta
    if meta.get("schedule") != "megamoe":
        raise ProgramError("is no MegaMoE Program, which is all that the fused kernel runs")
    kernel, shape = Kernel(**meta["kernel"]), MegaMoe(**meta["shape"])
    name = meta["policy"]["name"]
    for bad, why in (
        (kernel.family != "portable", f"kernels of the family {kernel.family}; build it for a machine with 'portable'"),
        (name in ("unfused", "split"), f"the policy {name}, which has several launches"),
        (meta["ranks"] != "all", "one rank that stands for all"),
        (shape.shared_experts > 0, "shared experts"),
    ):
        if bad:
            raise ProgramError(f"the fused kernel cannot run {why}")
    assert (kernel.block_m, kernel.block_n) == (BLOCK_M, BLOCK_N)
    return kernel, shape


# --- rows and tiles


def _slot(block: Array, ring: int) -> Array:
    """Slot of each m-block in the pools."""
    return block % ring if ring else block


def _rows(pools: Pools, blocks: list[Blocks], shape: MegaMoe, ring: int) -> Array:
    rows = np.zeros(len(pools.source_rank), ROW)
    rows["rank"] = pools.source_rank
    rows["item"] = pools.source_token.astype(np.int64) * shape.topk + pools.slot
    for first, mine in zip(pools.rank_start.tolist(), blocks, strict=False):
        block = mine.pulled_block
        inside = np.arange(len(block)) - np.searchsorted(block, block)
        rows["pool_row"][first : first + len(block)] = _slot(block, ring) * BLOCK_M + inside
    return rows


def _tiles(
    program: Program, blocks: list[Blocks], kernel: Kernel, shape: MegaMoe, rank_start: Array, ring: int
) -> Array:
    tiles = np.zeros(len(program.tasks), TILE)
    tasks, group = program.tasks, _group_of_task(program)
    gpu = program.groups["gpu"][group]
    for name, kind in _KIND_OF_PHASE.items():
        if name in program.phases:
            tiles["kind"][tasks["phase"] == program.phases.index(name)] = kind
    is_tile = np.isin(tiles["kind"], (L1, L2))
    for rank, mine in enumerate(blocks):
        here = np.flatnonzero(is_tile & (gpu == rank))
        block = tasks["m_block"][here].astype(np.int64)
        first = np.searchsorted(mine.pulled_block, np.arange(mine.n_blocks))
        tiles["expert"][here], tiles["n_block"][here] = mine.expert[block], tasks["n_block"][here]
        tiles["n_rows"][here], tiles["first_row"][here] = mine.rows[block], rank_start[rank] + first[block]
        tiles["pool_row"][here] = _slot(block, ring) * BLOCK_M
    combine = np.flatnonzero(tiles["kind"] == COMBINE)
    sm = program.lanes["sm"][program.groups["first_lane"][group[combine]]]
    sms = kernel.sms
    tiles["first_row"][combine], tiles["pool_row"][combine] = sm, sms
    tiles["n_rows"][combine] = shape.tokens // sms + (sm < shape.tokens % sms)
    return tiles


def _group_of_task(program: Program) -> Array:
    """A group that may run each task; all that may are on one GPU."""
    group, queue = visits(program)
    of_queue = np.zeros(len(program.queues), dtype=np.int64)
    of_queue[queue] = group
    in_queue, place = expand(program.queues["first"], program.queues["n_tasks"])
    of_task = np.zeros(len(program.tasks), dtype=np.int64)
    of_task[program.queue_tasks[place]] = of_queue[in_queue]
    return of_task


# --- parts of ops


def _parts(program: Program, ops: Array, kernel: Kernel, shape: MegaMoe, rank_start: Array) -> Array:
    """The table of ops with the part of the work of each in `ticks`, and with flags of what all threads do."""
    ops = ops.copy()
    ops["ticks"] = 0
    edges = {
        L1: np.array([0, shape.hidden // SLICE]),
        L2: _edges(kernel, program),
    }
    for name, kind in (("l1", L1), ("l2", L2)):
        for seat in (0, 1):
            run, op = ops_of(program, name, seat)
            for which in (p.COMPUTE, p.STORE):
                mine = op[program.ops["kind"][op] == which]
                number = _count_before(run[program.ops["kind"][op] == which])
                if seat == 0:
                    first, last = edges[kind][number], edges[kind][number + 1]
                elif kind == L2:
                    first, last = number * kernel.step_rows, (number + 1) * kernel.step_rows
                else:
                    first, last = number, number + 1
                _set(ops, mine, first, last, joint=which == p.COMPUTE)
    _, op = ops_of(program, "combine", 0)
    mine = op[program.ops["kind"][op] == p.COMPUTE]
    _set(ops, mine, np.zeros_like(mine), np.zeros_like(mine), joint=True)
    _set_pulls(program, ops, kernel, rank_start)
    return ops


def _set(ops: Array, which: Array, first: Array, last: Array, joint: bool) -> None:
    ops["ticks"][which] = first.astype(np.uint64) | last.astype(np.uint64) << np.uint64(32)
    if joint:
        ops["flags"][which] |= JOINT


def _edges(kernel: Kernel, program: Program) -> Array:
    """First slice of K of each part of an L2 main loop, and the end. An L1 tile makes one slice of L2's K."""
    assert BLOCK_N // 2 == SLICE
    seats = ops_of(program, "l2", 0)
    parts = int(np.bincount(seats[0], weights=program.ops["kind"][seats[1]] == p.COMPUTE).max(initial=1))
    return np.searchsorted(part_of_tile(kernel, parts), np.arange(parts + 1))


def _count_before(run: Array) -> Array:
    """How many entries before each belong to the same run; `run` is sorted."""
    return np.arange(len(run)) - np.searchsorted(run, run)


def _set_pulls(program: Program, ops: Array, kernel: Kernel, rank_start: Array) -> None:
    """Rows of LOADs, and of the WAITs for them: warp w of SM s takes every lanes-th row from row s D + w on."""
    if "dispatch" not in program.phases:
        return
    warps = kernel.dispatch_warps
    tasks = np.flatnonzero(program.tasks["phase"] == program.phases.index("dispatch"))
    lane = program.groups["first_lane"][_group_of_task(program)[tasks]]
    gpu, sm = program.lanes["gpu"][lane].astype(np.int64), program.lanes["sm"][lane].astype(np.int64)
    for seat in range(warps):
        runs = program.runs[program.tasks["first_run"][tasks] + seat]
        owner, op = expand(runs["first_op"], runs["n_ops"])
        kind, counter = program.ops["kind"][op], program.ops["counter"][op]
        load = kind == p.LOAD
        loaded = np.full(len(tasks), -2, dtype=np.int64)
        loaded[owner[load]] = counter[load]
        for chosen, joint in ((load, False), ((kind == p.WAIT) & (counter == loaded[owner]), True)):
            mine = owner[chosen]
            turn = _count_before(mine)
            row = rank_start[gpu[mine]] + sm[mine] * warps + seat + turn * kernel.sms * warps
            _set(ops, op[chosen], row, np.zeros_like(row), joint=joint)
