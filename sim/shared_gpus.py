"""Several ranks on one GPU: a Fabric whose GPUs are the ranks of a Program, and share the stages and ports of real ones.

Ranks of one GPU have SMs of their own, and ONE Q and ONE egress for whatever they store to other ranks. What a rank hands
out lies in the memory of a GPU, which need not be the one on which the rank runs: the far memory of a machine, such as the
host's, is a GPU on which nothing runs.

    store from a to b    the stage and egress of a's GPU ... the ingress of b's memory
    load by a from b     a request from a's egress, over links; the reply from the egress of b's memory ... to a's ingress

Two ranks on a GPU that keeps the memory of both are refused: what one stores to the other never leaves the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from .errors import InputError
from .topology import Array, Fabric


def shared_gpus(fabric: Fabric, gpu_of_rank: Sequence[int], memory_of_rank: Sequence[int] | None = None) -> Fabric:
    """Rank r runs on GPU `gpu_of_rank[r]` of `fabric`, with its memory on GPU `memory_of_rank[r]` (default: the same).

    GPU r of the result is rank r. Its stage and its ports are those of the first rank on its GPU; the ports of the others
    carry nothing. Memory on a GPU without ranks comes after the ranks, as one more GPU. Latencies are those of stores, from
    a rank's GPU to the other's memory; a reply takes as long as a store from its owner to the puller.

    One GPU that stores to the host's memory, for four ranks: `shared_gpus(machine.fabric(2), [0] * 4, [1] * 4)`.

    Raises `InputError` for a GPU that `fabric` does not have, and for two ranks with the same GPU and memory.
    """
    memory_of_rank = gpu_of_rank if memory_of_rank is None else memory_of_rank
    _check(fabric, gpu_of_rank, memory_of_rank)
    far = sorted(set(memory_of_rank) - set(gpu_of_rank))
    runs_on, memory_on = [*gpu_of_rank, *far], [*memory_of_rank, *far]
    n, old = len(runs_on), fabric.n_gpus
    first_on = {gpu: runs_on.index(gpu) for gpu in runs_on}
    port = first_on | {old + gpu: n + first for gpu, first in first_on.items()}
    port |= {old_port: 2 * (n - old) + old_port for old_port in range(2 * old, fabric.n_ports)}
    by_pair = [(a, b) for a in range(n) for b in range(n)]
    stores = [fabric.route(runs_on[a], memory_on[b]) if a != b else [] for a, b in by_pair]
    replies = [fabric.route(memory_on[a], runs_on[b]) if a != b else [] for a, b in by_pair]
    latency = fabric.latency_ps[np.ix_(runs_on, memory_on)]
    np.fill_diagonal(latency, np.diag(fabric.latency_ps)[runs_on])
    ends = [*(f"of rank {rank}" for rank in range(len(gpu_of_rank))), *(f"of memory {gpu}" for gpu in far)]
    own_ports = [*runs_on, *(old + gpu for gpu in runs_on)]
    return replace(
        fabric,
        n_gpus=n,
        capacity_sm=fabric.capacity_sm[runs_on],
        capacity_gpu=fabric.capacity_gpu[runs_on],
        rates_kbs=np.concatenate([fabric.rates_kbs[own_ports], fabric.rates_kbs[2 * old :]]),
        route_first=_offsets(stores),
        route_ports=_renumbered(stores, port),
        latency_ps=latency,
        port_names=(*(f"{way} {end}" for way in ("egress", "ingress") for end in ends), *fabric.port_names[2 * old :]),
        stage_of_gpu=np.array([first_on[gpu] for gpu in runs_on]),
        reply_first=_offsets(replies),
        reply_ports=_renumbered(replies, port),
    )


def _check(fabric: Fabric, gpu_of_rank: Sequence[int], memory_of_rank: Sequence[int]) -> None:
    if fabric.stage_of_gpu is not None:
        raise InputError("has ranks that share GPUs already", field="fabric", value=fabric.stage_of_gpu.tolist())
    if len(memory_of_rank) != len(gpu_of_rank):
        raise InputError("is not one for each rank", field="memory_of_rank", value=memory_of_rank)
    for name, gpus in (("gpu_of_rank", gpu_of_rank), ("memory_of_rank", memory_of_rank)):
        if not set(gpus) <= set(range(fabric.n_gpus)):
            allowed = f"0 to {fabric.n_gpus - 1}"
            raise InputError("names a GPU that there is not", field=name, value=gpus, allowed=allowed)
    for a, gpu in enumerate(gpu_of_rank):
        for b, memory in enumerate(memory_of_rank):
            if a != b and gpu == memory:
                reason = f"lets ranks {a} and {b} meet in the memory of GPU {gpu}: such a store never leaves it"
                raise InputError(reason, field="memory_of_rank", value=memory_of_rank)


def _offsets(routes: Sequence[Sequence[int]]) -> Array:
    return np.cumsum([0, *map(len, routes)]).astype(np.int32)


def _renumbered(routes: Sequence[Sequence[int]], port: Mapping[int, int]) -> Array:
    return np.array([port[one] for one in chain.from_iterable(routes)], dtype=np.int32)
