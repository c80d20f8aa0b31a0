"""What an unknown name was meant to be: another word for a key is told for certain, and only then the name most like it."""

import pytest
from xstage.sim.checked import closest

TRAIN = ("kind", "gpus", "producers", "burst", "gap", "bursts", "mode")
MACHINE = ("compute.sms", "stage.t0", "stage.issue_rate", "stage.capacity_sm", "stage.capacity_gpu",
           "interconnect.drain_rate", "interconnect.gpus")  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("gap_us", TRAIN, "'gap'"),  # 'gpus' has more letters in common
        ("burst_bytes", TRAIN, "'burst'"),
        ("bursts_each", TRAIN, "'bursts'"),
        ("drain_rate_GBs", MACHINE, "'interconnect.drain_rate'"),
        ("m_block", ("m", "n", "k", "block_m", "block_n"), "'block_n'"),  # `block` is no unit
        ("tokens_per_rank", ("topk", "tokens"), "'tokens'"),
        ("sms", MACHINE, "'compute.sms'"),
        ("machine.drain_rate", MACHINE, "'interconnect.drain_rate'"),
        ("stage.Q", MACHINE, "'stage.capacity_sm' or 'stage.capacity_gpu'"),
        ("R", MACHINE, "'interconnect.drain_rate'"),
        ("T_iss0", MACHINE, "'stage.t0' or 'stage.issue_rate'"),
        ("b.x", ("a.x", "bb.x"), "'bb.x'"),  # of several with the same last part, the one most like it
        ("prodcuers", TRAIN, "'producers'"),
    ],
)
def test_a_name_that_is_not_known_has_the_one_that_was_meant(typed, known, meant):
    assert closest(typed, known) == f"; did you mean {meant}?"


@pytest.mark.parametrize("typed", ["Q", "xyz", "gapless", "k_split"])
def test_nothing_is_suggested_where_nothing_is_like_it(typed):
    assert closest(typed, ("kind", "mode", "k")) == ""
