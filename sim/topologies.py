"""Wirings as graphs: who is joined to whom, how wide and how far.

Each function returns a networkx `DiGraph`. A whole number is a GPU, a text a switch. A GPU's attributes `egress_kbs` and
`ingress_kbs` are what goes out and comes in over all its links together. An edge is one direction of a link; its
attributes are `rate_kbs` (None: no port of its own, because a GPU's egress or ingress is all there is) and `latency_ps`,
which comes on top of what every route has. sim/routes.py lowers a graph to the arrays that the engines run.

    switch                  all GPUs on one switch that never blocks
    direct                  one link for each pair
    oversubscribed_switch   one switch that carries 1 / ratio of what the GPUs send together
    multi_plane_switch      several switches; each pair of GPUs uses one of them
    ring                    a link to each neighbour
    hybrid_cube_mesh        two fully joined quads, and a link from each GPU to its twin
    islands                 a switch a node, and a network interface a GPU between nodes
    custom                  a list of links

A route may pass other GPUs (ring, hybrid cube mesh, custom). Hardware that does not forward stores needs a kernel there;
the simulator lets them through, at the rate of the links and one `hop_latency` each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from .units import KBS_PER_GBS

if TYPE_CHECKING:
    from networkx import DiGraph

Node: TypeAlias = "int | str"

CUBE_GPUS = 8


@dataclass(frozen=True)
class Link:
    """A link between two nodes: both directions at `rate_kbs` each, or only the first to the second if `one_way`."""

    first: Node
    second: Node
    rate_kbs: int
    latency_ps: int = 0
    one_way: bool = False


def switch(gpus: int, rate_kbs: int) -> DiGraph:
    """A non-blocking switch; `rate_kbs` of each GPU and direction."""
    graph = _gpus(gpus, rate_kbs)
    for gpu in range(gpus):
        _wire(graph, gpu, "switch")
    return graph


def direct(gpus: int, link_rate_kbs: int) -> DiGraph:
    """A link for each pair of GPUs."""
    pairs = [(a, b) for a in range(gpus) for b in range(a + 1, gpus)]
    return custom(gpus, [Link(a, b, link_rate_kbs) for a, b in pairs], link_rate_kbs)


def oversubscribed_switch(gpus: int, rate_kbs: int, ratio: float) -> DiGraph:
    """A switch whose inside carries `gpus * rate_kbs / ratio` in all, shared first come, first served."""
    graph = _gpus(gpus, rate_kbs)
    for gpu in range(gpus):
        graph.add_edge(gpu, "switch", rate_kbs=None, latency_ps=0)
        graph.add_edge("core", gpu, rate_kbs=None, latency_ps=0)
    graph.add_edge("switch", "core", rate_kbs=max(1, int(gpus * rate_kbs / ratio)), latency_ps=0)
    return graph


def multi_plane_switch(gpus: int, rate_kbs: int, planes: int) -> DiGraph:
    """`planes` switches with `rate_kbs / planes` of each GPU's links to each. A pair of GPUs keeps to one plane.

    Hardware that spreads each pair over all planes is a `switch`.
    """
    links = [Link(gpu, f"plane {plane}", max(1, rate_kbs // planes)) for gpu in range(gpus) for plane in range(planes)]
    return _joined(_gpus(gpus, rate_kbs), links)


def ring(gpus: int, link_rate_kbs: int) -> DiGraph:
    """A link from each GPU to the next, the last to the first."""
    ends = [(gpu, (gpu + 1) % gpus) for gpu in range(gpus if gpus > 2 else gpus - 1)]
    return custom(gpus, [Link(a, b, link_rate_kbs) for a, b in ends], link_rate_kbs)


def hybrid_cube_mesh(link_rate_kbs: int) -> DiGraph:
    """Eight GPUs: 0 to 3 and 4 to 7 fully joined, and GPU g with g + 4. All links are equal."""
    quads = [(a, b) for first in (0, 4) for a in range(first, first + 4) for b in range(a + 1, first + 4)]
    twins = [(gpu, gpu + 4) for gpu in range(4)]
    return custom(CUBE_GPUS, [Link(a, b, link_rate_kbs) for a, b in quads + twins])


def islands(gpus: int, gpus_per_node: int, rate_kbs: int, nic_rate_kbs: int, nic_extra_ps: int) -> DiGraph:
    """Nodes of `gpus_per_node` GPUs on a switch each; every GPU has a network interface, and the network never blocks.

    What goes to another node passes the GPU's own egress, its interface, the receiver's interface and ingress, and takes
    `nic_extra_ps` longer than what stays in the node.
    """
    graph = _gpus(gpus, rate_kbs)
    for gpu in range(gpus):
        _wire(graph, gpu, f"node {gpu // gpus_per_node}")
        if gpus > gpus_per_node:
            graph.add_edge(gpu, "network", rate_kbs=nic_rate_kbs, latency_ps=nic_extra_ps)
            graph.add_edge("network", gpu, rate_kbs=nic_rate_kbs, latency_ps=0)
    return graph


def custom(gpus: int, links: Iterable[Link], alone_kbs: int = KBS_PER_GBS) -> DiGraph:
    """GPUs, the switches that `links` name, and the links. A GPU's own rate is that of its links together.

    The rates of links between the same two nodes add up; the last one's latency holds, and a machine file may not give
    different ones. A GPU that has none, because it is the only one, has ports of `alone_kbs`, which nothing passes.
    """
    graph = _joined(_gpus(gpus, 1), links)
    for gpu in range(gpus):
        for name, edges in (("egress_kbs", graph.out_edges), ("ingress_kbs", graph.in_edges)):
            graph.nodes[gpu][name] = sum(rate for *_, rate in edges(gpu, data="rate_kbs")) or alone_kbs
    return graph


def _joined(graph: DiGraph, links: Iterable[Link]) -> DiGraph:
    for link in links:
        ends = [(link.first, link.second), (link.second, link.first)]
        for source, target in ends[: 1 if link.one_way else 2]:
            before = graph.edges[source, target]["rate_kbs"] if graph.has_edge(source, target) else 0
            graph.add_edge(source, target, rate_kbs=before + link.rate_kbs, latency_ps=link.latency_ps)
    return graph


def _gpus(gpus: int, rate_kbs: int) -> DiGraph:
    from networkx import DiGraph

    graph: Any = DiGraph()
    graph.add_nodes_from(range(gpus), egress_kbs=rate_kbs, ingress_kbs=rate_kbs)
    return graph


def _wire(graph: DiGraph, gpu: int, switch_name: str) -> None:
    """Join a GPU to a switch by nothing but its egress and ingress."""
    graph.add_edge(gpu, switch_name, rate_kbs=None, latency_ps=0)
    graph.add_edge(switch_name, gpu, rate_kbs=None, latency_ps=0)
