"""Numba's `njit` with its cache on disk, and without one where there is no folder to write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: `njit` with `options`, whose machine code is kept for later processes.

    A read-only installation of a user without a home that can be written to has no place for it. Then every process
    compiles anew; the environment variable NUMBA_CACHE_DIR names another place.
    """

    def decorated(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # numba finds no folder for the cache
            return njit(**options)(function)

    return decorated
