"""Programs of several lanes on real cores: dependencies hold, stores stay in their areas, and a hang is named."""

import _thread
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from xstage.hw_validate.cpu import bench as bench_module
from xstage.hw_validate.cpu import bookkeeping
from xstage.hw_validate.cpu.access import measure_access
from xstage.hw_validate.cpu.bench import Bench, StuckError
from xstage.hw_validate.cpu.cores import usable_cores
from xstage.hw_validate.cpu.onto_cores import AccessTime, AccessTimes, judged_ops, machine_for, onto_cores
from xstage.hw_validate.cpu.op_costs import OpCosts
from xstage.hw_validate.cpu.tables import CoreTables
from xstage.sim import program as p
from xstage.sim.calibrate import BurstTimes
from xstage.sim.errors import InputError, ProgramError
from xstage.sim.execute import simulate
from xstage.sim.program_builder import ProgramBuilder, Seat

from ..made_up_hardware import made_up_machine

TIMES = AccessTimes(load=AccessTime(0, 100), own_store=AccessTime(0, 100))
LANE, TASK, OP, START, END, BEGUN = range(6)
WRITTEN = 7  # every 32-bit word that a store writes

both_cores = pytest.mark.parametrize("cores", [1, pytest.param(2, marks=pytest.mark.skipif(
    len(usable_cores()) < 2, reason="needs two cores"))])  # fmt: skip


@pytest.fixture(scope="module")
def bench():
    with Bench(min(2, len(usable_cores())), buffer_bytes=1 << 20, judges=False) as made:
        yield made


def run(bench, program, cores=1):
    """(tables, records by op, each the last time it ran)"""
    tables = CoreTables(onto_cores(program, cores, TIMES), bench.clock)
    records = bench.run_program(tables, drain_ns=500.0, watched=False).records
    return tables, {int(row[OP]): row for row in records}, records


def lanes(builder, ops_by_lane, rank=0, **group):
    """A group a list of ops, all of one rank."""
    for number, ops in enumerate(ops_by_lane):
        task = builder.tasks(builder.op_list(ops), 1)
        builder.groups(rank, builder.plan(repeat=[builder.queue([task])]), [Seat("core", sm=number, window=1)], **group)


def store(builder, size, to=1, **columns):
    return {"kind": p.STORE, "target": builder.destination({to: size}), "bytes": size, **columns}


def test_lanes_of_a_core_take_turns_at_storing(bench):
    builder = ProgramBuilder(n_gpus=2)
    lanes(builder, [[store(builder, 6400) for _ in range(3)] for _ in range(2)])
    _, _, records = run(bench, builder.build())
    stored = records[np.argsort(records[:, BEGUN])]
    assert stored[:, LANE].tolist() == [0, 1] * 3
    assert (stored[1:, BEGUN] >= stored[:-1, END]).all()


@both_cores
def test_a_wait_ends_after_its_signal(bench, cores):
    builder = ProgramBuilder(n_gpus=2)
    ready = builder.counters(home=1, cause="inputs")
    lanes(builder, [[{"kind": p.COMPUTE, "duration_ps": 20_000_000}, {"kind": p.SIGNAL, "counter": ready, "count": 1}]])
    lanes(builder, [[{"kind": p.WAIT, "counter": ready, "count": 1}]], rank=1)
    _, op, _ = run(bench, builder.build(), cores)
    assert op[2][END] >= op[1][END] >= bench.clock.ticks(20_000)


@both_cores
def test_a_counter_is_bumped_after_the_store_that_bumps_it(bench, cores):
    builder = ProgramBuilder(n_gpus=2)
    arrived = builder.counters(home=[0, 1], cause="peer")
    lanes(builder, [[store(builder, 4096, counter=arrived, stride=1)]])
    lanes(builder, [[{"kind": p.WAIT, "counter": arrived + 1, "count": 1}]], rank=1)
    _, op, _ = run(bench, builder.build(), cores)
    assert op[1][END] > op[0][END]


def test_lanes_of_a_core_compute_side_by_side_and_store_one_after_the_other(bench):
    builder = ProgramBuilder(n_gpus=2)
    lanes(builder, [[{"kind": p.COMPUTE, "duration_ps": 50_000_000}, store(builder, 16384)] for _ in range(3)])
    _, op, _ = run(bench, builder.build())
    assert len({op[number][END] for number in (0, 2, 4)}) == 1  # computed at the same time
    stores = sorted((op[number] for number in (1, 3, 5)), key=lambda row: row[BEGUN])
    assert all(later[BEGUN] >= earlier[END] for earlier, later in pairwise(stores))


def test_slots_are_taken_and_given_back(bench):
    builder = ProgramBuilder(n_gpus=2)
    take, give = ({"kind": kind, "counter": 0, "count": 1} for kind in (p.ACQUIRE, p.RELEASE))
    runs = [builder.op_list([take, {"kind": p.COMPUTE, "duration_ps": 1_000_000}, give]) for _ in range(2)]
    task = builder.tasks(runs[0], 2)
    plan = builder.plan(repeat=[builder.queue([task])])
    builder.groups(0, plan, [Seat("one"), Seat("other")], slots=[1])
    _, op, _ = run(bench, builder.build())
    first, second = sorted((op[1], op[4]), key=lambda row: row[START])
    assert second[START] >= first[END]


@both_cores
def test_a_shared_queue_gives_every_task_once(bench, cores):
    builder = ProgramBuilder(n_gpus=2)
    tasks = builder.tasks(np.full(40, builder.op_list([{"kind": p.COMPUTE, "duration_ps": 1_000_000}])), 1)
    plan = builder.plan(repeat=[builder.queue(tasks + np.arange(40))])
    builder.groups([0, 0], plan, [Seat("core", sm=np.arange(2))])
    tables = CoreTables(onto_cores(builder.build(), cores, TIMES), bench.clock)
    records = bench.run_program(tables, drain_ns=500.0, watched=False).records
    assert sorted(records[:, TASK]) == list(range(40))


def test_a_guarded_task_waits_and_the_other_queue_goes_first(bench):
    builder = ProgramBuilder(n_gpus=2)
    done = builder.counters(home=0, cause="inputs")
    signal, compute = {"kind": p.SIGNAL, "counter": done, "count": 1}, {"kind": p.COMPUTE, "duration_ps": 1_000_000}
    guarded = builder.tasks(builder.op_list([compute]), 1, guards=[(done, 1)])
    free = builder.tasks(builder.op_list([compute, signal]), 1)
    plan = builder.plan(repeat=[(builder.queue([guarded]), builder.queue([free]), 1)])
    builder.groups(0, plan, [Seat("core")])
    _, _, records = run(bench, builder.build())
    assert records[:, TASK].tolist() == [free, free, guarded]


def test_a_group_does_not_run_further_ahead_than_it_may(bench):
    builder = ProgramBuilder(n_gpus=2)
    quick, slow = ({"kind": p.COMPUTE, "duration_ps": ps} for ps in (0, 5_000_000))
    runs = [builder.op_list([op]) for _ in range(3) for op in (quick, slow)]
    tasks = builder.tasks(runs[0] + 2 * np.arange(3), 2)
    plan = builder.plan(repeat=[builder.queue(tasks + np.arange(3))])
    builder.groups(0, plan, [Seat("quick"), Seat("slow")], ahead=0)
    _, _, records = run(bench, builder.build())
    of_quick = records[records[:, LANE] == 0]
    assert np.diff(of_quick[:, START]).min() >= bench.clock.ticks(5_000)


def test_loads_go_where_the_owner_is_and_end(bench):
    builder = ProgramBuilder(n_gpus=2)
    got = builder.counters(home=0, cause="inputs")
    lanes(builder, [[{"kind": p.LOAD, "target": 1, "bytes": 6400, "counter": got},
                     {"kind": p.WAIT, "counter": got, "count": 1}]])  # fmt: skip
    tables, op, _ = run(bench, builder.build())
    assert len(op) == 3
    assert tables.most_loaded_lines == 100


def test_no_store_leaves_its_area(bench):
    builder = ProgramBuilder(n_gpus=2)
    area = bench.buffers[0].size // 2
    lanes(builder, [[store(builder, size) for size in (area, 64 * 100, area - 64 * 30)]])
    bench.buffers[0].bytes[:] = 0
    run(bench, builder.build())
    words = bench.buffers[0].bytes.view(np.int32)
    assert (words[: area // 4] == 0).all()  # the memory of rank 0, to which nobody stored
    assert (words[area // 4 :] == WRITTEN).all()


def test_a_store_larger_than_its_area_is_refused(bench):
    builder = ProgramBuilder(n_gpus=2)
    lanes(builder, [[store(builder, bench.buffers[0].size // 2 + 64)]])
    with pytest.raises(InputError, match="does not fit into its area"):
        run(bench, builder.build())


def test_a_program_that_was_not_mapped_is_refused(bench):
    builder = ProgramBuilder(n_gpus=2)
    lanes(builder, [[store(builder, 64)]])
    with pytest.raises(ProgramError, match="onto_cores"):
        CoreTables(builder.build(), bench.clock)


@both_cores
def test_a_hang_is_an_error_that_names_lane_and_counter(bench, cores, monkeypatch):
    monkeypatch.setattr(bench_module, "PATIENCE_S", 0.5)  # longer than a busy system keeps a core to itself
    builder = ProgramBuilder(n_gpus=2)
    never = builder.counters(home=0, cause="inputs", initial=1)
    lanes(builder, [[{"kind": p.WAIT, "counter": never, "count": 3}]])
    lanes(builder, [[{"kind": p.COMPUTE, "duration_ps": 1}]], rank=1)
    with pytest.raises(
        StuckError, match=r"lane 0 \(core\) on core 0 waited in task 0 for counter 0 to be 3.*stayed at 1"
    ):
        run(bench, builder.build(), cores)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("xstage lane")]


def test_ctrl_c_ends_a_run_and_its_threads(bench):
    builder = ProgramBuilder(n_gpus=2)
    never = builder.counters(home=0, cause="inputs")
    lanes(builder, [[{"kind": p.WAIT, "counter": never, "count": 1}]])
    timer = threading.Timer(0.2, _thread.interrupt_main)
    program = builder.build()
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        run(bench, program)
    timer.join()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("xstage lane")]


def test_what_a_core_needs_for_loads_own_stores_and_ops_is_a_time(bench, monkeypatch):
    monkeypatch.setattr(bookkeeping, "REPEATS", 4)
    small = np.array([1024.0, 4096.0])
    times = BurstTimes(1, small, np.full(2, np.inf), np.tile(8 + small / 160, (3, 1)))
    found = measure_access(bench, times, knee_bytes=8192.0)
    for time in (found.load, found.own_store):
        assert time.t0_ns >= 0
        assert 0 < time.rate_gbs <= 1000
    for costs in (found.ops, found.ops_beside_loads):
        assert all(0 <= cost < 1e6 for row in costs.ns for cost in row)
        assert costs.ps(6)["task"] > 0


def test_clocks_count_what_ops_cost_as_the_simulation_does(bench):
    builder = ProgramBuilder(n_gpus=2)
    done = builder.counters(home=0, cause="inputs")
    ops = [
        {"kind": p.COMPUTE, "duration_ps": 5_000_000},
        {"kind": p.SIGNAL, "counter": done, "count": 1, "duration_ps": 3_000_000},
        {"kind": p.WAIT, "counter": done, "count": 1},
        {"kind": p.RELEASE, "counter": 0, "count": 1},
        {"kind": p.ACQUIRE, "counter": 0, "count": 1},
        {"kind": p.COMPUTE, "duration_ps": 1000},
    ]
    lanes(builder, [ops], slots=[0])
    costs = OpCosts((1,), ((400.0, 0.0, 0.0, 500.0, 600.0, 300.0, 250.0, 350.0, 1500.0, 0.0),))
    mapped = onto_cores(builder.build(), 1, replace(TIMES, ops=costs))
    records = bench.run_program(CoreTables(mapped, bench.clock), drain_ns=500.0, watched=False).records
    simulated = judged_ops(simulate(mapped, machine_for(made_up_machine(), 2).fabric(), trace="full"))
    for column, name in ((START, "start_us"), (END, "end_us")):
        per_us = 1000 * bench.clock.ticks_per_ns
        assert records[:, column] / per_us == pytest.approx(simulated[name].to_numpy(), abs=0.02)


def test_a_store_begins_when_what_it_costs_is_over(bench):
    builder = ProgramBuilder(n_gpus=2)
    lanes(builder, [[store(builder, 640), store(builder, 640)]])
    costs = OpCosts((1,), ((0.0, 20_000.0, *(0.0,) * 8),))
    tables = CoreTables(onto_cores(builder.build(), 1, replace(TIMES, ops=costs)), bench.clock)
    records = bench.run_program(tables, drain_ns=500.0, watched=False).records
    assert (records[:, BEGUN] - records[:, START] >= bench.clock.ticks(20_000)).all()
