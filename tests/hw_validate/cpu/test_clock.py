"""A counter whose rate changes is no clock."""

import pytest
from xstage.hw_validate.cpu.clock import Clock, UnsteadyClockError, check_rates


def test_rates_that_agree_pass():
    check_rates(2.6, 2.6005)


@pytest.mark.parametrize("after", [2.7, 0.0, -1.0])
def test_rates_that_differ_are_refused(after):
    with pytest.raises(UnsteadyClockError, match="no clock"):
        check_rates(2.6, after)


def test_ticks_and_ns_are_each_others_inverse():
    clock = Clock(ticks_per_ns=2.5, step_ticks=1)
    assert clock.ticks(100) == 250
    assert clock.ns(250) == 100
