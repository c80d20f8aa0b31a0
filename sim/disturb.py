"""One GPU or link that is not as good as the others: changes of a Program or a Fabric that leave the original alone.

slowed(program, gpu, factor)                  every COMPUTE of a GPU's lanes takes `factor` times as long
delayed(program, gpu, time_ps)                every lane of a GPU starts `time_ps` later
degraded_gpu(fabric, gpu, factor)             all ports of a GPU run at `factor` of their rate
degraded_link(fabric, first, second, factor)  both directions of one link do
degraded(fabric, factors)                     any ports, each at the smallest factor that it is given
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .errors import InputError
from .program import COMPUTE, Program
from .program_index import expand, gpu_of_queue, tasks_of_queues
from .traffic import link_ends

if TYPE_CHECKING:
    from .topologies import Node
    from .topology import Fabric


def slowed(program: Program, gpu: int, factor: float) -> Program:
    """`program` with the computing of one GPU `factor` times as long, to the nearest picosecond.

    A program in which that GPU computes nothing comes back as it is.
    Ops that its tasks share with those of other GPUs are copied. Raises `InputError` for a GPU that the program does not
    use or a factor below 1.
    """
    _check_gpu(gpu, program.n_gpus)
    if not 1 <= factor < np.inf:
        raise InputError("must be at least 1", field="factor", value=factor)
    queue, task = tasks_of_queues(program)
    mine = task[gpu_of_queue(program)[queue] == gpu]
    blocks, block_of_task = np.unique(program.tasks[mine][["first_run", "n_runs"]], return_inverse=True)
    runs = program.runs[expand(blocks["first_run"], blocks["n_runs"])[1]]
    ops = program.ops[expand(runs["first_op"], runs["n_ops"])[1]]
    computes = (ops["kind"] == COMPUTE) & (ops["duration_ps"] > 0)
    if not computes.any():
        return program
    ops["duration_ps"][computes] = np.rint(ops["duration_ps"][computes] * factor).astype(np.int64)
    runs["first_op"] = len(program.ops) + np.cumsum(runs["n_ops"]) - runs["n_ops"]
    tasks = program.tasks.copy()
    new_first = len(program.runs) + np.cumsum(blocks["n_runs"]) - blocks["n_runs"]
    tasks["first_run"][mine] = new_first[block_of_task]
    return replace(
        program,
        ops=np.concatenate([program.ops, ops]),
        runs=np.concatenate([program.runs, runs]),
        tasks=tasks,
    )


def delayed(program: Program, gpu: int, time_ps: int) -> Program:
    """`program` with every lane of one GPU starting `time_ps` later. Raises `InputError` for a GPU that it does not use."""
    _check_gpu(gpu, program.n_gpus)
    lanes = program.lanes.copy()
    lanes["start_ps"][lanes["gpu"] == gpu] += time_ps
    return replace(program, lanes=lanes)


def degraded_gpu(fabric: Fabric, gpu: int, factor: float) -> Fabric:
    """`fabric` with egress, ingress and links of one GPU at `factor` of their rate."""
    return degraded(fabric, [(ports_of_gpu(fabric, gpu), factor)])


def degraded_link(fabric: Fabric, first: Node, second: Node, factor: float) -> Fabric:
    """`fabric` with the link between two nodes at `factor` of its rate, both directions."""
    return degraded(fabric, [(ports_of_link(fabric, first, second), factor)])


def degraded(fabric: Fabric, factors: Iterable[tuple[Iterable[int], float]]) -> Fabric:
    """`fabric` with ports at factors of their rates. A port that is named more than once has the smallest of its factors:
    a link between two GPUs at half their rate runs at half of its own.
    """
    least: dict[int, float] = {}
    for ports, factor in factors:
        if not 0 < factor <= 1:
            raise InputError("must be above 0 and at most 1", field="factor", value=factor)
        least |= {port: min(factor, least.get(port, 1.0)) for port in ports}
    ports, by = list(least), np.array(list(least.values()))[:, None]
    rates = fabric.rates_kbs.copy()
    rates[ports] = np.maximum(1, (rates[ports] * by).astype(np.int64))
    return replace(fabric, rates_kbs=rates)


def ports_of_gpu(fabric: Fabric, gpu: int) -> list[int]:
    """Egress, ingress and links of a GPU. Raises `InputError` if it takes no part."""
    _check_gpu(gpu, fabric.n_gpus)
    return [port for port, name in enumerate(fabric.port_names) if str(gpu) in link_ends(name)]


def ports_of_link(fabric: Fabric, first: Node, second: Node) -> list[int]:
    """Both directions of the link between two nodes.

    Raises `InputError` if no link joins them: behind a switch that never blocks, GPUs have no links of their own.
    """
    names = (f"link {first}>{second}", f"link {second}>{first}")
    ports = [port for port, name in enumerate(fabric.port_names) if name in names]
    if not ports:
        links = sorted({name.removeprefix("link ") for name in fabric.port_names[2 * fabric.n_gpus :]})
        known = ", ".join(links[:8]) + (", ..." if len(links) > 8 else "") if links else "none here; give a gpu instead"
        raise InputError("are not joined by a link", field="between", value=f"{first}, {second}", allowed=known)
    return ports


def _check_gpu(gpu: int, n_gpus: int) -> None:
    if not 0 <= gpu < n_gpus:
        raise InputError("takes no part", field="gpu", value=gpu, allowed=f"0 to {n_gpus - 1}")
