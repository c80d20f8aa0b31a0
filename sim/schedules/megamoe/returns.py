"""Where L2 epilogues send their rows: one scatter for each epilogue step of an m-block."""

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
    """Scatters of `elements` neighbouring elements of every row, dealt from a start that turns with rank and step.

    `local` keeps everything on the GPU (separate kernels return rows later). T_iss0 is paid once for a tile, in proportion
    to the bytes of its steps, unless stores are `asynchronous`.
    """
    counts = blocks.returned
    if local:
        kept = np.zeros_like(counts)
        kept[:, :, blocks.gpu] = counts.sum(axis=2)
        counts, visible = kept, np.full_like(visible, NONE)
    n_blocks, steps, n_gpus = counts.shape
    turn = (blocks.rank + 1 + np.arange(steps)[:, None] + np.arange(n_gpus)) % n_gpus  # [steps, gpus]
    turned = np.take_along_axis(counts, np.broadcast_to(turn, counts.shape), axis=2)
    used = turned > 0
    gpus = np.broadcast_to(turn, counts.shape)[used]
    first = builder.destinations_flat(gpus, turned[used] * shape.return_bytes(elements), used.sum(axis=2).ravel())
    row = first + np.arange(n_blocks * steps).reshape(n_blocks, steps)
    size = counts.sum(axis=2) * shape.return_bytes(elements)
    whole = size.sum(axis=1, keepdims=True)
    until = np.cumsum(size, axis=1)
    burst = np.asarray(machine.issue_time_ps(whole))
    ends = burst * until // np.maximum(1, whole)
    issue = np.diff(ends, axis=1, prepend=0) * (not asynchronous)
    return Returns(row, size, issue, visible, (counts > 0).sum(axis=1))
