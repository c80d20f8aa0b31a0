"""Joining simulated and measured op tables: what is an error, what is noise, and when there is a verdict."""

import numpy as np
import pandas as pd
import pytest
from xstage.hw_validate.compare import compare, summarise, time_in_stores_us, verdict
from xstage.sim.errors import InputError


def table(issue_us=(1.0, 2.0), stall_us=(0.0, 0.5), gap_us=1.0):
    """Ops of one lane: a gap, a store, a gap, a store."""
    rows, now = [], 0.0
    for task, (issue, stall) in enumerate(zip(issue_us, stall_us, strict=True)):
        for op, kind, took in ((0, "compute", gap_us), (1, "store", issue)):
            rows.append({"lane": 0, "task": task, "op": op, "kind": kind, "bytes": 64, "start_us": now,
                         "end_us": now + took, "stall_us": stall if op else 0.0, "wait_us": 0.0})  # fmt: skip
            now += took
    return pd.DataFrame(rows)


def repeats(*tables):
    return pd.concat([each.assign(repeat=i) for i, each in enumerate(tables)], ignore_index=True)


def test_equal_tables_have_no_error():
    found = compare(table(), table())
    assert (found.error_pct, found.makespan_error_pct, found.stall_error_ns) == (0, 0, 0)
    assert found.noise_pct == 0
    assert summarise([found]).verdict == "agrees"


def test_the_error_is_simulated_less_measured_over_measured():
    found = compare(table((1.2, 2.4)), table((1.0, 2.0)))
    assert found.error_pct == pytest.approx(20)
    assert found.makespan_error_pct == pytest.approx(100 * (5.6 / 5 - 1))
    assert summarise([found]).verdict == "disagrees"


def test_the_stall_error_is_a_mean_over_stores_in_ns():
    found = compare(table(stall_us=(0.0, 0.5)), table(stall_us=(0.1, 0.2)))
    assert found.stall_error_ns == pytest.approx((100 + 300) / 2)


def test_rows_may_come_in_any_order():
    shuffled = table().sample(frac=1, random_state=1)
    assert compare(table(), shuffled).error_pct == 0


def test_one_disturbed_repeat_in_five_does_not_count():
    usual = [table((1.0, 2.0))] * 4
    found = compare(table(), repeats(*usual, table((9.0, 9.0))))
    assert found.error_pct == pytest.approx(0)
    assert found.repeats == 5


def test_ops_that_a_task_repeats_are_told_apart_by_occurrence():
    twice = table((1.0, 3.0)).assign(task=0)
    found = compare(twice, twice)
    assert found.ops.loc[found.ops["kind"] == "store", "occurrence"].tolist() == [0, 1]
    assert found.ops.loc[found.ops["kind"] == "store", "measured_issue_us"].tolist() == [1.0, 3.0]


def test_waits_for_a_task_are_no_ops():
    with_wait = pd.concat([table(), table().iloc[:1].assign(kind="task", op=-1)], ignore_index=True)
    assert compare(with_wait, table()).error_pct == 0


@pytest.mark.parametrize(
    "measured",
    [table((1.0,), (0.0,)), table().assign(lane=1), repeats(table(), table().iloc[:3]), table().iloc[:0]],
)
def test_tables_of_different_programs_are_refused(measured):
    with pytest.raises(InputError, match="do not hold the same ops"):
        compare(table(), measured)


def test_a_program_without_stores_is_refused():
    only_gaps = table()[lambda t: t["kind"] == "compute"]
    with pytest.raises(InputError, match="holds no store"):
        compare(only_gaps, only_gaps)


def test_the_worst_ops_come_first():
    found = compare(table((1.0, 2.0)), table((1.1, 3.0)))
    assert found.worst(1)["task"].tolist() == [1]


def test_programs_with_stall_are_those_above_a_fifth_of_their_issue_time():
    little, much = compare(table(stall_us=(0, 0.5)), table()), compare(table(stall_us=(0, 0.7)), table())
    assert little.stalled_share == pytest.approx(1 / 6)
    assert summarise([little, much]).programs_with_stall == 1


def test_programs_with_no_stall_simulated_say_how_much_more_was_measured():
    calm, stalled = table((1.0, 2.0), stall_us=(0.0, 0.0)), table((1.0, 2.0))
    found = summarise(
        [compare(calm, table((1.1, 2.2))), compare(calm, table((0.9, 2.0))), compare(stalled, table((5.0, 9.0)))]
    )
    assert found.programs_without_stall == 2
    assert found.without_stall_excess_pct == pytest.approx((10 - 10 / 3) / 2)
    assert summarise([compare(stalled, stalled)]).without_stall_excess_pct is None


def test_whether_anything_is_measured_where_no_stall_is_simulated_is_told_beside_the_noise_of_those_programs():
    calm, spread = table((1.0, 2.0), stall_us=(0.0, 0.0)), (0.9, 0.95, 1.0, 1.05, 1.1)
    more = np.linspace(1.02, 1.06, 9)
    found = summarise([compare(calm, repeats(*(table((m * f, 2 * m * f)) for f in spread))) for m in more])
    low, high = found.without_stall_interval_pct
    assert found.without_stall_excess_pct == pytest.approx(4)
    assert 2 <= low < 4 < high <= 6
    assert found.without_stall_noise_pct == pytest.approx(5)
    assert found.without_stall_within_noise
    quiet = summarise([compare(calm, repeats(*[table((1.04, 2.08))] * 5))])
    assert not quiet.without_stall_within_noise
    assert quiet.without_stall_interval_pct is None  # of one program
    less = summarise([compare(calm, repeats(*[table((0.9, 1.8))] * 5))])
    assert not less.without_stall_within_noise  # a T_iss0 that is too high hides stall


def test_percentiles_are_over_programs():
    found = [compare(table((1 + e, 2 + 2 * e)), table((1.0, 2.0))) for e in np.linspace(-0.1, 0.3, 5)]
    summary = summarise(found)
    assert summary.median_abs_error_pct == pytest.approx(10)
    assert summary.worst_error_pct == pytest.approx(30)
    assert summary.programs == 5


def test_noise_leaves_no_verdict_however_small_the_error():
    noisy = repeats(*(table((1.0 * f, 2.0 * f)) for f in (0.5, 0.8, 1.0, 1.25, 1.6)))
    found = compare(table(), noisy)
    assert found.noise_pct > 15
    assert summarise([found]).verdict == "no verdict"


@pytest.mark.parametrize(
    "error, noise, expected",
    [(10, 15, "agrees"), (10.1, 15, "disagrees"), (1, 15.1, "no verdict"), (50, 50, "no verdict")],
)
def test_verdict(error, noise, expected):
    assert verdict(error, noise) == expected


def test_no_programs_are_no_summary():
    with pytest.raises(InputError, match="comparisons"):
        summarise([])


def two_lanes(starts, issue=1.0, sm=(0, 0), waits=(0.0, 0.0)):
    """A store of each of two lanes; `waits` is how long each waited for the issue port before it."""
    rows = [
        {"lane": lane, "task": lane, "op": lane, "gpu": 0, "sm": sm[lane], "kind": "store", "bytes": 64,
         "start_us": start, "end_us": start + waits[lane] + issue, "stall_us": 0.0, "wait_us": waits[lane]}
        for lane, start in enumerate(starts)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_stores_of_lanes_that_share_a_port_count_by_the_time_in_which_it_is_in_use():
    in_turn = two_lanes((0.0, 0.0), issue=2.0)  # both last as long as the two together: they alternate
    one_by_one = two_lanes((0.0, 0.0), waits=(0.0, 1.0))
    found = compare(in_turn, one_by_one)
    assert (found.simulated_issue_us, found.measured_issue_us) == (2.0, 2.0)
    assert found.port_is_shared


def test_stores_of_different_sms_count_each_for_itself():
    found = compare(two_lanes((0.0, 0.0), sm=(0, 1)), two_lanes((0.0, 0.5), sm=(0, 1)))
    assert (found.simulated_issue_us, found.measured_issue_us) == (2.0, 2.0)
    assert not found.port_is_shared


def test_time_between_stores_is_no_issue_time():
    assert time_in_stores_us(two_lanes((0.0, 5.0))) == 2.0
    assert time_in_stores_us(two_lanes((0.0, 0.25))) == 1.25


def test_a_task_that_another_lane_took_is_still_the_same_op():
    mine, theirs = two_lanes((0.0, 1.0)), two_lanes((0.0, 1.5))
    theirs["lane"] = [1, 0]
    found = compare(mine, theirs)
    assert found.ops.sort_values("task")["measured_issue_us"].tolist() == [1.0, 1.0]


def test_waits_are_summed_over_ops():
    found = compare(two_lanes((0.0, 0.0), waits=(0.0, 1.0)), two_lanes((0.0, 0.0), waits=(0.25, 1.0)))
    assert (found.simulated_wait_us, found.measured_wait_us) == (1.0, 1.25)


def test_each_number_of_a_summary_is_what_its_name_says():
    """Errors of -20, -10, 10, 30 and 60 %; the last two programs stall for more than a fifth of their time."""
    off, stalls = (-0.2, -0.1, 0.1, 0.3, 0.6), (0.0, 0.0, 0.0, 1.0, 1.5)
    programs = [
        compare(table((1 + e, 2 + 2 * e), stall_us=(0.0, s)), table((1.0, 2.0)))
        for e, s in zip(off, stalls, strict=True)
    ]
    summary = summarise(programs)
    assert summary.median_abs_error_pct == pytest.approx(20)
    assert summary.p90_abs_error_pct == pytest.approx(48)  # six tenths of the way from 30 to 60
    assert summary.stalled_median_abs_error_pct == pytest.approx(45)
    assert summary.makespan_median_abs_error_pct == pytest.approx(12)  # three fifths of a makespan are stores
    assert summary.op_median_abs_error_pct == pytest.approx(20)
    assert summary.stall_mean_abs_error_ns == pytest.approx((4 * 250 + 500) / 5)


def test_stall_of_lanes_that_share_a_port_is_what_their_stores_take_beyond_t_iss0():
    simulated = two_lanes((0.0, 0.0), waits=(0.0, 1.0))
    measured = two_lanes((0.0, 0.0), issue=1.5, waits=(0.0, 1.5))
    result = compare(simulated, measured)
    assert (result.simulated_stall_us, result.measured_stall_us) == (0.0, 1.0)
