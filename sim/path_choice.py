"""Which of several equal paths each pair of GPUs takes, so that links, planes and spines carry little and equally much.

Pairs choose in order of (source, destination): the path whose busiest link would be used least, links that are on all of its
paths left aside, then the one with the least use in sum. Of equal ones a GPU takes them in turn for its destinations
(`_first_looked_at`). So a pair's choice depends on those before it, and on how GPUs are numbered, but what the busiest link
carries hardly does.

If some link is then busier than a GPU's own links, so that another choice could help, pairs choose again while that changes
anything, up to `ROUNDS` times. That can end where no pair alone finds a better path. So the busiest links then count as a
route busier, for good, and pairs choose again, up to `TRIES` times. The first choice remains unless a later one has less on
its busiest link. On random leaf-spine networks and fat trees of three levels that block nothing, an All-to-All reaches the
rate of the GPUs' ports, as far as whole routes allow: 5 routes over 3 equal spines keep one spine busy with 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from networkx import DiGraph

    from .topologies import Node

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[int, int]

MOST_EQUAL_PATHS = 1024
"""Of a pair with more equal paths through switches than this, the first ones are looked at."""

ROUNDS = 8

TRIES = 64

MOST_CHOICES = 50_000
"""Tries times pairs with a choice: a large network has fewer tries, so that its routes take seconds."""

_UNIT = 2**16
"""The use of the fastest link by one route: shares are whole numbers, so that equal ones compare as equal."""


def equal_paths(graph: DiGraph, before: Mapping[Node, list[Node]], rank: Mapping[Node, int]) -> Callable[[Node], Array]:
    """For a destination, its equal paths through switches from one source. int [paths, nodes] of ranks, sorted.

    Those remain whose narrowest link is widest, then those of least latency.

    `before` has the nodes that may come before each on a shortest path from the source; that of the source is empty.
    """

    @cache
    def width(node: Node) -> float:
        """The narrowest link on the widest path to a node."""
        return max((through(previous, node) for previous in before[node]), default=inf)

    @cache
    def through(previous: Node, node: Node) -> float:
        rate = graph.edges[previous, node]["rate_kbs"]
        return min(width(previous), inf if rate is None else rate)

    @cache
    def latency(node: Node, narrowest: float) -> int:
        """The least to a node over links that are all as wide as `narrowest`."""
        return min((after(previous, node, narrowest) for previous in wide(node, narrowest)), default=0)

    def after(previous: Node, node: Node, narrowest: float) -> int:
        return latency(previous, narrowest) + int(graph.edges[previous, node]["latency_ps"])

    def wide(node: Node, narrowest: float) -> list[Node]:
        return [previous for previous in before[node] if through(previous, node) >= narrowest]

    @cache
    def paths(node: Node, narrowest: float) -> Array:
        if not before[node]:
            return np.array([[rank[node]]])
        least = latency(node, narrowest)
        nearest = [previous for previous in wide(node, narrowest) if after(previous, node, narrowest) == least]
        rows = _merged([paths(previous, narrowest) for previous in nearest])
        return np.column_stack([rows, np.full(len(rows), rank[node])])

    return lambda destination: paths(destination, width(destination))


def _merged(parts: Sequence[Array]) -> Array:
    """Sorted paths to several nodes as one array, sorted. Those over fewest nodes, where ports alone do not tell."""
    if len(parts) == 1:
        return parts[0]
    fewest = min(part.shape[1] for part in parts)
    rows = np.concatenate([part for part in parts if part.shape[1] == fewest])
    return rows[np.lexsort(rows.T[::-1])][:MOST_EQUAL_PATHS]


def spread(
    graph: DiGraph, rank: Mapping[Node, int], equal: Mapping[Pair, Array], others: Iterable[Sequence[Node]]
) -> dict[Pair, Array]:
    """The path of each pair, int [nodes] of ranks. `equal` are the paths of each, `others` are taken already."""
    links = _Links(graph, rank)
    use = _Use(links.rates)
    for path in others:
        use.add(links.of(np.array([[rank[node] for node in path]]))[0], +1)
    chosen = _least_used(graph, links, use, equal)
    return {pair: paths[chosen[pair]] for pair, paths in equal.items()}


def _least_used(graph: DiGraph, links: _Links, use: _Use, equal: Mapping[Pair, Array]) -> dict[Pair, int]:
    """The index of the path of each pair."""
    choices = {}
    for pair, paths in equal.items():
        on_paths = links.of(paths)
        on_all = (on_paths == on_paths[0]).all(axis=0)
        use.add(on_paths[0, on_all], +1)
        choices[pair] = np.ascontiguousarray(on_paths[:, ~on_all])
    choices = {pair: paths for pair, paths in choices.items() if len(paths) > 1}
    chosen = dict.fromkeys(equal, 0)
    unavoidable = max(use.busiest, _of_ports(graph, use, 1 + max(max(pair) for pair in equal)))
    for pair, paths in choices.items():
        chosen[pair] = use.least(paths, _first_looked_at(pair, len(paths)))
        use.add(paths[chosen[pair]], +1)
    best, least = dict(chosen), use.busiest
    for _ in range(min(TRIES, MOST_CHOICES // max(1, len(choices)))):
        if least <= unavoidable:
            break
        _choose_again(choices, chosen, use)
        if use.busiest < least:
            best, least = dict(chosen), use.busiest
        use.avoid_busiest()
    return best


def _choose_again(choices: Mapping[Pair, Array], chosen: dict[Pair, int], use: _Use) -> None:
    """Until no pair alone finds a better path, or `ROUNDS` times."""
    for _ in range(ROUNDS):
        before = dict(chosen)
        for pair, paths in choices.items():
            use.add(paths[chosen[pair]], -1)
            chosen[pair] = use.least(paths, chosen[pair])
            use.add(paths[chosen[pair]], +1)
        if chosen == before:
            return


def _of_ports(graph: DiGraph, use: _Use, n_gpus: int) -> int:
    """How much the slowest port of a GPU is used by routes to all others, whichever they are."""
    ports = [graph.nodes[gpu][name] for gpu in range(n_gpus) for name in ("egress_kbs", "ingress_kbs")]
    return (n_gpus - 1) * use.share_of(min(ports))


def _first_looked_at(pair: Pair, n_paths: int) -> int:
    """The path that a pair takes if all are used equally.

    A GPU takes them in turn for its destinations, and a destination's sources take them in turn. `source // n_paths` is
    for pairs whose numbers are equally far apart, such as g and g + 8, whose (source + destination) is always even.
    """
    source, destination = pair
    return (source + destination + source // n_paths) % n_paths


class _Links:
    """The links of a graph by number."""

    def __init__(self, graph: DiGraph, rank: Mapping[Node, int]) -> None:
        edges = [(rank[a] * len(rank) + rank[b], rate) for a, b, rate in graph.edges(data="rate_kbs")]
        edges.sort(key=lambda edge: edge[0])
        self.rates = [rate for _, rate in edges]
        self._keys = np.array([key for key, _ in edges])
        self._n_nodes = len(rank)

    def of(self, paths: Array) -> Array:
        """The links of paths. int [paths, nodes] -> [paths, nodes - 1]."""
        found: Array = np.searchsorted(self._keys, paths[:, :-1] * self._n_nodes + paths[:, 1:])
        return found


class _Use:
    """How much each link is used: its routes over its rate."""

    def __init__(self, rates: Sequence[int | None]) -> None:
        self._fastest = max((rate for rate in rates if rate), default=1)
        self._share = np.array([self.share_of(rate) if rate else 0 for rate in rates])
        self._use = np.zeros(len(rates), dtype=np.int64)
        self._cost = self._share.copy()  # with one route more, and with what links to be avoided have on top

    def share_of(self, rate_kbs: int) -> int:
        """What one route uses of a link."""
        return round(_UNIT * self._fastest / rate_kbs)

    @property
    def busiest(self) -> int:
        return int(self._use.max())

    def avoid_busiest(self) -> None:
        """Count the busiest links as one route busier from now on."""
        busiest = self._use == self._use.max()
        self._cost[busiest] += self._share[busiest]

    def add(self, links: Array, times: int) -> None:
        self._use[links] += times * self._share[links]
        self._cost[links] += times * self._share[links]

    def least(self, paths: Array, first: int) -> int:
        """The index of the path that would be used least; of equal ones the first from `first` on. int [paths, links]."""
        costs = self._cost[paths]
        most = costs.max(axis=1)
        found = np.flatnonzero(most == most.min())
        if len(found) > 1:
            in_sum = costs[found].sum(axis=1)
            found = found[in_sum == in_sum.min()]
        return int(found[np.searchsorted(found, first) % len(found)])
