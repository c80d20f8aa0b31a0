"""Warnings about latency: in the model it never holds up a store, because Q was measured with it inside."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from ..sim import traffic
from ..sim.burst_gap import capacity
from ..sim.units import format_size, format_time, gbs

if TYPE_CHECKING:
    from ..sim.machine import Machine
    from ..sim.topology import Fabric

LATENCIES = ("latency", "nic_latency", "hop_latency")


def latency_cautions(machine: Machine, fabric: Fabric, changed: Collection[str], producers: int) -> list[str]:
    """Where latency, which delays what arrives and nothing else, might hold up stores on a real machine.

    `fabric` is the machine's, `changed` are the dotted paths of its numbers that were replaced, `producers` are the SMs of a
    GPU that store. Room comes back when the last port has passed a granule, in less than the latency of its route. So
    min(R, K w) x latency, what is on the way at the rate of K producers, is to be compared with Q(K).
    """
    names = [name for name in LATENCIES if f"interconnect.{name}" in changed]
    if fabric.n_gpus < 2 or not producers:
        return []
    if names:
        return [
            f"{' and '.join(names)} of the interconnect changed, but the room of the stage (Q), which was measured with "
            "latency as it was, did not: latency holds up no store here; vary capacity_sm and capacity_gpu, too"
        ]
    return _more_on_the_way_than_room(machine, fabric, producers)


def _more_on_the_way_than_room(machine: Machine, fabric: Fabric, producers: int) -> list[str]:
    latency = np.where(np.eye(fabric.n_gpus, dtype=bool), -1, fabric.latency_ps)
    source, destination = (int(end) for end in np.unravel_index(latency.argmax(), latency.shape))
    latency_ps = int(latency[source, destination])
    rate_kbs = min(
        traffic.to_one(fabric, source, destination).rate_kbs, producers * float(machine.stage.issue_rate.value)
    )
    room = float(capacity(machine.x_stage("peer", fabric.n_gpus), producers))
    if rate_kbs * latency_ps <= room * 10**9:
        return []
    return [
        f"{format_size(rate_kbs * latency_ps / 10**9)} are on the way from GPU {source} to GPU {destination}, at "
        f"{gbs(rate_kbs):.4g} GB/s for {format_time(latency_ps)}, more than the {format_size(room)} that the stage holds "
        f"for {producers} of its SMs: if room comes back only with an answer from there, stores are slower than here"
    ]
