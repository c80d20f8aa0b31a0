"""Machine code is kept where it can be, and made anew where it cannot."""

import pytest
from numba.core.caching import CacheImpl
from xstage.sim.jit import cached_njit


def twice(number: int) -> int:
    return 2 * number


def test_a_function_is_kept_for_later_processes():
    assert cached_njit()(twice).stats.cache_path


def test_without_a_folder_to_write_to_a_function_still_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    function = cached_njit()(twice)
    assert function(21) == 42 and not function.stats.cache_path
