"""Where rows go back to: a scatter for each epilogue step of an m-block, or for a piece of one in a kernel of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...machine import Machine
from ...program_builder import ProgramBuilder
from .blocks import Blocks
from .links import NONE
from .shape import MegaMoe

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Returns:
    """Destinations row, bytes and issue time of every step, [blocks, steps].

    `visible` + gpu counts arrivals at each GPU, [blocks], -1 where all stays on the GPU; `sent` is how many arrivals one
    pass over a block causes at each GPU, [blocks, gpus].
    """

    row: Ints
    bytes: Ints
    issue_ps: Ints
    visible: Ints
    sent: Ints

    @property
    def stride(self) -> int:
        """Of a STORE that counts its arrivals."""
        return int((self.visible != NONE).all())


def returns_of(
    builder: ProgramBuilder,
    machine: Machine,
    shape: MegaMoe,
    blocks: Blocks,
    visible: Ints,
    elements: int,
    local: bool = False,
    asynchronous: bool = False,
) -> Returns:
    """Scatters of `elements` neighbouring elements of every row, dealt from a start that turns with GPU and step.

    `local` keeps everything on the GPU (separate kernels return rows later). T_iss0 is paid once for a tile, in proportion
    to the bytes of its steps, unless stores are `asynchronous`.
    """
    counts = blocks.returned
    if local:
        kept = np.zeros_like(counts)
        kept[:, :, blocks.gpu] = counts.sum(axis=2)
        counts, visible = kept, np.full_like(visible, NONE)
    row = _scatters(builder, counts, shape.return_bytes(elements), blocks.gpu + 1 + np.arange(counts.shape[1])[:, None])
    size = counts.sum(axis=2) * shape.return_bytes(elements)
    whole = size.sum(axis=1, keepdims=True)
    until = np.cumsum(size, axis=1)
    burst = np.asarray(machine.issue_time_ps(whole))
    ends = burst * until // np.maximum(1, whole)
    issue = np.diff(ends, axis=1, prepend=0) * (not asynchronous)
    return Returns(row, size, issue, visible, (counts > 0).sum(axis=1))


@dataclass(frozen=True, eq=False)
class Pieces:
    """Whole rows that one SM returns at a time, all of one block: [pieces], in the order of the pool.

    `target` is where they go, `sent` how many arrivals the pieces of a block cause at each GPU, [blocks, gpus].
    """

    block: Ints
    rows: Ints
    sm: Ints
    target: Ints
    sent: Ints


def pieces_of(builder: ProgramBuilder, shape: MegaMoe, blocks: Blocks, sms: int) -> Pieces:
    """The rows of a rank dealt evenly over `sms` SMs, neighbouring ones to one SM, and cut where a block ends."""
    block_ends = np.cumsum(blocks.rows)
    total = int(blocks.rows.sum())
    shares = np.arange(sms) * total // sms
    first = np.unique(np.concatenate([shares, block_ends - blocks.rows]))
    first = first[first < total]
    rows = np.diff(first, append=total)
    piece = np.repeat(np.arange(len(first)), rows)
    shared = np.full(total - blocks.n_pulled, blocks.gpu)
    n_gpus = blocks.returned.shape[2]
    place = piece * n_gpus + np.concatenate([shared, blocks.pulled_from])
    counts = np.bincount(place, minlength=len(first) * n_gpus).reshape(len(first), 1, n_gpus)
    block = np.searchsorted(block_ends, first, side="right")
    sent = np.zeros((blocks.n_blocks, n_gpus), dtype=np.int64)
    np.add.at(sent, block, counts[:, 0] > 0)
    start = blocks.gpu + 1 + np.arange(len(first))[:, None, None]
    target = _scatters(builder, counts, shape.return_bytes(shape.hidden), start)[:, 0]
    return Pieces(block, rows, np.searchsorted(shares, first, side="right") - 1, target, sent)


def _scatters(builder: ProgramBuilder, counts: Ints, row_bytes: int, start: Ints) -> Ints:
    """Destinations rows of scatters, [n, steps], that send `counts` rows to each GPU, [n, steps, gpus].

    GPUs take turns from number `start` on, [n or 1, steps, 1].
    """
    n, steps, n_gpus = counts.shape
    turn = np.broadcast_to((start + np.arange(n_gpus)) % n_gpus, counts.shape)
    turned = np.take_along_axis(counts, turn, axis=2)
    used = turned > 0
    first = builder.destinations_flat(turn[used], turned[used] * row_bytes, used.sum(axis=2).ravel())
    return first + np.arange(n * steps).reshape(n, steps)
