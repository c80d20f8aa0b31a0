"""Whether GPUs meet on one switch, or over links of which each leads to some peers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...machine import Machine
    from ...topology import Fabric


def on_one_switch(fabric: Fabric) -> bool:
    """Whether each GPU reaches all others over the same links, so that one peer at a time can have its whole rate.

    Not so where its routes begin with different links, as in a mesh, or some are longer, as between nodes.
    """
    gpus = range(fabric.n_gpus)
    routes = [[fabric.route(gpu, peer) for peer in gpus if peer != gpu] for gpu in gpus]
    return all(len({(len(route), *route[1:-1][:1]) for route in of_gpu}) <= 1 for of_gpu in routes)


def node_size(machine: Machine, ranks: int) -> int:
    """GPUs of each node if the ranks are whole nodes of several GPUs (`gpus_per_node`), else all ranks."""
    size = machine.interconnect.gpus_per_node
    return ranks if size is None or size.value == 1 or ranks % size.value else size.value
