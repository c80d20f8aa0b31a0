"""The demo's first section: the microbenchmarks of the paper's machine beside what the paper reports, and three figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import numpy as np
import pandas as pd

from .demo_section import Agreement, Row, Section
from .microbenchmarks import (
    BURSTS,
    Point,
    TrainMode,
    drain_gbs,
    isolated_burst,
    knee,
    recovery_gap_us,
    run,
    slowest,
    steady_t_iss_us,
)
from .plots.burst_figures import T_ISS, knee_figure, occupancy_figure, recovery_figure
from .plots.save import save
from .scenarios import x_stage
from .scenarios.machine_files import load_machine
from .sim import burst_gap
from .sim.schedules.burst_train import BurstTrain
from .sim.units import PS_PER_US, format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .demo_section import Job
    from .sim.machine import Machine

KIB, MIB = 2**10, 2**20
MACHINE, PRODUCERS = "hgx-b200", 148

SIZES_KIB = (4, 8, 12, 16, 20, 24, 28, 32, 34, 36, 40, 44, 48, 52, 56, 60, 64)
TRAIN_SIZES_KIB = (32, 48)
GAPS_US = tuple(0.75 * step for step in range(17))
SPLITS = ((148, 32), (74, 64), (37, 128))
"""(producers, KiB a burst) of the trains without a gap: the same volume in three ways."""
IN_BOTH_ENGINES = (
    *(isolated_burst(PRODUCERS, size * KIB) for size in (16, 32, 40, 52)),
    BurstTrain(PRODUCERS, 32 * KIB, 4 * PS_PER_US, bursts=2, mode="free_running"),
    BurstTrain(PRODUCERS, 48 * KIB, 8 * PS_PER_US, bursts=2, mode="synchronised"),
)
"""Few and small enough for SimPy to take seconds."""
SHOWN_US, SHOWN_STEPS = 30, 600
PHASES = {
    "issue_bound": BurstTrain(16, 32 * KIB, 0, mode="synchronised"),
    "recovered": BurstTrain(PRODUCERS, 32 * KIB, 8 * PS_PER_US, mode="synchronised"),
    "drain_limited": BurstTrain(PRODUCERS, 32 * KIB, 3 * PS_PER_US, mode="synchronised"),
}

SOURCE = "arXiv 2607.23264, as reported"


def bursts(job: Job) -> Section:
    """Run the microbenchmarks, compare them with the paper, and draw knee, recovery and occupancy."""
    machine, track = load_machine(MACHINE), job.progress.track
    isolated = [
        slowest(run(machine, isolated_burst(PRODUCERS, size * KIB)))
        for size in track(SIZES_KIB, description="isolated bursts")
    ]
    agreement, simpy = _both_engines(machine, job)
    rates = [drain_gbs(machine, k, size * KIB) for k, size in track(SPLITS, description="trains without a gap")]
    trains = _trains(machine, job)
    held, titles = _occupancy(machine)

    corner, gaps = knee(isolated), {size: _recovery_gap_us(trains, size) for size in TRAIN_SIZES_KIB}
    by_size, trains = _with_law_by_size(machine, isolated, simpy), _with_law_by_gap(machine, trains)
    drawings: list[tuple[str, Figure, pd.DataFrame]] = [
        ("knee", knee_figure(by_size, corner.burst_bytes / KIB, x_stage.bursts()["knee_kib"]), by_size),
        ("recovery", recovery_figure(trains, gaps), trains),
        ("occupancy", occupancy_figure(held, titles), held),
    ]
    files = [
        path
        for name, figure, data in track(drawings, description="figures")
        for path in save(figure, data, job.folder, name)
    ]
    split = ", ".join(f"{k} × {size} KiB {rate:.1f}" for (k, size), rate in zip(SPLITS, rates, strict=True))
    return Section(
        name="bursts",
        title=f"Microbenchmarks of the X-Stage: {PRODUCERS} producers of {MACHINE} store to one peer",
        source=SOURCE,
        rows=_rows(isolated, corner, float(np.median(rates)), gaps[32]),
        notes=(
            "The machine file holds T_iss0, R and Q as well; here they are measured again, from simulated times. "
            "It holds neither knee nor G*.",
            f"R by how the same volume is split, GB/s: {split}.",
        ),
        agreement=agreement,
        files=files,
    )


def _rows(isolated: list[Point], corner: Point, drain: float, gap_us: float) -> tuple[Row, ...]:
    [t_iss0] = [point.t_iss_us for point in isolated if point.burst_bytes == 32 * KIB]
    paper, volume = x_stage.bursts(), PRODUCERS * corner.burst_bytes
    capacity = volume - drain * 1e3 * corner.t_iss_us  # GB/s are kB a microsecond
    return (
        Row("t_iss0_us", "T_iss0 of 32 KiB, isolated bursts", "us", paper["t_iss0_us"], t_iss0, False),
        Row("drain_gbs", "R, trains without a gap", "GB/s", paper["drain_gbs"], drain, False),
        Row("capacity_mib", "Q, volume at the knee less R T_iss0", "MiB", paper["capacity_mib"], capacity / MIB, False),
        Row("knee_kib", "knee, isolated bursts, a producer", "KiB", paper["knee_kib"], corner.burst_bytes / KIB, True),
        Row("knee_mib", "knee, isolated bursts, all producers", "MiB", paper["knee_mib"], volume / MIB, True),
        Row("recovery_gap_us", "G* of 32 KiB, trains with growing gaps", "us", paper["recovery_gap_us"], gap_us, True),
    )


def _both_engines(machine: Machine, job: Job) -> tuple[Agreement, list[Point]]:
    """A few programs in both engines, compared down to each op and granule. The points are SimPy's isolated bursts."""
    points, differing, events, simpy_s, compiled_s = [], [], 0, 0.0, 0.0
    for shape in job.progress.track(IN_BOTH_ENGINES, description="some of them in the SimPy engine too"):
        simpy, compiled = run(machine, shape, "simpy", "full"), run(machine, shape, "compiled", "full")
        simpy_s, compiled_s = simpy_s + simpy.wall_s, compiled_s + compiled.wall_s
        events += simpy.outcome.events
        what = f"{shape.mode} bursts of {format_size(shape.burst_bytes)}"
        differing += [f"{what}: {field}" for field in simpy.outcome.same_as(compiled.outcome)]
        if shape.mode == "isolated":
            points.append(slowest(simpy))
    return Agreement(len(IN_BOTH_ENGINES), events, tuple(differing), simpy_s, compiled_s), points


def _trains(machine: Machine, job: Job) -> pd.DataFrame:
    """T_iss of trains, by mode, burst size and gap."""
    modes: tuple[TrainMode, ...] = get_args(TrainMode)
    shapes = [(mode, size, gap) for mode in modes for size in TRAIN_SIZES_KIB for gap in GAPS_US]
    rows = []
    for mode, size, gap in job.progress.track(shapes, description="trains with growing gaps"):
        trace = run(machine, BurstTrain(PRODUCERS, size * KIB, round(gap * PS_PER_US), BURSTS, mode))
        rows.append(("compiled", mode, size, gap, steady_t_iss_us(trace, mode)))
    return pd.DataFrame(rows, columns=["series", "mode", "burst_kib", "gap_us", "t_iss_us"])


def _recovery_gap_us(trains: pd.DataFrame, size_kib: int) -> float:
    free_running = trains[(trains["mode"] == "free_running") & (trains["burst_kib"] == size_kib)]
    return recovery_gap_us(free_running["gap_us"].to_numpy(), free_running["t_iss_us"].to_numpy())


def _with_law_by_size(machine: Machine, isolated: list[Point], simpy: list[Point]) -> pd.DataFrame:
    """The closed form at the simulated sizes, at its own knee and in between; then the points of both engines."""
    stage = machine.x_stage()
    dense = np.linspace(1, max(SIZES_KIB), 127)
    sizes = np.unique([*dense, *SIZES_KIB, burst_gap.knee(stage, PRODUCERS) / KIB])
    law = burst_gap.issue_time(stage, PRODUCERS, sizes * KIB, mode="isolated") / PS_PER_US
    parts = [pd.DataFrame({"series": "law", "burst_kib": sizes, "t_iss_us": law})]
    for series, points in (("compiled", isolated), ("simpy", simpy)):
        rows = [(series, point.burst_bytes / KIB, point.t_iss_us) for point in points]
        parts.append(pd.DataFrame(rows, columns=["series", "burst_kib", "t_iss_us"]))
    return pd.concat(parts, ignore_index=True)


def _with_law_by_gap(machine: Machine, trains: pd.DataFrame) -> pd.DataFrame:
    """The closed forms on a dense grid of gaps, then the simulated trains."""
    gaps = np.linspace(0, max(GAPS_US), 241)

    def laws() -> Iterator[pd.DataFrame]:
        for mode in get_args(TrainMode):
            for size in TRAIN_SIZES_KIB:
                law = burst_gap.issue_time(machine.x_stage(), PRODUCERS, size * KIB, gaps * PS_PER_US, mode)
                columns = {"mode": mode, "burst_kib": size, "gap_us": gaps, "t_iss_us": law / PS_PER_US}
                yield pd.DataFrame({"series": "law"} | columns)

    return pd.concat([*laws(), trains], ignore_index=True)


def _occupancy(machine: Machine) -> tuple[pd.DataFrame, dict[str, str]]:
    """What the stage holds in each phase, and what its panel says: the phase, what was stored, and its measured T_iss."""
    stage, parts, titles = machine.x_stage(), [], {}
    for phase, shape in PHASES.items():
        period = burst_gap.period(stage, shape.producers, shape.burst_bytes, shape.gap_ps, "synchronised")
        trace = run(machine, replace(shape, bursts=int(SHOWN_US * PS_PER_US / period) + 2), trace="full")
        time, held = trace.occupancy_steps(gpu=0)
        capacity = burst_gap.capacity(stage, shape.producers)
        grid = np.arange(SHOWN_STEPS + 2) * (SHOWN_US * PS_PER_US // SHOWN_STEPS)
        in_force = np.searchsorted(time, grid, side="right")
        most = np.maximum.reduceat(np.append(0, held), in_force)[:-1]  # from each time of the grid to the next
        columns = {"time_us": grid[:-1] / PS_PER_US, "held_bytes": most, "held_pct": 100 * most / capacity}
        parts.append(pd.DataFrame({"phase": phase} | columns))
        what = f"{shape.producers} × {format_size(shape.burst_bytes)}, gap {shape.gap_ps / PS_PER_US:g} µs"
        titles[phase] = f"{phase.replace('_', '-')}: {what}, {T_ISS} {slowest(trace).t_iss_us:.2f} µs"
    return pd.concat(parts, ignore_index=True), titles
