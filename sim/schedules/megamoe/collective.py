"""What all ranks do together: the count exchange, the barriers, and the combine behind them.

One lane a GPU (role `comm`, on SM 0) speaks for its GPU. A barrier is a grid synchronisation, a signal to every GPU, and
another grid synchronisation once all signals have come. The barrier before the combine also waits until every returned
row is visible, which is what the kernels' release at system scope waits for.

    rank r      count, barrier 1 ..... L2 done, barrier 2 -------+
    receiver    barrier 1 ........................ barrier 2, combine, barrier 3

Each rank is its own receiver if all are simulated. If one rank stands for all, its mirror receives.

Left out: the 4-byte source indices of the count exchange, the cleanup (it overlaps the combine), and early combine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...program import COMPUTE, SIGNAL, WAIT
from ...program_builder import ProgramBuilder, Seat
from ...tile_cost import needed
from ...units import PS_PER_US
from .emit import Op
from .shape import MegaMoe
from .tiles import Rank

if TYPE_CHECKING:
    from ...machine import Machine


@dataclass(frozen=True)
class Receivers:
    """GPUs that combine, and how many arrivals each waits for; `visible` + gpu is the counter of its arrivals."""

    gpus: Sequence[int]
    visible: int
    arrivals: NDArray[np.int64]  # [gpus of the program]


def add_collective(
    builder: ProgramBuilder, machine: Machine, shape: MegaMoe, ranks: Sequence[Rank], receivers: Receivers
) -> None:
    """The comm lane of every GPU and the combine lanes of every receiver."""
    n_gpus = builder.n_gpus
    first, before_combine, last = (builder.counters(home=np.arange(n_gpus), cause="barrier") for _ in range(3))
    sync = int(needed(machine, "grid_sync"))
    rank_of_gpu = {rank.blocks.gpu: rank for rank in ranks}

    def meet(barrier: int, others: Sequence[int]) -> list[Op]:
        signals: list[Op] = [{"kind": SIGNAL, "counter": barrier + gpu, "count": 1} for gpu in others]
        return [{"kind": COMPUTE, "duration_ps": sync}, *signals]

    def met(barrier: int, gpu: int, count: int) -> list[Op]:
        return [{"kind": WAIT, "counter": barrier + gpu, "count": count}, {"kind": COMPUTE, "duration_ps": sync}]

    everyone = range(n_gpus)
    for gpu in everyone:
        rank = rank_of_gpu.get(gpu)
        tasks: list[tuple[str, list[Op]]] = [
            ("count", [{"kind": COMPUTE, "duration_ps": int(needed(machine, "count_rows"))}]),
            ("barrier", [*meet(first, everyone), *met(first, gpu, n_gpus)]),
        ]
        if rank is not None:
            tasks[-1][1].append({"kind": SIGNAL, "counter": rank.links.started, "count": 1})
            tasks += [("launch", ops) for ops in _launches(rank)]
            tasks.append(("barrier", [*_l2_done(rank), *meet(before_combine, receivers.gpus)]))
        if gpu in receivers.gpus:
            combined, go = builder.counters(home=[gpu, gpu], cause="barrier") + np.arange(2)
            lanes = _add_combine(builder, machine, shape, gpu, int(go), int(combined))
            arrived: Op = {"kind": WAIT, "counter": receivers.visible + gpu, "count": int(receivers.arrivals[gpu])}
            start: Op = {"kind": SIGNAL, "counter": int(go), "count": 1}
            tasks.append(("barrier", [arrived, *met(before_combine, gpu, len(ranks)), start]))
            ended: Op = {"kind": WAIT, "counter": int(combined), "count": lanes}
            tasks.append(("barrier", [ended, *meet(last, everyone)]))
        tasks.append(("barrier", met(last, gpu, len(receivers.gpus))))
        _add_lane(builder, gpu, tasks, max((r.start_ps for r in ranks if r.blocks.gpu == gpu), default=0))


def _l2_done(rank: Rank) -> list[Op]:
    tiles = int(rank.order.l2.sum())
    if rank.links.separate:
        tiles += rank.blocks.n_blocks  # and then the returns of whole blocks, see `unfused`
    return [{"kind": WAIT, "counter": rank.links.l2_done, "count": tiles}]


def _launches(rank: Rank) -> list[list[Op]]:
    """Between separate kernels: wait for all of the last one, the launch gap, and let the next one go."""
    links, machine, shape = rank.links, rank.machine, rank.shape
    if not links.separate:
        return []
    gap = int(needed(machine, "kernel_gap"))
    tiles = int((~rank.order.l2).sum())
    rows = int(rank.blocks.rows.sum())
    moved = rows * shape.intermediate * 2 * 2 + rows * shape.format.activation_bytes(shape.intermediate)
    swiglu = round(moved / rank.costs.hbm_bytes_per_us * PS_PER_US)
    return [
        [
            {"kind": WAIT, "counter": done, "count": count},
            {"kind": COMPUTE, "duration_ps": time},
            {"kind": SIGNAL, "counter": go, "count": 1},
        ]
        for done, count, time, go in (
            (links.pulled, rank.blocks.n_pulled, gap, links.go_l1),
            (links.l1_total, tiles, 2 * gap + swiglu, links.go_l2),
            (links.l2_done, int(rank.order.l2.sum()), gap, links.go_return),
        )
    ]


def _add_lane(builder: ProgramBuilder, gpu: int, tasks: Sequence[tuple[str, list[Op]]], start_ps: int) -> None:
    numbers = [builder.tasks(builder.op_list(ops), 1, phase=phase) for phase, ops in tasks]
    plan = builder.plan(repeat=[builder.queue(numbers)])
    builder.groups(gpu=gpu, plan=plan, seats=[Seat("comm", sm=0, start_ps=start_ps)])


def _add_combine(builder: ProgramBuilder, machine: Machine, shape: MegaMoe, gpu: int, go: int, combined: int) -> int:
    """Lanes that add up the top-k rows of the GPU's own tokens from HBM; returns how many there are."""
    sms = machine.sms
    tokens = shape.tokens // sms + (np.arange(sms) < shape.tokens % sms)
    tokens = tokens[tokens > 0]
    if not len(tokens):
        return 0
    token_bytes = shape.topk * shape.return_bytes(shape.hidden) + 2 * shape.hidden
    rate = needed(machine, "hbm_rate") * needed(machine, "hbm_efficiency") * 1e3 / sms / 1e12  # bytes in a ps
    times = np.maximum(np.ceil(tokens * token_bytes / rate).astype(np.int64), int(needed(machine, "combine_floor")))
    n = len(tokens)
    index = np.arange(n)
    waits = builder.runs(np.full(n, builder.ops(WAIT, counter=go, count=1)), 1) + index
    kinds, counters = [COMPUTE, SIGNAL], [-1, combined]
    adds = builder.ops(kinds, counter=counters, count=[0, 1], duration_ps=np.stack([times, 0 * times], axis=1))
    works = builder.runs(adds + 2 * index, 2) + index
    tasks = [builder.tasks(runs, 1, phase=phase) + index for runs, phase in ((waits, "barrier"), (works, "combine"))]
    plans = builder.private_plans(builder.queues(np.stack(tasks, axis=1).ravel(), np.full(n, 2)), n) + index
    builder.groups(gpu=gpu, plan=plans, seats=[Seat("combine", sm=index)])
    return n
