"""The X-Stage closed forms: the published numbers, the equations and their limits, the inverses, the refusals."""

import doctest
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xstage.sim import burst_gap
from xstage.sim.burst_gap import (
    XStage,
    audit,
    backlog,
    capacity,
    issue_time,
    knee,
    peak_occupancy,
    period,
    phase,
    recovery_gap,
    required_capacity,
    required_drain_rate,
    stall,
    t_iss0,
)
from xstage.sim.errors import InputError
from xstage.sim.units import parse_size, parse_time

KIB, MIB, US, GBS = 2**10, 2**20, 1e6, 1e6
MODES = ("isolated", "free_running", "synchronised")

# arXiv 2607.23264 as reported: 148 SMs of a B200-class GPU.
PAPER = XStage(
    t0_ps=0.24 * US,
    issue_kbs=62.9 * GBS,
    drain_kbs=717 * GBS,
    capacity_per_producer_bytes=30 * KIB,
    capacity_total_bytes=4.25 * MIB,
)
K, B = 148, 32 * KIB

stages = st.builds(
    XStage,
    t0_ps=st.integers(0, 10**6),
    issue_kbs=st.integers(10**6, 10**8),
    drain_kbs=st.integers(10**6, 10**10),
    capacity_per_producer_bytes=st.integers(1, 10**6),
    capacity_total_bytes=st.integers(1, 10**7),
)
producers = st.integers(0, 200)
bursts = st.integers(0, 10**6)
gaps = st.integers(0, 10**8)
modes = st.sampled_from(MODES)


def test_the_example_in_the_docstring_holds():
    assert doctest.testmod(burst_gap).failed == 0


# The published machine


def test_a_burst_of_32_kib_takes_0_76_us_to_issue():
    assert t_iss0(PAPER, K, B) == pytest.approx(0.76 * US, rel=0.01)


def test_isolated_bursts_stall_from_33_kib_a_producer():
    assert knee(PAPER, K) == pytest.approx(33 * KIB, rel=0.02)


def test_the_total_limits_148_producers_and_the_sm_limits_a_few():
    assert capacity(PAPER, K) == 4.25 * MIB
    assert capacity(PAPER, 4) == 4 * 30 * KIB


def test_full_rate_needs_6_us_of_computation_between_bursts():
    assert recovery_gap(PAPER, K, B) == pytest.approx(6.0 * US, rel=0.01)


def test_the_drain_sets_the_period_until_the_gap_has_recovered_the_burst():
    short_gaps = np.array([0, 1, 2, 4, 6]) * US
    assert period(PAPER, K, B, short_gaps) == pytest.approx(6.764 * US, rel=1e-3)
    assert period(PAPER, K, B, 9 * US) == pytest.approx(9.761 * US, rel=1e-3)


def test_the_phase_follows_from_the_gap_and_the_burst():
    assert phase(PAPER, K, B, 4 * US) == "drain_limited"
    assert phase(PAPER, K, B, 7 * US) == "recovered"
    assert phase(PAPER, 8, B, 0) == "issue_bound"
    assert phase(PAPER, K, 40 * KIB, 9 * US, "isolated") == "drain_limited"


# The equations


@given(stages, producers.filter(lambda k: k > 1), bursts.filter(bool), gaps)
def test_issue_time_is_the_published_maximum(stage, k, b, g):
    v_over_r, overflow = k * b * 1e9 / stage.drain_kbs, (k * b - capacity(stage, k)) * 1e9 / stage.drain_kbs
    t0, lone = t_iss0(stage, k, b), (b - capacity(stage, 1)) * 1e9 / stage.drain_kbs  # the last one is ours
    assert issue_time(stage, k, b, g) == pytest.approx(max(t0, v_over_r - g, lone))
    assert issue_time(stage, k, b, mode="isolated") == pytest.approx(max(t0, overflow))
    assert issue_time(stage, k, b, g, "synchronised") == pytest.approx(max(t0, v_over_r - g, overflow))
    assert period(stage, k, b, g, "synchronised") == pytest.approx(max(t0 + g, v_over_r, g + overflow))


@given(stages, bursts, gaps)
def test_a_single_producer_is_synchronised_with_itself(stage, b, g):
    assert stall(stage, 1, b, g, "free_running") == stall(stage, 1, b, g, "synchronised")


@given(stages, producers, bursts)
def test_after_a_long_gap_only_the_overflow_of_one_burst_is_left(stage, k, b):
    long_gap = k * b * 1e9 / stage.drain_kbs
    assert stall(stage, k, b, long_gap, "synchronised") == stall(stage, k, b, mode="isolated")


@given(stages, producers, bursts, gaps, modes)
def test_stall_never_grows_with_the_gap_the_drain_rate_or_the_capacity(stage, k, b, g, mode):
    before = stall(stage, k, b, g, mode)
    faster = replace(stage, drain_kbs=stage.drain_kbs * 2)
    larger = replace(stage, capacity_total_bytes=stage.capacity_total_bytes * 2)
    assert stall(stage, k, b, g + 1000, mode) <= before
    assert stall(faster, k, b, g, mode) <= before
    assert stall(larger, k, b, g, mode) <= before


@given(stages, producers, bursts, gaps, modes)
def test_the_phase_says_whether_a_burst_stalls_now_and_without_a_gap(stage, k, b, g, mode):
    stalls, stalls_without_gap = stall(stage, k, b, g, mode) > 0, stall(stage, k, b, 0, mode) > 0
    expected = {(True, True): "drain_limited", (False, True): "recovered", (False, False): "issue_bound"}
    assert phase(stage, k, b, g, mode) == expected[stalls, stalls_without_gap]


@given(stages, producers, bursts, gaps)
def test_backlog_is_what_a_burst_by_burst_account_of_the_stage_leaves(stage, k, b, g):
    t0, q, left, expected = t_iss0(stage, k, b), capacity(stage, k), 0.0, []
    for _ in range(20):
        expected.append(left)
        issue = max(t0, (left + k * b - q) * 1e9 / stage.drain_kbs)
        left = max(0.0, left + k * b - stage.drain_kbs * (issue + g) / 1e9)
    assert backlog(stage, k, b, g, 20, "synchronised") == pytest.approx(expected, rel=1e-6, abs=1e-3)


def test_backlog_grows_to_a_full_stage_and_not_at_all_after_the_recovery_gap():
    growing = backlog(PAPER, K, B, 4 * US, 10, "free_running")
    assert growing[0] == 0 and np.all(np.diff(growing) >= 0) and growing[-1] == 4.25 * MIB
    assert np.all(backlog(PAPER, K, B, 6.1 * US, 10, "synchronised") == 0)
    assert backlog(PAPER, [[1], [2]], [B, B, B], 0, 5, "isolated").shape == (2, 3, 5)


# The inverses


@given(stages, producers, bursts, modes)
def test_the_recovery_gap_is_the_smallest_that_removes_the_stall(stage, k, b, mode):
    gap = recovery_gap(stage, k, b, mode)
    if gap == math.inf:
        assert stall(stage, k, b, 1e18, mode) > 0
        return
    assert stall(stage, k, b, gap, mode) == 0
    assert gap < 1 or stall(stage, k, b, gap - 1, mode) > 0


@given(stages, producers, bursts, gaps, modes)
def test_the_required_drain_rate_is_the_smallest_that_removes_the_stall(stage, k, b, g, mode):
    rate = required_drain_rate(stage, k, b, g, mode)
    assert rate % 1 == 0
    assert stall(replace(stage, drain_kbs=rate), k, b, g, mode) == 0
    assert rate == 1 or stall(replace(stage, drain_kbs=rate - 1), k, b, g, mode) > 0


@given(stages, producers, bursts, gaps, modes)
def test_the_required_capacity_is_the_smallest_that_removes_the_stall(stage, k, b, g, mode):
    def stall_with(size):
        holds = replace(stage, capacity_per_producer_bytes=size, capacity_total_bytes=size)
        return stall(holds, k, b, g, mode)

    size = required_capacity(stage, k, b, g, mode)
    if size == math.inf:
        assert stall_with(1e18) > 0
        return
    assert size % 1 == 0
    assert stall_with(size) == 0
    assert size == 1 or stall_with(size - 1) > 0


@given(stages, producers.filter(bool), gaps, modes)
def test_the_knee_is_the_largest_burst_without_stall(stage, k, g, mode):
    burst = knee(stage, k, g, mode)
    if burst == math.inf:
        assert stall(stage, k, 1e12, g, mode) == 0
    elif burst > 1:
        assert stall(stage, k, burst * (1 - 1e-6), g, mode) == 0
        assert stall(stage, k, burst * (1 + 1e-6), g, mode) > 0


# Arrays


@given(modes)
def test_arrays_broadcast_and_agree_with_numbers(mode):
    counts, sizes = np.array([[0], [1], [4], [148]]), np.array([0, 1 * KIB, 32 * KIB, 40 * KIB])
    sweep = replace(PAPER, drain_kbs=np.array([300 * GBS, 717 * GBS]).reshape(2, 1, 1))
    for form in (stall, issue_time, period, phase, required_drain_rate, required_capacity):
        table = np.broadcast_to(form(sweep, counts, sizes, 4 * US, mode), (2, 4, 4))
        for (r, i, j), value in np.ndenumerate(table):
            one = replace(PAPER, drain_kbs=float(sweep.drain_kbs[r, 0, 0]))
            assert value == form(one, int(counts[i, 0]), int(sizes[j]), 4 * US, mode)
    assert recovery_gap(sweep, counts, sizes, mode).shape == (2, 4, 4)
    assert knee(sweep, counts, 4 * US, mode).shape == (2, 4, 1)


# The audit


def test_a_burst_that_fits_is_piggybacked():
    answer = audit(PAPER, K, B, 7 * US)
    assert answer.fits and answer.advice == "piggyback" and answer.phase == "recovered"
    assert answer.stall_us == answer.first_stall_us == answer.missing_gap_us == 0
    assert answer.rate_margin_gbs > 0 and answer.capacity_margin_bytes > 0


def test_a_short_gap_is_answered_with_the_gap_that_is_missing():
    answer = audit(PAPER, K, B, 4 * US)
    assert answer.advice == "reshape" and answer.rate_margin_gbs < 0
    assert answer.stall_us == pytest.approx(2.0, rel=0.01)
    assert answer.missing_gap_us == pytest.approx(answer.recovery_gap_us - 4)
    assert "2.003 us more computation" in answer.reason
    assert "a drain rate of 1019 GB/s" in answer.reason
    assert audit(replace(PAPER, drain_kbs=1019 * 10**6), K, B, 4 * US).fits


def test_free_running_producers_pay_for_a_large_burst_only_at_first():
    answer = audit(PAPER, K, 40 * KIB, 9 * US)
    assert not answer.fits and answer.capacity_margin_bytes < 0
    assert answer.stall_us == 0 and answer.first_stall_us > 0 and answer.missing_gap_us == 0
    assert (answer.fits_long_run, answer.advice, answer.phase) == (True, "piggyback", "recovered")
    assert "If all start the first one together, it waits 1.348 us" in answer.reason
    assert "33.08 KiB a producer" in answer.reason


def test_no_gap_helps_synchronised_producers_with_a_burst_beyond_the_stage():
    answer = audit(PAPER, K, 40 * KIB, 9 * US, synchronised=True)
    assert answer.advice == "reshape" and answer.phase == "drain_limited"
    assert answer.stall_us == answer.first_stall_us > 0
    assert answer.recovery_gap_us is None and answer.missing_gap_us is None


@pytest.mark.parametrize(("k", "b"), [(0, B), (K, 0), (0, 0)])
def test_where_nothing_is_stored_nothing_waits(k, b):
    answer = audit(PAPER, k, b, 0)
    assert answer.fits and answer.advice == "piggyback" and answer.phase == "issue_bound"
    assert answer.t_iss_us == answer.stall_us == answer.recovery_gap_us == answer.peak_bytes == 0
    assert answer.rate_margin_gbs == 717
    assert answer.reason == "Nothing is stored, so nothing waits."


@given(stages, producers, bursts, gaps, st.booleans())
def test_a_burst_fits_iff_both_published_conditions_hold(stage, k, b, g, synchronised):
    answer = audit(stage, k, b, g, synchronised)
    long_run = k * b / stage.drain_kbs * 1e9 - t_iss0(stage, k, b) <= g
    one_burst = peak_occupancy(stage, k, b) <= capacity(stage, k)
    assert answer.fits == (long_run and one_burst)
    assert answer.fits_long_run == (answer.advice == "piggyback") == (answer.stall_us == 0)
    assert answer.fits == (answer.fits_long_run and answer.first_stall_us == 0)
    assert one_burst == (answer.capacity_margin_bytes >= 0)


def test_an_audit_is_a_record_that_scripts_can_read():
    record = audit(PAPER, K, B, 4 * US).as_dict()
    assert {"fits", "t_iss_us", "stall_us", "recovery_gap_us", "missing_gap_us", "peak_bytes"} <= record.keys()
    assert {"rate_margin_gbs", "capacity_margin_bytes", "phase", "advice", "reason"} <= record.keys()


# The refusals


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "fast", None])
@pytest.mark.parametrize("field", ["issue_kbs", "drain_kbs", "capacity_per_producer_bytes", "capacity_total_bytes"])
def test_a_stage_needs_rates_and_capacities_above_zero(field, value):
    with pytest.raises(InputError, match=field):
        replace(PAPER, **{field: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, B, 0), r"producers = -1.0: .*allowed: a finite number, 0 or more"),
        ((2.5, B, 0), r"producers = 2.5: .*allowed: a whole number, 0 or more"),
        ((K, math.nan, 0), r"burst_bytes = nan: "),
        ((K, [B, -B], 0), r"burst_bytes = -32768.0: "),
        ((K, B, -1), r"gap_ps = -1.0: "),
        ((K, B, 0, "lockstep"), r"mode = 'lockstep': .*allowed: isolated, free_running, synchronised"),
    ],
)
def test_a_bad_argument_is_named_with_its_value_and_what_is_allowed(arguments, message):
    with pytest.raises(InputError, match=message):
        stall(PAPER, *arguments)


def test_a_negative_start_up_a_fraction_of_a_train_and_an_audit_of_many_are_refused():
    with pytest.raises(InputError, match="t0_ps"):
        replace(PAPER, t0_ps=-1)
    with pytest.raises(InputError, match="bursts"):
        backlog(PAPER, K, B, 0, -1, "synchronised")
    with pytest.raises(InputError, match="one stage and one burst"):
        audit(PAPER, K, np.array([B, B]), 0)


@given(st.integers(100, 148), st.integers(20_000, 33_000))
def test_the_gap_that_an_audit_advises_fits_when_it_is_taken(producers: int, size: int) -> None:
    advised = audit(PAPER, producers, size, 0.0)
    assert advised.recovery_gap_us is not None
    assert audit(PAPER, producers, size, parse_time(f"{advised.recovery_gap_us} us")).fits == (
        advised.first_stall_us == 0
    )


def test_a_burst_that_meets_no_other_still_waits_for_the_room_of_its_own_sm():
    """An SM that issues faster than its GPU drains."""
    room, drain = 30 * 2**10, 20_000_000
    stage = XStage(t0_ps=240_000, issue_kbs=130_000_000, drain_kbs=drain, capacity_per_producer_bytes=room,
                   capacity_total_bytes=4 * 2**20)  # fmt: skip
    size, gap = 256 * 2**10, 100 * US
    lone = (size - room) / drain * 1e9
    assert issue_time(stage, np.array([1, 2, 8]), size, gap) == pytest.approx(lone)
    answer = audit(stage, 2, size, gap)
    assert (answer.fits, answer.missing_gap_us) == (False, None)
    assert stall(stage, 2, knee(stage, 2, gap), gap) == pytest.approx(0, abs=1)


machines = st.builds(
    XStage,
    t0_ps=st.integers(0, 10**6),
    issue_kbs=st.integers(10**7, 2 * 10**8),
    drain_kbs=st.integers(2 * 10**7, 10**9),
    capacity_per_producer_bytes=st.integers(2 * KIB, 64 * KIB),
    capacity_total_bytes=st.integers(8 * KIB, 8 * MIB),
)
"""Stages as machine files describe them, in whole numbers."""


def advised(pattern, text):
    """What a sentence says with a pattern, or None."""
    found = re.search(pattern, text)
    return found and found[1]


@settings(max_examples=500)
@given(machines, st.integers(1, 148), st.integers(1_000, 10**6), st.integers(0, 10**8), st.booleans())
@example(PAPER, 148, 48 * KIB, 20_000_000, False)
@example(PAPER, 74, 48 * KIB, 20_000_000, True)
def test_what_the_sentence_of_an_audit_advises_removes_the_stall(stage, k, size, gap, synchronised):
    """Each remedy as it is printed, followed alone; those of both kinds where both are needed."""
    found = audit(stage, k, size, gap, synchronised)
    remedies = re.split("what removes", found.reason, flags=re.IGNORECASE)[-1]
    longer, faster = advised(r"(\S+ \w+) more comp", remedies), advised(r"drain rate of (\d+) GB/s", remedies)
    waited = gap + (parse_time(longer) if longer else 0)
    if longer:
        followed = audit(stage, k, size, waited, synchronised)
        assert followed.fits_long_run or (found.missing_gap_us is None and found.first_stall_us > 0)
    if faster:
        assert audit(replace(stage, drain_kbs=int(faster) * GBS), k, size, gap, synchronised).stall_us == 0
    if found.first_stall_us == 0:
        assert "a stage that holds" not in remedies and "at most" not in remedies
        return
    if smaller := advised(r"at most (\S+ \w+) a producer", remedies):
        assert audit(stage, k, parse_size(smaller), waited, synchronised).fits
    of_sm, of_gpu = (
        advised(r"([\d.]+ \w+) an SM", remedies),
        advised(r"a stage that holds ([\d.]+ \w+)(?! an SM)\b", remedies),
    )
    room = {"capacity_per_producer_bytes": of_sm, "capacity_total_bytes": of_gpu}
    larger = {field: parse_size(text) for field, text in room.items() if text}
    assert larger and all(size > getattr(stage, field) for field, size in larger.items()), "there was not enough of it"
    assert audit(replace(stage, **larger), k, size, waited, synchronised).fits


@pytest.mark.parametrize(
    ("k", "said"), [(148, "a stage that holds 6.24 MiB, 43.17 KiB an SM"), (74, "a stage that holds 38.34 KiB an SM")]
)
def test_an_audit_names_the_part_of_the_stage_that_is_short(k, said):
    """148 x 30 KiB and 4.25 MiB are both below 6.239 MiB; 2.77 MiB of 74 SMs are more than their 74 x 30 KiB alone."""
    assert audit(PAPER, k, 48 * KIB, 20 * US).reason.endswith(f"a producer, or {said}.")


def test_a_bound_is_printed_as_a_size_that_fits_when_it_is_read_again():
    """The knee is 36556.97 bytes, which four digits of KiB would have brought to 36557."""
    stage = XStage(90_000, 43_000_000, 366_300_000, 30 * KIB, 2_306_867)
    exact = knee(stage, 59)
    printed = advised(r"at most (\S+ \w+) a producer", audit(stage, 59, 48 * KIB, 0).reason)
    assert parse_size(printed) <= exact and audit(stage, 59, parse_size(printed), 10**9).fits


@given(stages, producers, bursts, gaps, st.booleans())
def test_what_the_fields_of_an_audit_advise_removes_the_stall(stage, k, b, g, synchronised):
    """Smaller bursts or a larger stage, with the gap of the long run, in both modes; and the missing gap if there is one."""
    found = audit(stage, k, b, g, synchronised)
    gap = max(g, round(found.long_run_gap_us * US))
    smaller = b if found.largest_burst_bytes is None else min(b, found.largest_burst_bytes)
    assert audit(stage, k, smaller, gap, synchronised).fits
    room = {
        "capacity_per_producer_bytes": max(1, found.peak_sm_bytes),
        "capacity_total_bytes": max(1, found.peak_bytes),
    }
    roomier = replace(stage, **room)
    assert audit(roomier, k, b, gap, synchronised).fits
    if found.missing_gap_us is not None:
        assert audit(stage, k, b, g + round(found.missing_gap_us * US), synchronised).stall_us == 0


def test_bursts_that_start_together_are_told_the_gap_that_they_need_even_where_no_gap_is_enough():
    """V/R - T_iss0 - G, beside smaller bursts or a larger stage."""
    both = audit(PAPER, K, 48 * KIB, 8 * US, synchronised=True)
    assert both.missing_gap_us is None
    lacking = K * 48 * KIB / 717e9 * 1e6 - (0.24 + 48 * KIB / 62.9e9 * 1e6) - 8
    assert both.long_run_gap_us - 8 == pytest.approx(lacking)
    assert (
        "what removes it together: 1.125 us more computation between bursts, and bursts of at most 33.08 KiB"
        in both.reason
    )
    assert audit(PAPER, K, both.largest_burst_bytes, both.long_run_gap_us * US, synchronised=True).fits
