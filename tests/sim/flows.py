"""Programs that do nothing but send, and how fast that goes: for tests that hold topologies against closed forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from xstage.sim.execute import simulate
from xstage.sim.program import LOAD, STORE, Program
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.topology import Fabric, StageParameters

GBS = 1_000_000
ROOMY = StageParameters(granule_bytes=1024, capacity_sm_bytes=1 << 18, capacity_gpu_bytes=1 << 20, latency_ps=410_000)


def sending(n_gpus: int, receivers: Mapping[int, Sequence[int]], size: int = 512 << 10) -> Program:
    """One SM of each sender deals `size` for each of its receivers, granule by granule; issuing costs next to nothing."""
    builder = ProgramBuilder(n_gpus)
    for sender, its_receivers in receivers.items():
        shares = {receiver: size * times for receiver, times in Counter(its_receivers).items()}
        op = builder.ops(STORE, target=builder.destination(shares), bytes=sum(shares.values()), duration_ps=1)
        task = builder.tasks(builder.runs(op, 1), 1, phase="send")
        builder.groups(gpu=sender, plan=builder.plan([], [builder.queue([int(task)])]), seats=[Seat("sender", 0)])
    return builder.build()


def rate_gbs(fabric: Fabric, receivers: Mapping[int, Sequence[int]], size: int = 512 << 10) -> float:
    """What all senders send together, until the last byte is drained."""
    trace = simulate(sending(fabric.n_gpus, receivers, size), fabric, trace="full")
    drained = trace.outcome.granule_records["drained_ps"].max()
    return float(sum(len(its) for its in receivers.values()) * size * 1e3 / drained)


def everyone(n_gpus: int) -> dict[int, list[int]]:
    """All to all; each begins with the next."""
    return {g: [(g + step) % n_gpus for step in range(1, n_gpus)] for g in range(n_gpus)}


def loading(n_gpus: int, owners: dict[int, list[int]], size: int = 16 << 10) -> Program:
    """One SM of each puller loads `size` from each of its owners, with all requests in flight at once."""
    builder = ProgramBuilder(n_gpus)
    for puller, its_owners in owners.items():
        run = builder.op_list([{"kind": LOAD, "target": owner, "bytes": size} for owner in its_owners])
        plan = builder.plan(repeat=[builder.queue([builder.tasks(run, 1)])])
        builder.groups(gpu=puller, plan=plan, seats=[Seat("dispatch", window=len(its_owners))])
    return builder.build()
