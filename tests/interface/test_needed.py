"""How much R and Q a scenario needs: what is found is enough, a little less is not."""

import math
from typing import Any

import pytest

import xstage as xs
from xstage.answers.needs import LOSS_PCT, MOST_FACTOR, PRECISION, faster, least_factor, needs, needs_parts, roomier
from xstage.answers.reruns import simulated

TRAIN = {
    "question": "How much is enough?",
    "machine": "hgx-b200",
    "workload": {"kind": "burst_train", "producers": 148, "burst": "32 KiB", "bursts": 30, "gap": "4 us"},
}
LOSS = 1 + LOSS_PCT / 100


@pytest.fixture(scope="module")
def found() -> Any:
    return needs(TRAIN)


def test_the_drain_rate_that_is_needed_is_that_of_the_closed_form(found):
    """R = V / (T_iss0 + G), with which the bursts of a train recover."""
    drain = found.needs[0]
    volume, free_us = 148 * 32 * 2**10, 0.7609538950715421 + 4
    assert drain.factor * 717 == pytest.approx(volume / free_us / 1e3, rel=LOSS_PCT / 100 + PRECISION - 1)
    assert drain.verdict == "is not enough"


def test_where_the_drain_limits_no_room_is_enough_to_matter(found):
    room = found.needs[1]
    assert room.unimportant or room.factor <= 1.5
    assert room.best_us == pytest.approx(found.makespan_us, rel=0.05)


@pytest.mark.parametrize(("index", "scaled"), [(0, faster), (1, roomier)])
def test_what_is_needed_is_enough_and_a_little_less_is_not(found, index, scaled):
    need = found.needs[index]
    if need.factor is None:
        return
    enough = simulated(found.resolved, "off", scaled(need.factor)).makespan_ps / 1e6
    less = simulated(found.resolved, "off", scaled(need.factor / PRECISION**1.5)).makespan_ps / 1e6
    assert enough == need.makespan_us <= LOSS * need.best_us < less


@pytest.mark.parametrize("least", [0.01, 0.3, 1.0, 1.5, 7.0, 900.0])
def test_the_least_factor_is_found_to_its_precision(least):
    assert least <= least_factor(lambda factor: factor >= least) <= PRECISION * least * (1 + 1e-9)


def test_a_limit_that_never_matters_and_one_that_always_does_have_no_factor():
    assert least_factor(lambda factor: True) == 0
    assert least_factor(lambda factor: False) is None


def test_few_runs_are_needed():
    asked = []

    def is_enough(factor):
        asked.append(factor)
        return factor >= 5

    least_factor(is_enough)
    assert len(set(asked)) <= 2 + math.log2(MOST_FACTOR)


def test_the_answer_names_what_is_short(found):
    [drain, _] = found.needs
    saved = f"{found.makespan_us - drain.makespan_us:.3f} us"
    assert drain.now == "717.0 GB/s"
    assert needs_parts(found)[-1] == f"Drain rate (R) of {drain.value} would save {saved}."
    assert xs.run(TRAIN).makespan_us == pytest.approx(found.makespan_us)


def test_the_picture_has_every_run_and_what_is_enough(found):
    panels = found.plot().axes
    assert [axes.get_title(loc="left") for axes in panels] == ["drain rate (R)", "capacity of the stage (Q)"]
    for axes, need in zip(panels, found.needs, strict=True):
        assert axes.lines[0].get_xydata().tolist() == [list(each) for each in need.tried]
    assert f"enough: {found.needs[0].factor:.2f}" in [text.get_text() for text in panels[0].texts]
