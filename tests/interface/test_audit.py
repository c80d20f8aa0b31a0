"""What `xstage audit` advises, when it is followed."""

import re
from typing import Any

import pytest
from xstage.scenarios.catalogue import entries

import xstage as xs
from xstage.answers.audit import audit_parts
from xstage.cli import main

RATE = re.compile(r"or a (drain|link) rate of (\d+) GB/s")


WITHOUT = {"cpu-epyc-vm", "dgx1-v100"}
"""A core, whose stores are held up by the capacity alone; and a list of links, with a rate each."""


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
