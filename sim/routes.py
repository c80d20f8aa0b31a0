"""From a graph of sim/topologies.py to a Fabric: ports for its links, and one route for each pair of GPUs.

A route is a shortest path: it passes as few GPUs as possible, then as few ports. Among equal paths the choice is the same
each time.

Of equal paths through switches alone those remain whose narrowest link is widest, then those of least latency: what stays
in a node with a switch of its own does not pass its network interfaces. Of these a pair takes the one that is used least,
so that planes and spines carry equally many routes: sim/switch_paths.py.

Of paths that pass other GPUs, such as the two ways round a ring, a pair takes the one whose busiest link is used least,
then the one with the least use in sum; pairs choose in order of (source, destination), those without a choice first, and
then may choose again while that improves anything, up to `ROUNDS` times. That can end where no pair alone finds a better
path. So the busiest links then count as a route busier, for good, and pairs choose again, up to `TRIES` times. The first
choice remains unless a later one has less on its busiest link.

A route is fixed: granules of one pair never pass each other. A multicast forks after the sender's egress; each copy walks
its own route, also where two of them share links, which then carry it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np

from . import switch_paths
from .errors import InputError
from .topologies import Node
from .topology import Fabric, StageParameters, lowered

if TYPE_CHECKING:
    from networkx import DiGraph

MOST_PATHS_THROUGH_GPUS = 32
"""Of a pair with more shortest paths through GPUs than this, the first ones are looked at."""

ROUNDS = 8

TRIES = 64

MOST_CHOICES = 50_000
"""Tries times pairs with a choice: a large mesh has fewer tries, so that its routes take seconds."""

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
    through_switches: dict[Pair, switch_paths.Array] = {}
    through_gpus: dict[Pair, list[Path]] = {}
    for source in range(n_gpus):
        before = _shortest_paths(graph, source, n_gpus, rank)
        equal = switch_paths.equal_paths(graph, before, rank)
        for destination in range(n_gpus):
            if destination == source:
                continue
            pair, paths = (source, destination), _back(before, source, destination)
            first = next(paths)
            if (second := next(paths, None)) is None:
                chosen[pair] = first
            elif _passes_a_gpu(first):
                some = [first, second, *islice(paths, MOST_PATHS_THROUGH_GPUS - 2)]
                through_gpus[pair] = sorted(some, key=lambda path: [rank[node] for node in path])
            else:
                through_switches[pair] = equal(destination)
    if through_switches:
        spread = switch_paths.spread(graph, rank, through_switches, chosen.values())
        chosen |= {pair: [nodes[number] for number in path] for pair, path in spread.items()}
    if through_gpus:
        chosen |= _least_used(graph, through_gpus, list(chosen.values()))
    return chosen


def _passes_a_gpu(path: Path) -> bool:
    return any(isinstance(node, int) for node in path[1:-1])


def _least_used(graph: DiGraph, equal: dict[Pair, list[Path]], others: Iterable[Path]) -> dict[Pair, Path]:
    """A path of `equal` for each pair, so that the busiest link carries little. `others` are chosen already."""
    number = {link: index for index, link in enumerate(graph.edges)}
    links = {pair: [[number[hop] for hop in pairwise(path)] for path in paths] for pair, paths in equal.items()}
    use = _Use([rate for *_, rate in graph.edges(data="rate_kbs")])
    for path in others:
        use.add([number[hop] for hop in pairwise(path)], +1)
    chosen = {}
    for pair, paths in links.items():
        first = sum(pair) % len(paths)
        chosen[pair] = use.least(paths, [*range(first, len(paths)), *range(first)])
        use.add(paths[chosen[pair]], +1)
    _choose_again(links, chosen, use)
    best, least = dict(chosen), use.busiest
    for _ in range(min(TRIES, MOST_CHOICES // len(links))):
        use.avoid_busiest()
        _choose_again(links, chosen, use)
        if use.busiest < least:
            best, least = dict(chosen), use.busiest
    return {pair: equal[pair][index] for pair, index in best.items()}


def _choose_again(links: dict[Pair, list[list[int]]], chosen: dict[Pair, int], use: _Use) -> None:
    for _ in range(ROUNDS):
        changed = False
        for pair, paths in links.items():
            before = chosen[pair]
            use.add(paths[before], -1)
            chosen[pair] = use.least(paths, [before, *range(len(paths))])
            changed |= chosen[pair] != before
            use.add(paths[chosen[pair]], +1)
        if not changed:
            break


class _Use:
    """How much each link is used: its routes over its rate, in a unit in which that is a whole number."""

    def __init__(self, rates: Sequence[int | None]) -> None:
        unit = lcm(*(rate for rate in rates if rate))
        self._share = [unit // rate if rate else 0 for rate in rates]
        self._use = [0] * len(rates)
        self._cost = list(self._share)  # with one route more, and with what links to be avoided have on top

    @property
    def busiest(self) -> int:
        return max(self._use)

    def avoid_busiest(self) -> None:
        """Count the busiest links as one route busier from now on."""
        busiest = self.busiest
        for link, use in enumerate(self._use):
            if use == busiest:
                self._cost[link] += self._share[link]

    def add(self, links: Iterable[int], times: int) -> None:
        for link in links:
            self._use[link] += times * self._share[link]
            self._cost[link] += times * self._share[link]

    def least(self, paths: Sequence[Sequence[int]], order: Iterable[int]) -> int:
        """The index of the path that would be used least; of equal ones the first in `order`."""
        costs = ((index, [self._cost[link] for link in paths[index]]) for index in order)
        return min(costs, key=lambda of: (max(of[1]), sum(of[1])))[0]


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
