"""What `xstage audit` advises, when it is followed."""

import json
import re
from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xstage.scenarios.catalogue import entries
from xstage.sim.execute import simulate
from xstage.sim.schedules.burst_train import BurstTrain, build
from xstage.sim.units import parse_rate, parse_time

import xstage as xs
from xstage.answers.audit import audit_parts
from xstage.cli import main

RATE = re.compile(r"or a (drain|link) rate of (\d+) GB/s")


WITHOUT = {"cpu-epyc-vm", "dgx1-v100", "hgx-h100-rails"}
"""A core, whose stores are held up by the capacity alone; a list of links, which are advised as such; and nodes, where the
port of a GPU and its network interface are too slow both."""
MACHINES = sorted({entry.name for entry in entries("machine")})


@pytest.mark.parametrize("name", sorted(set(MACHINES) - WITHOUT))
def test_the_rate_that_an_audit_advises_removes_the_stall_and_is_the_smallest(name):
    """It is the number of the machine's file, of which a share drains where `duplex_efficiency` is below 1."""
    machine = xs.load_machine(name)
    asked = (name, machine.sms, "128 KiB", "8 us")
    advised = RATE.search(xs.audit(*asked).reason)
    assert advised is not None
    key, enough = f"interconnect.{advised[1]}_rate", int(advised[2])
    assert xs.audit(*asked, overrides={key: f"{enough} GB/s"}).stall_us == 0
    assert xs.audit(*asked, overrides={key: f"{enough - 1} GB/s"}).stall_us > 0


def raised(reason: str, machine: xs.Machine) -> dict[str, Any]:
    """The overrides that the sentence of an audit advises for R; none where it advises none."""
    keys = {"drain": "drain_rate", "link": "link_rate", "NIC": "nic_rate"}
    rates = re.findall(r"an? (drain|link|NIC) rate of (\d+) GB/s", reason)
    if times := re.search(r"links ([\d.]+) times as fast", reason):
        links = [link.model_dump(mode="json") for link in machine.interconnect.links.value]
        faster = [link | {"rate": f"{parse_rate(link['rate']) * float(times[1]):.0f} kB/s"} for link in links]
        return {"interconnect.links": faster}
    return {f"interconnect.{keys[name]}": f"{rate} GB/s" for name, rate in rates}


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(MACHINES), st.floats(0.01, 1), st.integers(1_000, 400_000), st.integers(0, 40_000),
    st.sampled_from(["next", "all", "peer"]), st.booleans(),
)  # fmt: skip
@example("dgx1-v100", 1.0, 65536, 4000, "next", False)
@example("hgx-h100-rails", 1.0, 65536, 4000, "all", False)
@example("hgx-b200", 0.5, 49152, 20000, "next", True)
def test_whatever_an_audit_advises_fits_when_it_is_set(name, share, size, gap_ns, to, synchronised):
    """Each remedy, as it is printed, alone; a gap beside smaller bursts or more room where both are needed."""
    machine = xs.load_machine(name)

    def asked(size, gap_ns, changes):
        return xs.audit(name, ceil(share * machine.sms), size, gap_ns, synchronised, changes, to)

    gap = f"{gap_ns} ns"
    found = asked(f"{size} B", gap, {})
    remedies = re.split("what removes", found.reason, flags=re.IGNORECASE)[-1] if not found.fits else ""
    patterns = (r"(\S+ \w+) more", r"at most (\S+ \w+) a p", r"holds ([\d.]+ \w+)(?! an SM)\b", r"([\d.]+ \w+) an SM")
    longer, smaller, of_gpu, of_sm = ((match := re.search(one, remedies)) and match[1] for one in patterns)
    waited = f"{gap_ns * 1000 + (parse_time(longer) if longer else 0)} ps"
    if faster := raised(remedies, machine):
        assert asked(f"{size} B", gap, faster).fits_long_run
    if longer and found.missing_gap_us is not None:
        assert asked(f"{size} B", waited, {}).fits_long_run
    if smaller:
        assert asked(smaller, waited, {}).fits
    room = {"stage.capacity_gpu": of_gpu, "stage.capacity_sm": of_sm}
    room = {path: text for path, text in room.items() if text}
    assert bool(room) == (found.first_stall_us > 0)
    if room:
        assert asked(f"{size} B", waited, room).fits


def facts(found: Any) -> dict[str, str]:
    """The rows of an audit, by name."""
    names, values = audit_parts(found)[-1].columns
    return dict(zip(map(str, names.cells), map(str, values.cells), strict=True))


def test_the_gap_that_the_long_run_needs_is_named_where_no_gap_is_enough_by_itself():
    """48 KiB of all SMs at once are more than the stage holds, and their 7.3 MB drain in 10.1 us, of which 1 us to issue."""
    alone, together = (xs.audit("hgx-b200", 148, "48 KiB", "4 us", synchronised) for synchronised in (False, True))
    assert facts(together)["gap that removes the stall"] == "none: no gap helps by itself"
    assert facts(together)["gap that the long run needs"] == f"{alone.recovery_gap_us:.3f} us" == "9.124 us"
    assert "gap that the long run needs" not in facts(alone)


@pytest.mark.parametrize(
    ("producers", "said"),
    [(-3, "is below 0"), (149, "is more than the SMs of hgx-b200"), (2.5, "must be a whole number")],
)
def test_what_is_no_number_of_sms_is_refused(producers, said):
    with pytest.raises(xs.InputError, match=rf"^producers = {producers}: {said} \(allowed: 0 to 148\)$"):
        xs.audit("hgx-b200", producers, "48 KiB")


def test_the_command_refuses_a_number_below_0_as_it_was_given(capsys):
    assert main(["audit", "--machine", "hgx-b200", "--producers", "-3", "--bytes", "48KiB", "--gap", "4us"]) == 2
    assert "producers = -3: is below 0" in capsys.readouterr().err


OVERSUBSCRIBED = {"interconnect.kind": "oversubscribed_switch", "interconnect.oversubscription": 4}
STORES = {"next": ("all", "peer"), "all": ("all", "all"), "peer": ("one", "peer")}
"""Who sends in a burst train, and where to, if it does what `to` of an audit says."""


@pytest.mark.parametrize("to", STORES)
@pytest.mark.parametrize(
    ("machine", "changes", "gpus"),
    [("hgx-b200", {}, 8), ("hgx-b200", OVERSUBSCRIBED, 8), ("hgx-b200", OVERSUBSCRIBED, 2), ("hgx-h100-rails", {}, 16),
     ("hgx-h800", {}, 8), ("mi300x", {}, 8), ("dgx1-v100", {}, 8)],
)  # fmt: skip
def test_the_rate_of_an_audit_is_what_drains_in_a_simulation_of_the_same_stores(machine, changes, gpus, to):
    """Whatever GPUs share while they store, such as the core of a switch or a network interface."""
    senders, destination = STORES[to]
    asked = {"producers": 16, "burst": "512 KiB"}
    found = xs.audit(machine, *asked.values(), overrides=changes, to=to, gpus=gpus)
    train = {
        "kind": "burst_train",
        "mode": "isolated",
        "gpus": gpus,
        "senders": senders,
        "destination": destination,
    } | asked
    run = xs.run(
        {"question": "How fast?", "machine": machine, "granule": "1 KiB", "workload": train, "trace": "off"},
        overrides={f"machine.{path}": value for path, value in changes.items()},
    )
    drained_kbs = found.producers * found.burst_bytes / run.metrics["makespan_us"] * 1e3
    assert drained_kbs == pytest.approx(found.stage.drain_kbs, rel=0.05)


def test_what_all_gpus_share_is_in_the_verdict_unless_one_stores_alone():
    """4.85 MB of a GPU in 20.76 us are 234 GB/s: under the 717 GB/s of a port, over the fourth of it that is each GPU's."""
    asked = ("hgx-b200", 148, "32 KiB", "20 us")
    together, alone = (xs.audit(*asked, overrides=OVERSUBSCRIBED, to=to) for to in ("next", "peer"))
    assert (together.fits, alone.fits) == (False, True)
    assert (together.gpus, together.stores_to) == (8, "to the next GPU, while all 8 GPUs do so")
    assert facts(alone)["drain rate (R)"] == "717.0 GB/s to GPU 1, while no other GPU stores"


def test_the_advice_between_nodes_is_about_the_network_interface():
    asked = ("hgx-h100-rails", 16, "16 KiB", "3 us")
    advised = re.search(r"or a NIC rate of (\d+) GB/s", xs.audit(*asked).reason)
    assert advised is not None
    assert xs.audit(*asked, overrides={"interconnect.nic_rate": f"{advised[1]} GB/s"}).fits
    assert not xs.audit(*asked, overrides={"interconnect.nic_rate": f"{int(advised[1]) - 1} GB/s"}).fits
    both = "or a drain rate of 1570 GB/s and a NIC rate of 1554 GB/s in the machine file, with which 1554 GB/s drain"
    assert both in xs.audit("hgx-h100-rails", 132, "128 KiB", "8 us").reason


def test_a_number_that_makes_no_other_answer_is_named():
    """Eight GPUs are one node, whose stores pass no network interface; those of sixteen do."""
    asked, slower = ("hgx-h100-rails", 16, "16 KiB", "3 us"), {"interconnect.nic_rate": "1 GB/s", "stage.t0": "2 us"}
    (said,) = xs.audit(*asked, overrides=slower, gpus=8).warnings
    assert said.startswith(
        "interconnect.nic_rate = 1 GB/s changes nothing: 346.5 GB/s drain to the next GPU, while all 8"
    )
    assert xs.audit(*asked, overrides=slower).warnings == ()


def test_the_answer_says_which_rate_it_went_by(capsys):
    command = [
        "audit",
        "--machine",
        "hgx-h100-rails",
        "--producers",
        "16",
        "--bytes",
        "16KiB",
        "--gap",
        "3us",
        "--json",
    ]
    assert main([*command, "--to", "all", "--gpus", "8", "--set", "machine.interconnect.nic_rate=1GB/s"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["to"], answer["gpus"]) == ("all", 8)
    assert answer["drain_rate_is"] == "to all other GPUs, while all 8 GPUs do so"
    assert "changes nothing" in answer["warnings"][0]


@pytest.mark.parametrize(
    ("option", "said"), [("to", "to = 'one': is unknown"), ("gpus", "gpus = 17: is not on this machine")]
)
def test_stores_to_nowhere_are_refused(option, said):
    with pytest.raises(xs.InputError, match=said):
        xs.audit("hgx-h100-rails", 16, "16 KiB", **{option: {"to": "one", "gpus": 17}[option]})


# How sure it is


def test_an_audit_says_what_the_intervals_of_the_machine_make_of_its_verdict(capsys):
    """342.8 GB/s are offered: 343 to 371 GB/s of the file, of which 99 % drain with both directions busy, are about that."""
    asked = ("hgx-h100", 124, "32 KiB", "11 us")
    found = xs.audit(*asked)
    assert found.verdict == "fits"
    assert found.certainty.told == (
        "By the intervals of the machine file, drain rate (R) is 339.6 to 367.3 GB/s: stalls at the lower end, fits "
        "at the upper; T_iss0 is 0.6492 to 0.8556 us: stalls at the lower end, fits at the upper. "
        "Assumed, not measured: t0 and issue_rate (T_iss0), capacity_sm (Q), duplex_efficiency (R)."
    )
    assert found.certainty.told in map(str, audit_parts(found))
    assert main(["audit", "--machine", "hgx-h100", "--producers=124", "--bytes=32KiB", "--gap=11us", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["intervals"]["ranges"][0] == {
        "name": "drain rate (R)", "unit": "GB/s", "low": 339.57, "high": 367.29, "at_low": "stalls", "at_high": "fits",
    }  # fmt: skip
    assert answer["assumed"][0] == "stage.t0"
    drain = next(number for number in answer["numbers"] if number["name"] == "interconnect.drain_rate")
    assert (drain["value"], drain["assumed"], "arXiv" in drain["source"]) == ("350 GB/s", False, True)
    assert xs.BurstAudit.of_answer(answer) == found


ENDS = {"stage.issue_rate": True, "interconnect.oversubscription": True}
"""Numbers that lower T_iss0, or R, when they rise."""


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MACHINES), st.floats(0.01, 1), st.integers(1_000, 100_000), st.integers(0, 40_000),
    st.sampled_from(["next", "all", "peer"]),
)  # fmt: skip
@example("hgx-h100", 0.94, 32768, 11000, "next")
@example("mi300x", 1.0, 32768, 11000, "all")
def test_the_verdict_at_the_ends_is_that_of_machines_with_these_numbers(name, share, size, gap_ns, to):
    machine = xs.load_machine(name)
    asked = (name, ceil(share * machine.sms), f"{size} B", f"{gap_ns} ns")
    sure = xs.audit(*asked, to=to).certainty
    between = {number["name"]: number["interval"] for number in sure.numbers if "interval" in number}
    verdicts = []
    for end in (0, 1):
        changes = {path: ends[1 - end if path in ENDS else end] for path, ends in between.items()}
        verdicts.append(xs.audit(*asked, overrides=changes, to=to).verdict)
    assert verdicts == [sure.at_lows, sure.at_highs]
    order = ["stalls", "only the first bursts stall", "fits"]
    for one in sure.ranges:
        assert order.index(sure.at_lows) <= order.index(one.at_low) <= order.index(one.at_high)
        assert order.index(one.at_high) <= order.index(sure.at_highs)


def test_a_switch_that_carries_less_than_its_ports_drains_less_when_its_ratio_is_higher():
    ratio = {"value": 4, "interval": [2, 5], "source": "data sheet and a guess"}
    found = xs.audit(
        "hgx-b200", 148, "32 KiB", "20 us", overrides=OVERSUBSCRIBED | {"interconnect.oversubscription": ratio}
    )
    (rate, _) = found.certainty.ranges
    assert (rate.low, rate.high) == pytest.approx((717 * 0.985 / 5, 717 / 2), rel=1e-3)
    assert (rate.at_low, rate.at_high) == ("stalls", "only the first bursts stall")


def test_only_the_part_of_the_stage_that_binds_is_called_assumed():
    """Q of 148 SMs of a B200 is published, that of fewer is 30 KiB an SM, which is a guess."""
    all_sms, half = (xs.audit("hgx-b200", count, "32 KiB", "9 us").certainty.assumed for count in (148, 74))
    assert "stage.capacity_sm" not in all_sms and "stage.capacity_gpu" not in all_sms
    assert "stage.capacity_sm" in half


def test_nothing_is_said_where_all_was_measured_or_nothing_is_stored():
    values = {"stage.t0": "0.24 us", "stage.issue_rate": "62.9 GB/s", "stage.capacity_sm": "30 KiB",
              "stage.capacity_gpu": "4.25 MiB", "interconnect.drain_rate": "717 GB/s",
              "interconnect.duplex_efficiency": 1.0}  # fmt: skip
    measured = {path: {"value": value, "source": "trains and bursts"} for path, value in values.items()}
    assert xs.audit("hgx-b200", 148, "32 KiB", "9 us", overrides=measured).certainty.told == ""
    assert xs.audit("hgx-b200", 0, "32 KiB", "9 us").certainty.told == ""


def test_a_train_that_waits_only_once_may_stay_as_it_is():
    """arXiv 2607.23264: bursts piggyback while the long run drains; 74 SMs offer 403 GB/s of 717."""
    found = xs.audit("hgx-b200", 74, "48 KiB", "8 us")
    assert (found.fits, found.fits_long_run, found.advice) == (False, True, "piggyback")
    assert (
        found.verdict == "only the first bursts stall"
        and "so no burst waits once producers have drifted apart" in found.reason
    )
    assert xs.audit("hgx-b200", 74, "48 KiB", "8 us", synchronised=True).advice == "reshape"


@pytest.mark.parametrize(("count", "gap"), [(74, "8 us"), (148, "12 us")])
def test_producers_that_start_together_drift_apart_so_that_only_the_first_bursts_stall(count, gap):
    """What an audit says of a train that stalls only at first, simulated: 14 bursts without a barrier between them."""
    found = xs.audit("hgx-b200", count, "48 KiB", gap, to="peer")
    machine = xs.load_machine("hgx-b200")
    program = build(machine, BurstTrain(count, 48 * 1024, found.gap_ps, bursts=14))
    lanes = program.lanes.copy()
    lanes["start_ps"] = 0
    spans = simulate(replace(program, lanes=lanes), machine.fabric(2), trace="full").spans()
    spans = spans[spans["phase"] == "burst"].sort_values("start_us")
    issue_us = spans.groupby(spans.groupby("sm").cumcount())["span_us"].mean().to_numpy()
    unhindered_us = found.t_iss_us - found.stall_us
    assert issue_us[0] - unhindered_us == pytest.approx(found.first_stall_us, rel=0.1)
    assert (issue_us[1:] <= issue_us[:-1] + 0.001).all(), "less and less"
    assert issue_us[-1] == pytest.approx(unhindered_us, rel=0.01)


def test_a_rate_of_the_file_of_which_a_share_drains_is_told_with_what_drains():
    advised = "a drain rate of 901 GB/s in the machine file, with which 892 GB/s drain"
    assert advised in xs.audit("hgx-h100", 132, "32 KiB", "4 us").reason


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("hgx-b200", 1, "4 KiB", "1 us"),
            "1 SM of hgx-b200 stores 4 KiB to the next GPU, while all 8 GPUs do so, then",
        ),
        (
            ("rtx-pcie5", 9, "4 KiB"),
            "9 SMs of rtx-pcie5 store 4 KiB each to the next GPU, while both GPUs do so, one burst",
        ),
    ],
)
def test_what_was_asked_is_said_in_whole_sentences(asked, said):
    assert str(audit_parts(xs.audit(*asked))[0]).startswith(said)


def test_a_burst_that_drains_as_fast_as_it_is_issued_fills_nothing():
    assert xs.audit("hgx-b200", 1, "4 KiB", "1 us").reason.startswith("A burst drains as fast as it is issued, and ")


@pytest.mark.parametrize("burst", ["33 KiB", "36 KiB", "48 KiB", "64 KiB", "40000 B", "32100 B"])
def test_a_stage_that_holds_what_is_advised_stalls_nothing(burst):
    """Room is in whole granules of 1 KiB: 43.17 KiB an SM hold no more than 43. Of 40000 B, 39 and the 64 B of the last,
    35738 B are left at the peak: four granules have drained, so 35 and the last have to fit.
    """
    found = xs.audit("hgx-b200", 148, burst, "20 us")
    room = {"capacity_gpu": found.peak_bytes, "capacity_sm": found.peak_sm_bytes}
    stage = {f"machine.stage.{name}": f"{size} B" for name, size in room.items()}
    run = xs.run("isolated-burst", overrides={"workload.burst": burst, "workload.producers": 148} | stage)
    assert run.metrics["stall_total_us"] < 0.01, "over all 148 SMs"
    if not found.fits:
        assert f"{-(-found.peak_sm_bytes // 1024)} KiB an SM" in found.reason
