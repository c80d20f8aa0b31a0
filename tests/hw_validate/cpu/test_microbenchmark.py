"""Which bursts a calibration times: sizes on both sides of the knee, wherever it lies."""

import numpy as np
import pytest
from xstage.hw_validate.cpu.microbenchmark import FIRST_LOOK, LINES_SPREAD, _evenly, _varied, plan_around
from xstage.sim.calibrate import LEAST_EACH_SIDE, LEAST_SIZES


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("knee_lines", [30, 48, 84, 240, 1000])
def test_there_are_enough_sizes_on_both_sides_of_a_knee_wherever_it_lies(knee_lines, quick):
    plan = plan_around(knee_lines, drain_ns=2.5 * knee_lines, quick=quick)
    sizes = plan.isolated_lines
    assert len(set(sizes)) == len(sizes) >= LEAST_SIZES
    assert sum(size <= knee_lines for size in sizes) >= 2 * LEAST_EACH_SIDE
    assert sum(size > knee_lines for size in sizes) >= 2 * LEAST_EACH_SIDE
    assert min(plan.train_lines) < knee_lines < max(plan.train_lines)
    assert not any(size % 8 == 0 for size in (*sizes, *plan.train_lines))


def test_the_stage_is_empty_again_before_the_next_isolated_burst():
    plan = plan_around(100, drain_ns=250)
    assert plan.rest_ns > 250 * max(plan.isolated_lines) / 100


def test_gaps_of_trains_lie_on_both_sides_of_the_time_in_which_a_knee_drains():
    plan = plan_around(100, drain_ns=250)
    assert min(plan.train_gaps_ns) < 250 < max(plan.train_gaps_ns)


def test_the_first_look_finds_knees_of_48_to_270_lines():
    for knee in (48, 270):
        below = [size for size in FIRST_LOOK.isolated_lines if size <= knee]
        assert LEAST_EACH_SIDE <= len(below) <= len(FIRST_LOOK.isolated_lines) - LEAST_EACH_SIDE


def test_bursts_of_a_size_vary_evenly_about_it():
    """So that a core cannot learn when they end, and their middle is that size."""
    rng = np.random.default_rng(0)
    sizes = np.array([6, 21, 100])
    order = rng.permutation(np.tile(np.arange(3), 8))
    lines = _varied(sizes[order], _evenly(order, 8, rng))
    for number, size in enumerate(sizes):
        found = lines[order == number]
        assert found.mean() == pytest.approx(size, abs=0.5)
        assert len(set(found.tolist())) >= 3
        assert np.abs(found - size).max() <= min(LINES_SPREAD, -(-size // 4))
