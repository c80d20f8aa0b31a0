"""The search finds what an exhaustive sweep finds, in fewer runs, and the knee before it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xstage.sim.errors import InputError
from xstage.sim.search import Search, knee


def searched(counts, cost, most=60):
    search = Search(counts, cost, most)
    search.run()
    return search


@given(st.integers(0, 300), st.integers(1, 7))
def test_one_valley_is_found_to_the_step(bottom, step):
    values = range(0, 301, step)
    search = searched([len(values)], lambda point: 100.0 + abs(values[point[0]] - bottom))
    assert search.costs[search.best] == min(100.0 + abs(value - bottom) for value in values)
    assert len(search.costs) <= 60


def test_two_settings_are_searched_together():
    counts = [64, 16]

    def cost(point):
        return 1000.0 + (point[0] - 22) ** 2 + 10 * abs(point[1] - 4)

    search = searched(counts, cost)
    exhaustive = min(cost(point) for point in itertools.product(*map(range, counts)))
    assert search.costs[search.best] <= 1.01 * exhaustive
    assert len(search.costs) <= 60


def test_a_point_is_run_once():
    seen = []
    search = searched([101], lambda point: seen.append(point) or float(point[0]))
    search.find_knee()
    assert len(seen) == len(set(seen)) == len(search.costs)


def test_points_that_cannot_run_are_passed_over():
    search = searched([51], lambda point: None if point[0] < 20 else float(point[0]))
    assert search.best == (20,)
    assert searched([6], lambda point: None).best is None


def test_the_knee_is_the_least_value_within_a_percent_of_the_best():
    assert knee({0: 200.0, 10: 101.5, 20: 100.9, 30: 100.0, 40: 103.0}) == 20
    assert knee({0: None, 10: 5.0}) == 10
    assert knee({0: None}) is None


def test_a_value_that_is_beaten_where_none_is_given_is_no_knee():
    """As with the leads of a policy that chooses another one for each rank."""
    costs = {0: 200.0, 10: 100.9, 20: 100.0}
    assert (knee(costs, 100.5), knee(costs, 99.5), knee(costs, 90.0)) == (10, 20, None)
    search = searched([101], lambda point: 100.0 + max(0, 50 - point[0]))
    assert (search.find_knee(), search.find_knee(usual=99.5), search.find_knee(usual=90.0)) == (49, 50, None)


@given(st.integers(1, 250))
def test_the_knee_of_a_falling_curve_is_found_to_the_step(start):
    def cost(point):
        return 100.0 + max(0, start - point[0])

    search = searched([401], cost)
    found = search.find_knee()
    assert found == min(value for value in range(401) if cost((value,)) <= 101.0)


def test_a_setting_without_values_is_refused():
    with pytest.raises(InputError, match=r"setting = \[3, 0\]: holds no value"):
        Search([3, 0], lambda point: 1.0)


def test_where_it_looks_and_in_which_order():
    """From this order follow the runs that an answer shows, so it changes only on purpose."""
    falling = searched([61], lambda point: 100.0 + max(0, 17 - point[0]) + point[0] / 50, most=24)
    assert falling.find_knee() == 16
    looked = [0, 1, 3, 5, 9, 14, 23, 38, 60, 19, 30, 31, 49, 17, 21, 26, 27, 16, 18, 20, 22, 15]
    assert [point[0] for point in falling.costs] == looked
    valley = searched([48, 16], lambda point: 1000.0 + (point[0] - 23) ** 2 + 10 * abs(point[1] - 5), most=50)
    coarse = itertools.product((0, 1, 4, 9, 21, 47), (0, 1, 2, 4, 8, 15))
    finer = [(15, 4), (34, 4), (21, 3), (21, 6), (15, 2), (34, 2), (15, 8), (34, 8), (21, 11), (18, 4), (27, 4), (21, 5),
             (21, 7), (20, 4)]  # fmt: skip
    assert list(valley.costs) == [*coarse, *finer]
