"""What several cores share of the stage, from bursts of one core alone beside those of all at once."""

import numpy as np
import pytest
from xstage.hw_validate.cpu.microbenchmark import Measured
from xstage.hw_validate.cpu.shared_stage import shared_stage
from xstage.sim.burst_gap import XStage, issue_time
from xstage.sim.calibrate import BurstTimes, fit
from xstage.sim.calibrated_machine import machine_of

SIZES = 64.0 * np.array([16, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512, 640, 768, 1024])
ROUNDS = 20


def stage(drain_gbs, capacity):
    return XStage(8_000, 160e6, drain_gbs * 1e6, capacity, capacity)


def measured(together, alone, rounds_apart=0):
    """Two cores whose bursts take the times of the stage `together`; in the last rounds each has a stage of its own."""
    rng = np.random.default_rng(0)
    both = np.tile(issue_time(together, 2, SIZES, mode="isolated") / 1000, (ROUNDS, 1))
    one = np.tile(issue_time(alone, 1, SIZES, mode="isolated") / 1000, (ROUNDS, 1))
    both[ROUNDS - rounds_apart :] = one[ROUNDS - rounds_apart :]
    both, one = (times * (1 + 0.01 * rng.standard_normal(times.shape)) for times in (both, one))
    times = BurstTimes(2, SIZES, np.full(len(SIZES), np.inf), both)
    return Measured(times, one, one, SIZES, ROUNDS, 0, 0.0, 10.0, alone_ns=one)


def test_cores_that_share_a_drain_are_no_reason_to_warn():
    found = shared_stage(measured(stage(43, 20_000), stage(43, 12_500)))
    assert found.shared_pct == 100
    assert found.warnings() == []


def test_a_core_alone_holds_more_than_its_part():
    """Q(1) = 12.5 KB and Q(2) = 20 KB, which a machine file says as q = 12.5 KB and Q = 20 KB."""
    seen = measured(stage(43, 20_000), stage(43, 12_500))
    together = fit(seen.times, draws=20)
    alone = shared_stage(seen).capacity_alone(together)
    assert alone.value == pytest.approx(12_500, rel=0.05)
    machine = machine_of(together, "two", "made up", capacity_alone=alone)
    assert machine.stage.capacity_sm.value == pytest.approx(12_500, rel=0.05)
    assert machine.stage.capacity_gpu.value == pytest.approx(20_000, rel=0.05)


def test_cores_with_a_drain_of_their_own_are_told():
    found = shared_stage(measured(stage(90, 25_000), stage(45, 12_500)))
    assert found.shared_pct == 0
    assert "do not share their drain" in found.warnings()[0]


def test_a_drain_that_is_shared_now_and_then_is_told():
    found = shared_stage(measured(stage(43, 20_000), stage(43, 12_500), rounds_apart=8))
    assert found.mixed
    assert found.shared_pct == pytest.approx(60)
    assert "in 60 % of the rounds they shared one drain" in found.warnings()[0]


def test_one_core_shares_nothing():
    seen = measured(stage(43, 20_000), stage(43, 12_500))
    seen.alone_ns = None
    assert shared_stage(seen) is None
