"""What `xstage audit` advises, when it is followed."""

import json
import re
from typing import Any

import pytest
from xstage.scenarios.catalogue import entries

import xstage as xs
from xstage.answers.audit import audit_parts
from xstage.cli import main

RATE = re.compile(r"or a (drain|link) rate of (\d+) GB/s")


WITHOUT = {"cpu-epyc-vm", "dgx1-v100", "hgx-h100-rails"}
"""A core, whose stores are held up by the capacity alone; a list of links, with a rate each; and nodes, where the port of a
GPU and its network interface are too slow both."""


@pytest.mark.parametrize("name", sorted({entry.name for entry in entries("machine")} - WITHOUT))
def test_the_rate_that_an_audit_advises_removes_the_stall_and_is_the_smallest(name):
    """It is the number of the machine's file, of which a share drains where `duplex_efficiency` is below 1."""
    machine = xs.load_machine(name)
    asked = (name, machine.sms, "128 KiB", "8 us")
    advised = RATE.search(xs.audit(*asked).reason)
    assert advised is not None
    key, enough = f"interconnect.{advised[1]}_rate", int(advised[2])
    assert xs.audit(*asked, overrides={key: f"{enough} GB/s"}).stall_us == 0
    assert xs.audit(*asked, overrides={key: f"{enough - 1} GB/s"}).stall_us > 0


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
    assert "or a drain rate (R) of 1554 GB/s" in xs.audit("hgx-h100-rails", 132, "128 KiB", "8 us").reason


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
