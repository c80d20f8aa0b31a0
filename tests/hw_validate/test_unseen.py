"""Programs for validation: drawn from the simulated machine and the seed alone."""

import numpy as np
import pytest
from xstage.hw_validate.trains import Phases, train
from xstage.hw_validate.unseen import Bounds, bounds_of, draw, stalled_share, unseen_traces
from xstage.sim.execute import simulate
from xstage.sim.machine import Machine
from xstage.sim.program import COMPUTE, SIGNAL, STORE
from xstage.sim.program_builder import ProgramBuilder, Seat


@pytest.fixture(scope="module")
def cpu():
    """One core that issues 160 GB/s into 14 KB drained at 45 GB/s."""

    def number(value):
        return {"value": value, "source": "made up"}

    return Machine.parse(
        {
            "name": "cpu",
            "compute": {"sms": number(2)},
            "stage": {"t0": number("8 ns"), "issue_rate": number("160 GB/s"), "capacity_sm": number("14 KB"),
                      "capacity_gpu": number("14 KB"), "granule": number("64 B")},
            "interconnect": {"kind": number("switch"), "gpus": number(2), "drain_rate": number("45 GB/s"),
                             "latency": number("0 ns")},
        }
    )  # fmt: skip


def test_half_of_the_programs_stall(cpu):
    traces = unseen_traces(cpu, 1, 20, bounds_of(20_000), np.random.default_rng(0))
    assert len(traces) == 20
    assert sum(stalled_share(trace) > 0.2 for trace in traces) == 10


@pytest.mark.parametrize(("asked", "stalled"), [(2, 2), (-1, 0), (9, 6)])
def test_as_many_stall_as_are_asked_for(cpu, asked, stalled):
    traces = unseen_traces(cpu, 1, 6, bounds_of(20_000), np.random.default_rng(0), with_stall=asked)
    assert [stalled_share(trace) > 0.2 for trace in traces] == [True] * stalled + [False] * (6 - stalled)


def test_a_wait_for_a_task_is_no_time_of_a_store(cpu):
    """The lane that stores has waited for its guard, short or long: the share of stall is the same."""

    def share(until_ps):
        builder = ProgramBuilder(n_gpus=2)
        ready = builder.counters(home=0, cause="inputs")
        first = [{"kind": COMPUTE, "duration_ps": until_ps}, {"kind": SIGNAL, "counter": ready, "count": 1}]
        store = {"kind": STORE, "target": builder.destination({1: 28_032}), "bytes": 28_032, "duration_ps": 183_200}
        for ops, guards in ((first, []), ([store], [(ready, 1)])):
            task = builder.tasks(builder.op_list(ops), 1, guards=guards)
            builder.groups(0, builder.plan(repeat=[builder.queue([task])]), [Seat("lane")])
        return stalled_share(simulate(builder.build(), cpu.fabric(), trace="full"))

    assert share(10_000_000) == share(1) > 0.3


def test_where_nothing_stalls_there_are_as_many_programs(cpu):
    traces = unseen_traces(cpu, 1, 6, Bounds(64, 128), np.random.default_rng(0))
    assert len(traces) == 6
    assert max(stalled_share(trace) for trace in traces) <= 0.2


def test_the_same_seed_draws_the_same_programs(cpu):
    first, second = (draw(cpu, 1, bounds_of(20_000), np.random.default_rng(4)) for _ in range(2))
    assert first == second


def test_sizes_and_gaps_change_within_a_program(cpu):
    program = draw(cpu, 1, bounds_of(20_000), np.random.default_rng(0))
    stores = program.ops[program.ops["kind"] == STORE]
    assert len(np.unique(stores["bytes"])) > 4
    assert (stores["bytes"] % 64 == 0).all()


def test_every_producer_stores_every_burst(cpu):
    program = train(Phases([640, 1280], [100_000, 200_000]), 2, cpu.issue_time_ps)
    lanes = simulate(program, cpu.fabric(), trace="full").lanes()
    assert lanes["stored_bytes"].tolist() == [1920, 1920]


def test_no_gap_is_shorter_than_the_hardware_can_make_one(cpu):
    for seed in range(20):
        program = draw(cpu, 1, bounds_of(20_000, least_gap_ns=180.0), np.random.default_rng(seed))
        gaps_ps = program.ops["duration_ps"][program.ops["kind"] == COMPUTE]
        assert gaps_ps.min() >= 179_000
