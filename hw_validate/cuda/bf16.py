"""bf16 numbers as their 16 bits, which NumPy has no type for."""

from __future__ import annotations

import numpy as np

from .job import Array


def to_bf16(values: Array) -> Array:
    """Nearest bf16 of floats, ties to even, as 16 bits."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def to_float(bits: Array) -> Array:
    """bf16 as float32."""
    value: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return value


def random_bf16(rng: np.random.Generator, *size: int, scale: float = 1.0) -> Array:
    """Normal numbers with a standard deviation of `scale`."""
    return to_bf16(rng.standard_normal(size, dtype=np.float32) * np.float32(scale))
