"""What a fit finds where the truth is known: time = work / rate + fixed."""

import numpy as np
import pytest
from xstage.sim.errors import InputError
from xstage.sim.fit_times import Parameter, fit

WORK = (100.0, 10_000.0)
RATE = Parameter("rate", "GB/s", 40, 160, "")
FIXED = Parameter("fixed", "us", 1, 16, "")


def law(numbers):
    return [work / numbers["rate"] + numbers["fixed"] for work in WORK]


def test_numbers_that_the_times_determine_are_found():
    done = fit([RATE, FIXED], law({"rate": 100.0, "fixed": 5.0}), law)
    rate, fixed = done.numbers
    assert rate.value == pytest.approx(100, rel=0.05)
    assert fixed.value == pytest.approx(5, rel=0.05)
    assert rate.low < 100 < rate.high
    assert np.allclose(done.predicted_us, done.measured_us, rtol=0.02)


def test_a_number_that_the_times_say_nothing_about_keeps_what_was_believed():
    done = fit([RATE], [7.0], lambda numbers: [7.0])
    [rate] = done.numbers
    assert rate.value == pytest.approx(RATE.middle)
    assert (rate.low, rate.high) == pytest.approx((40, 160), rel=0.01)
    assert rate.informed == pytest.approx(0, abs=0.01)
    assert rate.sensitivity == (0.0,)


def test_sensitivity_is_how_a_time_follows_a_number():
    [rate] = fit([RATE], [100.0], lambda numbers: [8000 / numbers["rate"]]).numbers
    assert rate.sensitivity == pytest.approx((-1.0,), abs=0.01)


def test_an_efficiency_stops_at_one_and_says_so():
    efficiency = Parameter("efficiency", "", 0.6, 0.95, "", most=1.0)
    [number] = fit([efficiency], [50.0], lambda numbers: [100 / numbers["efficiency"]]).numbers
    assert number.value <= 1.0
    assert number.flag.startswith("at its limit of 1")


def test_a_value_outside_of_what_was_believed_is_flagged():
    [number] = fit([RATE], [100.0], lambda numbers: [1000 / numbers["rate"]]).numbers
    assert number.value < 40
    assert number.flag == "outside of what was believed before"


def test_more_than_six_numbers_are_refused():
    seven = [Parameter(f"p{i}", "", 1, 2, "") for i in range(7)]
    with pytest.raises(InputError, match="1 to 6"):
        fit(seven, [1.0], lambda numbers: [1.0])


def test_no_times_are_refused():
    with pytest.raises(InputError, match="no rows"):
        fit([RATE], [], lambda numbers: [])


def test_a_range_that_is_none_is_refused():
    with pytest.raises(InputError, match="no range"):
        Parameter("rate", "", 2, 1, "")
