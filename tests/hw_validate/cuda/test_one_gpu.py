"""Several ranks on one GPU share one egress and one Q in the simulator, as they do on the hardware."""

import numpy as np
import pytest
from xstage.hw_validate.cuda.one_gpu import folded, original_op
from xstage.sim.errors import ProgramError
from xstage.sim.execute import simulate
from xstage.sim.program import COMPUTE, SIGNAL, STORE, WAIT
from xstage.sim.program_builder import ProgramBuilder, Seat

from ..made_up_hardware import made_up_machine

KIB = 1024


def all_to_next(ranks, size=14_000, sms=1, own=0):
    """Every rank stores `size` bytes to the next one, on each of `sms` SMs."""
    b = ProgramBuilder(ranks)
    for rank in range(ranks):
        shares = {(rank + 1) % ranks: size} | ({rank: own} if own else {})
        row = b.destination(shares)
        run = b.op_list([{"kind": STORE, "target": row, "bytes": size + own, "duration_ps": 100_000}])
        tasks = b.tasks(np.full(sms, run), 1, phase="burst")
        plans = b.private_plans(b.queues(tasks + np.arange(sms), np.ones(sms, dtype=int)), sms)
        b.groups(gpu=rank, plan=plans + np.arange(sms), seats=[Seat("producer", sm=np.arange(sms))])
    return b.build()


def test_ranks_share_one_q():
    """14 KB fit the stage; from two ranks at once they do not, because the GPU has one stage for both."""
    machine = made_up_machine()
    alone = simulate(folded(all_to_next(2, 6_000), 1), machine.fabric(), trace="full")
    together = simulate(folded(all_to_next(2, 14_000), 1), machine.fabric(), trace="full")
    assert alone.ops()["stall_us"].max() == 0
    assert together.ops()["stall_us"].max() > 0
    assert together.outcome.peak_gpu_bytes[0] <= 14_000


def test_ranks_share_one_egress():
    """What two ranks store passes one port: the last byte leaves after all of them at R."""
    machine = made_up_machine()
    trace = simulate(folded(all_to_next(2, 14_000), 1), machine.fabric(), trace="full")
    assert trace.ports()["bytes"].tolist()[0] == 28_000
    assert trace.granules()["drained_us"].max() >= 28_000 / 45_000


def test_own_shares_stay_on_the_gpu():
    trace = simulate(folded(all_to_next(3, 2_000, own=512), 1), made_up_machine().fabric(), trace="full")
    assert trace.ports()["bytes"].tolist()[0] == 3 * 2_000


def test_lanes_tasks_and_ops_are_those_of_the_program():
    program = all_to_next(3, 2_000, sms=2)
    made = folded(program, 2)
    assert made.lanes["sm"].tolist() == list(range(6))
    assert len(made.tasks) == len(program.tasks)
    trace = simulate(made, made_up_machine().fabric(), trace="full")
    ran = trace.ops().sort_values("lane")
    assert original_op(made, ran["op"].to_numpy()).tolist() == [0, 0, 1, 1, 2, 2]


def test_a_rank_can_wait_for_itself():
    b = ProgramBuilder(2)
    counter = b.counters(home=1, cause="inputs")
    row = b.destination({0: 1_024})
    first = b.op_list([
        {"kind": COMPUTE, "duration_ps": 1000},
        {"kind": SIGNAL, "counter": counter, "count": 1},
        {"kind": WAIT, "counter": counter, "count": 1},
        {"kind": STORE, "target": row, "bytes": 1_024, "duration_ps": 10_000},
    ])  # fmt: skip
    plan = b.plan(repeat=[b.queue([b.tasks(first, 1, phase="a")])])
    b.groups(gpu=1, plan=plan, seats=[Seat("producer")])
    trace = simulate(folded(b.build(), 1), made_up_machine().fabric(), trace="full")
    assert trace.makespan_ps > 0


def test_a_signal_between_ranks_is_refused_by_name():
    b = ProgramBuilder(2)
    counter = b.counters(home=1, cause="peer")
    run = b.op_list([{"kind": SIGNAL, "counter": counter, "count": 1}])
    plan = b.plan(repeat=[b.queue([b.tasks(run, 1, phase="a")])])
    b.groups(gpu=0, plan=plan, seats=[Seat("producer")])
    with pytest.raises(ProgramError, match=r"ops\[0\], a SIGNAL of rank 0, bumps a counter of another rank"):
        folded(b.build(), 1)


def test_more_sms_than_a_rank_has_are_refused():
    with pytest.raises(ProgramError, match="a lane is on SM 1, but each of 2 ranks on one GPU has 1 SMs"):
        folded(all_to_next(2, 512, sms=2), 1)
