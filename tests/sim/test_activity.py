"""Activity: shares that add up, timelines that hold every computed picosecond, spans without the wait before them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from xstage.scenarios.loader import load_scenario
from xstage.sim import activity
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.program import ACQUIRE, COMPUTE, RELEASE, STORE
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.topology import StageParameters, switch
from xstage.sim.units import PS_PER_US

US = PS_PER_US
STAGE = StageParameters(granule_bytes=1000, capacity_sm_bytes=2000, capacity_gpu_bytes=2000)


def two_tiles(rate_kbs=1_000_000):
    """GPU 0 computes two tiles of 4 us; an epilogue stores 8000 B of each, for 1 us if there is room. 1 GB/s: 1 us a kB."""
    builder = ProgramBuilder(n_gpus=2)
    full = {"kind": ACQUIRE, "counter": 0, "count": 1}
    store = {"kind": STORE, "target": builder.destination({1: 8000}), "bytes": 8000, "duration_ps": US}
    parts = [[{"kind": COMPUTE, "duration_ps": 4 * US}, {"kind": RELEASE, "counter": 0, "count": 1}], [full, store]]
    first, _ = (builder.op_list(ops) for ops in parts)
    tasks = builder.tasks([first, first], 2, phase="l2")
    queue = builder.queue(np.arange(2) + tasks)
    plan = builder.plan(repeat=[(queue, -1, 1)])
    builder.groups(gpu=[0], plan=[plan], seats=[Seat("mma", np.zeros(1)), Seat("epilogue", np.zeros(1))], slots=[0])
    return simulate(builder.build(), switch(2, rate_kbs, STAGE), trace="full")


@pytest.fixture(scope="module")
def trace():
    return two_tiles()


def test_tensor_cores_count_their_computation_and_no_other_lane(trace):
    assert list(activity.tensor_lanes(trace)) == [True, False]
    assert list(activity.compute_by_lane(trace)) == list(activity.main_loops_by_lane(trace)) == [8 * US, 0]
    assert activity.tensor_core_use_pct(trace) == pytest.approx(100 * 8 * US / trace.makespan_ps)
    assert_allclose(activity.tile_compute_us(trace, "l2"), [4, 4])


@pytest.mark.parametrize("readiness", ["block", "k_block"])
def test_main_loops_of_math_warps_are_counted_without_their_epilogues(readiness):
    """In clusters, with a ring, and with waits between the parts of a main loop."""
    workload = {"kind": "megamoe", "gpus": 2, "hidden": 1024, "intermediate": 512, "experts": 4, "topk": 2, "tokens": 512,
                "numbers": "w8a8", "policy": {"name": "lag", "lag": 1, "group": 1, "readiness": readiness}}  # fmt: skip
    scenario = {"question": "?", "workload": workload, "granule": "8 KiB"}

    def counted(floor):
        overrides = {"compute.sms": 16, "compute.epilogue_floor": floor}
        found = load_scenario(scenario | {"machine": {"base": "hgx-h100", "overrides": overrides}})
        trace = simulate(found.program(), found.fabric(), trace="summary")
        assert trace.program.meta["kernel"]["cluster"] == 2 and trace.program.meta["ring_m_blocks"]
        return activity.compute_by_lane(trace).sum(), activity.main_loops_by_lane(trace).sum()

    short, long = counted("10 us"), counted("20 us")
    assert long[0] > 1.5 * short[0]
    assert long[1] == short[1] > 0


def test_the_mean_of_a_timeline_is_the_use_of_the_whole_run(trace):
    found = activity.timeline(trace, bins=7)
    assert found["tensor_core_pct"].mean() == pytest.approx(activity.tensor_core_use_pct(trace))
    assert found["egress_pct"].mean() == pytest.approx(100 * 16 * US / trace.makespan_ps)
    assert found["tensor_core_pct"].iloc[0] == pytest.approx(100)


@pytest.mark.parametrize(("replicate", "scatter_use"), [(False, 2), (True, 1)])
def test_a_scatter_uses_the_egress_at_its_own_rate_and_a_multicast_once(replicate, scatter_use):
    builder = ProgramBuilder(n_gpus=3)
    target = builder.destination({0: 1000, 1: 4000, 2: 4000} if not replicate else {1: 4000, 2: 4000}, replicate)
    size = 4000 if replicate else 9000
    run = builder.op_list([{"kind": STORE, "target": target, "bytes": size, "duration_ps": US}])
    queue = builder.queue([builder.tasks([run], 1)])
    builder.groups(gpu=[0], plan=[builder.plan(repeat=[(queue, -1, 1)])], seats=[Seat("epilogue", np.zeros(1))])
    stage = StageParameters(1000, 20_000, 20_000, fan_out_efficiency=0.5)
    trace = simulate(builder.build(), switch(3, 1_000_000, stage), trace="full")
    moved = 4 if replicate else 8
    used = activity.timeline(trace, bins=1)["egress_pct"].iloc[0] * trace.makespan_ps / 100
    assert used == pytest.approx(scatter_use * moved * US)
    assert trace.outcome.ports["busy_ps"][0] == used


def test_a_longer_time_axis_ends_in_idle_parts(trace):
    found = activity.timeline(trace, bins=10, until_us=9 * trace.makespan_ps / US)
    assert (found.iloc[2:][["tensor_core_pct", "egress_pct"]].abs() < 1e-9).all(axis=None)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100)), max_size=20), st.integers(1, 9))
def test_parts_of_a_timeline_hold_all_of_every_interval(intervals, parts):
    start = np.array([start for start, _ in intervals], dtype=np.int64)
    length = np.array([length for _, length in intervals], dtype=np.int64)
    edges = np.linspace(0, 1100, parts + 1)
    share = activity.busy_share(start, start + length, edges)
    assert (share * np.diff(edges)).sum() == pytest.approx(length.sum(), abs=1e-6)
    assert (share >= -1e-9).all() and (share <= len(intervals) + 1e-9).all()


def test_the_breakdown_of_a_role_adds_up_to_the_makespan(trace):
    rows = activity.breakdown(trace)
    for role in ("mma", "epilogue"):
        assert sum(row["mean_us"] for row in rows if row["role"] == role) == pytest.approx(trace.makespan_ps / US)
    [stall] = [row["mean_us"] for row in rows if (row["role"], row["what"]) == ("epilogue", "stall")]
    assert stall > 5


def test_waits_are_those_of_tensor_cores(trace):
    assert activity.waits_us(trace) == {}
    waits = {row["cause"] for row in activity.breakdown(trace) if row["what"] == "wait"}
    assert waits == {"slot"}  # the epilogue waits for its tile


def test_the_span_of_stores_begins_after_the_wait_for_the_tile(trace):
    first, second = activity.store_spans_us(trace, "l2")
    assert 6 <= first <= second
    assert_allclose(activity.store_spans_us(two_tiles(rate_kbs=2**50), "l2"), [1, 1], rtol=1e-3)


def test_a_phase_lasts_from_its_first_op_to_its_last(trace):
    [window] = activity.phase_windows(trace)
    assert (window["phase"], window["tasks"], window["first_us"]) == ("l2", 2, 0)
    assert window["last_us"] == pytest.approx(trace.outcome.lanes_end_ps / US)


def test_what_cannot_be_drawn_is_refused(trace):
    with pytest.raises(InputError, match="is no phase of this program"):
        activity.store_spans_us(trace, "l3")
    with pytest.raises(InputError, match="bins = 0"):
        activity.timeline(trace, bins=0)
    summary = simulate(trace.program, trace.fabric, trace="summary")
    for needs_full in (activity.timeline, lambda trace: activity.store_spans_us(trace, "l2")):
        with pytest.raises(InputError, match="too little"):
            needs_full(summary)
