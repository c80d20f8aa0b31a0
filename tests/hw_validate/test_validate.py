"""Calibrate, replay and compare, on made-up hardware whose parameters are known."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from xstage.hw_validate import validate as module
from xstage.hw_validate.compare import compare
from xstage.hw_validate.measuring import MeasurementError
from xstage.hw_validate.near_knee import excess_by_size
from xstage.hw_validate.validate import calibrate, validate
from xstage.scenarios.machine_files import load_machine
from xstage.sim.calibrate import NoLawError
from xstage.sim.errors import InputError

from .made_up_hardware import MadeUpHardware, made_up_machine
from .test_compare import table


@pytest.fixture
def hardware(monkeypatch):
    """Puts made-up hardware in the place of every backend."""

    def put(**given):
        monkeypatch.setattr(module, "open_backend", lambda *asked: MadeUpHardware(**given))

    return put


@pytest.fixture
def found(hardware):
    hardware()
    return validate(programs=6)


def test_hardware_that_follows_the_law_agrees(found):
    assert found.summary.verdict == "agrees"
    assert found.summary.median_abs_error_pct < 5
    assert (found.summary.programs, found.summary.programs_with_stall) == (6, 3)


def test_hardware_that_drains_at_half_the_rate_disagrees(hardware):
    hardware(runs_on=made_up_machine("22 GB/s"))
    assert validate(programs=6).summary.verdict == "disagrees"


def test_noisy_hardware_gets_no_verdict(hardware):
    hardware(replay_noise=0.4)
    assert validate(programs=6).summary.verdict == "no verdict"


def test_the_answer_has_the_agreed_fields_and_is_json(found):
    answer = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert set(answer) == {"calibration", "replay"}
    assert set(answer["calibration"]) >= {"t_iss0_ns", "drain_gbs", "capacity_bytes", "intervals"}
    assert set(answer["calibration"]["intervals"]) >= {"t_iss0_ns", "drain_gbs", "capacity_bytes"}
    assert set(answer["replay"]) >= {
        "programs", "programs_with_stall", "median_abs_error_pct", "p90_abs_error_pct", "stall_mean_abs_error_ns",
        "noise_pct", "drift_pct", "verdict",
    }  # fmt: skip
    low, high = answer["calibration"]["intervals"]["t_iss0_ns"]
    known = 100 * (high - low) / 2 / answer["calibration"]["t_iss0_ns"]
    assert answer["replay"]["t_iss0_known_to_pct"] == pytest.approx(known)
    assert answer["replay"]["without_stall_within_t_iss0"] == (
        abs(answer["replay"]["without_stall_excess_pct"]) <= known
    )


def test_the_answer_tells_what_is_more_than_the_law_by_distance_from_the_knee(found):
    ranges = found.as_dict()["replay"]["without_stall_by_size"]
    assert [row["of_knee"] for row in ranges] == [[0, 0.25], [0.25, 0.5], [0.5, 0.75], [0.75, 1]]
    calm = [row for row in ranges if row["stores"] > 20]
    assert calm
    for row in calm:
        assert abs(row["excess_pct"]) < 3
        assert abs(row["calibration_excess_pct"]) < 3


def test_a_knee_that_is_softer_than_the_law_shows_below_it(found):
    def slower(table):
        near = table["bytes"] > 0.75 * found.calibrated.calibration.knee_bytes.value
        return table.assign(measured_issue_us=table["measured_issue_us"] * np.where(near, 1.2, 1.0))

    soft = replace(found, comparisons=[replace(c, ops=slower(c.ops)) for c in found.comparisons])
    last, before = (soft.by_size()[i]["excess_pct"] for i in (-1, -2))
    assert last == pytest.approx(20, abs=4)
    assert before == pytest.approx(0, abs=4)


def test_the_same_seed_draws_the_same_programs(hardware):
    hardware()
    first, second = (validate(programs=4, seed=5).as_dict() for _ in range(2))
    assert first == second


def test_a_calibration_becomes_a_machine_file(hardware, tmp_path):
    hardware()
    found = calibrate()
    found.write(tmp_path / "cpu.yaml")
    assert load_machine(tmp_path / "cpu.yaml") == found.machine


def test_progress_is_told(hardware):
    hardware()
    told = []
    validate(programs=2, progress=lambda doing, share: told.append((doing, share)))
    assert [doing for doing, _ in told] == ["calibrating", "simulating", "replaying", "comparing"]
    assert all(0 <= share <= 1 for _, share in told)


def test_ops_of_all_programs_are_one_table(found, tmp_path):
    found.write_ops(tmp_path / "ops.parquet")
    ops = found.ops()
    assert ops["program"].nunique() == 6
    assert {"simulated_issue_us", "measured_issue_us", "simulated_stall_us", "measured_stall_us"} <= set(ops)


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(InputError, match=r"backend = 'abacus'.*allowed: cpu, cuda"):
        calibrate("abacus")


@pytest.mark.parametrize("measure", [calibrate, validate])
def test_a_negative_seed_is_refused_before_anything_is_measured(measure):
    with pytest.raises(InputError, match="seed = -1: must be at least 0"):
        measure(seed=-1)


def test_no_programs_are_refused():
    with pytest.raises(InputError, match="programs = 0"):
        validate(programs=0)


def test_this_computer_can_be_validated_or_says_why_not():
    """The one test that measures for real: it asserts what an answer is made of, not what it says."""
    try:
        found = validate(quick=True, programs=4)
    except (MeasurementError, NoLawError) as refusal:
        pytest.skip(str(refusal))
    assert found.summary.programs == 4
    assert found.summary.verdict in ("agrees", "disagrees", "no verdict")
    for number in found.calibrated.calibration.as_dict()["intervals"].values():
        assert number[0] <= number[1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("xstage lane")]


def test_waits_of_a_schedule_are_off_by_simulated_over_measured(found):
    longer = [replace(c, simulated_wait_us=1.5, measured_wait_us=1.0) for c in found.comparisons]
    [row] = replace(found, comparisons=longer, schedules=["train"] * len(longer)).by_schedule()
    assert row["wait_median_abs_error_pct"] == pytest.approx(50)


def test_stores_that_are_simulated_to_stall_tell_nothing_about_the_law_below_the_knee(found):
    one = compare(table(), table((1.0, 6.0)))  # the second of two small stores stalls
    smallest = excess_by_size([one], found.calibrated)[0]
    assert (smallest["stores"], smallest["excess_pct"]) == (1, pytest.approx(0))
