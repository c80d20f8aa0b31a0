"""What `xstage audit` advises, when it is followed."""

import re

import pytest
from xstage.scenarios.catalogue import entries

import xstage as xs

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
