"""The first command after an installation compiles the engine before it simulates, so that no time of a run holds that."""

import pytest
from xstage.plots.traces.write import write_trace
from xstage.sim import compilation
from xstage.sim.errors import XstageError

import xstage as xs
from xstage.cli import main


@pytest.fixture
def not_compiled(monkeypatch):
    """No engine is there, and compiling it ends the command."""

    def compile_here():
        raise XstageError("it is compiled here")

    monkeypatch.setattr(compilation, "engine_is_compiled", lambda: False)
    monkeypatch.setattr(compilation, "warm_up", compile_here)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "isolated-burst"],
        ["run", "isolated-burst", "--estimate"],
        ["compare", "gemm-ar-lamport"],
        ["explain", "isolated-burst"],
        ["needs", "isolated-burst"],
        ["tune", "gemm-ar-lamport"],
        ["layer", "dit-moe"],
        ["demo", "-o", "DIR/demo"],
        ["import", "DIR/trace.parquet", "--beside", "isolated-burst"],
    ],
    ids=" ".join,
)
def test_it_compiles_before_it_simulates(words, not_compiled, tmp_path, capsys):
    write_trace(xs.run("isolated-burst", engine="simpy", trace="full").trace, tmp_path / "trace.parquet")
    assert main([word.replace("DIR", str(tmp_path)) for word in words]) == 1
    assert "it is compiled here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["run", "isolated-burst", "--engine", "simpy"],
        ["explain", "isolated-burst", "--set", "engine=simpy", "--set", "workload.producers=2"],
        ["layer"],
        ["import", "DIR/trace.parquet"],
    ],
    ids=" ".join,
)
def test_what_needs_no_compiled_engine_compiles_none(words, not_compiled, tmp_path):
    write_trace(xs.run("isolated-burst", engine="simpy", trace="full").trace, tmp_path / "trace.parquet")
    assert main([word.replace("DIR", str(tmp_path)) for word in words]) == 0
