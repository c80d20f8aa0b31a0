"""Fits of T_iss0, R and Q: they find what made the data, with honest intervals, and refuse data that has no knee."""

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.burst_gap import XStage, issue_time
from xstage.sim.calibrate import BurstTimes, NoLawError, fit
from xstage.sim.calibrated_machine import machine_of, write_machine
from xstage.sim.errors import InputError

T0_NS, W_GBS, R_GBS, Q_BYTES = 8.0, 160.0, 45.0, 14_000.0
STAGE_OF = {1: (R_GBS, Q_BYTES), 4: (2 * R_GBS, 2 * Q_BYTES)}
SIZES = 64.0 * np.array([16, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 448, 512, 640, 768, 1024])
TRAIN_SIZES, GAPS = 64.0 * np.array([128, 256, 384]), np.array([30.0, 100, 200, 300, 400, 600, 900])


def law_ns(size, gap_ns, producers=1, mode="synchronised", t0=T0_NS, w=W_GBS, r=R_GBS, q=Q_BYTES):
    """Issue times by the closed forms of burst_gap, which know nothing of the fit."""
    stage = XStage(1000 * t0, 1e6 * w, 1e6 * r, q / producers, q)
    isolated = np.isinf(gap_ns)
    gap_ps = 1000 * np.where(isolated, 0, gap_ns)
    alone = issue_time(stage, producers, size, mode="isolated")
    return np.where(isolated, alone, issue_time(stage, producers, size, gap_ps, mode)) / 1000


def synthetic(rng, producers=1, noise=0.03, rounds=20, outliers=0.05, law=law_ns, **parameters):
    """Rounds of noisy times of isolated bursts and trains; some of them disturbed to three times as long."""
    size = np.concatenate([SIZES, np.repeat(TRAIN_SIZES, len(GAPS))]) // producers
    gap = np.concatenate([np.full(len(SIZES), np.inf), np.tile(GAPS, len(TRAIN_SIZES))])
    true = law(size, gap, producers, **parameters)
    seen = true * np.maximum(0.05, 1 + noise * rng.standard_normal((rounds, len(size))))
    return BurstTimes(producers, size, gap, seen * np.where(rng.random(seen.shape) < outliers, 3, 1))


def no_knee(size, gap_ns, producers):
    return T0_NS + size / W_GBS


def test_without_noise_the_numbers_are_found_exactly():
    found = fit(synthetic(np.random.default_rng(0), noise=0, outliers=0), draws=20)
    assert found.t0_ns.value == pytest.approx(T0_NS, rel=1e-6)
    assert found.issue_gbs.value == pytest.approx(W_GBS, rel=1e-6)
    assert found.drain_gbs.value == pytest.approx(R_GBS, rel=1e-6)
    assert found.capacity_bytes.value == pytest.approx(Q_BYTES, rel=1e-6)
    assert found.t_iss0_ns.value == pytest.approx(T0_NS + 8192 / W_GBS, rel=1e-6)
    assert found.knee_bytes.value == pytest.approx((Q_BYTES + R_GBS * T0_NS) / (1 - R_GBS / W_GBS), rel=1e-6)


def test_the_fitted_law_is_that_of_the_closed_forms():
    times = synthetic(np.random.default_rng(0), noise=0, outliers=0)
    found = fit(times, draws=20)
    assert found.issue_ns(times.burst_bytes, times.gap_ns) == pytest.approx(times.issue_ns[0], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("producers, mode", [(1, "synchronised"), (4, "free_running")])
def test_intervals_hold_the_truth_in_nine_draws_of_ten(producers, mode):
    rng = np.random.default_rng(1)
    r, q = STAGE_OF[producers]
    truth = {"t0_ns": T0_NS, "issue_gbs": W_GBS, "drain_gbs": r, "capacity_bytes": q}
    draws, held = 200, dict.fromkeys(truth, 0)
    for _ in range(draws):
        found = fit(synthetic(rng, producers, mode=mode, r=r, q=q), mode, draws=60)
        for name, value in truth.items():
            held[name] += getattr(found, name).low <= value <= getattr(found, name).high
    assert {name: count / draws for name, count in held.items() if count < 0.9 * draws} == {}


def test_the_same_seed_gives_the_same_intervals():
    times = synthetic(np.random.default_rng(2))
    assert fit(times, seed=3).as_dict() == fit(times, seed=3).as_dict()


def stores_of_all_sms(rng, knee_bytes):
    """Bursts of 132 SMs that eight warps store, 512 B each at once: issuing takes 60 ns up to 4 KiB, then 80 GB/s.

    They drain at 52 GB/s. Each time is off by 1 % and 1 ns.
    """
    producers, r, lines = 132, 52.0, np.unique(np.round(np.geomspace(1, 1536, 32)))
    size = np.concatenate([128 * lines, np.repeat([4096.0, 16384, 49152], 4)])
    gap = np.concatenate([np.full(len(lines), np.inf), np.tile([0, 0.3, 0.85, 1.6], 3) * producers / r * size[-12:]])
    alone = 60 + np.maximum(0, size - 4096) / 80
    total, q = producers * size, producers * knee_bytes - r * (60 + max(0, knee_bytes - 4096) / 80)
    true = np.maximum(alone, np.maximum(total / r - np.where(np.isinf(gap), np.inf, gap), (total - q) / r))
    seen = true * (1 + 0.01 * rng.standard_normal((16, len(size)))) + rng.standard_normal((16, len(size)))
    return BurstTimes(producers, size, gap, seen, 20.0), q, r


@pytest.mark.parametrize("knee_bytes", [512, 1024, 2048, 4096])
def test_a_knee_within_bursts_that_all_take_as_long_to_issue_is_found(knee_bytes):
    """Their times do not rise below the knee, so by noise they fall in half of all draws."""
    for seed in range(6):
        times, q, r = stores_of_all_sms(np.random.default_rng(seed), knee_bytes)
        found = fit(times, reference_bytes=32768, draws=20)
        assert found.capacity_bytes.value == pytest.approx(q, rel=0.02)
        assert found.drain_gbs.value == pytest.approx(r, rel=0.01)
        assert found.t0_ns.value == pytest.approx(60, abs=3)
        assert machine_of(found, "mine", "measured here").x_stage().issue_kbs > 0


def test_t_iss0_is_that_of_a_burst_that_met_no_backpressure():
    """At the knee where the burst asked for is larger, whatever the line would give beyond it."""
    times, _, _ = stores_of_all_sms(np.random.default_rng(0), 2048)
    found = fit(times, reference_bytes=32768, draws=20)
    assert found.reference_bytes == pytest.approx(2048, rel=0.02)
    assert found.t_iss0_ns.value == pytest.approx(60, abs=2)
    assert found.reference_bytes <= found.knee_bytes.value
    assert fit(times, reference_bytes=1024, draws=20).reference_bytes == 1024


def test_bursts_without_a_knee_are_refused():
    for seed in range(20):
        with pytest.raises(NoLawError, match="no knee"):
            fit(synthetic(np.random.default_rng(seed), law=no_knee))


def test_a_knee_beyond_the_sizes_measured_is_refused():
    with pytest.raises(NoLawError, match="no knee"):
        fit(synthetic(np.random.default_rng(0), q=1_000_000.0))


def test_noise_above_the_effect_is_refused():
    with pytest.raises(NoLawError, match=r"noise is above the effect.*15 %"):
        fit(synthetic(np.random.default_rng(0), noise=0.4))


def test_times_that_do_not_follow_the_law_are_refused():
    def slower_after_a_gap(size, gap_ns, producers):
        return law_ns(size, gap_ns) * np.where(np.isinf(gap_ns), 1, 1 + gap_ns / 60)

    with pytest.raises(NoLawError, match="the law is off"):
        fit(synthetic(np.random.default_rng(0), law=slower_after_a_gap))


def recovering(share):
    """Bursts of trains as if only `share` of every gap drained the stage; 0: a gap does not help at all."""

    def law(size, gap_ns, producers):
        return law_ns(
            size, np.where(np.isinf(gap_ns), gap_ns, share * np.where(np.isinf(gap_ns), 0, gap_ns)), producers
        )

    return law


@pytest.mark.parametrize("share, noise", [(1, 0.03), (1, 0.12), (0.5, 0.03), (0.25, 0.03)])
def test_a_stage_that_drains_in_gaps_is_accepted(share, noise):
    for seed in range(8):
        fit(synthetic(np.random.default_rng(seed), noise=noise, law=recovering(share)), draws=20)


@pytest.mark.parametrize("share", [0, 0.1])
def test_a_stage_that_does_not_drain_in_gaps_is_refused(share):
    for seed in range(8):
        with pytest.raises(NoLawError, match=r"the law is off.*17.5 %"):
            fit(synthetic(np.random.default_rng(seed), law=recovering(share)), draws=20)


@pytest.mark.parametrize(
    "change, field",
    [
        ({"issue_ns": np.ones((2, 3))}, "rounds"),
        ({"issue_ns": np.ones((5, 4))}, "issue_ns"),
        ({"issue_ns": np.zeros((5, 3))}, "issue_ns"),
        ({"issue_ns": np.full((5, 3), np.nan)}, "issue_ns"),
    ],
)
def test_measurements_that_make_no_sense_are_refused(change, field):
    good = {"producers": 1, "burst_bytes": [64, 128, 256], "gap_ns": [np.inf] * 3, "issue_ns": np.ones((5, 3))}
    with pytest.raises(InputError) as error:
        BurstTimes(**(good | change))
    assert error.value.field == field


def test_too_few_sizes_are_refused():
    with pytest.raises(InputError, match="sizes of isolated bursts = 3"):
        fit(BurstTimes(1, [64, 128, 256], [np.inf] * 3, np.ones((5, 3))))


def test_an_unknown_mode_is_refused():
    with pytest.raises(InputError, match="mode = 'marching'"):
        fit(synthetic(np.random.default_rng(0)), mode="marching")


@pytest.mark.parametrize("producers", [1, 4])
def test_a_machine_file_gives_the_same_numbers_back(tmp_path, producers):
    r, q = STAGE_OF[producers]
    found = fit(synthetic(np.random.default_rng(5), producers, r=r, q=q), draws=50)
    machine = machine_of(found, "mine", "measured here")
    write_machine(machine, tmp_path / "mine.yaml")
    loaded = load_machine(tmp_path / "mine.yaml")
    assert loaded == machine
    assert loaded.sms == producers
    stage = loaded.x_stage()
    assert stage.drain_kbs == pytest.approx(1e6 * found.drain_gbs.value, abs=1)
    assert stage.t0_ps == pytest.approx(1000 * found.t0_ns.value, abs=1)
    assert stage.capacity_total_bytes == pytest.approx(found.capacity_bytes.value, abs=1)
    assert stage.capacity_per_producer_bytes == pytest.approx(found.capacity_bytes.value / producers, abs=1)


def test_every_fitted_number_of_the_machine_has_its_interval_and_source():
    machine = machine_of(fit(synthetic(np.random.default_rng(5)), draws=50), "mine", "measured here")
    numbers = dict(machine.numbers())
    for name in ("stage.t0", "stage.issue_rate", "stage.capacity_gpu", "interconnect.drain_rate"):
        assert numbers[name].source.startswith("measured here")
        assert not numbers[name].assumed
        assert numbers[name].interval is not None
