"""Measured against simulated fused kernels. Where the hardware is itself a simulation, the prediction must be exact."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from xstage.hw_validate.cuda.fused_calls import ATTENTION_POLICIES, AttentionCall, MegaMoeCall
from xstage.hw_validate.cuda.fused_compare import (
    OFF_OF_MEDIAN,
    Band,
    Compared,
    Prediction,
    at_ends,
    middle_repeat,
    over_repeats,
    ranked_alike,
)
from xstage.hw_validate.cuda.fused_costs import Pauses
from xstage.hw_validate.cuda.fused_lower import ops_of
from xstage.hw_validate.cuda.fused_run import machine_for
from xstage.hw_validate.cuda.fused_waits import late_inputs
from xstage.scenarios.machine_files import load_machine
from xstage.sim.execute import simulate
from xstage.sim.machine import Machine
from xstage.sim.program import COMPUTE, LOAD, RELEASE, WAIT
from xstage.sim.schedules import megamoe
from xstage.sim.schedules.attention_a2a import Attention

CALLS = {
    "megamoe": MegaMoeCall(
        megamoe.MegaMoe(tokens=300, hidden=1024, intermediate=512, experts=4, topk=2, ranks=2, numbers="bf16")
    ),
    "attention": AttentionCall(Attention(tokens=1024, heads=8, ranks=2)),
}
POLICIES = {
    ("megamoe", "wave"): megamoe.ExpertWave(experts_per_wave=1),
    ("megamoe", "lag"): megamoe.Lag(lag=1, group=1, unit=2),
    ("megamoe", "interleaved"): megamoe.Interleaved(lead_rows=64),
} | {("attention", name): policy for name, policy in ATTENTION_POLICIES.items()}
SLOW = {"megamoe": "15 GB/s", "attention": "1.5 GB/s"}
"""Ways out that make stores stall, next to four SMs."""


@cache
def program_of(kernel, name, sms=4):
    return CALLS[kernel].build(machine_for("hgx-h100", sms), POLICIES[kernel, name])


def with_rate(rate):
    return load_machine("hgx-h100", {"interconnect.drain_rate": rate})


@cache
def ran_on(rate, kernel, name, hidden_us=0.0):
    """Lanes spend `hidden_us` before each op, and in giving a slot back or seeing that inputs are there."""
    program = program_of(kernel, name)
    kind, counter = program.ops["kind"], program.ops["counter"]
    sees = (kind == RELEASE) | ((kind == WAIT) & ~np.isin(counter, counter[kind == LOAD]))
    hidden = Pauses(np.full(len(kind), hidden_us), hidden_us * sees)
    return hidden.taken_out_of(simulate(hidden.put_into(program), with_rate(rate).fabric(2), trace="full").ops())


def compared(name, program, far, control, machine, transport, summary):
    simulated = summary(Prediction.of(program, control, transport).on(machine))
    return Compared(name, *(over_repeats([summary(table)]) for table in (far, control)), simulated)


@pytest.mark.parametrize("hidden_us", [0.0, 0.2])
@pytest.mark.parametrize(("kernel", "name"), POLICIES)
def test_the_prediction_from_the_control_is_exact_where_the_hardware_obeys_the_model(kernel, name, hidden_us):
    """Claiming tasks and noting times take what they take, on both sides."""
    far, control = (ran_on(rate, kernel, name, hidden_us) for rate in (SLOW[kernel], "100000 GB/s"))
    machine, summary = with_rate(SLOW[kernel]), CALLS[kernel].summary
    row = compared(name, program_of(kernel, name), far, control, machine, "peer", summary)
    assert row.measured["makespan_us"] > 1.05 * row.control["makespan_us"]  # there is something to predict
    for quantity in row.simulated:
        assert row.simulated[quantity] == pytest.approx(row.measured[quantity], rel=1e-3, abs=1e-3)
    assert set(row.as_dict()["error_pct"]) == {
        *("makespan_us", "span_us", "span_p95_us", "stores_total_us", "mma_stall_us"),
        *(("pull_us", "mma_inputs_us") if kernel == "megamoe" else ()),
    }


@pytest.mark.parametrize(("kernel", "name"), [("megamoe", "wave"), ("attention", "piggyback")])
def test_main_loops_may_begin_later_than_the_op_before_ends(kernel, name):
    """2 us that no record holds: each main loop takes so much longer there, and its record begins as much later."""
    program, machine = program_of(kernel, name), with_rate(SLOW[kernel])
    _, op = ops_of(program, {"megamoe": "l2", "attention": "attention"}[kernel], 0)
    late = np.unique(op[program.ops["kind"][op] == COMPUTE])
    ops = program.ops.copy()
    ops["duration_ps"][late] += 2_000_000
    hardware = replace(program, ops=ops)

    def measured(rate):
        table = simulate(hardware, with_rate(rate).fabric(2), trace="full").ops()
        return table.assign(start_us=table["start_us"] + 2.0 * table["op"].isin(late))

    far, control = measured(SLOW[kernel]), measured("100000 GB/s")
    row = compared(name, program, far, control, machine, "peer", CALLS[kernel].summary)
    for quantity in row.simulated:
        assert row.simulated[quantity] == pytest.approx(row.measured[quantity], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("kernel", CALLS)
def test_stalls_of_a_few_tiles_show_in_the_slowest_and_in_the_sum(kernel):
    """The stage takes most tiles in; one in ten waits 100 us for it."""
    control = ran_on("100000 GB/s", kernel, {"megamoe": "wave", "attention": "piggyback"}[kernel])
    far, phase = control.copy(), {"megamoe": "l2", "attention": "attention"}[kernel]
    stores = (far["kind"] == "store") & (far["phase"] == phase)
    waits = stores & (far["task"] % 10 == 0)
    far.loc[waits, "end_us"] += 100.0
    quiet, stalled = (CALLS[kernel].summary(table) for table in (control, far))
    assert stalled["span_us"] == quiet["span_us"] and stalled["stores_us"] == quiet["stores_us"]
    assert stalled["span_p95_us"] > quiet["span_p95_us"] + 50
    assert stalled["stores_total_us"] == pytest.approx(quiet["stores_total_us"] + 100 * waits.sum())


def test_signals_that_wait_for_stores_make_inputs_late():
    """L1 tiles are done 1 us before their signals are given: what waits for them sees them so much later."""
    program, table = program_of("megamoe", "interleaved"), ran_on("100000 GB/s", "megamoe", "interleaved")
    assert late_inputs(program, table) == pytest.approx({"l2_inputs_late_total_us": 0.0, "l2_inputs_late_p95_us": 0.0})
    early, signals = table.copy(), (table["phase"] == "l1") & (table["kind"] == "signal")
    early.loc[signals, ["start_us", "end_us"]] -= 1.0
    waits = (table["phase"] == "l2") & (table["role"] == "mma") & (table["kind"] == "wait")
    took = (table["end_us"] - table["start_us"])[waits]
    assert took.max() > 1.0 > took.min()
    found = late_inputs(program, early)
    assert found["l2_inputs_late_total_us"] == pytest.approx(np.minimum(took, 1.0).sum())
    assert late_inputs(program_of("attention", "serial"), ran_on("100000 GB/s", "attention", "serial")) == {}


@pytest.mark.parametrize(("kernel", "name"), POLICIES)
def test_ranks_on_one_gpu_share_its_way_out(kernel, name):
    program, control, machine = program_of(kernel, name), ran_on(SLOW[kernel], kernel, name), with_rate(SLOW[kernel])
    one = Prediction.of(program, control, "host").on(machine)
    several = Prediction.of(program, control, "peer").on(machine)
    for table in (one, several):
        of_ops, in_control = (rows["op"][rows["op"] >= 0] for rows in (table, control))  # without waits for guards
        assert np.array_equal(np.bincount(of_ops), np.bincount(in_control))
    assert CALLS[kernel].summary(one)["makespan_us"] > CALLS[kernel].summary(several)["makespan_us"]


def test_the_stall_is_what_stores_take_beyond_the_control():
    """T_iss0 of 40 us and a stall of 60 us, simulated as 75: 15 % off in the sum are 25 % of the stall."""
    row = Compared("a", totals(100.0), totals(40.0), {"stores_total_us": 115.0})
    assert row.stall_us() == {"measured": 60.0, "simulated": 75.0, "error_pct": 25.0, "error_of_control_pct": 37.5,
                              "noise_us": 0.0}  # fmt: skip
    assert row.error_pct("stores_total_us") == pytest.approx(15.0)
    told = row.as_dict()
    assert told["stall_us"] == row.stall_us() and set(told["error_pct"]) == {"stores_total_us"}
    quiet = Compared("a", totals(39.6), totals(40.0), {"stores_total_us": 40.0}).stall_us()
    assert (quiet["measured"], quiet["simulated"]) == (pytest.approx(-0.4), 0.0)


def totals(*repeats):
    return over_repeats([{"stores_total_us": total} for total in repeats])


def test_the_stall_is_that_of_medians_and_repeats_tell_its_noise():
    """The last repeat of the control was disturbed, by 29 us: neither the stall nor its noise is of that."""
    row = Compared("a", totals(100.0, 96.0, 98.0), totals(40.0, 41.0, 70.0), {"stores_total_us": 95.0})
    stall = row.stall_us()
    assert (stall["measured"], stall["simulated"]) == (57.0, 54.0)
    assert stall["noise_us"] == OFF_OF_MEDIAN * (2 + 1)
    assert stall["noise_us"] < 10 < 29
    assert stall["error_of_control_pct"] == pytest.approx(-100 * 3 / 41)


def test_the_noise_of_medians_is_seldom_exceeded():
    """Three repeats of either side with an error of 1 us, and no stall: a median stall beyond the noise is rare."""
    rng = np.random.default_rng(1)
    rows = [Compared("a", totals(*far), totals(*control), {"stores_total_us": 100.0}).stall_us()
            for far, control in 100 + rng.standard_normal((2000, 2, 3))]  # fmt: skip
    beyond = np.mean([abs(row["measured"]) > row["noise_us"] for row in rows])
    assert 0.08 < beyond < 0.13


def test_a_control_without_stores_has_no_percent():
    row = Compared("a", totals(1.0), totals(0.0), {"stores_total_us": 2.0}).stall_us()
    assert row["error_of_control_pct"] == np.inf and row["error_pct"] == 100.0


def test_a_band_holds_what_is_simulated_between_its_ends(monkeypatch):
    """R and Q at both ends may stall less than in the middle: a band of the ends alone would miss what was simulated."""
    simulated = iter([{"stores_total_us": 50.0}, {"stores_total_us": 60.0}])
    machine, row = load_machine("hgx-h100"), Compared("a", totals(120.0), totals(40.0), {"stores_total_us": 115.0})
    prediction = SimpleNamespace(on=lambda machine: None)
    assert Band.of(prediction, machine, lambda ops: next(simulated), row) == Band(10.0, 75.0)


def test_ops_are_those_of_the_repeat_in_the_middle():
    assert [middle_repeat(one) for one in ([5.0], [3.0, 1.0, 2.0], [1.0, 9.0, 3.0, 2.0])] == [0, 2, 3]


@pytest.mark.parametrize(
    ("low", "high", "measured", "noise", "verdict"),
    [
        (0.0, 0.0, 0.9, 1.0, "agrees"),  # nothing is to stall, and no more than noise did
        (0.0, 0.0, 1.1, 1.0, "does not"),
        (0.0, 80.0, 79.0, 0.0, "agrees"),  # near ratio 1: 100 % off, and yet as R and Q allow
        (10.0, 80.0, 0.0, 9.0, "does not"),
        (10.0, 80.0, 88.0, 9.0, "agrees"),
        (10.0, 80.0, 90.0, 9.0, "does not"),
    ],
)
def test_a_stall_agrees_where_r_and_q_in_their_intervals_and_the_noise_allow_it(low, high, measured, noise, verdict):
    told = Band(low, high).judged({"measured": measured, "noise_us": noise})
    assert told["verdict"] == verdict and told["simulated_between"] == [low, high]


def test_ends_of_a_calibration_are_those_of_r_and_q():
    """Q of an SM goes with that of the GPU, unless it has an interval; a catalogue machine without any stays as it is."""
    data = load_machine("hgx-h100").model_dump(mode="json", exclude_unset=True)
    for part in ("stage", "interconnect"):
        for number in data[part].values():
            number.pop("interval", None)
    plain = Machine.parse(data)
    assert at_ends(plain) == (plain, plain)
    data["interconnect"]["drain_rate"] |= {"value": "50 GB/s", "interval": ["48 GB/s", "51 GB/s"]}
    data["stage"]["capacity_gpu"] |= {"value": "1000 KiB", "interval": ["900 KiB", "1200 KiB"]}
    data["stage"]["capacity_sm"] |= {"value": "10 KiB"}
    low, high = at_ends(Machine.parse(data))
    assert [one.interconnect.drain_rate.value for one in (low, high)] == [48_000_000, 51_000_000]
    assert [one.stage.capacity_gpu.value for one in (low, high)] == [900 * 1024, 1200 * 1024]
    assert [one.stage.capacity_sm.value for one in (low, high)] == [9 * 1024, 12 * 1024]


@pytest.mark.parametrize(("rate", "verdict"), [("10 GB/s", "agrees"), ("9.7 GB/s", "agrees"), ("8 GB/s", "does not")])
def test_hardware_within_the_intervals_of_the_calibration_agrees(rate, verdict):
    """R was measured as 10 GB/s, from 9.5 to 10.5. On hardware with 9.7 more stalls, by over 5 %, and that agrees."""
    data = with_rate("10 GB/s").model_dump(mode="json", exclude_unset=True)
    data["interconnect"]["drain_rate"]["interval"] = ["9.5 GB/s", "10.5 GB/s"]
    machine, summary, program = Machine.parse(data), CALLS["megamoe"].summary, program_of("megamoe", "wave")
    far, control = (ran_on(one, "megamoe", "wave") for one in (rate, "100000 GB/s"))
    row = compared("wave", program, far, control, machine, "peer", summary)
    told = Band.of(Prediction.of(program, control, "peer"), machine, summary, row).judged(row.stall_us())
    low, high = told["simulated_between"]
    assert 0 < low < told["simulated"] < high
    assert told["verdict"] == verdict and (abs(told["error_pct"]) > 5) == (rate != "10 GB/s")


def test_the_speedup_of_a_policy_is_told_for_both_sides():
    slow = Compared("serial", {"makespan_us": 15.0}, {}, {"makespan_us": 14.0})
    fast = Compared("piggyback", {"makespan_us": 10.0}, {}, {"makespan_us": 10.0})
    assert fast.speedup(slow) == {"measured": 1.5, "simulated": 1.4}


def test_policies_are_ranked_alike_unless_the_measured_difference_is_noise():
    def row(name, measured, simulated):
        return Compared(name, {"makespan_us": measured}, {}, {"makespan_us": simulated})

    assert ranked_alike([row("a", 10.0, 11.0), row("b", 12.0, 12.5), row("c", 12.05, 12.4)])
    assert not ranked_alike([row("a", 10.0, 13.0), row("b", 12.0, 12.5)])
    assert replace(row("a", 10.0, 11.0)).error_pct("makespan_us") == pytest.approx(10.0)
