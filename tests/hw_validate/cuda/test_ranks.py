"""Ranks on one GPU share its egress and its Q in the simulator, as they do on the hardware; on several GPUs they do not."""

import numpy as np
import pytest
from xstage.hw_validate.cuda.ranks import fabric_of_ranks, simulated_ranks
from xstage.sim.errors import InputError
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
    small = simulated_ranks(all_to_next(2, 6_000), machine, "host")
    large = simulated_ranks(all_to_next(2, 14_000), machine, "host")
    apart = simulated_ranks(all_to_next(2, 14_000), machine, "peer")
    assert small.ops()["stall_us"].max() == 0
    assert large.ops()["stall_us"].max() > 0
    assert apart.ops()["stall_us"].max() == 0
    assert large.outcome.peak_gpu_bytes[0] <= 14_000


def test_ranks_share_one_egress():
    """What two ranks store passes one port: the last byte leaves after all of them at R."""
    machine = made_up_machine()
    trace = simulated_ranks(all_to_next(2, 14_000), machine, "host")
    assert trace.ports()["bytes"].tolist()[0] == 28_000
    assert trace.granules()["drained_us"].max() >= 28_000 / 45_000


def test_own_shares_stay_on_the_gpu():
    trace = simulated_ranks(all_to_next(3, 2_000, own=512), made_up_machine(), "host")
    assert trace.ports()["bytes"].tolist()[0] == 3 * 2_000


def test_a_rank_waits_for_what_another_stores_on_the_same_gpu():
    """14 KB at 45 GB/s take 311 ns to drain; the flag follows them."""
    b = ProgramBuilder(2)
    counter = b.counters(home=1, cause="peer")
    row = b.destination({1: 14_000})
    send = b.op_list([
        {"kind": STORE, "target": row, "bytes": 14_000, "duration_ps": 10_000},
        {"kind": SIGNAL, "counter": counter, "count": 1},
    ])  # fmt: skip
    wait = b.op_list([
        {"kind": WAIT, "counter": counter, "count": 1},
        {"kind": COMPUTE, "duration_ps": 1000},
    ])  # fmt: skip
    for rank, run in enumerate((send, wait)):
        plan = b.plan(repeat=[b.queue([b.tasks(run, 1, phase="a")])])
        b.groups(gpu=rank, plan=plan, seats=[Seat("producer")])
    ops = simulated_ranks(b.build(), made_up_machine(), "host").ops()
    (wait_us,) = ops[ops["kind"] == "wait"]["wait_us"]
    assert 14_000 / 45_000 <= wait_us < 14_000 / 45_000 + 0.02


def test_more_gpus_than_the_machine_has_are_refused():
    with pytest.raises(InputError, match="gpus = 3"):
        fabric_of_ranks(made_up_machine(), 3, "peer")
