"""Small schedules of fused kernels for cores: of both kinds, drawn from the simulated machine and the seed alone."""

import numpy as np
import pytest
from xstage.hw_validate.compare import compare
from xstage.hw_validate.cpu.bench import Bench
from xstage.hw_validate.cpu.cores import usable_cores
from xstage.hw_validate.cpu.onto_cores import AccessTime, AccessTimes, judged_ops
from xstage.hw_validate.cpu.op_costs import KINDS, OpCosts
from xstage.hw_validate.cpu.replay import replay
from xstage.hw_validate.cpu.schedules import (
    MOST_BOOKKEEPING,
    Drawn,
    attention_program,
    bookkeeping_ns,
    megamoe_program,
    schedule_traces,
)
from xstage.hw_validate.schedules import few_sms, paced
from xstage.scenarios.machine_files import load_machine
from xstage.sim import program as p

from ..made_up_hardware import made_up_machine

COSTS = OpCosts((1,), ((40.0,) * len(KINDS),))
TIMES = AccessTimes(AccessTime(5, 200), AccessTime(5, 200), ops=COSTS, ops_beside_loads=COSTS)
DRAWN = Drawn(made_up_machine(), 1, TIMES)


@pytest.fixture(scope="module")
def traces():
    return schedule_traces(DRAWN, 4, np.random.default_rng(0))


def test_both_kinds_are_drawn_in_turn(traces):
    kinds = [trace.program.meta["schedule"] for trace in traces]
    assert kinds == ["megamoe", "attention_a2a"] * 2
    assert all(trace.program.meta["cores"]["ranks"] == 2 for trace in traces)


def test_bookkeeping_is_a_small_part_of_every_schedule(traces):
    for trace in traces:
        assert 0 < bookkeeping_ns(trace.program) <= MOST_BOOKKEEPING * trace.makespan_ps / 1000


def test_the_same_seed_draws_the_same_schedules(traces):
    again = schedule_traces(DRAWN, 2, np.random.default_rng(0))
    assert [trace.program for trace in again] == [trace.program for trace in traces[:2]]


def test_every_time_but_those_of_stores_is_paced():
    program = attention_program(DRAWN, np.random.default_rng(1))
    slower = paced(program, 3.0, 0)
    store = program.ops["kind"] == p.STORE
    assert (slower.ops["duration_ps"][store] == program.ops["duration_ps"][store]).all()
    assert (slower.ops["duration_ps"][~store] == 3 * program.ops["duration_ps"][~store]).all()


def test_pulls_leave_a_core_time_for_their_ops():
    program = megamoe_program(DRAWN, np.random.default_rng(1))
    pulls = (program.ops["kind"] == p.SIGNAL) & (program.ops["duration_ps"] > 0)
    assert program.ops["duration_ps"][pulls].min() > 20 * 40_000


def test_a_few_sms_keep_their_share_of_compute_and_get_the_calibrated_stage():
    base = load_machine("hgx-h100")
    few = few_sms(base, made_up_machine(), 2)
    assert few.sms == 2
    for name in ("bf16_tflops", "hbm_rate", "l2_rate", "l2_throughput"):
        own, whole = (getattr(machine.compute, name).value for machine in (few, base))
        assert own / few.sms == pytest.approx(whole / base.sms)
    assert few.stage == made_up_machine().stage


@pytest.mark.parametrize("cores", [1, 2])
def test_schedules_run_on_cores_with_the_ops_of_the_simulation(cores):
    if cores > len(usable_cores()):
        pytest.skip("needs two cores")
    drawn = Drawn(made_up_machine(), cores, DRAWN.times)
    few = schedule_traces(drawn, 2, np.random.default_rng(3))
    with Bench(cores, buffer_bytes=1 << 20, judges=False) as bench:
        tables = replay(few, bench, 3, np.random.default_rng(0))
    for trace, table in zip(few, tables, strict=True):
        simulated = judged_ops(trace)
        assert table.columns.tolist() == ["repeat", *simulated.columns]
        found = compare(simulated, table)
        assert found.repeats >= 3
        assert found.measured_issue_us > 0
        assert found.measured_makespan_us > 0
        for _, one in table.groupby("repeat"):
            assert (one["end_us"] >= one["start_us"] - 0.1).all()
            assert one["bytes"].sum() == simulated["bytes"].sum()
