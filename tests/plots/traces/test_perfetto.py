"""What a .pftrace says is what the tables of the trace say. It is read back with Perfetto's own messages."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xstage.plots.traces import counters, perfetto
from xstage.plots.traces.counters import stage_steps
from xstage.plots.traces.flows import arrivals
from xstage.plots.traces.perfetto import perfetto_pieces
from xstage.plots.traces.slices import slices
from xstage.sim import program as p
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.topology import StageParameters, switch

from .random_traces import random_trace
from .reading import read

GBS = 10**6  # kB/s


def written(trace):
    return b"".join(perfetto_pieces(trace.ops(), trace))


def ns(us):
    return int(np.rint(us * 1e6)) // 1000


def lane_paths(trace):
    """The track of every lane that did something: GPU, SM and role, with a number if the SM has the role twice."""
    lanes = trace.ops()[["gpu", "sm", "lane", "role"]].drop_duplicates()
    seats = Counter(zip(lanes["gpu"], lanes["sm"], lanes["role"], strict=True))
    return {
        row.lane: (f"GPU {row.gpu}", f"SM {row.sm}",
                   row.role if seats[row.gpu, row.sm, row.role] == 1 else f"{row.role} {row.lane}")
        for row in lanes.itertuples()
    }  # fmt: skip


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_every_op_is_a_slice_of_its_lane_inside_its_task(seed):
    trace = random_trace(seed)
    tracks, ops = read(written(trace)), trace.ops()
    drawn = 0
    for lane, path in lane_paths(trace).items():
        mine = ops[ops["lane"] == lane]
        assert (mine["start_us"].diff().dropna() >= 0).all(), "completion order is time order in a lane"
        found = [piece for piece in tracks[path].slices if piece.category not in ("span", "")]
        assert len(found) == len(mine)
        for row, op in zip(mine.itertuples(), found, strict=True):
            assert (op.start, op.end) == (ns(row.start_us), ns(row.end_us))
            assert op.category == row.kind
            assert op.annotations.get("stall_us", 0) == row.stall_us
            assert op.annotations.get("wait_us", 0) == row.wait_us
            if row.kind == "task":
                assert (op.name, op.depth) == (f"wait: {row.cause}", 0)
            else:
                assert op.annotations["op"] == row.op
                assert op.annotations.get("bytes", 0) == row.bytes
                assert op.within.name == row.phase
                assert op.within.annotations["task"] == row.task
                assert op.within.start <= op.start <= op.end <= op.within.end
        drawn += len(found)
    assert drawn == len(ops)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_stalls_and_waits_are_inside_their_op_and_do_not_overlap(seed):
    trace = random_trace(seed)
    tracks = read(written(trace))
    for path in lane_paths(trace).values():
        inside = {}
        for piece in tracks[path].slices:
            if piece.depth == 2:
                inside.setdefault(id(piece.within), []).append(piece)
                assert piece.within.start <= piece.start <= piece.end <= piece.within.end
                share = "stall_us" if piece.name == "stall" else "wait_us"
                long = 1000 * piece.within.annotations[share]
                assert abs((piece.end - piece.start) - long) < 1
        for pieces in inside.values():
            assert len(pieces) <= 2
            assert all(first.end <= second.start for first, second in pairwise(pieces))


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_a_flow_leads_from_each_store_to_where_it_has_arrived(seed):
    trace = random_trace(seed)
    tracks = read(written(trace))
    begins = {flow: one for track in tracks.values() for one in track.slices for flow in one.flows}
    ends = {
        instant[3][0]: (gpu, instant)
        for gpu in range(trace.program.n_gpus)
        for instant in tracks[(f"GPU {gpu}", "arrivals")].instants
    }
    assert begins.keys() == ends.keys()
    total = 0
    for flow, (_, (time, name, annotations, _)) in ends.items():
        begun = begins[flow]
        assert begun.category in ("store", "signal") and name == "arrival"
        assert begun.start <= time
        total += annotations["bytes"]
    granules = trace.granules()
    sent = granules[granules["kind"].isin(["store", "signal"]) & (granules["source"] != granules["destination"])]
    assert total == sent["bytes"].sum()
    last = sent.groupby(["source", "destination"])["visible_us"].max()
    for (source, destination), visible in last.items():
        times = [
            time for gpu, (time, _, notes, _) in ends.values() if gpu == destination and notes["from_gpu"] == source
        ]
        assert max(times) == ns(visible)


def test_an_op_that_runs_twice_has_two_arrivals():
    builder = ProgramBuilder(2)
    row = builder.destination({1: 64})
    run = builder.op_list([
        {"kind": p.STORE, "target": row, "bytes": 64, "duration_ps": 5_000},
        {"kind": p.COMPUTE, "duration_ps": 1_000_000},
    ])  # fmt: skip
    queue = builder.queue([builder.tasks(run, 1), builder.tasks(run, 1)])
    builder.groups(gpu=0, plan=builder.plan([], [queue]), seats=[Seat("producer")])
    fabric = switch(2, 100 * GBS, StageParameters(32, 1024, 1024, latency_ps=400_000))
    trace = simulate(builder.build(), fabric, engine="simpy", trace="full")
    found = arrivals(trace)
    stores = trace.ops().query("kind == 'store'").index
    assert found.op_row.tolist() == stores.tolist()
    assert found.bytes.tolist() == [64, 64]
    assert found.visible_ps[1] - found.visible_ps[0] == 1_005_000


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_counters_are_the_occupancy_and_what_the_egress_passed(seed):
    trace = random_trace(seed)
    tracks = read(written(trace))
    ports = trace.ports()  # the first are the egress of each GPU
    for gpu in range(trace.program.n_gpus):
        held = tracks[(f"GPU {gpu}", "stage")].values
        steps = trace.occupancy(gpu)
        by_ns = {ns(time): bytes_held for time, bytes_held in steps.itertuples(index=False)}
        assert dict(held) == by_ns
        assert len(held) == len(by_ns)
        rate = tracks[(f"GPU {gpu}", "egress")].values
        sent = sum(value * (after - time) for (time, value), (after, _) in pairwise(rate))
        assert sent == pytest.approx(ports["bytes"][gpu])
        assert not rate or rate[-1][1] == 0


def test_a_counter_with_too_many_steps_keeps_its_peaks(monkeypatch):
    trace = random_trace(6)
    gpu = max(range(trace.program.n_gpus), key=lambda gpu: len(trace.occupancy_steps(gpu)[0]))
    exact = stage_steps(trace, gpu)
    assert len(exact.time_ns) > 8
    monkeypatch.setattr(counters, "MOST_STEPS", 4)
    thinned = stage_steps(trace, gpu)
    assert len(thinned.time_ns) <= 4
    assert thinned.value.max() == trace.occupancy_steps(gpu)[1].max() >= exact.value.max()
    until = [*thinned.time_ns[1:], exact.time_ns[-1] + 1]
    for time, end, value in zip(thinned.time_ns, until, thinned.value, strict=True):
        inside = (exact.time_ns >= time) & (exact.time_ns < end)
        assert value >= exact.value[inside].max()


def test_the_same_trace_gives_the_same_bytes_however_it_is_cut(monkeypatch):
    trace = random_trace(3)
    first = written(trace)
    monkeypatch.setattr(perfetto, "_CHUNK", 7)
    assert written(trace) == first


def test_an_op_table_alone_has_slices_and_nothing_else():
    trace = random_trace(3)
    tracks = read(b"".join(perfetto_pieces(trace.ops())))
    assert sum(track.slices != [] for track in tracks.values()) == len(lane_paths(trace))
    assert not any(track.values or track.instants for track in tracks.values())


def test_a_lane_that_does_two_things_at_once_is_refused():
    ops = random_trace(3).ops()
    lane = ops["lane"].mode()[0]
    broken = ops.assign(end_us=ops["end_us"].where(ops["lane"] != lane, ops["end_us"] + 1))
    with pytest.raises(InputError, match=f"the op of lane {lane} .* starts before the lane's op before it ends"):
        b"".join(perfetto_pieces(broken))


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"wait_us": -5.0}, "waits for less than no time"),
        ({"wait_us": 1e4}, "waits and stalls for longer than it lasts"),
        ({"stall_us": 1e4}, "waits and stalls for longer than it lasts"),
    ],
)
def test_an_op_that_waits_or_stalls_for_longer_than_it_lasts_is_refused(times, said):
    with pytest.raises(InputError, match=f"the op of lane .* {said}"):
        b"".join(perfetto_pieces(random_trace(3).ops().assign(**times)))


def test_a_measured_stall_a_little_below_0_is_none():
    found = slices(random_trace(3).ops().assign(stall_us=-0.01))
    assert (found.stall_from_ns == found.end_ns).all()


@pytest.mark.parametrize("column", ["lane", "stall_us", "cause"])
def test_a_missing_column_is_named(column):
    with pytest.raises(InputError, match=rf"op table = '{column}': is no column of it"):
        b"".join(perfetto_pieces(random_trace(3).ops().drop(columns=column)))
