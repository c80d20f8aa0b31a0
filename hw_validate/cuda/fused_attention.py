"""The fused attention kernel (kernels/attention_a2a.cu) for a Program: its tables, its data in memory on any transport,
and what it must come out as.

The Program comes from `sim.schedules.attention_a2a.build` on a machine with the kernel family `portable`, for one policy;
its tables of lanes, queues and guards are those of the replay kernel (lower.py). What this adds:

    tiles   by task: sequence, heads, rows, and how many steps of keys
    parts   by op, in `ticks`: what it does (see `Part` of attention_a2a.cu)

Numbers are bf16 in memory and float in between. What ranks send to each other lies in the memory that the transport says
(replay_job.py), everything else on the GPU of its rank. Needs NumPy alone, besides the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...sim import program as p
from ...sim.errors import InputError, ProgramError
from ...sim.program import Program
from ...sim.schedules.attention_a2a import Attention, Tile
from .bf16 import random_bf16, to_float
from .fused_lower import JOINT, ops_of, with_warps
from .job import HOST, Array, Buffer, Grid, Job, Pointer
from .lower import Lowered, Target, lower
from .replay_job import TABLES, Settings, replay_job

WARPS: Mapping[str, int] = {"mma": 8, "store": 2, "comm": 1}
"""Warps of a lane by role; with the courier 12 on an SM that has all of them."""
MOST_WARPS = 12
LEAST_REST = 18 << 10
"""Bytes of shared memory that the interpreter needs beside the work, for its lanes and some records."""
SOURCE_BYTES = 64


@dataclass(frozen=True)
class Variant:
    """A kernel of attention_a2a.cu: its head dim, and keys that a stage holds. It has two stages."""

    kernel: str
    head_dim: int
    step: int


VARIANTS = (
    Variant("attention_64", 64, 64),
    Variant("attention_128", 128, 64),
    Variant("attention_128_short", 128, 16),
)
"""Best first, for each head dim."""

OTHER, ATTEND, TO_OWNERS, TO_OWN, COPY = range(5)
"""Parts of the work; see attention_a2a.cu, as for the structs."""
TILE = np.dtype(
    [(name, "u4") for name in ("batch", "head", "kv_head", "first_row", "n_rows", "n_steps")] + [("padding", "u4", 2)]
)
_BY_RANK = ("landing", "own_landing", "outputs", "queries", "keys", "values")
_NUMBERS = ("work_first", "tokens", "local_tokens", "heads", "local_heads", "kv_heads", "is_causal")
PARAMETERS = np.dtype(
    TABLES + [(name, "u8") for name in ("tiles", *_BY_RANK)] + [(name, "u4") for name in _NUMBERS] + [("scale", "f4")],
    align=True,
)
DEFAULTS = Settings()
_NO_LIMIT = 1 << 50


@dataclass(frozen=True, eq=False)
class FusedAttention:
    """A Program lowered for attention_a2a.cu. `work_first` is where the work's part of shared memory begins."""

    lowered: Lowered
    tiles: Array  # TILE [tasks]
    shape: Attention
    variant: Variant
    work_first: int


@dataclass(frozen=True, eq=False)
class AttentionData:
    """What attention works on, of all ranks, as the 16 bits of bf16: `queries` [batch, tokens, heads, d], `keys` and
    `values` [batch, tokens, K and V heads, d]."""

    queries: Array
    keys: Array
    values: Array


# --- the Program


def work_bytes(tile: Tile, variant: Variant) -> int:
    """Shared memory of the work on one SM: two places for Q and then O, where the tile comes from, two stages of K and V."""
    return 2 * (tile.block_m + 2 * variant.step) * variant.head_dim * 2 + SOURCE_BYTES


def lower_attention(
    program: Program, *, is_one_gpu: bool = True, shared_bytes: int = 227 << 10, warps: Mapping[str, int] = WARPS
) -> FusedAttention:
    """Lower an attention Program. `shared_bytes` is what a CTA may have; what the work leaves of it holds the records.

    Raises `ProgramError` for a Program that the kernel cannot run, `InputError` where shared memory is too small.
    """
    shape, tile = _checked(program)
    variants = [variant for variant in VARIANTS if variant.head_dim == shape.head_dim]
    needs = [work_bytes(tile, variant) for variant in variants]
    if shared_bytes < needs[-1] + LEAST_REST:
        allowed = f"{needs[-1] + LEAST_REST} or more"
        raise InputError("is too little for the tiles", field="shared_bytes", value=shared_bytes, allowed=allowed)
    chosen = next(i for i, need in enumerate(needs) if shared_bytes >= need + LEAST_REST)
    work_first = (shared_bytes - needs[chosen]) // 128 * 128
    target = Target(store_warps=1, is_one_gpu=is_one_gpu, landing_bytes=_NO_LIMIT, source_bytes=_NO_LIMIT)
    lowered = with_warps(program, lower(program, target), warps, MOST_WARPS, work_first, shared_bytes)
    tables = lowered.tables | {"ops": _parts(program, lowered.tables["ops"])}
    return FusedAttention(
        lowered=replace(lowered, tables=tables),
        tiles=_tiles(program, shape, tile, variants[chosen]),
        shape=shape,
        variant=variants[chosen],
        work_first=work_first,
    )


def _checked(program: Program) -> tuple[Attention, Tile]:
    meta = program.meta
    if meta.get("schedule") != "attention_a2a":
        raise ProgramError("is no attention Program, which is all that this kernel runs")
    shape, tile = Attention(**meta["shape"]), Tile(**meta["tile"])
    dims = tuple(sorted({variant.head_dim for variant in VARIANTS}))
    for bad, why in (
        (
            meta["family"] != "portable",
            f"kernels of the family {meta['family']}; build it for a machine with 'portable'",
        ),
        (shape.head_dim not in dims, f"head dim {shape.head_dim}, only {dims}"),
        (
            shape.output_dim != shape.head_dim,
            f"values of {shape.output_dim} columns beside {shape.head_dim} of the keys",
        ),
        (shape.ranks == 1 or meta["policy"]["name"] == "compute_only", "attention alone: nobody gets the output"),
    ):
        if bad:
            raise ProgramError(f"the fused kernel cannot run {why}")
    assert (tile.block_m, tile.stores, tile.contract) == (128, 1, "late")
    return shape, tile


def _tiles(program: Program, shape: Attention, tile: Tile, variant: Variant) -> Array:
    tasks, tiles = program.tasks, np.zeros(len(program.tasks), TILE)
    has_tile = tasks["m_block"] >= 0
    batch, head = np.divmod(tasks["n_block"][has_tile].astype(np.int64), shape.local_heads)
    first = tasks["m_block"][has_tile].astype(np.int64) * tile.block_m
    rows = np.minimum(tile.block_m, shape.tokens - first)
    seen = first + rows if shape.causal else np.full(len(first), shape.tokens)
    sharing = shape.local_heads // _local_kv_heads(shape)
    columns = {"batch": batch, "head": head, "kv_head": head // sharing, "first_row": first, "n_rows": rows}
    for name, column in (columns | {"n_steps": -(-seen // variant.step)}).items():
        tiles[name][has_tile] = column
    return tiles


def _parts(program: Program, ops: Array) -> Array:
    """The table of ops with the part of the work of each in `ticks`, and with flags of what all threads do."""
    ops = ops.copy()
    ops["ticks"] = OTHER
    to = TO_OWNERS if program.meta["policy"]["name"] == "piggyback" else TO_OWN
    for phase, seat, kind, part in (
        ("attention", 0, p.COMPUTE, ATTEND),
        ("attention", 1, p.STORE, to),
        ("attention", 2, p.STORE, COPY),
        ("copy", 0, p.STORE, COPY),
    ):
        _, op = ops_of(program, phase, seat)
        mine = op[program.ops["kind"][op] == kind]
        ops["ticks"][mine] = part
        if kind == p.COMPUTE:
            ops["flags"][mine] |= JOINT
    return ops


def _local_kv_heads(shape: Attention) -> int:
    """K and V heads on a rank; where there are fewer than ranks, several ranks have the same one."""
    return max(1, shape.n_kv_heads // shape.ranks)


# --- data


def random_attention(shape: Attention, rng: np.random.Generator) -> AttentionData:
    """Normal numbers. Scores are then normal too, and a few keys weigh more than all others."""
    kv = (shape.batch, shape.tokens, shape.n_kv_heads, shape.head_dim)
    return AttentionData(
        queries=random_bf16(rng, shape.batch, shape.tokens, shape.heads, shape.head_dim),
        keys=random_bf16(rng, *kv),
        values=random_bf16(rng, *kv),
    )


def attention_reference(shape: Attention, data: AttentionData) -> Array:
    """The result in float64 without any rounding in between, [batch, tokens, heads, d]."""
    queries, keys, values = (to_float(part).astype(np.float64) for part in (data.queries, data.keys, data.values))
    result = np.zeros(queries.shape)
    hidden = np.triu(np.ones((shape.tokens, shape.tokens), dtype=bool), 1) if shape.causal else None
    sharing = shape.heads // shape.n_kv_heads
    for batch in range(shape.batch):
        for head in range(shape.heads):
            scores = queries[batch, :, head] @ keys[batch, :, head // sharing].T / math.sqrt(shape.head_dim)
            if hidden is not None:
                scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            result[batch, :, head] = weights / weights.sum(axis=1, keepdims=True) @ values[batch, :, head // sharing]
    return result


def returned(shape: Attention, outputs: Mapping[str, Array]) -> Array:
    """What the ranks got, bf16 [batch, tokens, heads, d]: of own heads from `own_landing@R`, of others from `landing@R`."""
    parts = []
    for rank in range(shape.ranks):
        part = outputs[f"landing@{rank}"].copy()
        own = slice(rank * shape.local_heads, (rank + 1) * shape.local_heads)
        part[:, :, own] = outputs[f"own_landing@{rank}"][:, :, own]
        parts.append(part)
    return np.concatenate(parts, axis=1)


# --- the job


def attention_job(fused: FusedAttention, data: AttentionData, transport: str, settings: Settings = DEFAULTS) -> Job:
    """The job on one GPU or, for `peer`, on as many as there are ranks.

    Outputs are those of `replay_job`, where `landing@R` and `own_landing@R` are bf16 [batch, tokens of a rank, heads, d].
    """
    job = replay_job(fused.lowered, transport, settings)
    buffers = dict(job.buffers)
    for rank in range(fused.shape.ranks):
        gpu = rank if transport == "peer" else 0
        buffers |= _rank_data(fused.shape, data, rank, gpu, HOST if transport == "host" else gpu)
    grids = []
    for grid in job.grids:
        buffers[f"tiles@{grid.gpu}"] = Buffer(fused.tiles, grid.gpu)
        for name in _BY_RANK[2:]:
            pointers = {8 * rank: Pointer(f"{name}@{rank}") for rank in range(fused.shape.ranks)}
            buffers[f"{name}_by_rank@{grid.gpu}"] = Buffer(
                np.zeros(fused.shape.ranks, "u8"), grid.gpu, pointers=pointers
            )
        grids.append(_grid(fused, grid))
    return Job(buffers, tuple(grids))


def _rank_data(shape: Attention, data: AttentionData, rank: int, gpu: int, far: int) -> dict[str, Buffer]:
    landing = np.zeros((shape.batch, shape.local_tokens, shape.heads, shape.head_dim), np.uint16)
    mine = np.arange(rank * shape.local_heads, (rank + 1) * shape.local_heads)
    kv = np.unique(mine // (shape.heads // shape.n_kv_heads))
    queries = np.ascontiguousarray(data.queries[:, :, mine])
    return {
        f"landing@{rank}": Buffer(landing, far, output=True),
        f"own_landing@{rank}": Buffer(landing.copy(), gpu, output=True),
        f"outputs@{rank}": Buffer(np.zeros_like(queries), gpu),
        f"queries@{rank}": Buffer(queries, gpu),
        f"keys@{rank}": Buffer(np.ascontiguousarray(data.keys[:, :, kv]), gpu),
        f"values@{rank}": Buffer(np.ascontiguousarray(data.values[:, :, kv]), gpu),
    }


def _grid(fused: FusedAttention, grid: Grid) -> Grid:
    shape = fused.shape
    parameters = np.zeros(1, PARAMETERS)
    for name in ("patience", "lead_ns", "first_cta", "n_ctas"):
        parameters[name] = grid.parameters[name]
    for name in ("tokens", "local_tokens", "heads", "local_heads"):
        parameters[name] = getattr(shape, name)
    parameters["work_first"], parameters["kv_heads"] = fused.work_first, _local_kv_heads(shape)
    parameters["is_causal"] = shape.causal
    parameters["scale"] = math.log2(math.e) / math.sqrt(shape.head_dim)
    tables = {name for name, _ in TABLES}
    pointers = {name: pointer for name, pointer in grid.pointers.items() if name in tables}
    pointers |= {"tiles": Pointer(f"tiles@{grid.gpu}")}
    pointers |= {name: Pointer(f"{name}_by_rank@{grid.gpu}") for name in _BY_RANK}
    return Grid(fused.variant.kernel, grid.gpu, grid.n_ctas, grid.n_threads, grid.shared_bytes, parameters, pointers)
