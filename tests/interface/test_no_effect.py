"""A changed topology always changes the result, or it is said why it cannot: every machine, kind and number is tried."""

import pytest
from xstage.scenarios.catalogue import entries
from xstage.scenarios.loader import load_scenario
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.interconnect import KINDS

from xstage.answers.no_effect import same_outcome, without_effect

ONE_OF_EACH_KIND = ("hgx-b200", "mi300x", "dgx1-v100", "hgx-h100-rails")
MACHINES = [
    pytest.param(entry.name, marks=[] if entry.name in ONE_OF_EACH_KIND else pytest.mark.slow)
    for entry in entries("machine")
]
GPUS = {"hgx-h100-rails": 16, "rtx-pcie5": 2, "cpu-epyc-vm": 2}
PRODUCERS = {"cpu-epyc-vm": 1}
OTHER = {"reply_arbitration": {"fifo": "fair", "fair": "fifo"}, "kernels": {"sm90": "sm100", "sm100": "sm90"}}
NEEDS = {
    "drain_rate": "300 GB/s", "link_rate": "50 GB/s", "oversubscription": 2.0, "planes": 2, "gpus_per_node": 4,
    "nic_rate": "40 GB/s", "nic_latency": "3 us", "hop_latency": "0.5 us",
    "links": [{"between": ["0-7", "hub"], "rate": "50 GB/s"}],
}  # fmt: skip


def scenario(machine, **more):
    """Every GPU stores to all others, a little."""
    workload = {
        "kind": "burst_train", "gpus": GPUS.get(machine, 4), "producers": PRODUCERS.get(machine, 4), "burst": "8 KiB",
        "bursts": 2, "senders": "all",
        "destination": "all", "mode": "synchronised",
    }  # fmt: skip
    return {"name": "q", "question": "q?", "machine": machine, "granule": "1 KiB", "workload": workload | more}


def halved(name, number):
    """Another value of a number of a machine; None for what is no number."""
    leaf, value, written = name.rpartition(".")[2], number.value, number.model_dump(mode="json")["value"]
    if leaf in OTHER:
        return OTHER[leaf][value]
    if leaf in ("kind", "links"):
        return None
    if isinstance(written, str):
        amount, unit = written.split()
        return f"{float(amount) / 2:g} {unit}" if float(amount) else f"100 {unit}"
    if isinstance(value, float):
        return value / 2 if value else 0.5
    return 2 * value


def run(written, overrides):
    resolved = load_scenario(written, overrides)
    return simulate(resolved.program(), resolved.fabric(), trace="off")


def same(one, other):
    return same_outcome(one.outcome, other.outcome)


def told(written, overrides, trace):
    return without_effect(written, overrides, trace.program, trace.fabric, trace)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_of_every_machine_changes_the_result_or_it_is_said_why_not(machine):
    written = scenario(machine)
    before = run(written, {})
    tried = 0
    for name, number in load_machine(machine).numbers():
        if (value := halved(name, number)) is None:
            continue
        overrides = {f"machine.{name}": value}
        try:
            after = run(written, overrides)
        except InputError:  # said, too: such as fewer GPUs than take part
            continue
        tried += 1
        said = told(written, overrides, after)
        assert bool(said) == same(before, after), f"{name} = {value}: {said}"
    assert tried > 10


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "switch"])
def test_every_wiring_changes_the_result_of_an_all_to_all(kind):
    written = scenario("hgx-h100", gpus=8, burst="64 KiB")
    needed = {f"machine.interconnect.{name}": NEEDS[name] for name in KINDS[kind]}
    unused = {"machine.interconnect.drain_rate": None} if "drain_rate" not in KINDS[kind] else {}
    before = run(written, {})
    after = run(written, {"machine.interconnect.kind": kind, **unused, **needed})
    assert not same(before, after)


@pytest.mark.parametrize(
    "overrides, reason",
    [
        ({"machine.interconnect.load_request_fraction": 0.5}, "the schedule has no loads"),
        ({"machine.interconnect.reduce_efficiency": 0.5}, "the schedule has no stores that add"),
        ({"machine.stage.capacity_sm": "60 KiB"}, "no store waits for room, the stage of a GPU holds"),
        ({"machine.compute.hbm_rate": "1 TB/s"}, "schedule and interconnect are the same without it"),
        ({"machine.interconnect.local_latency": "1 us"}, "it holds nothing up here, all times are the same without it"),
    ],
)
def test_the_reason_is_that_of_the_schedule(overrides, reason):
    written = scenario("hgx-h100")
    [said] = told(written, overrides, run(written, overrides))
    assert said.startswith(f"{next(iter(overrides))} = ") and reason in said


def test_more_than_one_that_cannot_matter_is_said_of_each():
    overrides = {"machine.interconnect.load_request_fraction": 0.5, "machine.compute.l2": "10 MiB"}
    written = scenario("hgx-h100")
    assert len(told(written, overrides, run(written, overrides))) == 2


def test_values_that_are_acceptable_only_together_have_an_effect_each():
    """6 GPUs do not divide 256 experts, nor 8 GPUs 258: neither run without the other can be built."""
    given = {"workload.gpus": 6, "workload.experts": 258, "workload.tokens": 64, "workload.ranks": "all"}
    resolved = load_scenario("megamoe-flash-wave", given)
    said = without_effect("megamoe-flash-wave", given, resolved.program(), resolved.fabric())
    assert not [one for one in said if "gpus" in one or "experts" in one]


def test_room_that_was_waited_for_is_no_idle_change():
    written = scenario("hgx-h100", producers=132, burst="64 KiB")
    overrides = {"machine.stage.capacity_sm": "60 KiB", "machine.stage.capacity_gpu": "20 MiB"}
    assert told(written, overrides, run(written, overrides)) == []


@pytest.mark.parametrize(
    ("key", "value", "other"),
    [("capacity_gpu", "8.5 MiB", "capacity_sm"), ("capacity_sm", "300 KiB", "capacity_gpu")],
)
def test_more_room_in_one_stage_names_the_other_one_if_that_is_full_first(key, value, other):
    """64 SMs hold 30 KiB each, 1.9 of the 4.25 MiB; with 1 MiB in all, it is the other way round."""
    path = f"machine.stage.{key}"
    given = {path: value} | ({"machine.stage.capacity_gpu": "1 MiB"} if key == "capacity_sm" else {})
    train = scenario("hgx-b200", producers=64, burst="64 KiB", gpus=2)
    resolved = load_scenario(train, given)
    program, fabric = resolved.program(), resolved.fabric()
    said = without_effect(train, given, program, fabric, simulate(program, fabric))
    assert [one for one in said if path in one and f"see machine.stage.{other}" in one]
