"""The demo's first section: the microbenchmarks of the paper's machine beside what the paper reports, and three figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..gallery.burst_tables import (
    KIB,
    MACHINE,
    MIB,
    PRODUCERS,
    SETTING,
    SIZES_KIB,
    isolated_table,
    occupancy_table,
    recovery_gaps_us,
    train_table,
)
from ..paper.microbenchmarks import Point, drain_gbs, isolated_burst, knee, run, slowest
from ..plots.burst_figures import knee_figure, occupancy_figure, recovery_figure
from ..plots.save import save
from ..scenarios import x_stage
from ..scenarios.machine_files import load_machine
from ..sim.schedules.burst_train import BurstTrain
from ..sim.units import PS_PER_US, format_size
from .section import Agreement, Row, Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..sim.machine import Machine
    from .section import Job

SPLITS = ((148, 32), (74, 64), (37, 128))
"""(producers, KiB a burst) of the trains without a gap: the same volume in three ways."""
IN_BOTH_ENGINES = (
    *(isolated_burst(PRODUCERS, size * KIB) for size in (16, 32, 40, 52)),
    BurstTrain(PRODUCERS, 32 * KIB, 4 * PS_PER_US, bursts=2, mode="free_running"),
    BurstTrain(PRODUCERS, 48 * KIB, 8 * PS_PER_US, bursts=2, mode="synchronised"),
)
"""Few and small enough for SimPy to take seconds."""
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
    trains = train_table(machine, lambda points: track(points, description="trains with growing gaps"))
    held, by_size = occupancy_table(machine), isolated_table(machine, isolated, simpy)

    corner, gaps = knee(isolated), recovery_gaps_us(trains)
    drawings: list[tuple[str, Figure, pd.DataFrame]] = [
        ("knee", knee_figure(by_size, corner.burst_bytes / KIB, x_stage.bursts()["knee_kib"], SETTING), by_size),
        ("recovery", recovery_figure(trains, gaps, SETTING), trains),
        ("occupancy", occupancy_figure(held, f"SMs of {MACHINE} store bursts to one peer GPU, all at once"), held),
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
