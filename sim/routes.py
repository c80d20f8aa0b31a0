"""From a graph of sim/topologies.py to a Fabric: ports for its links, and one route for each pair of GPUs.

A route is a shortest path: it passes as few GPUs as possible, then as few ports. Among equal paths the choice is the same
each time.

Of equal paths through switches alone those remain whose narrowest link is widest, then those of least latency: what stays
in a node with a switch of its own does not pass its network interfaces. Of those that remain, and of those that pass GPUs,
such as the two ways round a ring, a pair takes one that is used little: sim/path_choice.py.

A route is fixed: granules of one pair never pass each other. A multicast forks after the sender's egress; each copy walks
its own route, also where two of them share links, which then carry it twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from . import path_choice
from .errors import InputError
from .topologies import Node
from .topology import Fabric, StageParameters, lowered

if TYPE_CHECKING:
    from networkx import DiGraph

MOST_PATHS_THROUGH_GPUS = 32
"""Of a pair with more shortest paths through GPUs than this, the first ones are looked at."""

_PASSING_A_GPU = 10**6

Path = list[Node]
Pair = tuple[int, int]


def fabric_of(graph: DiGraph, n_gpus: int, stage: StageParameters, hop_latency_ps: int = 0) -> Fabric:
    """The Fabric of a graph's first `n_gpus` GPUs; routes may pass all of the graph.

    A route's latency is `stage.latency_ps`, the latencies of its links, and `hop_latency_ps` for every GPU on its way.
    Raises `InputError` if a GPU cannot be reached.
    """
    links = [(a, b) for a, b, rate in graph.edges(data="rate_kbs") if rate is not None]
    links.sort(key=lambda link: (_order(link[0]), _order(link[1])))
    port_of = {link: 2 * n_gpus + index for index, link in enumerate(links)}
    paths = chosen_paths(graph, n_gpus)
    routes: list[list[list[int]]] = [[[] for _ in range(n_gpus)] for _ in range(n_gpus)]
    latency = np.zeros((n_gpus, n_gpus), dtype=np.int64)
    for (source, destination), path in paths.items():
        hops = list(pairwise(path))
        ports = [port_of[hop] for hop in hops if hop in port_of]
        routes[source][destination] = [source, *ports, n_gpus + destination]
        passed = sum(isinstance(node, int) for node in path[1:-1])
        on_links = sum(graph.edges[hop]["latency_ps"] for hop in hops)
        latency[source, destination] = stage.latency_ps + on_links + passed * hop_latency_ps
    own = [graph.nodes[gpu][name] for name in ("egress_kbs", "ingress_kbs") for gpu in range(n_gpus)]
    rates = own + [graph.edges[link]["rate_kbs"] for link in links]
    return lowered(n_gpus, rates, [f"link {a}>{b}" for a, b in links], routes, stage, latency)


def chosen_paths(graph: DiGraph, n_gpus: int) -> dict[Pair, Path]:
    """The path of each ordered pair of the first `n_gpus` GPUs, by the rule of this module."""
    nodes = sorted(graph.nodes, key=_order)
    rank = {node: number for number, node in enumerate(nodes)}
    chosen: dict[Pair, Path] = {}
    through_switches: dict[Pair, path_choice.Array] = {}
    through_gpus: dict[Pair, path_choice.Array] = {}
    for source in range(n_gpus):
        before = _shortest_paths(graph, source, n_gpus, rank)
        equal = path_choice.equal_paths(graph, before, rank)
        for destination in range(n_gpus):
            if destination == source:
                continue
            pair, paths = (source, destination), _back(before, source, destination)
            first = next(paths)
            if (second := next(paths, None)) is None:
                chosen[pair] = first
            elif _passes_a_gpu(first):
                some = [first, second, *islice(paths, MOST_PATHS_THROUGH_GPUS - 2)]
                through_gpus[pair] = _of_fewest_nodes(some, rank)
            else:
                through_switches[pair] = equal(destination)
    for several in (through_switches, through_gpus):
        if several:
            spread = path_choice.spread(graph, rank, several, chosen.values())
            chosen |= {pair: [nodes[number] for number in path] for pair, path in spread.items()}
    return chosen


def _of_fewest_nodes(paths: Sequence[Path], rank: Mapping[Node, int]) -> path_choice.Array:
    """Where ports alone do not tell. Sorted, int [paths, nodes] of ranks."""
    fewest = min(map(len, paths))
    return np.array(sorted([rank[node] for node in path] for path in paths if len(path) == fewest))


def _passes_a_gpu(path: Path) -> bool:
    return any(isinstance(node, int) for node in path[1:-1])


def _shortest_paths(graph: DiGraph, source: int, n_gpus: int, rank: Mapping[Node, int]) -> dict[Node, list[Node]]:
    """The nodes that may come before each on a shortest path from `source`. Raises `InputError` if a GPU is not reached."""
    import networkx as nx

    def weight(source: Node, target: Node, edge: dict[str, Any]) -> int:
        return 1 + (edge["rate_kbs"] is not None) + _PASSING_A_GPU * isinstance(source, int)

    before, _ = nx.dijkstra_predecessor_and_distance(graph, source, weight=weight)
    for destination in range(n_gpus):
        if destination not in before:
            reason = f"leave GPU {destination} out of reach of GPU {source}"
            raise InputError(reason, field="interconnect.links")
    return {node: sorted(previous, key=rank.__getitem__) for node, previous in before.items()}


def _back(before: Mapping[Node, list[Node]], source: Node, node: Node) -> Iterator[Path]:
    """All paths from `source` to `node`, given the nodes that may come before each."""
    if node == source:
        yield [source]
        return
    for previous in before[node]:
        for path in _back(before, source, previous):
            yield [*path, node]


def _order(node: Node) -> tuple[bool, int, str]:
    """GPUs by number, then switches by name, numbers in names counting as numbers."""
    if isinstance(node, int):
        return False, node, ""
    stem = node.rstrip("0123456789")
    return True, int(node[len(stem) :] or 0), stem
