"""Published link measurements, simulated: one pair, both directions, many into one, one to many, over switch and mesh."""

from __future__ import annotations

import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.scenarios.published import load_links

from ..sim.flows import rate_gbs

LINKS = load_links()
ONE_WAY = {"interconnect.duplex_efficiency": 1.0}
"""A machine file's rates are those of both directions at once; these tests send in one."""


def published(machine: str, quantity: str) -> list[float]:
    """What stores of SMs reached, in GB/s."""
    rows = LINKS[(LINKS.machine == machine) & (LINKS.quantity == quantity) & (LINKS.method != "copy_engine")]
    return sorted(rows[rows.sms.isna() & rows.message_bytes.isna()].rate_gbs)


@pytest.mark.parametrize("name", ["hgx-h800", "gb300", "gh200-quad", "rtx-pcie5", "mi300x"])
def test_one_pair(name: str) -> None:
    rate = rate_gbs(load_machine(name, ONE_WAY).fabric(2), {0: [1]})
    assert rate == pytest.approx(published(name, "peer_write")[-1], rel=0.015)


@pytest.mark.parametrize("name", ["hgx-h800", "gb300", "gh200-quad"])
def test_both_directions_of_a_pair(name: str) -> None:
    rate = rate_gbs(load_machine(name).fabric(2), {0: [1], 1: [0]}) / 2
    assert rate == pytest.approx(published(name, "peer_write_duplex")[0], rel=0.015)


@pytest.mark.parametrize("name, senders", [("hgx-h800", 7), ("gb300", 3), ("gh200-quad", 3)])
def test_many_into_one(name: str, senders: int) -> None:
    """Behind a switch they share the receiver's port, without loss; over links of their own each has all of its link."""
    rate = rate_gbs(load_machine(name, ONE_WAY).fabric(senders + 1), {g: [0] for g in range(1, senders + 1)})
    assert rate == pytest.approx(published(name, "incast")[0], rel=0.015)


@pytest.mark.parametrize("name, receivers", [("hgx-h800", 7), ("gb300", 3)])
def test_one_to_many(name: str, receivers: int) -> None:
    rate = rate_gbs(load_machine(name, ONE_WAY).fabric(receivers + 1), {0: list(range(1, receivers + 1))})
    measured = published(name, "fan_out")
    assert 0.98 * measured[0] <= rate <= 1.01 * measured[-1]


def test_a_mesh_needs_all_its_links_at_once() -> None:
    """One peer of a MI300X gets one of its seven links; an All-to-All reaches what its all-reduce does, 312.9 GB/s."""
    fabric = load_machine("mi300x").fabric()
    assert rate_gbs(fabric, {0: [1]}) == pytest.approx(48, rel=0.01)
    assert rate_gbs(fabric, {g: [p for p in range(8) if p != g] for g in range(8)}) / 8 == pytest.approx(
        312.9, rel=0.02
    )
