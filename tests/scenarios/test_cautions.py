"""An assumption that can decide an answer is named with it."""

import pytest
from xstage.scenarios.cautions import cautions
from xstage.scenarios.loader import load

SLOW = {"disturb.degraded_link": {"gpu": 1, "factor": 0.5}}


def said(name, **changes):
    resolved = load(name, changes)
    return cautions(resolved, resolved.program())


def test_a_degraded_link_beside_pulls_names_the_arbitration_that_is_assumed():
    [sentence] = said("megamoe-flash-skewed", **SLOW)
    assert "this run has fifo; compare machine.interconnect.reply_arbitration=fair" in sentence


@pytest.mark.parametrize(("name", "changes"), [("megamoe-flash-skewed", {}), ("uniform-all-to-all", SLOW)])
def test_nothing_is_said_without_one_or_without_loads(name, changes):
    assert not said(name, **changes)


LINK = "machine.interconnect.drain_rate"


@pytest.mark.parametrize(
    ("name", "rate"),
    [("gemm-rs-llama-serial", "ring_rate = 371 GB/s"), ("attention-wan-serial", "collective_rate = 87.6 GB/s")],
)
def test_collectives_that_stay_where_the_links_become_faster_are_named(name, rate):
    [sentence] = said(name, **{"machine": "hgx-h100", LINK: "700 GB/s"})
    assert f"drain_rate of the interconnect changed, but collectives of their own still send at {rate}" in sentence


@pytest.mark.parametrize(
    "changes",
    [
        {LINK: "700 GB/s", "machine.interconnect.ring_rate": "742 GB/s"},
        {LINK: "51 GB/s"},  # slower links hold the collective up
        {LINK: "700 GB/s", "workload.policy": "fused"},  # no collective of its own
        {},
    ],
)
def test_nothing_is_said_where_collectives_follow_the_links(changes):
    assert not said("gemm-rs-llama-serial", **changes)
