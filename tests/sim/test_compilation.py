"""Whether the engine is compiled already, and loading it before it is needed."""

import subprocess
import sys

import pytest
from xstage.sim import compilation


def test_warming_up_loads_the_compiled_engine():
    code = (
        "from xstage.sim import compilation, engine_compiled; compilation.warm_up(); "
        "print(len(engine_compiled._run.signatures))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


def test_the_engine_is_compiled_once_it_has_run(capsys):
    compilation.warm_up()
    assert compilation.engine_is_compiled()
    compilation.compile_engine()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("folders", "said"), [(True, "once for this installation"), (False, "name a folder for it in NUMBA_CACHE_DIR")]
)
def test_what_compiles_says_so_before(folders, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compilation, "cache_folders", lambda: [tmp_path] if folders else [])
    monkeypatch.setattr(compilation, "warm_up", lambda: None)
    compilation.compile_engine()
    assert said in capsys.readouterr().err
