"""Numba's `njit` with its cache on disk, and without one where there is no folder to write to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class _Cache(FunctionCache):
    """A cache that is compiled anew where it cannot be read, as after a full disk: numba's own would fail at every call."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception as error:  # unpickling raises whatever the bytes lead to
            print(f"Compiling anew, as the code kept in {self.cache_path} is damaged: {error!r}", file=sys.stderr)
            self.flush()  # type: ignore[no-untyped-call]
            return None


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: `njit` with `options`, whose machine code is kept for later processes.

    A read-only installation of a user without a home that can be written to has no place for it. Then every process
    compiles anew; the environment variable NUMBA_CACHE_DIR names another place.
    """

    def decorated(function: Callable[..., Any]) -> Any:
        try:
            made = njit(cache=True, **options)(function)
            made._cache = _Cache(function)  # type: ignore[no-untyped-call]
        except RuntimeError:  # numba finds no folder for the cache
            return njit(**options)(function)
        return made

    return decorated
