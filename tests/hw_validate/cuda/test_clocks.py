"""Timers of several GPUs on one axis."""

import numpy as np
import pytest
from xstage.hw_validate.cuda.clocks import ahead_ns, joined, offsets_between, to_add_ns
from xstage.hw_validate.cuda.errors import NoPeerAccessError
from xstage.hw_validate.cuda.replay_job import TIMES

from .emulated import BUILDS, needs_compiler
from .emulated_devices import EmulatedDevices


def told(at, ahead):
    return {"at_ns": at, "ahead_ns": ahead, "trip_ns": 2000.0}


def outputs(*starts):
    found = {}
    for gpu, start in enumerate(starts):
        found[f"times@{gpu}"] = np.zeros(2, TIMES)
        found[f"times@{gpu}"]["global_start"] = [0, start]  # the first CTA never started
    return found


def test_between_two_measurements_the_offset_is_on_the_line_through_both():
    drifts = [told(1000.0, 50.0), told(2000.0, 150.0)]
    assert [ahead_ns(drifts, at) for at in (0, 1000, 1250, 2000, 9000)] == [50, 50, 75, 150, 150]


def test_one_measurement_is_taken_as_it_is_and_none_as_no_offset():
    assert ahead_ns([told(1000.0, 50.0)], 10**9) == 50
    assert ahead_ns([], 10**9) == 0


def test_what_is_added_puts_every_gpu_on_the_timer_of_gpu_0():
    """GPU 1 is 75 ns ahead when the kernel starts: what it noted at 1325 happened at 1250."""
    offsets = joined({"1": [told(1000.0, 50.0)]}, {"1": [told(2000.0, 150.0)]})
    assert to_add_ns(offsets, outputs(1250, 1325), 2) == {0: 0.0, 1: -75.0}


def test_without_an_offset_nothing_is_said():
    assert to_add_ns({}, outputs(1250, 1325), 2) is None


@needs_compiler
def test_ranks_that_share_a_timer_are_apart_by_less_than_half_a_round_trip():
    found = offsets_between(EmulatedDevices(BUILDS, gpus=3), 3)
    assert found.keys() == {"1", "2"}
    assert all(abs(one["ahead_ns"]) <= one["trip_ns"] / 2 for (one,) in found.values())


def test_one_gpu_has_no_offsets():
    with pytest.raises(NoPeerAccessError, match="needs two GPUs"):
        offsets_between(EmulatedDevices(BUILDS), 2)
