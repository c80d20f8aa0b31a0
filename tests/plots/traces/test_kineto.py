"""The Kineto-shaped JSON: one event an op, lanes that never overlap, and what Holistic Trace Analysis needs."""

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xstage.hw_validate.readers.read import read_trace
from xstage.plots.traces import kineto
from xstage.plots.traces.kineto import kineto_pieces

from .random_traces import random_trace


def written(ops):
    return json.loads("".join(kineto_pieces(ops)))


def ran(found):
    return [event for event in found["traceEvents"] if event["ph"] == "X"]


@settings(max_examples=50)
@given(st.integers(0, 10**6))
def test_lanes_never_overlap_and_every_op_is_there(seed):
    ops = random_trace(seed).ops()
    events = ran(written(ops))
    assert len(events) == len(ops)
    by_lane = defaultdict(list)
    for event in events:
        start, took = (round(event[name] * 1000) for name in ("ts", "dur"))
        assert start == pytest.approx(event["ts"] * 1000), "whole nanoseconds"
        by_lane[event["pid"], event["tid"]].append((start, start + took))
    for (gpu, lane), times in by_lane.items():
        mine = ops[(ops["lane"] == lane) & (ops["gpu"] == gpu)]
        assert [start for start, _ in times] == (np.rint(mine["start_us"] * 1e6) // 1000).tolist()
        assert [end for _, end in times] == (np.rint(mine["end_us"] * 1e6) // 1000).tolist()
        assert all(end <= start for (_, end), (start, _) in pairwise(times))


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_args_say_what_the_table_says(seed):
    ops = random_trace(seed).ops()
    rows = ops.sort_values(["lane", "start_us"], kind="stable")
    for event, row in zip(ran(written(ops)), rows.itertuples(), strict=True):
        args = event["args"]
        assert (args["kind"], args["role"]) == (row.kind, row.role)
        assert args.get("bytes", 0) == row.bytes
        assert (args.get("stall_us", 0.0), args.get("wait_us", 0.0)) == (row.stall_us, row.wait_us)
        assert ("stream" in args) == (row.kind in ("compute", "store", "load")), "only work keeps a stream busy"


def test_gpus_and_lanes_have_names():
    trace = random_trace(2)
    named = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in written(trace.ops())["traceEvents"]
        if event["ph"] == "M"
    }
    for row in trace.ops().drop_duplicates("lane").itertuples():
        assert named["process_name", row.gpu, 0] == f"GPU {row.gpu}"
        assert named["thread_name", row.gpu, row.lane] == f"SM {row.sm} {row.role}"


def test_the_file_does_not_depend_on_how_it_is_cut(monkeypatch):
    ops = random_trace(3).ops()
    first = "".join(kineto_pieces(ops))
    monkeypatch.setattr(kineto, "_CHUNK", 5)
    assert "".join(kineto_pieces(ops)) == first


def test_a_file_of_one_gpu_is_the_rank_of_that_gpu():
    ops = random_trace(2).ops()
    gpu = int(ops["gpu"].max())
    assert written(ops)["distributedInfo"]["rank"] == 0
    assert written(ops[ops["gpu"] == gpu])["distributedInfo"]["rank"] == gpu


def test_an_empty_table_is_a_valid_file():
    assert ran(written(random_trace(3).ops().iloc[:0])) == []


def test_what_is_written_can_be_imported_again(tmp_path):
    ops = random_trace(3).ops()
    file = tmp_path / "trace.json"
    file.write_text("".join(kineto_pieces(ops)))
    back = read_trace(file)
    worked = ops[ops["kind"].isin(["compute", "store", "load"])]
    assert len(back) == len(worked)
    assert back["lane"].nunique() == worked["lane"].nunique()
    assert back["bytes"].sum() == worked["bytes"].sum()


def test_holistic_trace_analysis_loads_it(tmp_path, monkeypatch):
    analysis = pytest.importorskip("hta.trace_analysis", reason="Holistic Trace Analysis is not installed")
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    ops = random_trace(3).ops()
    file = tmp_path / "trace.json"
    file.write_text("".join(kineto_pieces(ops)))
    found = analysis.TraceAnalysis(trace_files={0: str(file)})
    assert len(found.t.get_trace(0)) == len(ops)
    assert len(found.get_temporal_breakdown(visualize=False)) == 1
