"""Programs on real cores: the measured trace has the columns and the ops of the simulated one."""

import numpy as np
import pytest
from xstage.hw_validate.compare import compare
from xstage.hw_validate.cpu import yardstick
from xstage.hw_validate.cpu.bench import NO_LIMIT, Bench, Limits, StuckError
from xstage.hw_validate.cpu.cores import usable_cores
from xstage.hw_validate.cpu.replay import replay
from xstage.hw_validate.measuring import DisturbedError
from xstage.sim import program as p
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.topology import StageParameters, switch

FABRIC = switch(2, 45_000_000, StageParameters(64, 14_000, 14_000))


@pytest.fixture(scope="module")
def bench():
    with Bench(min(2, len(usable_cores())), buffer_bytes=1 << 20, judges=False) as made:
        yield made


def traced(bursts, lanes=1, more=()):
    """`lanes` lanes that each store some bursts, then do `more`."""
    builder = ProgramBuilder(n_gpus=2)
    ops = [
        op
        for size in bursts
        for op in (
            {"kind": p.COMPUTE, "duration_ps": 100_000},
            {"kind": p.STORE, "target": builder.destination({1: size}), "bytes": size, "duration_ps": 10_000},
        )
    ]
    met = builder.counters(home=0, cause="barrier")
    ops += [{"counter": met, **op} for op in more]
    tasks = builder.tasks(builder.op_list(ops) + np.zeros(lanes, dtype=int), 1, phase="burst")
    plans = builder.private_plans(builder.queues(tasks + np.arange(lanes), np.ones(lanes, dtype=int)), lanes)
    builder.groups(gpu=0, plan=plans + np.arange(lanes), seats=[Seat("producer", sm=np.arange(lanes))])
    return simulate(builder.build(), FABRIC, trace="full")


def test_the_measured_trace_has_the_columns_and_ops_of_the_simulated_one(bench):
    trace = traced([640, 6400])
    [measured] = replay([trace], bench, 4, np.random.default_rng(0))
    simulated = trace.ops()
    assert measured.columns.tolist() == ["repeat", *simulated.columns]
    assert measured["repeat"].nunique() >= 4
    one = measured[measured["repeat"] == 0]
    assert one["op"].tolist() == simulated["op"].tolist()
    assert one["kind"].tolist() == simulated["kind"].tolist()
    assert compare(simulated, measured).repeats == measured["repeat"].nunique()


def test_ops_of_a_lane_follow_each_other(bench):
    [measured] = replay([traced([640, 6400])], bench, 3, np.random.default_rng(0))
    for _, one in measured.groupby("repeat"):
        assert (one["end_us"] >= one["start_us"] - 0.1).all()
        assert one["start_us"].to_numpy()[1:] == pytest.approx(one["end_us"].to_numpy()[:-1])


def test_several_programs_give_a_table_each(bench):
    traces = [traced([64]), traced([64, 128])]
    tables = replay(traces, bench, 3, np.random.default_rng(0))
    assert [len(table) // table["repeat"].nunique() for table in tables] == [2, 4]


@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
def test_lanes_meet_at_a_barrier(bench):
    barrier = [{"kind": p.SIGNAL, "count": 1}, {"kind": p.WAIT, "count": 2}]
    trace = traced([640], lanes=2, more=barrier)
    [measured] = replay([trace], bench, 3, np.random.default_rng(0))
    for _, one in measured.groupby("repeat"):
        last_signal = one.loc[one["kind"] == "signal", "start_us"].max()
        assert (one.loc[one["kind"] == "wait", "end_us"] >= last_signal).all()


@pytest.mark.parametrize("pace", ["before", "after"])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_runs_beside_which_small_bursts_are_quicker_or_slower_than_usual_do_not_count(monkeypatch, pace, factor):
    usual = {"before": 100.0, "after": 100.0}
    with Bench(1, buffer_bytes=1 << 20, judges=False) as bench:
        monkeypatch.setattr(bench, "_judges", True)
        monkeypatch.setattr(bench, "_limits", Limits(late_ns=NO_LIMIT, pause_ns=NO_LIMIT))
        monkeypatch.setattr(bench, "_usual_ticks", {1: 100.0})
        paces = usual | {pace: factor * usual[pace]}
        monkeypatch.setattr(yardstick, "paces_ticks", lambda stamps: tuple(paces.values()))
        with pytest.raises(DisturbedError, match="1 of 1 programs"):
            replay([traced([640])], bench, 3, np.random.default_rng(0))
        paces.update(usual)
        [found] = replay([traced([640])], bench, 3, np.random.default_rng(0))
        assert found["repeat"].nunique() == 3


def test_more_lanes_than_cores_are_refused(bench):
    with pytest.raises(InputError, match="more lanes than cores"):
        replay([traced([64], lanes=bench.producers + 1)], bench, 3, np.random.default_rng(0))


def test_too_few_repeats_are_refused(bench):
    with pytest.raises(InputError, match="repeats = 2"):
        replay([traced([64])], bench, 2, np.random.default_rng(0))


def test_a_wait_that_nobody_ends_is_an_error(bench, monkeypatch):
    from xstage.hw_validate.cpu import bench as module
    from xstage.hw_validate.cpu import lane

    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    word = np.zeros(1, dtype=np.int64)
    with pytest.raises(StuckError, match="lane 0 waited"):
        bench.run([np.array([(lane.WAIT, word.ctypes.data, 1, 0)], dtype=np.int64)])


def test_memory_is_given_back():
    made = Bench(1, buffer_bytes=1 << 20, judges=False)
    made.close()
    assert made.buffers[0]._memory.closed
