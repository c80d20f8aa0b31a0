"""How evenly GPUs are loaded: the busiest over the mean, of computing and of bytes. 1 is balance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..sim.activity import TENSOR_ROLES
from ..sim.placement import max_over_mean

if TYPE_CHECKING:
    from ..sim.trace import Trace


def gpu_loads(trace: Trace) -> dict[str, float]:
    """`busy_max_over_mean` of the Tensor Core lanes (of all lanes where there are none), `sent_` and `received_` of bytes.

    Only GPUs with such lanes count; empty if that is one alone, as with `ranks: symmetric`. What nobody does is
    left out.
    """
    lanes, ports, count = trace.program.lanes, trace.outcome.ports["bytes"], trace.fabric.n_gpus
    tensor = [number for number, role in enumerate(trace.program.roles) if role in TENSOR_ROLES]
    mine = np.isin(lanes["role"], tensor) if tensor else np.ones(len(lanes), dtype=bool)
    simulated = np.unique(lanes["gpu"][mine])
    if len(simulated) < 2:
        return {}
    busy = np.bincount(lanes["gpu"][mine], weights=trace.outcome.lanes["busy_ps"][mine], minlength=count)
    of_gpus = {"busy": busy, "sent": ports[:count], "received": ports[count : 2 * count]}
    return {
        f"{name}_max_over_mean": max_over_mean(load[simulated])
        for name, load in of_gpus.items()
        if load[simulated].any()
    }
