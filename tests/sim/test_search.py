"""The search finds what an exhaustive sweep finds, in fewer runs, and the knee before it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xstage.sim.errors import InputError
from xstage.sim.search import Axis, Search, knee


def searched(axes, cost, most=60):
    search = Search(axes, cost, most)
    search.run()
    return search


@given(st.integers(0, 300), st.integers(1, 7))
def test_one_valley_is_found_to_the_step(bottom, step):
    axis = Axis(0, 300, step)
    search = searched([axis], lambda point: 100.0 + abs(point[0] - bottom))
    assert search.costs[search.best] == min(100.0 + abs(value - bottom) for value in axis.values())
    assert len(search.costs) <= 60


def test_two_settings_are_searched_together():
    axes = [Axis(1, 64), Axis(1, 16)]

    def cost(point):
        return 1000.0 + (point[0] - 23) ** 2 + 10 * abs(point[1] - 5)

    search = searched(axes, cost)
    exhaustive = min(cost(point) for point in itertools.product(*(axis.values() for axis in axes)))
    assert search.costs[search.best] <= 1.01 * exhaustive
    assert len(search.costs) <= 60


def test_a_point_is_run_once():
    seen = []
    search = searched([Axis(0, 100)], lambda point: seen.append(point) or float(point[0]))
    search.find_knee()
    assert len(seen) == len(set(seen)) == len(search.costs)


def test_points_that_cannot_run_are_passed_over():
    search = searched([Axis(0, 50)], lambda point: None if point[0] < 20 else float(point[0]))
    assert search.best == (20,)
    assert searched([Axis(0, 5)], lambda point: None).best is None


def test_the_knee_is_the_least_value_within_a_percent_of_the_best():
    assert knee({0: 200.0, 10: 101.5, 20: 100.9, 30: 100.0, 40: 103.0}) == 20
    assert knee({0: None, 10: 5.0}) == 10
    assert knee({0: None}) is None


def test_a_value_that_is_beaten_where_none_is_given_is_no_knee():
    """As with the leads of a policy that chooses another one for each rank."""
    costs = {0: 200.0, 10: 100.9, 20: 100.0}
    assert (knee(costs, 100.5), knee(costs, 99.5), knee(costs, 90.0)) == (10, 20, None)
    search = searched([Axis(0, 100)], lambda point: 100.0 + max(0, 50 - point[0]))
    assert (search.find_knee(), search.find_knee(usual=99.5), search.find_knee(usual=90.0)) == (49, 50, None)


@given(st.integers(1, 250))
def test_the_knee_of_a_falling_curve_is_found_to_the_step(start):
    def cost(point):
        return 100.0 + max(0, start - point[0])

    search = searched([Axis(0, 400)], cost)
    found = search.find_knee()
    assert found == min(value for value in range(401) if cost((value,)) <= 101.0)


def test_an_axis_without_values_is_refused():
    with pytest.raises(InputError, match="5 to 4 by 1"):
        Axis(5, 4)
