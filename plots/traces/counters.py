"""Numbers over time for a viewer: how full each GPU's stage is, and how fast its egress sends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...sim.trace import Trace
from ...sim.units import PS_PER_NS

Ints = NDArray[np.int64]

MOST_STEPS = 100_000
"""A stage counter with more steps shows the peak of each of so many equal parts of the time."""
EGRESS_PARTS = 1_000


class Steps(NamedTuple):
    """A number that holds from each time until the next."""

    time_ns: Ints
    value: NDArray[np.float64]


def stage_steps(trace: Trace, gpu: int) -> Steps:
    """Bytes held in a GPU's stage. Of several changes in one nanosecond the last is shown. Needs a full trace."""
    time_ps, held = trace.occupancy_steps(gpu)
    time = time_ps // PS_PER_NS
    last = np.append(time[1:] != time[:-1], True)[: len(time)]
    if last.sum() <= MOST_STEPS:
        return Steps(time[last], held[last].astype(np.float64))
    width = -(-int(time[-1] + 1) // MOST_STEPS)
    part, first = np.unique(time // width, return_index=True)
    peak = np.maximum.reduceat(held, first)
    before = np.append(0, held)[first]  # what was still held when the part began
    return Steps(part * width, np.maximum(peak, before).astype(np.float64))


def egress_steps(trace: Trace, gpu: int) -> Steps:
    """GB/s that pass a GPU's egress: bytes drained in each part of the makespan, over its length. Needs a full trace.

    A granule counts when its last byte has left its route; a multicast passes the egress once. If one GPU stands for many
    equal ones, what comes back from them passes its egress too.
    """
    granules = trace.outcome.granule_records
    granules = granules[granules["source"] != granules["destination"]]
    granules = granules[trace.first_ports(granules) == gpu]
    _, first = np.unique(granules["parcel"], return_index=True)
    granules = granules[first]
    if not len(granules):
        return Steps(np.zeros(0, dtype=np.int64), np.zeros(0))
    width = max(1, -(-trace.makespan_ps // (EGRESS_PARTS * PS_PER_NS)))
    part = granules["drained_ps"] // (width * PS_PER_NS)
    sent = np.bincount(part, weights=granules["bytes"])
    value = np.append(sent / width, 0.0)
    changed = np.append(True, value[1:] != value[:-1])
    return Steps(np.arange(len(value))[changed] * width, value[changed])
