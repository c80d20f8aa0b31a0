"""Ranks of one GPU share its Q and its egress; what they store to may lie in the memory of another."""

from __future__ import annotations

import numpy as np
import pytest
from xstage.sim import program as p
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.program import Program
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.shared_gpus import shared_gpus
from xstage.sim.topology import Fabric, StageParameters, direct, switch
from xstage.sim.trace import Trace
from xstage.sim.traffic import to_next

STAGE = StageParameters(granule_bytes=512, capacity_sm_bytes=2048, capacity_gpu_bytes=16384, latency_ps=700)
HOST = switch(2, 10_000_000, STAGE)  # 100 ps a byte; GPU 1 is the far memory
BOTH_ENGINES = pytest.mark.parametrize("engine", ["compiled", "simpy"])


def trains(producers: list[int], bursts: int = 5, size: int = 4096, gap_ps: int = 300_000) -> Program:
    """`producers[r]` SMs of rank r store bursts to the next rank, with a gap after each."""
    ranks = max(2, len(producers))
    b = ProgramBuilder(ranks)
    for rank, count in enumerate(producers):
        row = b.destination({(rank + 1) % ranks: size})
        store = {"kind": p.STORE, "target": row, "bytes": size, "duration_ps": 50_000}
        run = b.op_list([store, {"kind": p.COMPUTE, "duration_ps": gap_ps}] * bursts)
        queues = b.queues(b.tasks(np.full(count, run), 1) + np.arange(count), np.ones(count, dtype=int))
        plans = b.private_plans(queues, count) + np.arange(count)
        b.groups(gpu=rank, plan=plans, seats=[Seat("producer", sm=np.arange(count))])
    return b.build()


def run(program: Program, fabric: Fabric, engine: str = "compiled") -> Trace:
    return simulate(program, fabric, engine=engine, trace="full")  # type: ignore[arg-type]


@BOTH_ENGINES
@pytest.mark.parametrize("spread", [[6, 6], [11, 1], [4, 4, 4], [3] * 4])
def test_producers_of_several_ranks_on_one_gpu_are_as_many_producers_of_one_rank(
    spread: list[int], engine: str
) -> None:
    alone = run(trains([sum(spread)]), HOST, engine).outcome
    ranks = len(spread)
    together = run(trains(spread), shared_gpus(HOST, [0] * ranks, [1] * ranks), engine).outcome
    assert alone.lanes["stall_ps"].sum() > 0
    assert (together.lanes == alone.lanes).all()
    for name in ("admitted_ps", "drained_ps", "visible_ps", "bytes", "lane"):
        assert (together.granule_records[name] == alone.granule_records[name]).all()
    assert together.peak_gpu_bytes.tolist() == [alone.peak_gpu_bytes[0]] * ranks
    assert (together.events, together.arrived_ps) == (alone.events, alone.arrived_ps)


def test_on_gpus_of_their_own_the_same_ranks_do_not_wait_for_each_other() -> None:
    own, shared = run(trains([6, 6]), HOST).outcome, run(trains([6, 6]), shared_gpus(HOST, [0, 0], [1, 1])).outcome
    assert own.lanes["stall_ps"].sum() < shared.lanes["stall_ps"].sum()
    assert own.arrived_ps < shared.arrived_ps


def test_all_that_ranks_store_passes_one_egress_and_one_ingress() -> None:
    ports = run(trains([2, 2, 2]), shared_gpus(HOST, [0] * 3, [1] * 3)).ports().set_index("port")["bytes"]
    stored = 3 * 2 * 5 * 4096
    assert ports[ports > 0].to_dict() == {"egress of rank 0": stored, "ingress of memory 1": stored}


def test_two_ranks_on_each_of_two_gpus_share_in_pairs() -> None:
    """Ranks 0 and 1 on GPU 0 store to the next rank, all of them into the memory of GPU 2: two stages are in use."""
    three = switch(3, 10_000_000, STAGE)
    fabric = shared_gpus(three, [0, 0, 1, 1], [2] * 4)
    assert fabric.stages.tolist() == [0, 0, 2, 2, 4]
    outcome = run(trains([8, 4, 1, 0]), fabric).outcome
    assert outcome.peak_gpu_bytes[0] == outcome.peak_gpu_bytes[1] > outcome.peak_gpu_bytes[2] > 0
    assert to_next(fabric).rate_kbs == 10_000_000 / 4  # four ranks store through one ingress


def test_links_between_gpus_are_kept() -> None:
    fabric = shared_gpus(direct(3, 1_000_000, STAGE), [0, 0, 1], [2, 2, 1])
    names = [[fabric.port_names[port] for port in fabric.route(a, b)] for a, b in ((0, 1), (1, 2), (2, 0))]
    assert names == [
        ["egress of rank 0", "link 0>2", "ingress of memory 2"],
        ["egress of rank 0", "link 0>1", "ingress of rank 2"],
        ["egress of rank 2", "link 1>2", "ingress of memory 2"],
    ]


@BOTH_ENGINES
def test_a_load_comes_back_the_other_way(engine: str) -> None:
    """It does not wait for the stores of the other rank, as it would at the egress of a GPU that stores."""

    def pull_ps(fabric: Fabric, storing: bool) -> int:
        b = ProgramBuilder(2)
        got = b.counters(home=0, cause="inputs")
        load = {"kind": p.LOAD, "target": 1, "bytes": 4096, "counter": got}
        pull = b.op_list([load, {"kind": p.WAIT, "counter": got, "count": 1}])
        plan = b.plan(repeat=[b.queue([b.tasks(pull, 1)])])
        b.groups(gpu=0, plan=plan, seats=[Seat("dispatch", window=1, start_ps=1)])
        if storing:
            row = b.destination({0: 1 << 16})
            store = b.op_list([{"kind": p.STORE, "target": row, "bytes": 1 << 16}])
            b.groups(gpu=1, plan=b.plan(repeat=[b.queue([b.tasks(store, 1)])]), seats=[Seat("store")])
        return int(run(b.build(), fabric, engine).outcome.lanes["end_ps"][0])

    shared = shared_gpus(HOST, [0, 0], [1, 1])
    assert pull_ps(shared, storing=True) == pull_ps(shared, storing=False) == pull_ps(HOST, storing=False)
    assert pull_ps(HOST, storing=True) > pull_ps(HOST, storing=False)


@BOTH_ENGINES
def test_a_rank_sees_the_signal_of_another_after_its_stores(engine: str) -> None:
    b = ProgramBuilder(2)
    arrived, flag = b.counters(home=1, cause="inputs"), b.counters(home=1, cause="peer")
    row = b.destination({1: 8192})
    store = {"kind": p.STORE, "target": row, "bytes": 8192, "counter": arrived}
    send = b.op_list([store, {"kind": p.SIGNAL, "counter": flag, "count": 1}])
    b.groups(gpu=0, plan=b.plan(repeat=[b.queue([b.tasks(send, 1)])]), seats=[Seat("store")])
    waits = [{"kind": p.WAIT, "counter": counter, "count": 1} for counter in (flag, arrived)]
    b.groups(gpu=1, plan=b.plan(repeat=[b.queue([b.tasks(b.op_list(waits), 1)])]), seats=[Seat("mma")])
    seen = run(b.build(), shared_gpus(HOST, [0, 0], [1, 1]), engine).ops().query("kind == 'wait'")["wait_us"].tolist()
    assert seen == [((8192 + 32) * 100 + 700) / 1e6, 0.0]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(
        InputError, match="lets ranks 0 and 1 meet in the memory of GPU 0: such a store never leaves it"
    ):
        shared_gpus(HOST, [0, 0])
    with pytest.raises(InputError, match=r"gpu_of_rank = \[0, 2\]: names a GPU that there is not"):
        shared_gpus(HOST, [0, 2], [1, 1])
    with pytest.raises(InputError, match=r"memory_of_rank = \[1\]: is not one for each rank"):
        shared_gpus(HOST, [0, 0], [1])
    with pytest.raises(InputError, match="has ranks that share GPUs already"):
        shared_gpus(shared_gpus(HOST, [0, 0], [1, 1]), [0, 0], [1, 1])
