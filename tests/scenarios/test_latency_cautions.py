"""Latency holds up no store, and a warning says so where that decides something."""

from __future__ import annotations

import pytest
from xstage.scenarios.catalogue import entries
from xstage.scenarios.latency_cautions import latency_cautions
from xstage.scenarios.machine_files import load_machine


@pytest.mark.parametrize("machine", [entry.name for entry in entries("machine")])
def test_within_a_node_whole_gpus_have_room_for_what_is_on_the_way(machine):
    known = load_machine(machine)
    assert latency_cautions(known, known.fabric(min(8, known.gpus)), (), known.sms) == []


def test_one_sm_has_less_room_than_is_on_the_way_to_another_node():
    """30 KiB against 43 GB/s for 3 us, which are 129 KB; the same SM within a node keeps less on the way."""
    known = load_machine("hgx-h100-rails")
    (said,) = latency_cautions(known, known.fabric(), (), 1)
    assert said.startswith("126 KiB are on the way from GPU 0 to GPU 8, at 43 GB/s for 3 us, more than the 30 KiB")
    assert latency_cautions(known, known.fabric(8), (), 1) == []
    assert latency_cautions(known, known.fabric(), (), known.sms) == []


def test_a_changed_latency_leaves_the_room_as_it_was():
    changes = {"interconnect.nic_latency": "30 us"}
    known = load_machine("hgx-h100-rails", changes)
    (said,) = latency_cautions(known, known.fabric(), changes, 132)
    assert said.startswith("nic_latency of the interconnect changed, but the room of the stage (Q)")


def test_nothing_is_said_of_one_gpu_or_of_nobody_who_stores():
    known = load_machine("hgx-h100-rails")
    assert latency_cautions(known, known.fabric(1), ("interconnect.latency",), 132) == []
    assert latency_cautions(known, known.fabric(), ("interconnect.latency",), 0) == []
