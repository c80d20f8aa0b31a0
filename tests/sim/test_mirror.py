"""One GPU that stands for many: as fast as they are, or refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from xstage.sim import topologies
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.mirror import are_alike, mirrored
from xstage.sim.routes import fabric_of
from xstage.sim.topology import PLAIN, SCATTER, Fabric, direct, switch

from .flows import GBS, ROOMY, everyone, loading

R = 100 * GBS


def lowered(graph: object, n_gpus: int, **changes: object) -> Fabric:
    return fabric_of(graph, n_gpus, replace(ROOMY, **changes))  # type: ignore[arg-type]


def test_mirrored_gpus_share_what_the_links_carry() -> None:
    fabric = mirrored(lowered(topologies.oversubscribed_switch(8, R, 2.0), 8))
    assert fabric.rates_kbs[:, 0].tolist() == [R // 2] * 4


@pytest.mark.parametrize("fan_out", [0.6, 0.3])
def test_links_hold_up_what_they_carry_less_of_and_nothing_else(fan_out: float) -> None:
    """A scatter at 60 % of the port is over the half that the links carry, at 30 % it is not; a plain store always is."""
    fabric = mirrored(lowered(topologies.oversubscribed_switch(8, R, 2.0), 8, fan_out_efficiency=fan_out))
    assert fabric.rates_kbs[0, [PLAIN, SCATTER]].tolist() == [R // 2, int(R * min(0.5, fan_out))]


@pytest.mark.parametrize("fan_out", [1.0, 0.6])
def test_pulls_from_mirrored_gpus_take_as_long_as_those_of_all(fan_out: float) -> None:
    """What the switch carries is shared by requests and replies, in the whole as at the mirror's egress."""
    graph = topologies.oversubscribed_switch(8, R, 4.0)
    fabric = lowered(graph, 8, request_permille=190, fan_out_efficiency=fan_out)
    whole = simulate(loading(8, {g: 8 * owners for g, owners in everyone(8).items()}), fabric)
    mirror = simulate(loading(2, {0: 8 * 7 * [1]}), mirrored(fabric))
    assert mirror.makespan_ps == pytest.approx(whole.makespan_ps, rel=0.02)


@pytest.mark.parametrize("fabric", [switch(8, R, ROOMY), direct(8, R // 7, ROOMY)], ids=["switch", "mesh"])
def test_ports_that_links_do_not_hold_up_stay_as_they_are(fabric: Fabric) -> None:
    assert (mirrored(fabric).rates_kbs == fabric.rates_kbs[[0, 1, 8, 9]]).all()


def test_gpus_that_are_not_equally_far_cannot_be_mirrored() -> None:
    with pytest.raises(InputError, match="ranks = 'symmetric': needs GPUs that are all equally far"):
        mirrored(lowered(topologies.islands(16, 8, R, GBS, 5), 16))


def test_gpus_whose_pairs_share_links_unequally_cannot_be_mirrored() -> None:
    """Seven peers over four planes: some share one by two, another has one, and is held up by the port."""
    planes = lowered(topologies.multi_plane_switch(8, R, 4), 8)
    with pytest.raises(InputError, match=r"ranks = 'symmetric': needs links .* alike, .* has 12.5 to 14.29 GB/s"):
        mirrored(planes)
    even = lowered(topologies.multi_plane_switch(8, R, 7), 8)
    assert not are_alike(planes)
    assert are_alike(even)


def test_unequal_links_do_not_matter_where_ports_are_slower() -> None:
    wide = [topologies.Link(gpu, "hub", R) for gpu in range(4)]
    wide += [
        topologies.Link("hub", "core", 100 * R),
        topologies.Link("core", 4, R),
        topologies.Link(4, "hub", 1, 0, True),
    ]
    assert are_alike(lowered(topologies.custom(4, wide), 4))


def of_links(unequal: int) -> Fabric:
    """A mesh of three GPUs; the links of one pair carry `unequal` per mille more than the others'."""
    pairs = [(0, 1, R), (0, 2, R), (1, 2, R * (1000 + unequal) // 1000)]
    return lowered(topologies.custom(3, [topologies.Link(a, b, rate) for a, b, rate in pairs]), 3)


def test_pairs_that_differ_by_one_percent_at_most_are_alike() -> None:
    """A link of 1.8 % more gives its pair 0.9 % more of the All-to-All: ports are as wide as their links together."""
    assert are_alike(of_links(18))
    assert not are_alike(of_links(22))


def test_links_that_were_rounded_down_do_not_hold_up_a_port() -> None:
    """A GPU's links to seven planes carry 14,285,714 kB/s each, together 2 kB/s less than its port."""
    fabric = lowered(topologies.multi_plane_switch(8, R, 7), 8)
    assert fabric.rates_kbs[0, PLAIN] == R > 7 * fabric.rates_kbs[-1, PLAIN]
    assert mirrored(fabric).rates_kbs[0, PLAIN] == R
