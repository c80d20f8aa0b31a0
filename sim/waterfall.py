"""What a run would be without one of its limits, and what is left of it when none is there.

The first part changes a `Fabric`: the same Program then meets a stage without bounds, an interconnect without cost or
without latency. `remainder` splits the time of a run exactly, by that of one lane.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from . import program as p
from .activity import main_loops_by_lane, tensor_lanes

if TYPE_CHECKING:
    from .topology import Fabric
    from .trace import Trace

WITHOUT_LIMIT = 2**50
"""As a capacity 1 PiB, as a rate 10^9 GB/s: nothing waits for it, and sums of it stay far below 2^63."""


def without_capacity_limit(fabric: Fabric) -> Fabric:
    """Q = inf: a store never waits for room, so nothing stalls. It still takes its time to drain."""
    return replace(
        fabric,
        capacity_sm=np.full_like(fabric.capacity_sm, WITHOUT_LIMIT),
        capacity_gpu=np.full_like(fabric.capacity_gpu, WITHOUT_LIMIT),
    )


def without_rate_limit(fabric: Fabric) -> Fabric:
    """R = inf: the egress and the ingress of a GPU pass a granule in the shortest time there is, 1 ps."""
    rates = fabric.rates_kbs.copy()
    rates[: 2 * fabric.n_gpus] = WITHOUT_LIMIT
    return replace(fabric, rates_kbs=rates)


def without_link_limit(fabric: Fabric) -> Fabric:
    """The same of what lies between GPUs: links, network interfaces, the core of a switch."""
    rates = fabric.rates_kbs.copy()
    rates[2 * fabric.n_gpus :] = WITHOUT_LIMIT
    return replace(fabric, rates_kbs=rates)


def without_latency(fabric: Fabric) -> Fabric:
    """What has left its route is visible at the next picosecond, on other GPUs and on the own one.

    Not at once: the order of what two GPUs do at one instant would mean nothing.
    """
    return replace(fabric, latency_ps=np.minimum(fabric.latency_ps, 1))


@dataclass(frozen=True)
class Part:
    """A stretch of a run. `what` is compute (main loops), busy, other, stall, wait, before or after; a wait has a
    `cause`.
    """

    what: str
    ps: int
    cause: str | None = None


def remainder(trace: Trace, end_ps: int) -> list[Part]:
    """A run until `end_ps` as the time of the Tensor Core lane with the longest main loops, so that they are a lower bound.

    Parts add up to `end_ps`, when lanes are free or later, to the last picosecond; empty ones are left out. Without Tensor
    Core lanes, of the lane of any role that is busy longest, with all of that as one part. An empty program has no parts.
    """
    totals, lanes = trace.outcome.lanes, tensor_lanes(trace)
    if not len(totals):
        return []
    work = np.where(lanes, main_loops_by_lane(trace), -1) if lanes.any() else totals["busy_ps"]
    busiest = int(np.argmax(work))
    mine, start = totals[busiest], int(trace.program.lanes["start_ps"][busiest])
    compute = int(work[busiest])
    waits = zip(p.CAUSES, mine["wait_ps"], strict=True)
    parts = [
        Part("compute" if lanes.any() else "busy", compute),
        Part("other", int(mine["busy_ps"]) - compute),
        Part("stall", int(mine["stall_ps"])),
        *(Part("wait", int(time), cause) for cause, time in waits),
        Part("before", start),
        Part("after", end_ps - int(mine["end_ps"])),
    ]
    return [part for part in parts if part.ps]
