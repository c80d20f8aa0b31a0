"""One GPU of many equal ones, and a second one that stands for all its peers: a Fabric of two GPUs in place of a large one.

Both directions pass the egress of GPU 0 and one ingress: what peers send to GPU 0 mirrors what it sends to them. No link
between remains. Where links carry less than the ports of GPUs while all send to all, the two ports carry no more than the
links do, whatever is sent. That is exact if traffic is spread evenly over the peers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .errors import InputError
from .topology import Fabric
from .traffic import pair_rates
from .units import gbs

ROUNDED = 1 + 1e-6
"""Ports above what links carry by no more than this are not: links are rounded down to whole kB/s one by one."""
SAME = 1.01
"""Pairs of GPUs send the same if the most is no more than this much of the least."""


def mirrored(fabric: Fabric) -> Fabric:
    """GPU 0 of `fabric`, and GPU 1 for all its peers.

    Raises `InputError` if some GPUs are further away than others, or if some pairs of GPUs have more of the links that
    they share than others.
    """
    n, route = fabric.n_gpus, [0, 3]
    peer = min(1, n - 1)
    if reason := _differences(fabric):
        raise InputError(reason, field="ranks", value="symmetric", allowed="all")
    own, between = fabric.latency_ps[0, 0], fabric.latency_ps[0, peer]
    if between == 0:
        reason = (
            "needs a latency above 0: what two GPUs do at one instant shares one egress, in an order that means nothing"
        )
        raise InputError(reason, field="latency", value=0)
    rates = fabric.rates_kbs[[0, peer, n, n + peer]]
    if n > 1:
        most = round((n - 1) * float(pair_rates(fabric).min()))
        rates = np.where(rates > most * ROUNDED, max(1, most), rates)
    return replace(
        fabric,
        n_gpus=2,
        scatter_from=1 if n > 2 else 2,
        capacity_sm=fabric.capacity_sm[[0, peer]],
        capacity_gpu=fabric.capacity_gpu[[0, peer]],
        rates_kbs=rates,
        route_first=np.array([0, 0, 2, 4, 4], dtype=np.int32),
        route_ports=np.array(route + route, dtype=np.int32),
        latency_ps=np.array([[own, between], [between, own]], dtype=np.int64),
        port_names=("egress 0", "egress of the mirror", "ingress 0", "ingress of the mirror"),
        stage_of_gpu=None,
        reply_first=None,
        reply_ports=None,
    )


def are_alike(fabric: Fabric) -> bool:
    """Whether one GPU can stand for all."""
    return not _differences(fabric)


def _differences(fabric: Fabric) -> str | None:
    """What tells some pairs of GPUs from others."""
    others = ~np.eye(fabric.n_gpus, dtype=bool)
    if fabric.n_gpus < 2:
        return None
    if np.ptp(fabric.latency_ps[others]):
        return "needs GPUs that are all equally far from each other, which they are not on this topology"
    rates = pair_rates(fabric)[others]
    if rates.max() > SAME * rates.min():
        low, high = (f"{gbs(rate):.4g}" for rate in (rates.min(), rates.max()))
        return (
            f"needs links that all pairs of GPUs share alike, but of an All-to-All a pair has {low} to {high} GB/s here"
        )
    return None
