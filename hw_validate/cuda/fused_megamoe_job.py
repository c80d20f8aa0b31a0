"""The job that runs the fused MegaMoE kernel: its data in memory, on any transport, and what it must come out as.

Numbers are bf16 in memory and float in between. Weights are laid out in tiles as the kernel's shared memory holds them
(`tile_weights`); gate and up columns of the first GEMM take turns. Transports are those of replay_job.py: what ranks send to
each other lies in the memory that the transport says, everything else on the GPU of its rank. Needs NumPy alone, besides
the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...sim.errors import InputError
from ...sim.pools import Pools
from ...sim.schedules.megamoe.shape import MegaMoe
from .bf16 import random_bf16, to_float
from .fused_megamoe import BLOCK_N, SLICE, FusedMegaMoe
from .job import HOST, Array, Buffer, Grid, Job, Pointer
from .replay_job import TABLES, Settings, replay_job

KERNELS = {3: "megamoe", 2: "megamoe_two_stages"}
"""Kernels of megamoe.cu by their stages."""
DEFAULTS = Settings()
NONE = 0xFFFFFFFF
_OWN = ("tiles", "rows")
_BY_RANK = (
    *("landing", "own_landing", "source", "own_source", "inputs", "middles", "weights"),
    *("first_gemm", "second_gemm", "owners", "results"),
)
PARAMETERS = np.dtype(
    TABLES
    + [(name, "u8") for name in (*_OWN, *_BY_RANK, "weights_first")]
    + [(name, "u4") for name in ("work_first", "hidden", "intermediate", "topk")],
    align=True,
)
"""The struct Parameters of megamoe.cu."""


@dataclass(frozen=True, eq=False)
class MegaMoeData:
    """What a MegaMoE call works on; bf16 as its 16 bits.

    `tokens` [ranks, tokens, hidden] and `weights` [ranks, tokens, top-k] are of the token's rank, weights in float32;
    `gate` and `up` [experts, intermediate, hidden] and `down` [experts, hidden, intermediate] are of the experts.
    """

    tokens: Array
    weights: Array
    gate: Array
    up: Array
    down: Array

    @cached_property
    def first_tiles(self) -> Array:
        """Weights of the first GEMM of each expert as the kernel reads them."""
        experts, _, hidden = self.gate.shape
        return tile_weights(np.stack([self.gate, self.up], axis=2).reshape(experts, -1, hidden))

    @cached_property
    def second_tiles(self) -> Array:
        return tile_weights(self.down)


def random_megamoe(shape: MegaMoe, rng: np.random.Generator) -> MegaMoeData:
    """Normal tokens and weights, scaled so that all intermediate numbers are of the order of 1."""
    gemm = (shape.experts, shape.intermediate, shape.hidden)
    return MegaMoeData(
        tokens=random_bf16(rng, shape.ranks, shape.tokens, shape.hidden),
        weights=rng.random((shape.ranks, shape.tokens, shape.topk), dtype=np.float32) + np.float32(0.1),
        gate=random_bf16(rng, *gemm, scale=shape.hidden**-0.5),
        up=random_bf16(rng, *gemm, scale=shape.hidden**-0.5),
        down=random_bf16(rng, shape.experts, shape.hidden, shape.intermediate, scale=shape.intermediate**-0.5),
    )


def megamoe_reference(shape: MegaMoe, pools: Pools, data: MegaMoeData) -> Array:
    """The result in float64 without any rounding in between, [ranks, tokens, hidden]. Masked pairs add nothing."""
    tokens, gate, up, down = (
        to_float(part).astype(np.float64) for part in (data.tokens, data.gate, data.up, data.down)
    )
    result = np.zeros((shape.ranks, shape.tokens, shape.hidden))
    expert = pools.placement.phy2log[pools.replica]
    for number in np.unique(expert).tolist():
        mine = np.flatnonzero(expert == number)
        rank, token = pools.source_rank[mine], pools.source_token[mine]
        x = tokens[rank, token]
        gated, passed = x @ gate[number].T, x @ up[number].T
        middle = gated / (1 + np.exp(-gated)) * passed * data.weights[rank, token, pools.slot[mine]][:, None]
        np.add.at(result, (rank, token), middle @ down[number].T)
    return result


def tile_weights(weights: Array) -> Array:
    """[experts, N, K] as the kernel reads them: [experts, N / 128, K / 64, 128, 8 chunks, 8].

    Chunk c of row r stands at c ^ (r % 8).

    Raises `InputError` if N or K are no multiples of the tile.
    """
    experts, n, k = weights.shape
    if n % BLOCK_N or k % SLICE:
        raise InputError("do not divide into tiles", field="weights", value=(n, k), allowed=f"{BLOCK_N} by {SLICE}")
    tiled = weights.reshape(experts, n // BLOCK_N, BLOCK_N, k // SLICE, 8, SLICE // 8).transpose(0, 1, 3, 2, 4, 5)
    row, chunk = np.arange(BLOCK_N)[:, None], np.arange(8)
    return np.ascontiguousarray(tiled[:, :, :, row, chunk ^ (row % 8)])


def megamoe_job(fused: FusedMegaMoe, data: MegaMoeData, transport: str, settings: Settings = DEFAULTS) -> Job:
    """The job on one GPU or, for `peer`, on as many as there are ranks.

    Outputs are those of `replay_job`, and `results@R`: bf16 [tokens, hidden] of each rank R.
    """
    job = replay_job(fused.lowered, transport, settings)
    shape = fused.shape
    buffers = dict(job.buffers)
    for rank in range(shape.ranks):
        gpu = rank if transport == "peer" else 0
        buffers |= _rank_data(fused, data, rank, gpu, HOST if transport == "host" else gpu)
    grids = []
    for grid in job.grids:
        buffers |= {
            f"tiles@{grid.gpu}": Buffer(fused.tiles, grid.gpu),
            f"rows@{grid.gpu}": Buffer(fused.rows if len(fused.rows) else np.zeros(1, fused.rows.dtype), grid.gpu),
        }
        for name in ("inputs", "middles", "weights", "first_gemm", "second_gemm", "owners", "results"):
            pointers = {8 * rank: Pointer(f"{name}@{rank}") for rank in range(shape.ranks)}
            buffers[f"{name}_by_rank@{grid.gpu}"] = Buffer(np.zeros(shape.ranks, "u8"), grid.gpu, pointers=pointers)
        grids.append(_grid(fused, grid))
    return Job(buffers, tuple(grids))


def _rank_data(fused: FusedMegaMoe, data: MegaMoeData, rank: int, gpu: int, far: int) -> dict[str, Buffer]:
    shape, pools = fused.shape, fused.pools
    placement = pools.placement
    mine = placement.phy2log[placement.rank_of_replica == rank]
    rows = int(fused.pool_rows[rank])
    returned = np.zeros((shape.tokens, shape.topk, shape.hidden), np.uint16)
    owners = np.full((shape.tokens, shape.topk), NONE, np.uint32)
    came = np.flatnonzero(pools.source_rank == rank)
    owners[pools.source_token[came], pools.slot[came]] = placement.rank_of_replica[pools.replica[came]]
    return {
        f"landing@{rank}": Buffer(returned, far, output=True),
        f"own_landing@{rank}": Buffer(returned.copy(), gpu, output=True),
        f"source@{rank}": Buffer(_source(data, rank), far),
        f"own_source@{rank}": Buffer(_source(data, rank), gpu),
        f"inputs@{rank}": Buffer(np.zeros((rows, shape.hidden), np.uint16), gpu),
        f"middles@{rank}": Buffer(np.zeros((rows, shape.intermediate), np.uint16), gpu),
        f"weights@{rank}": Buffer(np.zeros(rows, np.float32), gpu),
        f"first_gemm@{rank}": Buffer(data.first_tiles[mine], gpu),
        f"second_gemm@{rank}": Buffer(data.second_tiles[mine], gpu),
        f"owners@{rank}": Buffer(owners if owners.size else np.zeros(1, np.uint32), gpu),
        f"results@{rank}": Buffer(np.zeros((max(1, shape.tokens), shape.hidden), np.uint16), gpu, output=True),
    }


def _source(data: MegaMoeData, rank: int) -> Array:
    """Tokens of a rank, then 16 bytes for each (token, slot) pair that begin with its weight."""
    weights = np.zeros((*data.weights[rank].shape, 4), np.float32)
    weights[..., 0] = data.weights[rank]
    parts = [np.ascontiguousarray(part).view(np.uint8).ravel() for part in (data.tokens[rank], weights)]
    return np.concatenate([*parts, np.zeros(16, np.uint8)])


def _grid(fused: FusedMegaMoe, grid: Grid) -> Grid:
    shape = fused.shape
    parameters = np.zeros(1, PARAMETERS)
    for name in ("patience", "lead_ns", "first_cta", "n_ctas"):
        parameters[name] = grid.parameters[name]
    parameters["weights_first"] = shape.tokens * shape.hidden * 2
    parameters["work_first"] = fused.work_first
    for name in ("hidden", "intermediate", "topk"):
        parameters[name] = getattr(shape, name)
    tables = {name for name, _ in TABLES}
    pointers = {name: pointer for name, pointer in grid.pointers.items() if name in tables}
    pointers |= {name: Pointer(f"{name}@{grid.gpu}") for name in _OWN}
    pointers |= {name: Pointer(f"{name}_by_rank@{grid.gpu}") for name in _BY_RANK}
    return Grid(KERNELS[fused.stages], grid.gpu, grid.n_ctas, grid.n_threads, grid.shared_bytes, parameters, pointers)
