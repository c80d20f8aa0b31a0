"""What all ranks do together: the count exchange, the barriers, and the cleanup beside the combine.

One lane a GPU (role `comm`, on SM 0) speaks for its GPU. A barrier is a grid synchronisation, a signal to every GPU, and
another grid synchronisation once all signals have come. The barrier before the combine also waits until every returned
row is visible, which is what the kernels' release at system scope waits for. After it the epilogue warps combine, and
the dispatch warps clear the workspace and meet in barrier 3 at the same time: the kernel ends with the later of the two.

    rank r      count, barrier 1 ..... L2 done, barrier 2 -------+
    receiver    barrier 1 ............................ barrier 2 +- combine
                                                                 +- cleanup, barrier 3

Each rank is its own receiver if all are simulated. If one rank stands for all, its mirror receives.

Cleanup: SMs but one take the local experts in turn. Each reads its counts (a round trip to L2, the machine's
`local_latency` twice) and zeroes its counters, which nobody waits for (`sm100_fp8_fp4_mega_moe.cuh` of
https://github.com/deepseek-ai/DeepGEMM).

Left out: the 4-byte source indices of the count exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...program import COMPUTE, SIGNAL, WAIT
from ...program_builder import ProgramBuilder, Seat
from ...tile_cost import needed
from ...units import PS_PER_US
from ..op_variants import Op, op_variants
from .combine import Done, add_combine, add_early_combine
from .flags import Flags
from .grouped_gemm import activated_rows, expanded_bytes
from .shape import MegaMoe
from .tiles import Rank

if TYPE_CHECKING:
    from ...machine import Machine


@dataclass(frozen=True)
class Receivers:
    """GPUs that combine, what counts the rows that they wait for, and where tokens are combined early what each needs.

    Each combines the tokens of the rank of the same place.
    """

    gpus: Sequence[int]
    flags: Flags
    early: Sequence[Done] = ()


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
            barrier = [*_arrived(receivers, gpu), *met(before_combine, gpu, len(ranks))]
            place = receivers.gpus.index(gpu)
            if receivers.early:
                add_early_combine(builder, machine, shape, gpu, receivers.early[place], ranks[place].token_rows)
            else:
                go = builder.counters(home=gpu, cause="barrier")
                add_combine(builder, machine, shape, gpu, go, ranks[place].token_rows)
                barrier.append({"kind": SIGNAL, "counter": go, "count": 1})
            tasks.append(("barrier", barrier))
            tasks.append(("cleanup", [{"kind": COMPUTE, "duration_ps": _cleanup_ps(machine, shape)}]))
            tasks.append(("barrier", meet(last, everyone)))
        tasks.append(("barrier", met(last, gpu, len(receivers.gpus))))
        _add_lane(builder, gpu, tasks, max((r.start_ps for r in ranks if r.blocks.gpu == gpu), default=0))


def _arrived(receivers: Receivers, gpu: int) -> list[Op]:
    """Wait for all rows that return to a GPU."""
    arrivals = receivers.flags.arrivals[:, gpu]
    raised = np.flatnonzero(arrivals)
    counters = receivers.flags.counters(raised) + gpu
    return [
        {"kind": WAIT, "counter": int(counter), "count": int(count)}
        for counter, count in zip(counters, arrivals[raised], strict=True)
    ]


def _cleanup_ps(machine: Machine, shape: MegaMoe) -> int:
    experts = shape.shared_experts + shape.local_experts
    return -(-experts // max(1, machine.sms - 1)) * 2 * machine.interconnect.local_latency.value


def _l2_done(rank: Rank) -> list[Op]:
    done = int(rank.order.l2.sum())
    if rank.links.separate:
        done += int(rank.blocks.rows.sum())  # which are returned after the tiles, see `unfused`
    return [{"kind": WAIT, "counter": rank.links.l2_done, "count": done}]


def _launches(rank: Rank) -> list[list[Op]]:
    """Between launches: wait for all of the last kernel, the launch gap, and let the next one go."""
    links, shape, gap = rank.links, rank.shape, rank.launch_gap_ps
    if not links.l2_launched:
        return []
    l1_tiles, l2_tiles = int((~rank.order.l2).sum()), int(rank.order.l2.sum())
    between = [(links.l1_total, l1_tiles, gap, links.go_l2)]
    if links.separate:
        blocks, gemm = rank.blocks, rank.kernel.gemm
        shared = int(blocks.rows[blocks.is_shared].sum())
        activated = shared + activated_rows(gemm, shape, blocks.n_pulled, blocks.routed_experts)
        row = shape.intermediate * 2 * 2 + shape.format.activation_bytes(shape.intermediate)
        moved = activated * row, expanded_bytes(gemm, shape, blocks.n_pulled)
        swiglu, expanded = (round(size / rank.costs.hbm_bytes_per_us * PS_PER_US) for size in moved)
        between = [
            (links.pulled, rank.blocks.n_pulled, gap + expanded, links.go_l1),
            (links.l1_total, l1_tiles, 2 * gap + swiglu, links.go_l2),
            (links.l2_done, l2_tiles, gap, links.go_return),
        ]
    return [
        [
            {"kind": WAIT, "counter": done, "count": count},
            {"kind": COMPUTE, "duration_ps": time},
            {"kind": SIGNAL, "counter": go, "count": 1},
        ]
        for done, count, time, go in between
    ]


def _add_lane(builder: ProgramBuilder, gpu: int, tasks: Sequence[tuple[str, list[Op]]], start_ps: int) -> None:
    n_ops = np.array([len(ops) for _, ops in tasks])
    first = op_variants(builder, 1, [op for _, ops in tasks for op in ops]).first[0]
    run = builder.runs(first + np.cumsum(n_ops) - n_ops, n_ops)
    numbers = [builder.tasks(run + i, 1, phase=phase) for i, (phase, _) in enumerate(tasks)]
    plan = builder.plan(repeat=[builder.queue(numbers)])
    builder.groups(gpu=gpu, plan=plan, seats=[Seat("comm", sm=0, start_ps=start_ps)])
