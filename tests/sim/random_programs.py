"""Random Programs with everything in them, for tests that hold two engines against each other.

Times and sizes are small whole numbers, so that many things happen at the same instant. About a third can never finish.
"""

from __future__ import annotations

import numpy as np
from xstage.sim import program as p
from xstage.sim.mirror import mirrored
from xstage.sim.program import Program
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.shared_gpus import shared_gpus
from xstage.sim.topology import Fabric, StageParameters, direct, switch

KBS_PER_BYTE_PER_PS = 10**9
OP_MIX = [p.COMPUTE] * 4 + [p.STORE] * 6 + [p.LOAD] * 3 + [p.SIGNAL] * 4 + [p.WAIT] * 2 + [p.RELEASE] * 2


def random_case(seed: int) -> tuple[Program, Fabric]:
    """A Program and a Fabric that it fits on; the same for the same seed."""
    rng = np.random.default_rng(seed)
    n_gpus = int(rng.choice([1, 2, 2, 3, 4, 8]))
    return random_program(rng, n_gpus), random_fabric(rng, n_gpus)


def random_fabric(rng: np.random.Generator, n_gpus: int) -> Fabric:
    stage = random_stage(rng)
    rate = int(rng.choice([1, 2, 3])) * KBS_PER_BYTE_PER_PS // int(rng.choice([1, 1, 4]))
    fabric = (switch if rng.random() < 0.6 else direct)(n_gpus, rate, stage)
    if n_gpus == 2 and stage.latency_ps and rng.random() < 0.3:
        return mirrored(fabric)
    return randomly_shared(rng, fabric) if rng.random() < 0.3 else fabric


def randomly_shared(rng: np.random.Generator, fabric: Fabric) -> Fabric:
    """As many ranks as there are GPUs, some of them together on one; the last GPU is the memory of ranks that share one."""
    if fabric.n_gpus < 2:
        return fabric
    far = fabric.n_gpus - 1
    gpu_of_rank = rng.integers(0, rng.integers(1, far + 1), fabric.n_gpus)
    alone = np.bincount(gpu_of_rank)[gpu_of_rank] == 1
    memory = np.where(alone & (rng.random(fabric.n_gpus) < 0.5), gpu_of_rank, far)
    return shared_gpus(fabric, gpu_of_rank.tolist(), memory.tolist())


def random_stage(rng: np.random.Generator) -> StageParameters:
    granule = int(rng.choice([1, 3, 4, 16]))
    signal = int(rng.integers(1, granule + 1))
    room = int(rng.integers(granule, 5 * granule + 1))
    return StageParameters(
        granule_bytes=granule,
        capacity_sm_bytes=room,
        capacity_gpu_bytes=int(rng.integers(room, 3 * room + 1)) if rng.random() < 0.7 else granule,
        latency_ps=int(rng.choice([0, 1, 7, 50])),
        local_latency_ps=int(rng.choice([0, 3])),
        fan_out_efficiency=float(rng.choice([1.0, 0.5])),
        reduce_efficiency=float(rng.choice([1.0, 0.25])),
        signal_bytes=signal,
        request_permille=int(rng.choice([0, 190, 500])),
        fair_replies=bool(rng.random() < 0.4),
    )


def random_program(rng: np.random.Generator, n_gpus: int) -> Program:
    builder = ProgramBuilder(n_gpus)
    n_counters = int(rng.integers(1, 4))
    for _ in range(n_counters):
        cause = str(rng.choice(p.COUNTER_CAUSES))
        builder.counters(home=np.arange(n_gpus), cause=cause, initial=rng.integers(0, 4, n_gpus))
    rows = [_random_destination(rng, builder, n_gpus) for _ in range(6)]
    for gpu in range(n_gpus):
        _random_gpu(rng, builder, gpu, n_gpus, n_counters, rows)
    return builder.build()


def _random_destination(rng: np.random.Generator, builder: ProgramBuilder, n_gpus: int) -> tuple[int, int, bool]:
    """A row, the bytes that a store to it issues, and whether it is a multicast."""
    receivers = rng.permutation(n_gpus)[: int(rng.integers(0, n_gpus + 1))]
    if rng.random() < 0.3:
        size = int(rng.integers(1, 40))
        row = builder.destination({int(gpu): size for gpu in receivers}, replicate=True)
        return row, size if len(receivers) else 0, True
    shares = {int(gpu): int(rng.integers(1, 40)) for gpu in receivers}
    return builder.destination(shares), sum(shares.values()), False


def _random_gpu(
    rng: np.random.Generator,
    builder: ProgramBuilder,
    gpu: int,
    n_gpus: int,
    n_counters: int,
    rows: list[tuple[int, int, bool]],
) -> None:
    n_seats, n_slots, n_groups = int(rng.integers(1, 4)), int(rng.integers(0, 3)), int(rng.integers(1, 4))
    queues = []
    guards_in_use = rng.random() < 0.4
    for _ in range(int(rng.integers(1, 4))):
        tasks = []
        for _ in range(int(rng.integers(0, 5))):
            runs = [
                builder.op_list(
                    _with_next_where_allowed(
                        [_random_op(rng, gpu, n_gpus, n_counters, n_slots, rows) for _ in range(rng.integers(0, 6))]
                    )
                )
                for _ in range(n_seats)
            ]
            counters = rng.integers(0, n_counters, 2) * n_gpus + gpu
            guarded = counters[: rng.integers(0, 3)] if guards_in_use else []
            guards = [(int(counter), int(rng.integers(0, 3))) for counter in guarded]
            tasks.append(builder.tasks(runs[0], n_seats, guards=guards, phase=str(rng.choice(["a", "b"]))))
        queues.append(builder.queue(tasks))
    for _ in range(n_groups):
        prefix = [_random_step(rng, queues) for _ in range(rng.integers(0, 3))]
        repeat = [_random_step(rng, queues) for _ in range(rng.integers(0, 3))]
        plan = builder.plan(prefix, [*repeat, *queues])
        builder.groups(
            gpu=gpu,
            plan=plan,
            seats=[
                Seat(f"role{seat}", int(rng.integers(0, 3)), int(rng.integers(1, 4)), int(rng.choice([0, 0, 5])))
                for seat in range(n_seats)
            ],
            slots=[int(rng.integers(0, 3)) for _ in range(n_slots)],
            ahead=int(rng.choice([0, 1, p.UNLIMITED_AHEAD])),
        )


def _random_step(rng: np.random.Generator, queues: list[int]) -> tuple[int, int, int]:
    other = int(rng.choice([*queues, p.NO_QUEUE]))
    return int(rng.choice(queues)), other, int(rng.integers(0, 3))


def _with_next_where_allowed(ops: list[dict[str, int]]) -> list[dict[str, int]]:
    """The flag stays on STOREs with bytes that another such follows."""
    issues = [op["kind"] == p.STORE and op["bytes"] > 0 for op in ops] + [False]
    kept = [issues[i] and issues[i + 1] for i in range(len(ops))]
    return [
        op if keep or "flags" not in op else op | {"flags": op["flags"] & ~p.WITH_NEXT}
        for op, keep in zip(ops, kept, strict=True)
    ]


def _random_op(
    rng: np.random.Generator, gpu: int, n_gpus: int, n_counters: int, n_slots: int, rows: list[tuple[int, int, bool]]
) -> dict[str, int]:
    time = int(rng.choice([0, 0, 1, 4, 10]))
    counter = int(rng.integers(0, n_counters)) * n_gpus
    maybe = counter if rng.random() < 0.5 else p.NO_COUNTER
    kind = int(rng.choice(OP_MIX))
    if kind == p.STORE:
        row, size, multicast = rows[rng.integers(0, len(rows))]
        return {
            "kind": kind,
            "target": row,
            "bytes": size,
            "counter": maybe,
            "stride": 1,
            "duration_ps": time * 7 if size else 0,
            "flags": int(rng.integers(0, 8 if multicast else 16)),
        }
    if kind == p.LOAD:
        local = p.NO_COUNTER if maybe == p.NO_COUNTER else maybe + gpu
        owner, size = int(rng.integers(0, n_gpus)), int(rng.integers(1, 40))
        return {"kind": kind, "target": owner, "bytes": size, "counter": local}
    if kind == p.SIGNAL:
        home = int(rng.integers(0, n_gpus)) if rng.random() < 0.5 else gpu
        return {"kind": kind, "counter": counter + home, "count": int(rng.integers(1, 3)), "duration_ps": time}
    if kind == p.WAIT:
        return {"kind": kind, "counter": counter + gpu, "count": int(rng.integers(0, 4))}
    if kind == p.RELEASE and n_slots:
        kind = p.RELEASE if rng.random() < 0.7 else p.ACQUIRE
        return {"kind": kind, "counter": int(rng.integers(0, n_slots)), "count": 1}
    return {"kind": p.COMPUTE, "duration_ps": time}
