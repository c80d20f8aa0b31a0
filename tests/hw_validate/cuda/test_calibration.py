"""A stage that is known comes out of the tables as it went in, or is refused where it cannot be told."""

import re

import numpy as np
import pytest
from xstage.hw_validate.cuda import calibration
from xstage.hw_validate.cuda import experiments as e
from xstage.hw_validate.cuda.capacity import fit_capacity
from xstage.hw_validate.cuda.collect import collect
from xstage.hw_validate.cuda.parts import CALIBRATION_PARTS, Extent
from xstage.hw_validate.cuda.planning import plan
from xstage.scenarios.machine_files import load_machine
from xstage.sim.calibrate import NoLawError
from xstage.sim.errors import InputError

from .modelled_devices import (
    BACK_NS,
    BARRIER_NS,
    CYCLES_PER_NS,
    FLAG_NS,
    NOTING_NS,
    PULL_GBS,
    RELEASE_NS,
    TICK_NS,
    TICKET_NS,
    ModelledDevices,
    stage,
)

EXTENT = Extent(sizes=22, rounds=6, train_rounds=4, train_bursts=16, sweep_rounds=3)


def results(tmp_path_factory, devices, parts=CALIBRATION_PARTS):
    return collect(plan(extent=EXTENT, parts=parts), devices, tmp_path_factory.mktemp("cuda") / "results.npz")


@pytest.fixture(scope="module")
def by_sm(tmp_path_factory):
    """Q is 6 KiB an SM, and never reaches the 1 MiB of the GPU."""
    return results(tmp_path_factory, ModelledDevices(stage(per_sm_kib=6, gpu_kib=1024), sms=32))


@pytest.fixture(scope="module")
def by_gpu(tmp_path_factory):
    """Q is 6 KiB an SM up to 96 KiB: the smaller of both."""
    return results(tmp_path_factory, ModelledDevices(stage(per_sm_kib=6, gpu_kib=96), sms=32))


def test_r_q_and_t_iss0_come_out_as_they_went_in(by_sm):
    found = calibration.calibrate(by_sm).seen.calibration
    assert found.drain_gbs.value == pytest.approx(52, rel=0.02)
    assert found.capacity_bytes.value == pytest.approx(32 * 6 * 1024, rel=0.02)
    assert found.t0_ns.value == pytest.approx(100, abs=3)
    assert found.issue_gbs.value == pytest.approx(40, rel=0.02)
    assert found.drain_gbs.low <= found.drain_gbs.value <= found.drain_gbs.high


def test_the_way_to_the_far_memory_is_half_of_the_way_there_and_back(by_sm):
    machine = calibration.calibrate(by_sm).machine
    assert machine.interconnect.latency.value == pytest.approx(1000 * BACK_NS / 2, rel=0.05)


def test_two_ways_to_r_agree(by_sm):
    found = calibration.calibrate(by_sm)
    assert found.long_run_gbs == pytest.approx(found.seen.calibration.drain_gbs.value, rel=0.03)


def test_q_of_each_sm_is_told_from_q_of_the_gpu(by_sm, by_gpu):
    each, both = calibration.calibrate(by_sm).capacity, calibration.calibrate(by_gpu).capacity
    assert each.form == "each SM"
    assert each.per_sm_bytes == pytest.approx(6 * 1024, rel=0.03)
    assert "at least this" in each.bound
    assert both.form == "the smaller of both"
    assert both.per_sm_bytes == pytest.approx(6 * 1024, rel=0.03)
    assert both.gpu_bytes == pytest.approx(96 * 1024, rel=0.03)


def test_one_sm_that_cannot_fill_the_stage_is_told_with_its_reason(by_sm):
    """40 GB/s from one SM never fill a stage that drains at 52."""
    assert "no knee" in calibration.calibrate(by_sm).capacity.refused[1]


@pytest.mark.parametrize(
    ("law", "form"),
    [
        (lambda k: 5000 * k, "each SM"),
        (lambda k: 0 * k + 70_000, "the GPU"),
        (lambda k: np.minimum(5000 * k, 70_000), "the smaller of both"),
    ],
)
def test_the_simplest_form_that_describes_q_is_taken(law, form):
    k = np.array([2.0, 4, 8, 16, 32, 64])
    found = fit_capacity(k, law(k) * np.array([1.01, 0.99, 1.0, 1.01, 0.99, 1.0]))
    assert found.form == form
    assert np.minimum(found.per_sm_bytes * k, found.gpu_bytes) == pytest.approx(law(k), rel=0.03)


def test_costs_are_without_the_noting_of_times(by_sm):
    costs = calibration.calibrate(by_sm).costs
    assert costs.noting_ns == pytest.approx(NOTING_NS, abs=1)
    assert costs.release_ns[0] == pytest.approx(RELEASE_NS - NOTING_NS, abs=2)
    assert costs.ticket_ns[8] == pytest.approx(TICKET_NS, abs=2)
    assert costs.flag_one_way_ns == pytest.approx(FLAG_NS / 2, abs=2)
    assert costs.barrier_ns == pytest.approx(BARRIER_NS, abs=2)


def test_loads_out_of_the_far_memory_have_a_rate_of_their_own(by_sm):
    """Stores drain at 52 GB/s, loads come at 40: one SM has 32 KiB in flight, and waits for them each time."""
    costs = calibration.calibrate(by_sm).costs
    assert set(costs.pull_ns) == set(costs.pull_gbs) == {1, 32}
    assert costs.pull_ns[1] == pytest.approx(BACK_NS + 32768 / PULL_GBS, rel=0.01)
    assert costs.pull_gbs[32] == pytest.approx(PULL_GBS, rel=0.01)


def test_the_machine_is_one_that_a_scenario_can_use(by_gpu, tmp_path):
    found = calibration.calibrate(by_gpu)
    found.seen.write(tmp_path / "gpu.yaml")
    machine = load_machine(tmp_path / "gpu.yaml")
    assert machine == found.machine
    assert machine.stage.capacity_gpu.value == pytest.approx(96 * 1024, rel=0.03)
    assert machine.stage.capacity_sm.value == pytest.approx(6 * 1024, rel=0.03)
    assert "smaller of both" in machine.stage.capacity_sm.source
    assert 64 <= machine.stage.granule.value <= machine.stage.capacity_sm.value


def test_what_was_measured_is_told(by_sm):
    found = calibration.calibrate(by_sm)
    host = found.seen.as_dict()["host"]
    assert host["timer_tick_ns"] == TICK_NS
    assert host["sm_clock_mhz"] == pytest.approx(1500, rel=1e-3)
    assert host["transport"] == "host"
    assert found.seen.as_dict()["costs"]["release_ns"]


def test_drift_is_how_far_bursts_had_moved(by_sm):
    assert calibration.drift_pct(by_sm) < 1


def test_a_gpu_without_a_knee_is_refused(tmp_path_factory):
    flat = results(tmp_path_factory, ModelledDevices(None, sms=8), ("clock", "bursts"))
    with pytest.raises(NoLawError, match="no knee"):
        calibration.calibrate(flat)


def asked_of_cautions(measured, monkeypatch):
    """The knee in bytes and Q / R in ns with which a calibration asks for cautions."""
    asked = []
    monkeypatch.setattr(calibration, "cautions", lambda rows, *given: asked.append(given) or [])
    found = calibration.calibrate(measured).seen.calibration
    return found, *asked


def test_cautions_are_told_by_the_knee_and_the_stage_as_fitted(by_sm, monkeypatch):
    found, (knee_bytes, full_ns) = asked_of_cautions(by_sm, monkeypatch)
    assert knee_bytes == found.knee_bytes.value
    assert full_ns == pytest.approx(32 * 6 * 1024 / 52, rel=0.03)


def test_where_only_fewer_sms_show_a_law_all_of_them_are_beyond_the_knee(tmp_path_factory, monkeypatch):
    small = results(tmp_path_factory, ModelledDevices(stage(per_sm_kib=6, gpu_kib=6), sms=32))
    found, (knee_bytes, full_ns) = asked_of_cautions(small, monkeypatch)
    assert found.producers < 32 and knee_bytes == 0
    assert full_ns == pytest.approx(6 * 1024 / 52, rel=0.06)


def test_no_time_is_known_better_than_a_cycle(by_sm):
    times = calibration.burst_times(by_sm, calibration.part(by_sm, "bursts"), 0.0)
    assert times.resolution_ns == pytest.approx(1 / CYCLES_PER_NS, rel=1e-3)


def test_where_all_sms_overrun_a_small_stage_at_once_fewer_tell_its_size(tmp_path_factory):
    """6 KiB are less than two lines from each of 32 SMs, but 2 SMs fill them slowly enough to be watched."""
    small = results(tmp_path_factory, ModelledDevices(stage(per_sm_kib=6, gpu_kib=6), sms=32))
    found = calibration.calibrate(small).seen
    assert found.calibration.producers < 32
    assert found.calibration.capacity_bytes.value == pytest.approx(6 * 1024, rel=0.05)
    assert "with all SMs there is no law to be seen" in found.warnings[-1]


def test_a_missing_part_is_named_with_why(tmp_path_factory):
    some = results(tmp_path_factory, ModelledDevices(stage(), sms=8), ("clock",))
    with pytest.raises(InputError, match="part bursts of the results: is needed, but was not planned"):
        calibration.calibrate(some)
    some.header["parts"]["clock"] |= {"state": "failed", "why": "the GPU is lost"}
    with pytest.raises(InputError, match="failed: the GPU is lost"):
        calibration.costs_of(some)


def test_sms_that_get_more_of_the_link_do_not_make_r_larger(tmp_path_factory):
    """Half of the SMs get half as much again, and end early: the mean time of a burst would give more than R."""
    uneven = results(tmp_path_factory, ModelledDevices(stage(gpu_kib=1024), sms=32, weights=(1.5, 1.0)))
    found = calibration.calibrate(uneven)
    assert found.long_run_gbs == pytest.approx(52, rel=0.01)
    assert any("SMs share the link unevenly: the slowest takes 1.1" in text for text in found.seen.warnings)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.25, 1.0), (2.0, 1.0), (4.0, 1.0)])
def test_the_rate_of_a_long_run_is_what_all_sms_get_together(weights):
    """Four bursts of 100 bytes from two SMs that share 2 bytes a ns; when the first has ended, the other has them alone."""
    fast, slow = 2 * np.array(weights) / sum(weights)
    issued = np.array([0.0, 100, 200, 300, 400])
    first_ends = 400 / fast
    later = first_ends + (issued - slow * first_ends) / 2
    ends = [issued / fast, np.where(issued < slow * first_ends, issued / slow, later)]
    times = [np.stack([end[:-1], end[1:]], axis=1) for end in ends]
    assert calibration.rate_gbs(np.array(times), 100.0) == pytest.approx(2.0, rel=1e-9)


def test_a_calibration_says_what_speaks_against_it(tmp_path_factory):
    """Warm places are faster by a quarter, and a word that is loaded back comes out of a cache."""
    odd = results(tmp_path_factory, ModelledDevices(stage(gpu_kib=1024), sms=32, warm=0.75, back_ns=300))
    said = " ".join(calibration.calibrate(odd).seen.warnings)
    assert calibration.calibrate(odd).seen.details["long_run_warm_gbs"] == pytest.approx(52 / 0.75, rel=0.02)
    for what in ("T_iss0", "R and Q", r"R \(long_run_gbs is of new places, long_run_warm_gbs of the same\)"):
        assert re.search(rf"places that were stored to before take -2[4-6] % [^%]*: {what} of the calibration", said)
    assert "after a burst of 128 B the last word is back in 300 ns, but a release takes 700 ns" in said


def test_nothing_speaks_against_a_calibration_that_is_right(by_sm):
    found = calibration.calibrate(by_sm)
    assert found.seen.warnings == []
    assert found.seen.details["small_burst"]["back_ns"] == pytest.approx(BACK_NS, abs=3)
    assert found.seen.details["small_burst"]["fenced_ns"] == pytest.approx(RELEASE_NS, abs=3)


class NotesSlowly(ModelledDevices):
    """The table that tells what noting a time costs runs at the clock of an idle GPU."""

    def run(self, launches, abort, deadline_s):
        table = self._at(int(launches[0].parameters["rows"][0]), e.ROW, int(launches[0].parameters["n_rows"][0]))
        self.is_idle = (table["kind"] == e.CLOCK).any()
        return super().run(launches, abort, deadline_s)

    def cycles_per_ns(self):
        return CYCLES_PER_NS * (0.18 if self.is_idle else 1)


def test_noting_is_so_many_cycles_whatever_the_clock_was(tmp_path_factory):
    """20 ns at 1500 MHz are 111 at 270: more than T_iss0 of the smallest bursts."""
    odd = results(tmp_path_factory, NotesSlowly(stage(per_sm_kib=6, gpu_kib=1024), sms=32))
    found = calibration.calibrate(odd)
    assert found.seen.calibration.t0_ns.value == pytest.approx(100, abs=3)
    assert found.costs.noting_ns == pytest.approx(NOTING_NS, abs=1)
    (said,) = found.seen.warnings
    assert said.startswith("the SM clock was 270 MHz in part clock") and "1500 MHz" in said


def test_a_caution_that_fails_leaves_the_calibration(by_sm, monkeypatch):
    def fails(*given):
        raise KeyError("fenced_ns")

    monkeypatch.setattr(calibration, "cautions", fails)
    found = calibration.calibrate(by_sm).seen
    assert found.calibration.drain_gbs.value == pytest.approx(52, rel=0.02)
    assert found.warnings == ["cautions could not be told: KeyError: 'fenced_ns'"]


class Bunched(ModelledDevices):
    """The 8 warps of an SM store 4 KiB at once; only what is beyond takes time, at 80 GB/s."""

    def _issue_ns(self, row, bursts):
        if row["kind"] != e.STORE or row["bytes"] == 0:
            return super()._issue_ns(row, bursts)
        lines = [60 + max(0, row["bytes"] - 4096) / 80]
        if not row["flags"] & e.LOCAL:
            total, q = row["producers"] * row["bytes"], 2048 * row["producers"]
            lines += [(total - q) / 52, total / 52 - row["gap_cycles"] / CYCLES_PER_NS if bursts > 1 else 0]
        return np.full(bursts, max(lines))


def test_a_knee_below_what_an_sm_stores_at_once_leaves_t_iss0_of_larger_bursts_open(tmp_path_factory):
    """The line through bursts below a knee of 2 KiB is flat: at 32 KiB it would give 60 ns, and 418 is right."""
    found = calibration.calibrate(results(tmp_path_factory, Bunched(stage(), sms=32))).seen
    assert found.calibration.reference_bytes < 2400
    assert found.calibration.t_iss0_ns.value == pytest.approx(60, abs=3)
    (said,) = found.warnings
    line, control = re.search(r"for 32 KiB the line gives (\d+) ns, .* own memory take (\d+)", said).groups()
    assert float(line) == pytest.approx(60, abs=3)
    assert float(control) == pytest.approx(418, rel=0.01)
