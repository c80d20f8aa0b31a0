"""What `explain` names first, what it calls the parts, and which rates hold a scenario up."""

from dataclasses import replace

import pytest

import xstage as xs
from xstage.answers.explanation import Bar, Explanation, explanation_parts

NODES = {
    "question": "What holds it up?",
    "machine": "hgx-h100-rails",
    "workload": {"kind": "burst_train", "gpus": 16, "destination": "all", "producers": 16, "burst": "32 KiB", "bursts": 8,
                 "gap": "4 us"},
}  # fmt: skip
MEGAMOE = {
    "question": "Where does the time go?",
    "machine": {"base": "hgx-b200", "overrides": {"compute.sms": 16}},
    "workload": {"kind": "megamoe", "gpus": 2, "hidden": 512, "intermediate": 256, "experts": 16, "topk": 2,
                 "tokens": 2048, "policy": "expert_wave"},
    "granule": "8 KiB",
}  # fmt: skip


@pytest.fixture(scope="module")
def done() -> Explanation:
    return xs.explain(NODES)


def made(done, *bars):
    """The same explanation with other bars: name, us as a bar, us alone; then 40 us that are left."""
    found = [Bar(name, name, round(us * 1e6), f"no {name}", round(alone * 1e6)) for name, us, alone in bars]
    found.append(Bar("busy", "work", 40_000_000))
    return replace(done, bars=tuple(found), total_ps=sum(bar.ps for bar in found))


def test_network_interfaces_have_a_bar_beside_the_drain_rate(done):
    bars = {bar.name: bar for bar in done.bars}
    assert bars["links"].cause == "finite rate of network interfaces (NIC)"
    assert bars["drain_rate"].ps < 0.05 * bars["links"].ps
    assert done.largest == bars["links"]
    assert sum(bar.ps for bar in done.bars) == done.total_ps
    wide = xs.run(NODES, overrides={"machine.interconnect.nic_rate": "100 TB/s"}).makespan_us
    assert bars["links"].alone_ps / 1e6 == pytest.approx(done.total_ps / 1e6 - wide, rel=1e-3)


def test_links_can_be_removed_by_name_and_a_switch_has_none(done):
    alone = xs.explain(NODES, order=["links"]).bars[0]
    assert alone.ps == alone.alone_ps == next(bar for bar in done.bars if bar.name == "links").alone_ps
    assert "links" not in [bar.name for bar in xs.explain("periodic-train").bars]
    one_node = {**NODES, "workload": NODES["workload"] | {"gpus": 8}}
    assert "links" not in [bar.name for bar in xs.explain(one_node).bars]


def test_without_a_limit_a_train_starts_as_with_a_wider_link():
    """Its producers start apart by what R drains, so the schedule changes with R, too."""
    bar = xs.explain("periodic-train", order=["R"]).bars[0]
    wide = xs.run("periodic-train", overrides={"machine.interconnect.drain_rate": "100 TB/s"}).makespan_us
    assert bar.ps / 1e6 == pytest.approx(xs.run("periodic-train").makespan_us - wide, rel=1e-3)


def test_a_bar_that_only_others_uncover_is_not_the_first_to_look_at(done):
    found = made(done, ("links", 50, 50), ("l2_feed", 56, 4))
    assert found.largest.name == found.as_dict()["largest_removable"] == "links"
    assert "largest removable part is links: 50.000 us" in found.sentence
    assert (
        "Larger, but only once the limits above it are gone, is l2_feed: 56.000 us, alone 4.000 us." in found.sentence
    )


def test_limits_that_stand_in_for_each_other_are_named_with_what_they_need(done):
    found = made(done, ("hbm", 0, 0), ("l2_feed", 30, 0))
    assert found.largest.name == "l2_feed"
    assert "Alone it saves 0.000 us, the rest once the limits above it are gone, too." in found.sentence


def test_what_saves_more_alone_is_named(done):
    found = made(done, ("capacity", 20, 20), ("drain_rate", 15, 35))
    assert found.largest.name == "capacity"
    assert "Removed alone, drain_rate saves most: 35.000 us" in found.sentence


def test_computation_that_holds_its_feed_is_not_called_tensor_core_time():
    everything, some = xs.explain(MEGAMOE), xs.explain(MEGAMOE, order=["Q", "R"])
    compute = [next(bar for bar in one.bars if bar.name == "compute") for one in (everything, some)]
    assert compute[0].cause == "Tensor Core time of the busiest lane"
    assert compute[1].cause == "computation of the busiest lane, with what L2 and HBM add to it"
    assert compute[0].ps < compute[1].ps


def test_what_to_beware_of_is_printed_last():
    changes = {"machine.interconnect.drain_rate": "700 GB/s", "workload.m": 1024}
    found = xs.explain("gemm-rs-llama-serial", overrides=changes)
    [said] = found.warnings
    assert explanation_parts(found)[-1] == f"warning: {said}"
    assert found.as_dict()["warnings"] == [said]
