"""Machine code is kept where it can be, and made anew where it cannot."""

import runpy
from pathlib import Path

import pytest
from numba.core.caching import CacheImpl
from xstage.sim.jit import cached_njit

SOURCE = """
from xstage.sim.jit import cached_njit

@cached_njit()
def twice(number):
    return 2 * number
"""


def twice(number: int) -> int:
    return 2 * number


def test_a_function_is_kept_for_later_processes():
    assert cached_njit()(twice).stats.cache_path


def test_without_a_folder_to_write_to_a_function_still_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    function = cached_njit()(twice)
    assert function(21) == 42 and not function.stats.cache_path


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 100])
def test_damaged_code_is_compiled_anew_and_kept(tmp_path, capsys, kind, left):
    file = tmp_path / "kept.py"
    file.write_text(SOURCE)
    function = runpy.run_path(str(file))["twice"]
    assert function(3) == 6
    [kept] = Path(function.stats.cache_path).glob(f"kept.twice-*.{kind}")
    kept.write_bytes(kept.read_bytes()[:left])
    assert runpy.run_path(str(file))["twice"](3) == 6
    said = capsys.readouterr().err
    assert said.startswith(f"Compiling anew, as the code kept in {kept.parent} is damaged:")
    again = runpy.run_path(str(file))["twice"]
    assert again(3) == 6 and sum(again.stats.cache_hits.values()) == 1
    assert not capsys.readouterr().err
