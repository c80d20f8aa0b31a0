"""The middle of repeated measurements: what is typical when some of them were disturbed."""

from __future__ import annotations

from typing import Any

import numpy as np


def centre(values: Any, axis: int = -1) -> Any:
    """Midmean: the mean of the middle half along an axis.

    As deaf to outliers in either quarter as a median, but it can lie between the steps of a coarse counter.
    A single value is its own centre.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=axis)
    count = ordered.shape[axis]
    cut = count // 4
    return np.take(ordered, np.arange(cut, count - cut), axis=axis).mean(axis=axis)


def noise_pct(repeats: Any) -> float:
    """How far a repeat is from the median of all, in percent: median of |repeat / median - 1|."""
    values = np.asarray(repeats, dtype=np.float64)
    return float(100 * np.median(np.abs(values / np.median(values) - 1)))
