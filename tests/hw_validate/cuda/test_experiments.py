"""Tables of microbenchmarks as planned, and what becomes of them on one machine."""

import numpy as np
import pytest
from xstage.hw_validate.cuda import experiments as e
from xstage.hw_validate.cuda import parts
from xstage.hw_validate.cuda.noted import Noted


def resolved(*rows, sms=8, ranks=1, drain_gbs=50.0):
    return e.resolve(np.concatenate(rows), sms, ranks, drain_gbs, 2.0)


def test_a_burst_rests_three_times_as_long_as_it_and_the_one_before_take_to_drain():
    table = resolved(e.row(e.STORE, 0, bytes=1 << 20), e.row(e.STORE, 1, bytes=1 << 10))
    drain_ns = 8 * (1 << 20) / 50
    assert table["rest_ns"].tolist() == [np.ceil(3 * drain_ns)] * 2


def test_no_rest_is_shorter_than_20_us():
    assert resolved(e.row(e.STORE, 0, bytes=512))["rest_ns"].tolist() == [20_000]


def test_gaps_are_in_drain_times_and_become_cycles():
    table = resolved(e.row(e.STORE, 0, bytes=50_000, gap_drains=0.5, bursts=4))
    assert table["gap_cycles"].tolist() == [round(0.5 * 8 * 50_000 / 50 * 2.0)]


def test_rows_that_need_more_sms_or_gpus_than_there_are_are_left_out():
    rows = [e.row(e.STORE, 0), e.row(e.STORE, 1, producers=9), e.row(e.STORE, 2, senders=2),
            e.row(e.STORE, 3, target=1), e.row(e.STORE, 4, flags=e.ECHO), e.row(e.OFFSET, 5, target=1)]  # fmt: skip
    assert resolved(*rows)["config"].tolist() == [0]
    assert resolved(*rows, ranks=2)["config"].tolist() == [0, 2, 3, 4, 5]


def test_a_light_sm_is_one_of_those_there_are():
    assert resolved(e.row(e.STORE, 0, flags=e.LIGHT))["producers"].tolist() == [7]


def test_times_of_rows_lie_one_after_the_other():
    table = resolved(e.row(e.STORE, 0, bursts=3), e.row(e.STORE, 1, flags=e.LIGHT, bursts=5), e.row(e.BULK, 2, marks=5))
    assert e.marks_of(table).tolist() == [8 * 3 * 2, 5 * 2, 8 * 5]
    assert table["first_mark"].tolist() == [0, 48, 58]


def test_every_round_holds_every_row_once_in_another_order():
    rows = [e.row(e.STORE, i) for i in range(12)]
    table = e.repeated(rows, 3, np.random.default_rng(1))
    orders = [table["config"][table["round"] == i].tolist() for i in range(3)]
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert orders[0] != orders[1]


def test_plans_are_the_same_for_the_same_seed_and_parts_do_not_depend_on_each_other():
    one = {part.name: part.table for part in parts.microbenchmarks(parts.QUICK, 7)}
    alone = parts.microbenchmarks(parts.QUICK, 7, ("costs",))[0]
    assert np.array_equal(one["costs"], alone.table)
    assert not np.array_equal(one["costs"], parts.microbenchmarks(parts.QUICK, 8, ("costs",))[0].table)


@pytest.mark.parametrize("extent", [parts.QUICK, parts.FULL])
def test_sizes_are_whole_lines_and_enough_for_a_fit(extent):
    isolated = parts.bursts(extent, np.random.default_rng(0))
    sizes = {group["bytes"] for group in isolated.groups}
    assert len(sizes) >= 16
    assert all(size % parts.LINE_BYTES == 0 for size in sizes)


def noted(table, row_times, cta_times):
    marks = np.zeros((1, int(e.marks_of(table).sum())), dtype=np.uint32)
    return Noted(table, marks, np.array([row_times], dtype=np.uint64), np.array([cta_times], dtype=np.uint64), None, [])


def test_the_clock_is_told_piece_by_piece():
    """2 GHz for the first half, 1 GHz for the second: each row has the clock of its time."""
    table = resolved(*(e.row(e.STORE, i) for i in range(4)))
    times = [
        [i * 2_000_000, (4 if i <= 2 else 2) * 1_000_000 * i + (4_000_000 if i > 2 else 0), 0, 0] for i in range(4)
    ]
    found = noted(table, times, [[0, 0, 8_000_000, 12_000_000]])
    assert found.cycles_per_ns.round(6).tolist() == [2.0, 2.0, 1.0, 1.0]
    assert found.clock_moved_pct() == pytest.approx(100 * 1.0 / 1.5)


def test_the_offset_of_a_timer_is_that_of_the_shortest_round_trip():
    table = resolved(e.row(e.OFFSET, 0, producers=1, bursts=3, marks=6, target=1), ranks=2)
    ahead, big = 5_000, 7 << 32
    trips = [(900, 100), (400, 200), (2000, 1500)]
    words = []
    for asked, (trip, there) in enumerate(trips):
        for time in (big + 10_000 * asked, big + 10_000 * asked + there + ahead, big + 10_000 * asked + trip):
            words += [time & 0xFFFFFFFF, time >> 32]
    marks = np.zeros((2, 18), dtype=np.uint32)
    marks[0] = words
    one = Noted(table, marks, None, None, None, [{"group": "offset"}])
    assert one.offsets_ns() == {"1": ahead + 200 - 400 / 2}
