"""Rows of a profiler become lanes that do one thing at a time, in times that start at 0."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xstage.hw_validate.readers.table import Rows, innermost, op_table
from xstage.plots.traces.perfetto import perfetto_pieces
from xstage.plots.traces.slices import NEEDED
from xstage.sim.errors import InputError

DAY_NS = 86_400 * 10**9


def rows(*times, track=0):
    start, end = np.array(times, dtype=np.int64).reshape(-1, 2).T
    count = len(start)
    return Rows(
        gpu=np.zeros(count, dtype=np.int64),
        sm=np.full(count, -1),
        track=np.full(count, track),
        role=["stream 7"] * count,
        name=[f"kernel {i}" for i in range(count)],
        phase=[""] * count,
        kind=["kernel"] * count,
        bytes=np.zeros(count, dtype=np.int64),
        start_ns=start,
        end_ns=end,
    )


def test_the_table_has_the_columns_of_a_simulated_one_and_starts_at_zero():
    table = op_table(rows((1_000, 3_500), (4_000, 4_000)), "file")
    assert set(NEEDED) <= set(table)
    assert table[["start_us", "end_us"]].to_numpy().tolist() == [[0, 2.5], [3, 3]]
    assert table["op"].tolist() == [0, 1], "the n-th op of its lane"
    assert table["stall_us"].isna().all(), "not known, which is not zero"


def test_what_overlaps_on_one_track_is_put_on_more_lanes_of_its_role():
    table = op_table(rows((0, 10), (2, 5), (5, 8), (10, 12)), "file")
    assert table["lane"].tolist() == [0, 1, 1, 0]
    assert set(table["role"]) == {"stream 7"}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=30))
def test_lanes_never_overlap_and_are_no_more_than_run_at_once(drawn):
    times = [(start, start + took) for start, took in drawn]
    table = op_table(rows(*times), "file")
    assert len(b"".join(perfetto_pieces(table))) > 0, "drawn without complaint"
    busiest = max(sum(start <= at < end for start, end in times) for at, _ in times)
    zero = sum(start == end for start, end in times)
    assert table["lane"].nunique() <= max(1, busiest + zero)


def test_epoch_and_relative_times_in_one_file_are_refused():
    since_1970 = 1_790_000_000 * 10**9
    with pytest.raises(InputError, match=r"trace.json: mixes clocks: one event begins at 5000 ns, another at 17900000"):
        op_table(rows((5_000, 6_000), (since_1970, since_1970 + 10)), "trace.json")
    assert len(op_table(rows((since_1970, since_1970 + 10), (since_1970 + DAY_NS, since_1970 + DAY_NS)), "file")) == 2


def test_an_end_before_its_start_and_an_empty_file_are_refused():
    with pytest.raises(InputError, match="file: 'kernel 0' at 10 ns ends before it starts"):
        op_table(rows((10, 9)), "file")
    with pytest.raises(InputError, match="file: holds nothing that ran on a GPU"):
        op_table(rows(), "file")


@given(st.data())
def test_innermost_is_the_shortest_range_around_a_moment(data):
    """Ranges that nest: drawn by splitting."""
    ranges = []

    def split(first, last, depth):
        if last - first < 2 or depth > 4:
            return
        inside = sorted(data.draw(st.lists(st.integers(first, last), min_size=2, max_size=4, unique=True)))
        for start, end in zip(inside[::2], inside[1::2], strict=False):
            ranges.append((start, end))
            split(start, end, depth + 1)

    split(0, 60, 0)
    start, end = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    moments = np.arange(-1, 62)
    for moment, found in zip(moments, innermost(moments, start, end), strict=True):
        around = [(last - first) for first, last in ranges if first <= moment < last]
        assert (found < 0) == (not around)
        if around:
            assert ranges[found][1] - ranges[found][0] == min(around)
