"""From a graph of sim/topologies.py to a Fabric: ports for its links, and one route for each pair of GPUs.

A route is a shortest path: it passes as few GPUs as possible, then as few ports. Among equal paths the choice is the same
each time. Paths through switches alone are dealt by (source + destination), as a hash would, so that planes carry equally
many routes. Of paths that pass other GPUs, such as the two ways round a ring, a pair takes the one whose busiest link is
used least, then the one with the least use in sum; pairs choose in order of (source, destination), those without a choice
first, and then may choose again while that improves anything, up to `ROUNDS` times.

A route is fixed: granules of one pair never pass each other. A multicast forks after the sender's egress; each copy walks
its own route, also where two of them share links, which then carry it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InputError
from .topologies import Node
from .topology import Fabric, StageParameters, lowered

if TYPE_CHECKING:
    from networkx import DiGraph

MOST_EQUAL_PATHS = 32
"""Of a pair with more shortest paths than this, the first ones are looked at."""

ROUNDS = 8

_PASSING_A_GPU = 10**6

Path = list[Node]


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


def chosen_paths(graph: DiGraph, n_gpus: int) -> dict[tuple[int, int], Path]:
    """The path of each ordered pair of the first `n_gpus` GPUs, by the rule of this module."""
    equal = _shortest_paths(graph, n_gpus)
    chosen = {pair: paths[sum(pair) % len(paths)] for pair, paths in equal.items()}
    with_choice = [pair for pair, paths in equal.items() if len(paths) > 1 and _passes_a_gpu(paths[0])]
    use = _Use(graph)
    for pair in chosen.keys() - set(with_choice):
        use.add(chosen[pair], +1)
    for pair in with_choice:
        chosen[pair] = use.least(equal[pair], first=sum(pair))
        use.add(chosen[pair], +1)
    for _ in range(ROUNDS):
        changed = False
        for pair in with_choice:
            use.add(chosen[pair], -1)
            better = use.least([chosen[pair], *equal[pair]])
            changed |= better != chosen[pair]
            chosen[pair] = better
            use.add(better, +1)
        if not changed:
            break
    return chosen


class _Use:
    """How much each link of a graph is used: its routes over its rate, in units of the widest link."""

    def __init__(self, graph: DiGraph) -> None:
        rates = {(a, b): rate for a, b, rate in graph.edges(data="rate_kbs")}
        widest = max((rate for rate in rates.values() if rate), default=1)
        self.share = {hop: Fraction(widest, rate) if rate else Fraction(0) for hop, rate in rates.items()}
        self.use = dict.fromkeys(rates, Fraction(0))

    def add(self, path: Path, times: int) -> None:
        for hop in pairwise(path):
            self.use[hop] += times * self.share[hop]

    def least(self, paths: Sequence[Path], first: int = 0) -> Path:
        """The path that would be used least; of equal ones the first, counted from `first` on."""
        start = first % len(paths)

        def after(path: Path) -> tuple[Fraction, Fraction]:
            uses = [self.use[hop] + self.share[hop] for hop in pairwise(path)]
            return max(uses), sum(uses, Fraction(0))

        return min([*paths[start:], *paths[:start]], key=after)


def _passes_a_gpu(path: Path) -> bool:
    return any(isinstance(node, int) for node in path[1:-1])


def _shortest_paths(graph: DiGraph, n_gpus: int) -> dict[tuple[int, int], list[Path]]:
    """All shortest paths of each pair, sorted. Raises `InputError` if there is none."""
    import networkx as nx

    def weight(source: Node, target: Node, edge: dict[str, Any]) -> int:
        return 1 + (edge["rate_kbs"] is not None) + _PASSING_A_GPU * isinstance(source, int)

    found: dict[tuple[int, int], list[Path]] = {}
    for source in range(n_gpus):
        before, _ = nx.dijkstra_predecessor_and_distance(graph, source, weight=weight)
        for destination in range(n_gpus):
            if destination not in before:
                reason = f"leave GPU {destination} out of reach of GPU {source}"
                raise InputError(reason, field="interconnect.links")
            if destination != source:
                paths = list(islice(_back(before, source, destination), MOST_EQUAL_PATHS))
                found[source, destination] = sorted(paths, key=lambda path: [_order(node) for node in path])
    return found


def _back(before: dict[Node, list[Node]], source: Node, node: Node) -> Any:
    """All paths from `source` to `node`, given the nodes that may come before each."""
    if node == source:
        yield [source]
        return
    for previous in sorted(before[node], key=_order):
        for path in _back(before, source, previous):
            yield [*path, node]


def _order(node: Node) -> tuple[bool, int, str]:
    """GPUs by number, then switches by name, numbers in names counting as numbers."""
    if isinstance(node, int):
        return False, node, ""
    stem = node.rstrip("0123456789")
    return True, int(node[len(stem) :] or 0), stem
