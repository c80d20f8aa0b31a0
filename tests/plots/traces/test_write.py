"""Traces as files: the suffix picks the kind, the file is there whole or not at all, and its size is known beforehand."""

import pandas as pd
import pytest
from xstage.plots.traces import perfetto
from xstage.plots.traces.write import SUFFIXES, estimated_bytes, write_trace
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate

from ...sim.random_programs import random_case
from .random_traces import random_trace


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_trace_gives_the_same_bytes(tmp_path, suffix):
    for name in "ab":
        write_trace(random_trace(3), tmp_path / f"{name}{suffix}")
    first, second = (tmp_path / f"{name}{suffix}" for name in "ab")
    assert first.read_bytes() == second.read_bytes() != b""


def test_both_engines_give_the_same_file(tmp_path):
    for engine in ("simpy", "compiled"):
        write_trace(simulate(*random_case(3), engine=engine, trace="full"), tmp_path / f"{engine}.pftrace")
    assert (tmp_path / "simpy.pftrace").read_bytes() == (tmp_path / "compiled.pftrace").read_bytes()


def test_another_suffix_is_refused_with_those_allowed(tmp_path):
    with pytest.raises(InputError, match=r"trace\.csv': .*\(allowed: \.parquet, \.pftrace, \.json\)"):
        write_trace(random_trace(3), tmp_path / "trace.csv")


def test_a_trace_that_is_not_full_is_refused(tmp_path):
    trace = simulate(*random_case(3), engine="simpy", trace="summary")
    with pytest.raises(InputError, match="ops need a full trace"):
        write_trace(trace, tmp_path / "trace.pftrace")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_the_middle_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "trace.pftrace"
    file.write_bytes(b"old")

    def fails(events):
        raise OSError("disk full")

    monkeypatch.setattr(perfetto, "_packets", fails)
    with pytest.raises(OSError, match="disk full"):
        write_trace(random_trace(3), file)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_parquet_is_the_op_table(tmp_path):
    trace = random_trace(3)
    write_trace(trace, tmp_path / "trace.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "trace.parquet"), trace.ops(), check_categorical=False)


@pytest.mark.parametrize("scenario", ["uniform-all-to-all", "gemm-ar-lamport"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_size_is_known_to_a_factor_of_two_or_so(tmp_path, scenario, suffix):
    import xstage as xs

    trace, file = xs.run(scenario, trace="full").trace, tmp_path / f"trace{suffix}"
    write_trace(trace, file)
    assert 0.4 < estimated_bytes(trace, file) / file.stat().st_size < 2.5
