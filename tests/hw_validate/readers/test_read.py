"""An op table as .parquet is checked before anything is made of it."""

import numpy as np
import pandas as pd
import pytest
from xstage.hw_validate.readers.read import read_trace
from xstage.sim.errors import InputError

import xstage as xs


@pytest.fixture(scope="module")
def ops():
    return xs.run("isolated-burst", overrides={"workload.producers": 2}, trace="full").trace.ops()


def test_a_table_that_was_written_is_read_as_it_was(ops, tmp_path):
    ops.to_parquet(tmp_path / "ops.parquet")
    pd.testing.assert_frame_equal(read_trace(tmp_path / "ops.parquet"), ops, check_categorical=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ops: ops.drop(columns="end_us"), "op table = 'end_us': is no column of it"),
        (lambda ops: ops.drop(columns="gpu"), "op table = 'gpu': is no column of it"),
        (lambda ops: ops.assign(start_us=np.nan), "start_us, end_us: holds a time that is no number"),
        (lambda ops: ops.assign(end_us=np.inf), "start_us, end_us: holds a time that is no number"),
        (lambda ops: ops.assign(end_us=-1.0), "the op of lane 0 at 0.0 us ends before it starts"),
        (lambda ops: ops.assign(start_us="soon"), r"start_us: is a column of something else \(allowed: numbers\)"),
        (lambda ops: ops.assign(gpu="x"), r"gpu: is a column of something else \(allowed: whole numbers\)"),
    ],
)
def test_a_table_that_is_none_is_refused(ops, tmp_path, change, message):
    change(ops).to_parquet(tmp_path / "ops.parquet")
    with pytest.raises(InputError, match=rf"ops\.parquet: {message}"):
        read_trace(tmp_path / "ops.parquet", gpu=0)
