"""Topologies and disturbances as people write them: what each kind needs, what is refused, and what a change does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from xstage.scenarios.loader import load_scenario
from xstage.scenarios.machine_files import load_machine
from xstage.sim import burst_gap
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.interconnect import KINDS
from xstage.sim.machine import Machine
from xstage.sim.topology import Fabric
from xstage.sim.traffic import all_to_all, route_lengths, same_in_effect

import xstage as xs

FIELDS: dict[str, Any] = {
    "drain_rate": "100 GB/s",
    "link_rate": "100 GB/s",
    "oversubscription": 2.0,
    "planes": 4,
    "hop_latency": "0.1 us",
    "gpus_per_node": 4,
    "nic_rate": "10 GB/s",
    "nic_latency": "3 us",
    "links": [{"between": ["0-7", "leaf"], "rate": "100 GB/s"}],
}
DUPLEX = load_machine("hgx-h100").interconnect.duplex_efficiency.value
TRAIN = {"kind": "burst_train", "gpus": 4, "producers": 2, "burst": "16 KiB", "destination": "all", "senders": "all"}
TRAIN |= {"mode": "synchronised", "bursts": 2, "gap": "1 us"}


def machine(kind: str, /, **changes: Any) -> Machine:
    """hgx-h100 with another wiring of 8 GPUs; a field that is None is left out."""
    numbers = {"drain_rate": None, **{name: FIELDS[name] for name in KINDS[kind]}, "kind": kind, **changes}
    overrides = {f"interconnect.{name}": value for name, value in numbers.items()}
    given = load_machine("hgx-h100").interconnect
    return load_machine(
        "hgx-h100",
        {path: value for path, value in overrides.items()
         if value is not None or getattr(given, path.split(".")[1]) is not None},
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_joins_all_gpus(kind: str) -> None:
    fabric = machine(kind).fabric()
    assert fabric.n_gpus == 8
    assert (route_lengths(fabric) > 0).sum() == 56


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_names_what_it_lacks(kind: str) -> None:
    for name in KINDS[kind]:
        with pytest.raises(
            InputError, match=f"override interconnect.kind = '{kind}': needs {name}, which this machine"
        ):
            machine(kind, **{name: None})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_refuses_what_it_does_not_use(kind: str) -> None:
    foreign = [name for name in FIELDS if name not in KINDS[kind] and (kind, name) != ("custom", "hop_latency")]
    for name in foreign:
        with pytest.raises(InputError, match=f"{name}.*has no meaning where kind is {kind}"):
            machine(kind, **{name: FIELDS[name]})


@pytest.mark.parametrize(
    "kind, changes, said",
    [
        ("ring", {"kind": "rings"}, "kind.*is not known; did you mean 'ring'"),
        ("ring", {"link_rate": "0 GB/s"}, "link_rate.*must be above 0"),
        ("ring", {"link_rate": 100}, "link_rate.*is not a rate"),
        ("oversubscribed_switch", {"oversubscription": 0.5}, "oversubscription.*must be at least 1"),
        ("multi_plane_switch", {"planes": 0}, "planes.*must be at least 1"),
        ("hybrid_cube_mesh", {"gpus": 6}, r"gpus.*6: is no hybrid cube mesh \(allowed: 8\)"),
        ("islands", {"gpus_per_node": 3}, "gpus_per_node.*3: does not divide the 8 GPUs"),
        ("islands", {"nic_latency": "1 ns"}, "nic_latency.*is below the latency within a node"),
        (
            "custom",
            {"links": [{"between": [0, 8], "rate": "1 GB/s"}]},
            r"GPU 8 is not on this machine \(allowed: 0 to 7",
        ),
        ("custom", {"links": [{"between": [0, 0], "rate": "1 GB/s"}]}, "joins 0 to itself"),
        ("custom", {"links": [{"between": ["0-6", "a"], "rate": "1 GB/s"}]}, "leave GPU 7 out of reach of GPU 0"),
        ("custom", {"links": [{"between": [0, True], "rate": "1 GB/s"}]}, "is no end of a link"),
        ("custom", {"links": [{"between": ["5-3", "a"], "rate": "1 GB/s"}]}, "is an empty range of GPUs"),
        ("custom", {"links": [{"between": ["0-9" + "9" * 30, "a"], "rate": "1 GB/s"}]}, "allowed: 0 to 4095"),
        ("custom", {"links": [{"between": ["0-8", "a"], "rate": "1 GB/s"}]}, "GPU 8 is not on this machine"),
        ("custom", {"links": [{"between": [0, "-1"], "rate": "1 GB/s"}]}, "'-1': is no end of a link"),
        ("custom", {"links": [{"between": [0, -1], "rate": "1 GB/s"}]}, "-1: is no end of a link"),
        ("custom", {"links": [{"between": [0, "0--3"], "rate": "1 GB/s"}]}, "'0--3': is neither a number, nor a range"),
        ("custom", {"links": [{"between": [0, 1], "speed": "1 GB/s"}]}, "speed.*is not a known key"),
    ],
)
def test_a_wiring_that_makes_no_sense_is_refused(kind: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        machine(kind, **changes)


FOUR = [{"between": [a, b], "rate": "50 GB/s"} for a in range(4) for b in range(a)]


@pytest.mark.parametrize(
    "one_by_one, in_ranges",
    [
        (FOUR, [{"between": ["0-3", "0-3"], "rate": "50 GB/s"}]),
        (FOUR, [{"between": ["0-3", "0-3"], "rate": "50 GB/s", "one_way": True}]),
        ([one for one in FOUR if one["between"] != [1, 0]], [{"between": ["0-3", "2-3"], "rate": "50 GB/s"}]),
    ],
    ids=["with itself", "one way", "overlapping"],
)
def test_ranges_join_each_pair_by_one_link(one_by_one: list[Any], in_ranges: list[Any]) -> None:
    """Of both directions, however often the pair is in the two ranges."""
    made, expected = (machine("custom", gpus=4, links=links).fabric() for links in (in_ranges, one_by_one))
    assert same_in_effect(made, expected)


def test_links_between_the_same_nodes_add_up_but_have_one_latency() -> None:
    twice = [{"between": ["0-3", "hub"], "rate": "50 GB/s", "latency": "1 us"}] * 2
    assert machine("custom", gpus=4, links=twice).drain_kbs("peer") == pytest.approx(100_000_000 * DUPLEX)
    further = [twice[0], {"between": [2, "hub"], "rate": "50 GB/s"}]
    said = r"links\.value\.1\.latency: is not that of an earlier link from 2 to hub.*allowed: 1 us"
    with pytest.raises(InputError, match=said):
        machine("custom", gpus=4, links=further)


def test_one_link_of_a_list_is_changed_with_the_list_or_slowed_down_by_a_scenario() -> None:
    ways = r"\(allowed: .*links, the whole list; a scenario slows one link down with disturb.degraded_link: {between: "
    for path in ("interconnect.links.0.rate", "interconnect.link_rate"):
        with pytest.raises(InputError, match=ways):
            load_machine("dgx1-v100", {path: "10 GB/s"})


def test_an_error_names_the_line_of_the_link(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "base: dgx1-v100\ninterconnect:\n  links:\n    source: mine\n    value:\n"
        "      - {between: [0-7, hub], rate: 20 GB/s}\n      - {between: [3, 9], rate: 20 GB/s}\n"
    )
    with pytest.raises(InputError, match=r"mine\.yaml:7: interconnect\.links\.value\.1\.between: GPU 9 is not"):
        load_machine(file)


def test_a_file_may_build_on_a_topology() -> None:
    four = load_machine("hgx-h100-rails", {"interconnect.gpus": 32})
    assert four.gpus == 32
    assert route_lengths(four.fabric())[0, [7, 8, 31]].tolist() == [2, 4, 4]


def test_drain_rates_are_those_of_the_routes() -> None:
    islands = load_machine("hgx-h100-rails", {"interconnect.duplex_efficiency": 1.0})
    # What NVLink loses to duplex is not the network's.
    assert load_machine("hgx-h100-rails").drain_kbs("next") == 43_000_000
    assert islands.drain_kbs("peer") == 350_000_000
    assert islands.drain_kbs("peer", 8) == islands.drain_kbs("next", 8) == islands.drain_kbs("all", 8) == 350_000_000
    assert islands.drain_kbs("next") == 43_000_000
    assert islands.drain_kbs("all") == 43_000_000 * 15 // 8


def test_the_first_dgx_is_a_hybrid_cube_mesh_with_wider_links() -> None:
    """Six links a GPU; 20 GB/s to some neighbours, 40 to others; GPU 5 is two links away from GPU 0."""
    fabric = load_machine("dgx1-v100").fabric()
    assert fabric.rates_kbs[:16, 0].tolist() == [120_000_000] * 16
    assert route_lengths(fabric)[0].tolist() == [0, 3, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("gpus", [8, 16, 32, 64, 72])
def test_expert_parallel_sizes_up_to_a_rack(gpus: int) -> None:
    rack = load_machine("gb200-nvl72")
    assert all_to_all(rack.fabric(gpus)).rate_kbs == rack.drain_kbs("all", gpus)
    over = {"interconnect.kind": "oversubscribed_switch", "interconnect.oversubscription": 2.0}
    half = load_machine("gb200-nvl72", over)
    assert half.drain_kbs("all") == pytest.approx(rack.drain_kbs("all") / 2, rel=1e-6)
    assert half.drain_kbs("peer") == rack.drain_kbs("peer")


def scenario(**disturb: Any) -> dict[str, Any]:
    return {"question": "?", "machine": "hgx-h100", "workload": TRAIN, "disturb": disturb}


def makespan(**disturb: Any) -> int:
    resolved = load_scenario(scenario(**disturb))
    return simulate(resolved.program(), resolved.fabric()).makespan_ps


def test_each_disturbance_makes_a_run_longer() -> None:
    healthy = makespan()
    assert makespan(late_gpu={"gpu": 3, "by": "5 us"}) == healthy + 5_000_000
    assert makespan(degraded_link={"gpu": 3, "factor": 0.1}) > healthy
    assert makespan(slow_gpu={"gpu": 3, "factor": 2}) == healthy + 1_000_000


TREE = [{"between": ["0-3", "hub"], "rate": "100 GB/s"}]


def fabric_with(*degraded: dict[str, Any]) -> Fabric:
    """Four GPUs around a hub, some of their links degraded."""
    wiring = {"gpus": 4, "kind": "custom", "links": TREE, "drain_rate": None}
    overrides = {f"machine.interconnect.{name}": value for name, value in wiring.items()}
    return load_scenario(scenario(degraded_link=list(degraded)), overrides).fabric()


def test_a_range_degrades_the_link_of_each_of_its_gpus() -> None:
    in_one = fabric_with({"between": ["1-2", "hub"], "factor": 0.5})
    one_by_one = fabric_with(*({"between": [gpu, "hub"], "factor": 0.5} for gpu in (1, 2)))
    assert same_in_effect(in_one, one_by_one)
    assert not same_in_effect(in_one, fabric_with({"between": [1, "hub"], "factor": 0.5}))
    with pytest.raises(InputError, match="between = '0, 1': are not joined by a link"):
        fabric_with({"between": ["0-1", "0-1"], "factor": 0.5})


@pytest.mark.parametrize("bursts", [1, 4])
def test_isolated_bursts_stay_isolated_behind_a_degraded_link(bursts: int) -> None:
    """Each takes as long as the only one: the stage has run empty at the rate that is left."""
    train = {"kind": "burst_train", "producers": 132, "burst": "64 KiB", "bursts": bursts, "mode": "isolated"}
    run = xs.run({"question": "?", "machine": "hgx-h100", "workload": train,
                  "disturb": {"degraded_link": {"gpu": 0, "factor": 0.2}}})  # fmt: skip
    spans = run.trace.spans().query("phase == 'burst'").groupby("m_block")["span_us"].max()
    stage = load_machine("hgx-h100").x_stage()
    alone = burst_gap.issue_time(replace(stage, drain_kbs=0.2 * stage.drain_kbs), 132, 64 << 10, mode="isolated")
    assert spans.tolist() == pytest.approx([alone / 1e6] * bursts, rel=0.01)


def test_producers_that_run_freely_start_over_the_period_that_a_degraded_link_leaves() -> None:
    train = {"kind": "burst_train", "producers": 64, "burst": "64 KiB", "bursts": 2}
    made = {"question": "?", "machine": "hgx-h100", "workload": train}
    last = [
        int(load_scenario(made, overrides).program().lanes["start_ps"].max())
        for overrides in ({}, {"disturb.degraded_link": {"gpu": 0, "factor": 0.25}})
    ]
    assert last[1] == pytest.approx(4 * last[0], rel=1e-6)


def test_several_may_be_given() -> None:
    late = [{"gpu": 1, "by": "1 us"}, {"gpu": 2, "by": "4 us"}]
    assert makespan(late_gpu=late) == makespan() + 4_000_000


def test_a_disturbance_can_be_set_from_outside() -> None:
    resolved = load_scenario(scenario(late_gpu={"gpu": 3, "by": "1 us"}), {"disturb.late_gpu.by": "7 us"})
    assert resolved.scenario.disturb.late_gpu[0].by == 7_000_000


@pytest.mark.parametrize(
    "disturb, said",
    [
        ({"slow_gpu": {"gpu": 4, "factor": 2}}, r"disturb.slow_gpu.gpu = 4: takes no part \(allowed: 0 to 3\)"),
        ({"slow_gpu": {"gpu": 1, "factor": 0.5}}, "disturb.slow_gpu.factor = 0.5: must be at least 1"),
        ({"slow_gpu": {"gpu": 1}}, "disturb.slow_gpu.factor: is missing"),
        ({"slow_gpus": {"gpu": 1, "factor": 2}}, "did you mean 'slow_gpu'"),
        ({"late_gpu": {"gpu": 1, "by": 3}}, "disturb.late_gpu.by = 3: is not a time"),
        ({"late_gpu": [{"gpu": 1, "by": "1 us"}, {"gpu": 9, "by": "1 us"}]}, "gpu = 9: takes no part"),
        ({"degraded_link": {"factor": 0.5}}, "disturb.degraded_link: names one of two things"),
        ({"degraded_link": {"gpu": 1, "factor": 1.5}}, "disturb.degraded_link.factor = 1.5: must be at most 1"),
    ],
)
def test_a_disturbance_that_makes_no_sense_is_refused(disturb: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_scenario(scenario(**disturb))


def test_mirrored_ranks_cannot_differ() -> None:
    with pytest.raises(InputError, match=r"disturb: makes ranks differ \(allowed: workload.ranks: all\)"):
        load_scenario(
            "megamoe-flash-wave", {"workload.ranks": "symmetric", "disturb.late_gpu": {"gpu": 1, "by": "1 us"}}
        )


def test_a_raised_digit_is_part_of_a_switchs_name() -> None:
    """Python's `isdigit` takes \u00b2 for a digit, `int` does not."""
    links = [{"between": ["0-7", "leaf\u00b2"], "rate": "1 GB/s"}, {"between": ["\u00b2", 0], "rate": "1 GB/s"}]
    assert "\u00b2" in machine("custom", links=links).interconnect.graph()
