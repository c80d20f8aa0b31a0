"""Small bursts around what is timed: the steps between them are told apart again, and start together."""

import numpy as np
from xstage.hw_validate.cpu import lane, yardstick
from xstage.hw_validate.cpu.clock import Clock

CLOCK = Clock(ticks_per_ns=2.0, step_ticks=1)
TIMED = np.array(
    [(lane.AT, 70, 0, 0), (lane.STORE, 5, 0, 0), (lane.SPIN, 9, 0, 0), (lane.STORE, 6, 0, 0)], dtype=np.int64
)


def stamps_of(took):
    return np.concatenate([[1000], 1000 + np.cumsum(took)])


def test_steps_stand_between_small_bursts_and_begin_after_a_rest():
    steps = yardstick.around(TIMED, CLOCK)
    first = 2 * len(yardstick.LINES_BEFORE) + 1
    timed = steps[first : first + len(TIMED)]
    lead = CLOCK.ticks(yardstick.LEAD_NS)
    assert timed[:, 1].tolist() == [lead + 70, 5, 9, 6]
    last_burst = steps[first - 3, 1]
    assert lead - last_burst >= CLOCK.ticks(yardstick.REST_NS)


def test_the_times_of_what_is_timed_are_those_between_the_small_bursts():
    steps = yardstick.around(TIMED, CLOCK)
    took = np.arange(len(steps))
    first = 2 * len(yardstick.LINES_BEFORE) + 1
    assert np.diff(yardstick.between(stamps_of(took))).tolist() == took[first : first + len(TIMED)].tolist()


def test_the_pace_before_and_after_is_that_of_stores_alone():
    steps = yardstick.around(TIMED, CLOCK)
    took = np.where(steps[:, 0] == lane.STORE, 40, 3000)
    took[-2 * len(yardstick.LINES_AFTER) :][1::2] = 90
    assert yardstick.paces_ticks(stamps_of(took)) == (40, 90)


def test_a_small_burst_of_every_rest_of_lines_makes_the_loop_warm():
    for lines in (yardstick.LINES_BEFORE, yardstick.LINES_AFTER):
        assert {each % 8 for each in lines} == set(range(8))
