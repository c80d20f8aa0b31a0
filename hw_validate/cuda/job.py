"""Kernels to run at once, and the memory that they share, as data: what the emulator and the GPUs both take.

A job names buffers and says which pointers stand where; whoever runs it gives them addresses. Needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

HOST = -1
"""Home of a buffer that is pinned memory of the host, which every GPU can address."""


@dataclass(frozen=True)
class Pointer:
    """The address of a byte of a buffer, to be filled in when the job runs."""

    buffer: str
    offset: int = 0


@dataclass(frozen=True)
class Buffer:
    """Memory of GPU `home` (or `HOST`) with its initial values; `output` if its values are wanted afterwards.

    `pointers` are to be written over the initial values, by byte offset.
    """

    values: Array
    home: int = HOST
    output: bool = False
    pointers: Mapping[int, Pointer] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """A kernel on one GPU. `parameters` is one element of a structured array; `pointers` fills its fields by name."""

    kernel: str
    gpu: int
    n_ctas: int
    n_threads: int
    shared_bytes: int
    parameters: Array
    pointers: Mapping[str, Pointer]


@dataclass(frozen=True)
class Job:
    """Buffers by name, and grids that run at the same time."""

    buffers: Mapping[str, Buffer]
    grids: tuple[Grid, ...]
