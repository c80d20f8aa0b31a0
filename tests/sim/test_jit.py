"""Machine code that is kept on disk, and what becomes of it when its files are damaged."""

import runpy
from pathlib import Path

import pytest

SOURCE = """
from xstage.sim.jit import cached_njit

@cached_njit()
def twice(number):
    return 2 * number
"""


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 100])
def test_damaged_code_is_compiled_anew_and_kept(tmp_path, capsys, kind, left):
    file = tmp_path / "kept.py"
    file.write_text(SOURCE)
    twice = runpy.run_path(str(file))["twice"]
    assert twice(3) == 6
    [kept] = Path(twice.stats.cache_path).glob(f"kept.twice-*.{kind}")
    kept.write_bytes(kept.read_bytes()[:left])
    assert runpy.run_path(str(file))["twice"](3) == 6
    said = capsys.readouterr().err
    assert said.startswith(f"Compiling anew, as the code kept in {kept.parent} is damaged:")
    again = runpy.run_path(str(file))["twice"]
    assert again(3) == 6 and sum(again.stats.cache_hits.values()) == 1
    assert not capsys.readouterr().err
