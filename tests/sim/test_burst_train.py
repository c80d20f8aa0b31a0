"""The engine against the paper's law: knee, periods, recovery, at 1 KiB and 512 B granules, on the paper's machine."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim import burst_gap
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.machine import Machine
from xstage.sim.schedules.burst_train import BurstTrain, build
from xstage.sim.trace import Trace

KIB = 1 << 10
US = 1_000_000
GRANULES = (1024, 512)
TRAINS = list(product((148, 100, 32), (8 * KIB, 32 * KIB, 64 * KIB), (0, US, 4 * US, 8 * US)))


def run(machine: Machine, granule: int, **shape: object) -> Trace:
    train = BurstTrain(**shape)  # type: ignore[arg-type]
    return simulate(build(machine, train), machine.fabric(train.gpus, granule))


def bursts(trace: Trace, name: str) -> np.ndarray:
    """start_ps, end_ps or length of every burst, as [producer, burst]."""
    tasks, spans = trace.program.tasks, trace.outcome.spans
    mine = np.flatnonzero(tasks["phase"] == trace.program.phases.index("burst"))
    rows = spans[trace.layout.span_first[mine]]
    values = rows["end_ps"] - rows["start_ps"] if name == "length" else rows[name]
    return values.reshape(tasks["m_block"][mine].max() + 1, -1).T


@pytest.mark.parametrize("granule", GRANULES)
def test_the_knee_of_isolated_bursts_is_at_33_kib_a_producer(b200: Machine, granule: int) -> None:
    sizes = np.arange(32 * KIB, 35 * KIB, 64)
    stalled = np.array(
        [
            run(b200, granule, producers=148, burst_bytes=int(s), mode="isolated").outcome.lanes["stall_ps"].max() > 0
            for s in sizes
        ]
    )
    knee = sizes[np.argmax(stalled)]
    assert not stalled[0]
    assert knee == pytest.approx(33 * KIB, rel=0.02)


@pytest.mark.parametrize("granule", GRANULES)
@pytest.mark.parametrize("size", [KIB * k for k in (8, 16, 24, 32, 33, 34, 36, 40, 48, 64, 96, 128)])
def test_an_isolated_burst_takes_as_long_as_its_last_producer(b200: Machine, granule: int, size: int) -> None:
    longest = bursts(run(b200, granule, producers=148, burst_bytes=size, mode="isolated"), "length").max()
    assert longest == pytest.approx(burst_gap.issue_time(b200.x_stage(), 148, size, mode="isolated"), rel=0.01)


@pytest.mark.parametrize("granule", GRANULES)
@pytest.mark.parametrize(("producers", "size", "gap"), TRAINS)
def test_free_running_trains_keep_the_period_of_the_law(
    b200: Machine, granule: int, producers: int, size: int, gap: int
) -> None:
    trace = run(b200, granule, producers=producers, burst_bytes=size, gap_ps=gap, bursts=120)
    start = bursts(trace, "start_ps")
    period = (start[:, 100] - start[:, 40]).mean() / 60
    assert period == pytest.approx(burst_gap.period(b200.x_stage(), producers, size, gap), rel=0.01)


@pytest.mark.parametrize("producers", [2, 3, 8])
def test_producers_faster_than_the_drain_stall_in_every_burst_however_long_the_gap(producers: int) -> None:
    """As many as drift apart still wait each for the room of its own SM."""
    machine, size, gap = load_machine("dgx1-v100"), 256 * KIB, 100 * US
    shape = {"producers": producers, "burst_bytes": size, "gap_ps": gap, "bursts": 30}
    lengths = bursts(run(machine, 512, **shape), "length")[:, -10:]
    law = burst_gap.issue_time(machine.x_stage(), producers, size, gap)
    assert law > 1.3 * burst_gap.t_iss0(machine.x_stage(), producers, size)
    assert lengths.mean() == pytest.approx(law, rel=0.01)


@pytest.mark.parametrize("granule", GRANULES)
@pytest.mark.parametrize(
    ("producers", "size", "gap"), [*TRAINS, *product((1,), (8 * KIB, 64 * KIB, 256 * KIB), (0, US // 10, US))]
)
def test_synchronised_trains_and_single_producers_obey_the_three_term_law(
    b200: Machine, granule: int, producers: int, size: int, gap: int
) -> None:
    trace = run(b200, granule, producers=producers, burst_bytes=size, gap_ps=gap, bursts=60, mode="synchronised")
    longest = bursts(trace, "length")[:, -1].max()
    assert longest == pytest.approx(
        burst_gap.issue_time(b200.x_stage(), producers, size, gap, "synchronised"), rel=0.01
    )


def test_the_backlog_that_builds_up_in_a_train_is_that_of_the_closed_form(b200: Machine) -> None:
    """Bursts of 8 KiB with a gap that is 0.3 us too short: each leaves a little more behind, until they stall."""
    shape = {"producers": 148, "burst_bytes": 8 * KIB, "gap_ps": US, "bursts": 40, "mode": "synchronised"}
    lengths = bursts(run(b200, 512, **shape), "length").max(axis=0)
    stage = b200.x_stage()
    backlog = burst_gap.backlog(stage, 148, 8 * KIB, US, 40, "synchronised")
    volume, capacity = 148 * 8 * KIB, burst_gap.capacity(stage, 148)
    expected = np.maximum(burst_gap.t_iss0(stage, 148, 8 * KIB), (volume + backlog - capacity) / stage.drain_kbs * 1e9)
    assert lengths == pytest.approx(expected, rel=0.05)
    assert lengths[0] < lengths[-1]


def test_uniform_all_to_all_of_eight_gpus_reaches_the_drain_rate(b200: Machine) -> None:
    shape = {"destination": "all", "senders": "all", "gpus": 8, "producers": 148, "burst_bytes": 64 * KIB, "bursts": 10}
    trace = run(b200, 1024, **shape)
    stored = int(trace.outcome.lanes["stored_bytes"].sum()) / 8
    assert stored * 1e9 / trace.makespan_ps > 0.95 * b200.drain_kbs("all", 8)


def test_a_smaller_granule_comes_closer_to_the_law(b200: Machine) -> None:
    """The closed forms are the limit of the engine as the granule shrinks: here Q is no multiple of the larger ones."""
    expected = burst_gap.issue_time(b200.x_stage(), 32, 64 * KIB, mode="isolated")
    errors = [
        abs(bursts(run(b200, granule, producers=32, burst_bytes=64 * KIB, mode="isolated"), "length").max() - expected)
        for granule in (8192, 4096, 2048)
    ]
    assert errors[0] > errors[1] > errors[2]


def test_scaling_every_time_scales_a_train_within_a_picosecond_a_granule(b200: Machine) -> None:
    from dataclasses import replace

    train = BurstTrain(producers=148, burst_bytes=40 * KIB, gap_ps=US, bursts=5, mode="synchronised")
    program, fabric = build(b200, train), b200.fabric(2, 1024)
    ops = program.ops.copy()
    ops["duration_ps"] *= 7
    slower = replace(fabric, rates_kbs=fabric.rates_kbs // 7, latency_ps=fabric.latency_ps * 7)
    before, after = simulate(program, fabric), simulate(replace(program, ops=ops), slower)
    assert abs(after.makespan_ps - 7 * before.makespan_ps) <= 7 * before.outcome.granules


def test_no_producers_and_empty_bursts_are_empty_programs(b200: Machine) -> None:
    for shape in ({"producers": 0, "burst_bytes": KIB}, {"producers": 148, "burst_bytes": 0}):
        assert run(b200, 1024, **shape).makespan_ps == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("producers", 149),
        ("producers", -1),
        ("burst_bytes", -1),
        ("gap_ps", -1),
        ("bursts", 0),
        ("gpus", 1),
        ("mode", "x"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(b200: Machine, field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        build(b200, BurstTrain(**{"producers": 1, "burst_bytes": KIB} | {field: value}))  # type: ignore[arg-type]
