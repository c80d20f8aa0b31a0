"""How sure a saving is: every number with an interval that either schedule uses is in it, and so are other seeds."""

import pytest
from xstage.scenarios.loader import load_scenario

import xstage as xs
from xstage.answers.reruns import simulated, with_workload
from xstage.answers.saving_interval import SEEDS, saving_interval

from .scenarios import MEGAMOE

ATTENTION = {
    "question": "Serial or not?",
    "machine": {"base": "hgx-h100", "overrides": {"compute.sms": 24}},
    "workload": {"kind": "attention_a2a", "gpus": 2, "heads": 8, "head_dim": 128, "tokens": 4096, "policy": "serial"},
    "granule": "8 KiB",
}


def ran(written, policy):
    resolved = under(written, policy)
    return resolved, simulated(resolved, "off")


def under(written, policy):
    resolved = load_scenario(written)
    return with_workload(resolved, resolved.scenario.workload.with_policy(policy, {}))


@pytest.fixture(scope="module")
def tuned():
    return xs.tune(ATTENTION, ["serial", "piggyback"], most_runs=4)


def test_a_serial_baseline_is_as_uncertain_as_the_rate_of_its_collective(tuned):
    """It is assumed, 87.6 GB/s within 73 to 450: what a fused kernel saves is mostly that."""
    ends = tuned.interval.by_number["interconnect.all_to_all_rate"]
    for end, saved in zip(("73 GB/s", "450 GB/s"), ends, strict=True):
        own = xs.run(ATTENTION, overrides={"machine.interconnect.all_to_all_rate": end}).makespan_us
        assert saved == pytest.approx(100 * (1 - tuned.best.makespan_us / own))
    low, high = tuned.saving_interval_pct
    assert low <= min(ends) < max(ends) <= high
    assert max(ends) - min(ends) > 5
    assert "by interconnect.all_to_all_rate alone" in tuned.interval.told


def test_what_the_schedules_do_not_use_is_left_out(tuned):
    assert "interconnect.drain_rate" in tuned.interval.by_number
    unused = {"interconnect.ring_rate", "interconnect.nic_rate", "compute.mma_efficiency_fp8"}
    assert not unused & set(tuned.interval.by_number)
    assert tuned.interval.by_seed == ()


def test_the_ends_are_those_of_all_numbers_together(tuned):
    low, high = tuned.saving_interval_pct
    alone = [one for ends in tuned.interval.by_number.values() for one in ends]
    assert low < min(alone) and max(alone) < high
    least = {"stage.issue_rate": "58.6 GB/s", "interconnect.drain_rate": "371 GB/s",
             "interconnect.fan_out_efficiency": 0.83, "interconnect.collective_launch": "15 us",
             "interconnect.all_to_all_rate": "450 GB/s"}  # fmt: skip
    assert set(least) == set(tuned.interval.by_number)
    overrides = {f"machine.{path}": end for path, end in least.items()}
    best = {"workload.policy": {"name": tuned.best.policy, **tuned.best.parameters}}
    own_us, best_us = (xs.run(ATTENTION, overrides=overrides | policy).makespan_us for policy in ({}, best))
    assert low == pytest.approx(100 * (1 - best_us / own_us))


@pytest.fixture(scope="module")
def drawn():
    """The interval of what interleaving saves, and what was told on the way."""
    told = []
    own, best = (ran(MEGAMOE, policy) for policy in ("expert_wave", "interleaved"))
    found = saving_interval(own, best, lambda *runs: told.append(runs))
    return found, told


def test_a_drawn_routing_is_drawn_again(drawn):
    found, _ = drawn
    assert len(found.by_seed) == SEEDS
    other = [xs.run(under({**MEGAMOE, "seed": 1}, policy)).makespan_us for policy in ("expert_wave", "interleaved")]
    assert found.by_seed[0] == pytest.approx(100 * (1 - other[1] / other[0]))
    assert found.low_pct <= min(found.by_seed) < max(found.by_seed) <= found.high_pct
    assert f"{SEEDS} other seeds" in found.told


def test_what_is_run_again_counts_as_progress(drawn):
    done, expected = zip(*drawn[1], strict=True)
    assert list(done) == sorted(done) and len(set(expected)) == 1 and done[-1] < expected[0]


def test_a_person_is_told_the_interval_and_what_it_is_of(tuned):
    low, high = tuned.saving_interval_pct
    _, where, _, saves, interval, *_ = tuned.printed()
    assert where.startswith("attention with the All-to-All of its output, bf16, policy serial, on 2 GPUs of hgx-h100")
    assert f"({low:.1f} to {high:.1f} %)" in saves
    assert interval == tuned.interval.told
    answer = tuned.as_dict()
    assert answer["best"]["saving_interval_pct"] == [low, high]
    assert "interconnect.all_to_all_rate" in answer["saving_interval_of"]["numbers"]


def test_where_nothing_is_saved_there_is_no_interval_and_no_note():
    done = xs.tune(ATTENTION, ["serial"], most_runs=2)
    assert done.best is done.own
    assert done.saving_interval_pct is None and done.note is None
    _, _, _, said, *_ = done.printed()
    takes = f"serial as it is written ({done.own.makespan_us:.3f} us)"
    assert said == f"No policy or setting that was tried is faster than {takes}. Leave it."
    assert done.advice == done.as_dict()["advice"] == "leave"
    assert "saves" not in str(done.printed())
