"""The middle of repeated measurements, and their noise."""

import numpy as np
import pytest
from xstage.hw_validate.centre import centre, noise_pct


def test_a_quarter_of_outliers_on_either_side_does_not_move_the_centre():
    assert centre([1, 10, 10, 10, 10, 10, 10, 1000]) == 10


def test_the_centre_lies_between_the_steps_of_a_coarse_counter():
    assert centre([10, 10, 10, 10, 20, 20, 20, 20]) == 15


def test_a_single_value_is_its_own_centre():
    assert centre([7.0]) == 7.0


def test_the_centre_is_taken_along_an_axis():
    assert centre(np.array([[1, 2], [3, 4]]), axis=0).tolist() == [2.0, 3.0]


def test_noise_is_the_median_distance_from_the_median_in_percent():
    assert noise_pct([90, 100, 110]) == pytest.approx(10)
    assert noise_pct([5, 5, 5]) == 0
