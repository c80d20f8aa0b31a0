"""Which of several equal paths a pair of GPUs takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from math import ceil, prod

import numpy as np
import pytest
from networkx import DiGraph
from xstage.scenarios.machine_files import load_machine
from xstage.sim import path_choice
from xstage.sim.path_choice import MOST_EQUAL_PATHS
from xstage.sim.routes import chosen_paths, fabric_of
from xstage.sim.topologies import Link, Node, custom, hybrid_cube_mesh, ring
from xstage.sim.topology import Fabric
from xstage.sim.traffic import all_to_all, unused_links

from .flows import GBS, ROOMY, everyone, rate_gbs

R = 100 * GBS
LATE_PS = 2_000_000


def paths(n_gpus: int, links: Iterable[Link]) -> dict[tuple[int, int], list[Node]]:
    return chosen_paths(custom(n_gpus, links), n_gpus)


def fabric(n_gpus: int, links: Iterable[Link]) -> Fabric:
    return fabric_of(custom(n_gpus, links), n_gpus, ROOMY)


def planes(names: Iterable[Node], rate_kbs: int, latency_ps: int = 0) -> list[Link]:
    """Two GPUs joined over switches of these names."""
    return [Link(gpu, name, rate_kbs, latency_ps) for name in names for gpu in (0, 1)]


class TestNodeWithSwitchAndNetwork:
    """Eight GPUs a node on a wide switch, each with an interface that is narrower and further."""

    @staticmethod
    def node(number: int, leaf: bool = True) -> list[Link]:
        gpus = range(8 * number, 8 * number + 8)
        wide = [Link(gpu, f"node {number}", 7 * R) for gpu in gpus]
        return wide + [Link(gpu, f"leaf {number}", R, LATE_PS) for gpu in gpus if leaf]

    def test_one_node_does_not_use_its_network(self) -> None:
        with_leaf, alone = fabric(8, self.node(0)), fabric(8, self.node(0, leaf=False))
        assert rate_gbs(with_leaf, everyone(8)) == rate_gbs(alone, everyone(8))
        assert (with_leaf.latency_ps == alone.latency_ps).all()
        assert len(unused_links(with_leaf)) == 2 * 8

    def test_two_nodes_do_as_with_a_node_of_its_own_for_each_interface(self) -> None:
        """Those make paths over the network longer, so that there is no choice."""
        joined = [*self.node(0), *self.node(1), Link("leaf 0", "leaf 1", 8 * R)]
        apart = [*self.node(0, leaf=False), *self.node(1, leaf=False), Link("leaf 0", "leaf 1", 8 * R)]
        for gpu in range(16):
            apart += [Link(gpu, f"nic {gpu}", R, LATE_PS), Link(f"nic {gpu}", f"leaf {gpu // 8}", R)]
        found = {pair: [node for node in path if "nic" not in str(node)] for pair, path in paths(16, apart).items()}
        assert paths(16, joined) == found
        assert all_to_all(fabric(16, joined)).rate_kbs == all_to_all(fabric(16, apart)).rate_kbs


class TestPathsThroughSwitches:
    def test_the_narrowest_link_counts_not_the_first(self) -> None:
        links = [Link(0, "a", 2 * R), Link("a", 1, 2 * R), Link(0, "b", 3 * R), Link("b", 1, R)]
        assert paths(2, links)[0, 1] == [0, "a", 1]

    def test_of_equally_wide_ones_the_nearest(self) -> None:
        """Also where another begins with a link that is wider, but for nothing."""
        assert paths(2, planes("a", R, 5) + planes("b", R, 7))[0, 1] == [0, "a", 1]
        links = [Link(0, "a", R, 5), Link(0, "b", 3 * R, 9), Link("a", "c", R), Link("b", "c", 3 * R)]
        assert paths(2, [*links, Link("c", 1, R)])[0, 1] == [0, "a", "c", 1]

    @pytest.mark.parametrize("worse", [(R, 5), (2 * R, 6)], ids=["narrower", "further"])
    def test_the_best_is_found_behind_any_number_of_worse_ones(self, worse: tuple[int, int]) -> None:
        crowd = planes((f"plane {index}" for index in range(2 * MOST_EQUAL_PATHS)), *worse)
        assert paths(2, crowd + planes(["plane 99"], 2 * R, 5))[0, 1] == [0, "plane 99", 1]

    @pytest.mark.parametrize("spines", [2, 3, 4, 5])
    def test_spines_carry_equally_many_routes_also_of_pairs_that_are_equally_far_apart(self, spines: int) -> None:
        first, second = range(4 * spines), range(4 * spines, 8 * spines)
        links = [Link(gpu, f"leaf {gpu // len(first)}", R) for gpu in (*first, *second)]
        links += [Link(f"leaf {leaf}", f"spine {spine}", 9 * R) for leaf in (0, 1) for spine in range(spines)]
        found = paths(8 * spines, links)
        for pairs in (list(zip(first, second, strict=True)), list(product(first, second))):
            carried = Counter(found[pair][2] for pair in pairs)
            assert set(carried.values()) == {len(pairs) // spines}


def grid(sizes: tuple[int, ...], wraps: bool, renumbering: int) -> list[Link]:
    """A torus if it `wraps`, its GPUs numbered in one of many ways."""
    number = np.random.default_rng(renumbering).permutation(prod(sizes)) if renumbering else np.arange(prod(sizes))
    links = []
    for place in product(*(range(size) for size in sizes)):
        for axis, size in enumerate(sizes):
            if place[axis] < size - 1 or (wraps and size > 2):
                other = (*place[:axis], (place[axis] + 1) % size, *place[axis + 1 :])
                ends = (int(number[np.ravel_multi_index(at, sizes)]) for at in (place, other))
                links.append(Link(*ends, R))
    return links


class TestPathsThroughGPUs:
    @pytest.mark.parametrize("renumbering", range(4))
    @pytest.mark.parametrize(
        ("sizes", "wraps", "least"),
        [
            ((3, 3), True, 3),
            ((2, 4), True, 4),
            ((4, 4), True, 8),
            ((5, 5), True, 15),
            ((3, 3), False, 6),
            ((4, 4), False, 16),
        ],
    )
    def test_the_busiest_link_of_a_grid_carries_no_more_than_by_dimensions(
        self, sizes: tuple[int, ...], wraps: bool, least: int, renumbering: int
    ) -> None:
        """However GPUs are numbered. With n GPUs, an axis of `size` and a torus: n (sum of distances along the axis) / size
        / 2, since two links leave a GPU along it, or one of a size of 2. A grid: n k (size - k) / size, k = size // 2.
        """
        found = paths(prod(sizes), grid(sizes, wraps, renumbering))
        assert max(Counter(hop for path in found.values() for hop in pairwise(path)).values()) == least

    def test_a_torus_is_as_fast_however_it_is_numbered(self) -> None:
        """Eight peers over links that carry three routes: 8/3 of a link."""
        rates = [rate_gbs(fabric(9, grid((3, 3), True, renumbering)), everyone(9)) / 9 for renumbering in range(4)]
        assert rates == pytest.approx([100 * 8 / 3] * 4, rel=0.03)

    @pytest.mark.parametrize("graph", [hybrid_cube_mesh(R), ring(8, R), load_machine("dgx1-v100").interconnect.graph()])
    def test_routes_that_cannot_be_better_do_not_change(self, graph: DiGraph, monkeypatch: pytest.MonkeyPatch) -> None:
        found = chosen_paths(graph, 8)
        monkeypatch.setattr(path_choice, "TRIES", 1)
        assert chosen_paths(graph, 8) == found


def leaf_spine(leaves: int, gpus: int, spines: int, number: Sequence[int]) -> list[Link]:
    """Leaves of some GPUs each, whose links to all spines carry together what their GPUs do."""
    links = [Link(number[gpu], f"leaf {gpu // gpus}", R) for gpu in range(leaves * gpus)]
    up = -(-gpus * R // spines)
    return links + [Link(f"leaf {leaf}", f"spine {spine}", up) for leaf in range(leaves) for spine in range(spines)]


def fat_tree(pods: int, leaves: int, gpus: int, above: int, cores: int, number: Sequence[int]) -> list[Link]:
    """Pods of leaves under `above` switches each, of which each has `cores` above it, shared by all pods."""
    links = [Link(number[gpu], f"leaf {gpu // gpus}", R) for gpu in range(pods * leaves * gpus)]
    for pod, switch in product(range(pods), range(above)):
        rate = -(-gpus * R // above)
        links += [Link(f"leaf {pod * leaves + leaf}", f"pod {pod}x{switch}", rate) for leaf in range(leaves)]
        rate = -(-leaves * gpus * R // (above * cores))
        links += [Link(f"pod {pod}x{switch}", f"core {switch}x{core}", rate) for core in range(cores)]
    return links


def least_use(n_gpus: int, blocks: Iterable[tuple[int, int]]) -> float:
    """How much the busiest link is used at least: blocks of (GPUs, links that lead out of them) send to all others, over
    links that carry together what the GPUs do, each a whole number of routes. In routes of a port's rate.
    """
    out = [ceil(gpus * (n_gpus - gpus) / links) * links / gpus for gpus, links in blocks]
    return max([n_gpus - 1, *out])


class TestNetworksThatDoNotBlock:
    """An All-to-All reaches what ports carry, or what whole routes over links allow where these are many."""

    @pytest.mark.parametrize(("leaves", "gpus", "spines"), [(4, 4, 12), (3, 4, 8), (2, 8, 16), (4, 4, 2), (2, 32, 64)])
    def test_leaves_and_spines(self, leaves: int, gpus: int, spines: int) -> None:
        made = fabric(leaves * gpus, leaf_spine(leaves, gpus, spines, range(leaves * gpus)))
        assert all_to_all(made).rate_kbs == pytest.approx(R, rel=1e-6)

    @pytest.mark.parametrize(
        ("pods", "leaves", "gpus", "above", "cores"), [(2, 2, 4, 8, 8), (2, 4, 4, 4, 4), (2, 6, 6, 6, 6)]
    )
    def test_three_levels(self, pods: int, leaves: int, gpus: int, above: int, cores: int) -> None:
        """The first has 64 paths for a pair in different pods."""
        n_gpus = pods * leaves * gpus
        made = fabric(n_gpus, fat_tree(pods, leaves, gpus, above, cores, range(n_gpus)))
        assert all_to_all(made).rate_kbs == pytest.approx(R, rel=1e-6)

    @pytest.mark.parametrize("seed", range(40))
    def test_random_ones_however_their_gpus_are_numbered(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        pods, leaves, gpus, above, cores = (int(most) for most in rng.integers(1, [4, 4, 5, 6, 6]))
        if seed % 2:
            blocks, links = (
                [(gpus, above)],
                leaf_spine(leaves + 1, gpus, above, rng.permutation((leaves + 1) * gpus).tolist()),
            )
            n_gpus = (leaves + 1) * gpus
        else:
            pods += 1
            n_gpus = pods * leaves * gpus
            links = fat_tree(pods, leaves, gpus, above, cores, rng.permutation(n_gpus).tolist())
            blocks = [(gpus, above), (leaves * gpus, above * cores)]
        made = fabric(n_gpus, links)
        assert all_to_all(made).rate_kbs >= 0.999 * R * (n_gpus - 1) / least_use(n_gpus, blocks)
