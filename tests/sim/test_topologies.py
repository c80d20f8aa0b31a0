"""What a topology carries, by closed form and by simulation: the reason to model one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xstage.sim import topologies
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.program import SIGNAL, STORE
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.routes import chosen_paths, fabric_of
from xstage.sim.topology import Fabric, StageParameters, direct, switch
from xstage.sim.traffic import (
    all_to_all,
    bisection,
    route_lengths,
    same_in_effect,
    to_next,
    to_one,
    unused_links,
)

from .flows import GBS, ROOMY, everyone, loading, rate_gbs

R = 100 * GBS


def lowered(graph: object, n_gpus: int, hop_latency_ps: int = 0) -> Fabric:
    return fabric_of(graph, n_gpus, ROOMY, hop_latency_ps)  # type: ignore[arg-type]


@pytest.mark.parametrize("n_gpus", [2, 3, 8])
def test_graphs_of_switch_and_direct_lower_to_what_needs_no_graph(n_gpus: int) -> None:
    assert same_in_effect(lowered(topologies.switch(n_gpus, R), n_gpus), switch(n_gpus, R, ROOMY))
    graph, plain = lowered(topologies.direct(n_gpus, R), n_gpus), direct(n_gpus, R, ROOMY)
    assert same_in_effect(graph, plain)
    assert sorted(graph.port_names) == sorted(plain.port_names)


class TestOversubscribedSwitch:
    fabric = lowered(topologies.oversubscribed_switch(8, R, 2.0), 8)

    def test_all_to_all_is_halved(self) -> None:
        assert all_to_all(self.fabric).rate_kbs == R / 2
        assert rate_gbs(self.fabric, everyone(8)) == pytest.approx(8 * 50, rel=0.01)

    def test_a_single_pair_is_not(self) -> None:
        assert to_one(self.fabric, 0, 5).rate_kbs == R
        assert rate_gbs(self.fabric, {0: [5]}) == pytest.approx(100, rel=0.01)

    def test_nor_are_four_pairs(self) -> None:
        assert rate_gbs(self.fabric, {0: [1], 2: [3], 4: [5], 6: [7]}) == pytest.approx(400, rel=0.01)

    def test_a_ratio_of_one_is_a_switch_that_does_not_block(self) -> None:
        fabric = lowered(topologies.oversubscribed_switch(8, R, 1.0), 8)
        assert rate_gbs(fabric, everyone(8)) == pytest.approx(rate_gbs(switch(8, R, ROOMY), everyone(8)), rel=0.01)


class TestMultiPlaneSwitch:
    """Eight GPUs, four planes: a pair has a quarter of R; of seven peers two share a plane, so an All-to-All has 7/8."""

    fabric = lowered(topologies.multi_plane_switch(8, R, 4), 8)

    def test_a_pair_keeps_to_one_plane(self) -> None:
        assert rate_gbs(self.fabric, {0: [5]}) == pytest.approx(25, rel=0.01)

    def test_an_all_to_all_uses_all_planes(self) -> None:
        assert all_to_all(self.fabric).rate_kbs == pytest.approx(R * 7 / 8)
        assert rate_gbs(self.fabric, everyone(8)) == pytest.approx(8 * 87.5, rel=0.02)

    @pytest.mark.parametrize("n_gpus, planes", [(8, 2), (16, 4), (36, 9), (72, 18)])
    def test_planes_carry_equally_many_routes(self, n_gpus: int, planes: int) -> None:
        paths = chosen_paths(topologies.multi_plane_switch(n_gpus, R, planes), n_gpus)
        out = np.zeros((n_gpus, planes), dtype=int)
        for (source, _), (_, plane, _) in paths.items():
            out[source, int(str(plane).split()[1])] += 1
        assert out.max() == -(-(n_gpus - 1) // planes)


class TestRing:
    @pytest.mark.parametrize("n_gpus", [4, 5, 8, 12])
    def test_all_to_all_is_limited_by_the_sum_of_distances(self, n_gpus: int) -> None:
        """Each of n GPUs sends n - 1 parts over the shorter way, d hops; 2 n links carry n (sum of d) of them."""
        distances = sum(min(d, n_gpus - d) for d in range(1, n_gpus))
        expected = R * (n_gpus - 1) * 2 / distances
        fabric = lowered(topologies.ring(n_gpus, R), n_gpus)
        assert all_to_all(fabric).rate_kbs == pytest.approx(expected)

    def test_the_simulation_reaches_most_of_that(self) -> None:
        """8 GPUs: 100 * 7 * 2 / 16 = 87.5. Granules that meet a busy link hold others up, so not quite all."""
        fabric = lowered(topologies.ring(8, R), 8)
        assert 0.9 * 87.5 <= rate_gbs(fabric, everyone(8)) / 8 <= 87.5

    def test_two_links_cross_from_half_to_half_each_way(self) -> None:
        """Of the 16 pairs of a half and the other, 8 cross at each of the two cuts."""
        assert bisection(lowered(topologies.ring(8, R), 8)).rate_kbs == pytest.approx(2 * R, rel=0.15)

    def test_neighbours_have_a_link_of_their_own(self) -> None:
        fabric = lowered(topologies.ring(8, R), 8)
        assert to_next(fabric).rate_kbs == R
        assert rate_gbs(fabric, {g: [(g + 1) % 8] for g in range(8)}) == pytest.approx(800, rel=0.01)

    def test_every_gpu_on_the_way_adds_its_latency(self) -> None:
        fabric = lowered(topologies.ring(8, R), 8, hop_latency_ps=250)
        assert (fabric.latency_ps[0, 1:] - ROOMY.latency_ps).tolist() == [0, 250, 500, 750, 500, 250, 0]

    def test_a_gpu_alone_has_ports_as_wide_as_a_link(self) -> None:
        """A loss by both directions at once must not leave it with nothing."""
        fabric = fabric_of(topologies.ring(1, R), 1, replace(ROOMY, duplex_efficiency=0.9))
        assert fabric.rates_kbs[:, 0].tolist() == [0.9 * R] * 2

    def test_two_gpus_have_one_link(self) -> None:
        assert lowered(topologies.ring(2, R), 2).port_names[4:] == ("link 0>1", "link 1>0")


class TestHybridCubeMesh:
    fabric = lowered(topologies.hybrid_cube_mesh(R), 8)

    def test_a_gpu_has_four_links_and_reaches_the_rest_over_two(self) -> None:
        assert sorted(route_lengths(self.fabric)[0, 1:].tolist()) == [3, 3, 3, 3, 4, 4, 4]

    def test_all_to_all_is_limited_by_the_four_links_between_quads(self) -> None:
        """16 pairs cross in each direction over 4 links: 4 R / 16 a pair, for 7 peers."""
        assert all_to_all(self.fabric).rate_kbs == pytest.approx(R / 4 * 7)
        assert bisection(self.fabric).rate_kbs == pytest.approx(4 * R)
        assert rate_gbs(self.fabric, everyone(8)) / 8 == pytest.approx(175, rel=0.1)


class TestIslands:
    NIC = 10 * GBS
    fabric = lowered(topologies.islands(16, 8, R, NIC, 2_590_000), 16)

    def test_within_a_node_the_network_does_not_matter(self) -> None:
        assert rate_gbs(self.fabric, {0: [1]}) == pytest.approx(100, rel=0.01)
        assert self.fabric.latency_ps[0, 7] == 410_000

    def test_between_nodes_an_interface_limits_each_gpu(self) -> None:
        assert rate_gbs(self.fabric, {0: [8]}) == pytest.approx(10, rel=0.01)
        assert rate_gbs(self.fabric, {0: [8, 9, 10]}) == pytest.approx(10, rel=0.01)
        assert rate_gbs(self.fabric, {0: [8], 1: [9], 2: [10]}) == pytest.approx(30, rel=0.01)
        assert self.fabric.latency_ps[0, 8] == 3_000_000

    def test_incast_from_another_node_is_limited_by_the_receivers_interface(self) -> None:
        assert rate_gbs(self.fabric, {g: [0] for g in range(8, 16)}) == pytest.approx(10, rel=0.01)

    @pytest.mark.parametrize("nodes", [2, 4, 8, 16])
    def test_all_to_all_waits_for_the_part_that_leaves_the_node(self, nodes: int) -> None:
        n = 8 * nodes
        fabric = lowered(topologies.islands(n, 8, R, self.NIC, 0), n)
        assert all_to_all(fabric).rate_kbs == pytest.approx(self.NIC * (n - 1) / (n - 8))

    def test_two_by_eight_is_not_eight_by_two(self) -> None:
        """More of the traffic leaves a smaller node: 8 of 15 peers are elsewhere, or 14 of 15."""
        pairs = lowered(topologies.islands(16, 2, R, self.NIC, 0), 16)
        assert all_to_all(self.fabric).rate_kbs == pytest.approx(self.NIC * 15 / 8)
        assert all_to_all(pairs).rate_kbs == pytest.approx(self.NIC * 15 / 14)
        slow, fast = (rate_gbs(f, everyone(16), 64 << 10) for f in (pairs, self.fabric))
        assert fast / slow == pytest.approx(14 / 8, rel=0.1)

    def test_stores_from_the_own_node_are_not_held_up_by_those_from_another(self) -> None:
        """A receiver takes in R in all, also while a slow interface delivers to it."""
        both = rate_gbs(self.fabric, {1: [0] * 20, 8: [0] * 2})
        assert both > 95

    def test_one_node_has_no_network(self) -> None:
        assert lowered(topologies.islands(8, 8, R, self.NIC, 0), 8).n_ports == 16


class TestCustom:
    def test_unequal_groups_behind_a_spine(self) -> None:
        """Four GPUs on one leaf and two on another; the smaller leaf's uplink is what both share."""
        links = [topologies.Link(g, "leaf 0", R) for g in range(4)] + [topologies.Link(g, "leaf 1", R) for g in (4, 5)]
        links += [topologies.Link("leaf 0", "spine", 2 * R), topologies.Link("leaf 1", "spine", R, latency_ps=70)]
        fabric = lowered(topologies.custom(6, links), 6)
        assert rate_gbs(fabric, {0: [1]}) == pytest.approx(100, rel=0.01)
        assert rate_gbs(fabric, {0: [4], 1: [5]}) == pytest.approx(100, rel=0.01)
        assert fabric.latency_ps[0, 4] - fabric.latency_ps[0, 1] == 70

    def test_links_between_the_same_two_add_up(self) -> None:
        fabric = lowered(topologies.custom(2, [topologies.Link(0, 1, R)] * 2), 2)
        assert to_one(fabric, 0, 1).rate_kbs == 2 * R

    def test_a_route_passes_a_switch_rather_than_a_gpu(self) -> None:
        links = [topologies.Link(0, 1, R), topologies.Link(1, 2, R)]
        links += [topologies.Link(0, "a", R), topologies.Link("a", "b", R), topologies.Link("b", 2, R)]
        assert chosen_paths(topologies.custom(3, links), 3)[0, 2] == [0, "a", "b", 2]

    def test_a_gpu_out_of_reach_is_named(self) -> None:
        with pytest.raises(InputError, match=r"links: leave GPU 2 out of reach of GPU 0"):
            lowered(topologies.custom(3, [topologies.Link(0, 1, R)]), 3)

    def test_one_way_links_need_a_way_back(self) -> None:
        ring = [topologies.Link(g, (g + 1) % 3, R, one_way=True) for g in range(3)]
        fabric = lowered(topologies.custom(3, ring), 3)
        assert route_lengths(fabric)[0].tolist() == [0, 3, 4]

    def test_a_link_that_no_route_uses_is_known(self) -> None:
        links = [
            topologies.Link(0, 1, R),
            topologies.Link(0, "a", R),
            topologies.Link("a", "b", R),
            topologies.Link("b", 1, R),
        ]
        fabric = lowered(topologies.custom(2, links), 2)
        assert len(unused_links(fabric)) == 6


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_a_request_passes_egress_and_links_to_the_owner(engine: str) -> None:
    fabric = fabric_of(topologies.islands(2, 1, R, GBS, 0), 2, replace(ROOMY, request_permille=190))
    ports = simulate(loading(2, {0: [1]}, size=10_000), fabric, engine=engine).outcome.ports  # type: ignore[arg-type]
    there = {"egress 0": 1900, "link 0>network": 1900, "link network>1": 1900, "ingress 1": 0}
    back = {"egress 1": 10_000, "link 1>network": 10_000, "link network>0": 10_000, "ingress 0": 10_000}
    assert dict(zip(fabric.port_names, ports["bytes"].tolist(), strict=True)) == there | back


def test_routes_are_the_same_each_time() -> None:
    for build in (lambda: topologies.hybrid_cube_mesh(R), lambda: topologies.ring(8, R)):
        assert chosen_paths(build(), 8) == chosen_paths(build(), 8)


def test_a_multicast_forks_behind_its_egress_and_each_copy_walks_its_own_route() -> None:
    """Round a ring to GPUs 1 and 2: once through the egress, twice over the link that both copies need."""
    builder = ProgramBuilder(5)
    op = builder.ops(STORE, target=builder.destination({1: 4096, 2: 4096}, replicate=True), bytes=4096, duration_ps=1)
    task = builder.tasks(builder.runs(op, 1), 1)
    builder.groups(gpu=0, plan=builder.plan([], [builder.queue([int(task)])]), seats=[Seat("sender", 0)])
    fabric = lowered(topologies.ring(5, R), 5)
    for engine in ("simpy", "compiled"):
        ports = simulate(builder.build(), fabric, engine=engine).outcome.ports  # type: ignore[arg-type]
        carried = dict(zip(fabric.port_names, ports["bytes"].tolist(), strict=True))
        assert {name: size for name, size in carried.items() if size} == {
            "egress 0": 4096, "link 0>1": 8192, "link 1>2": 4096, "ingress 1": 4096, "ingress 2": 4096,
        }  # fmt: skip


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_the_largest_signal_takes_the_time_of_its_bytes(engine: str) -> None:
    """One that is larger could overflow the times of one engine and not of the other."""
    largest = 2**31 - 1
    fabric = switch(2, R, StageParameters(1024, 2**31, 2**31, signal_bytes=largest))
    builder = ProgramBuilder(2)
    counter = builder.counters(home=[1], cause="peer")
    task = builder.tasks(builder.op_list([{"kind": SIGNAL, "counter": counter, "count": 1}]), 1)
    builder.groups(gpu=0, plan=builder.plan([], [builder.queue([int(task)])]), seats=[Seat("sender")])
    assert simulate(builder.build(), fabric, engine=engine).makespan_ps == -(-largest * 10**9 // R)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"signal_bytes": 2**31}, "signal_bytes = 2147483648: is too large"),
        ({"request_permille": 1001}, "request_permille = 1001: is too large"),
        ({"request_permille": 1.5}, "request_permille = 1.5: must be whole"),
        ({"latency_ps": 1.5}, "latency_ps = 1.5: must be whole"),
        ({"granule_bytes": 2**70}, "granule_bytes = 1180591620717411303424: must be whole, in 64 bits"),
    ],
)
def test_numbers_of_a_fabric_that_its_engines_could_not_agree_on_are_refused(
    numbers: dict[str, int], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        switch(2, R, replace(ROOMY, **numbers))


def test_an_array_of_fractions_is_refused() -> None:
    fabric = switch(2, R, ROOMY)
    with pytest.raises(InputError, match="latency_ps = 'an array of float64': must be whole"):
        replace(fabric, latency_ps=fabric.latency_ps + 0.5)
