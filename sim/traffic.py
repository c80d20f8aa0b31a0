"""What a Fabric carries when GPUs send evenly: the closed forms of a topology, by counting routes through ports.

If every one of some pairs of GPUs sends at the same rate r, a port with m of their routes carries m r, so that
r = min over ports of rate / m. `drain_rate` of a machine and `xstage run --parts` come from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .topology import PLAIN, SCATTER, Array, Fabric


@dataclass(frozen=True)
class Carried:
    """A rate in kB/s (infinite where nothing is sent) and the ports that limit it."""

    rate_kbs: float
    limited_by: tuple[str, ...] = ()


def all_to_all(fabric: Fabric) -> Carried:
    """What each GPU sends while every GPU scatters evenly over all others."""
    peers = max(1, fabric.n_gpus - 1)
    return _scaled(_even(fabric, _all_pairs(fabric), SCATTER), peers)


def to_next(fabric: Fabric) -> Carried:
    """What each GPU sends while every GPU stores to the next one, and the last to the first; of the slowest."""
    pairs = np.roll(np.eye(fabric.n_gpus, dtype=bool), 1, axis=1) & _all_pairs(fabric)
    return _even(fabric, pairs, PLAIN)


def to_one(fabric: Fabric, source: int, destination: int) -> Carried:
    """What one GPU sends to one other while nobody else does."""
    pairs = np.zeros((fabric.n_gpus, fabric.n_gpus), dtype=bool)
    pairs[source, destination] = source != destination
    return _even(fabric, pairs, PLAIN)


def bisection(fabric: Fabric) -> Carried:
    """What crosses while each GPU of the first half sends evenly to all of the second, in one direction."""
    half = fabric.n_gpus // 2
    pairs = np.zeros((fabric.n_gpus, fabric.n_gpus), dtype=bool)
    pairs[:half, half:] = True
    return _scaled(_even(fabric, pairs, PLAIN), int(pairs.sum()) or 1)


def pair_rates(fabric: Fabric) -> Array:
    """What each pair of GPUs sends, in kB/s, if every port is shared evenly while all GPUs send to all others.

    float [n_gpus, n_gpus]; the diagonal is infinite.
    """
    routes = _routes_by_port(fabric, _all_pairs(fabric))
    share = fabric.rates_kbs[:, PLAIN] / np.maximum(routes, 1)
    least = np.full(fabric.n_gpus**2, np.inf)
    pair_of_hop = np.repeat(np.arange(fabric.n_gpus**2), np.diff(fabric.route_first))
    np.minimum.at(least, pair_of_hop, share[fabric.route_ports])
    return least.reshape(fabric.n_gpus, fabric.n_gpus)


def route_lengths(fabric: Fabric) -> Array:
    """Ports on the route from each GPU to each other, [source, destination]."""
    return np.diff(fabric.route_first).reshape(fabric.n_gpus, fabric.n_gpus)


def unused_links(fabric: Fabric) -> list[str]:
    """Links on no route between the GPUs that take part: whatever their rate, no run can tell.

    Those of GPUs that take no part are left out.
    """
    used = _routes_by_port(fabric, _all_pairs(fabric))
    idle = [fabric.port_names[port] for port in range(2 * fabric.n_gpus, fabric.n_ports) if not used[port]]
    return [name for name in idle if all(not end.isdigit() or int(end) < fabric.n_gpus for end in link_ends(name))]


def link_ends(port_name: str) -> list[str]:
    """The nodes of a port: of 'egress 3' GPU 3, of 'link 3>switch' both."""
    return port_name.partition(" ")[2].split(">")


def same_in_effect(one: Fabric, other: Fabric) -> bool:
    """Whether no run can tell two Fabrics apart: they differ at most in names, and in ports that are on no route."""
    return all(np.array_equal(mine, its) for mine, its in zip(_in_effect(one), _in_effect(other), strict=True))


def _in_effect(fabric: Fabric) -> list[Any]:
    settings = [
        fabric.granule_bytes,
        fabric.signal_bytes,
        fabric.request_permille,
        fabric.fair_replies,
        fabric.scatter_from,
    ]
    reply_first, reply_ports = fabric.reply_routes
    used, position = np.unique(np.concatenate([fabric.route_ports, reply_ports]), return_inverse=True)
    return [
        *settings, fabric.capacity_sm, fabric.capacity_gpu, fabric.stages, fabric.latency_ps, fabric.route_first,
        reply_first, position, fabric.rates_kbs[used], fabric.rates_kbs[: 2 * fabric.n_gpus],
    ]  # fmt: skip


def _even(fabric: Fabric, pairs: Array, use: int) -> Carried:
    routes = _routes_by_port(fabric, pairs)
    used = np.flatnonzero(routes)
    if not len(used):
        return Carried(np.inf)
    share = fabric.rates_kbs[used, use] / routes[used]
    least = float(share.min())
    return Carried(least, tuple(fabric.port_names[port] for port in used[share <= least * (1 + 1e-9)]))


def _routes_by_port(fabric: Fabric, pairs: Array) -> Array:
    """How many of the routes of `pairs` pass each port."""
    pair_of_hop = np.repeat(np.arange(fabric.n_gpus**2), np.diff(fabric.route_first))
    return np.bincount(fabric.route_ports[pairs.ravel()[pair_of_hop]], minlength=fabric.n_ports)


def _all_pairs(fabric: Fabric) -> Array:
    return ~np.eye(fabric.n_gpus, dtype=bool)


def _scaled(carried: Carried, times: int) -> Carried:
    return Carried(carried.rate_kbs * times, carried.limited_by)
