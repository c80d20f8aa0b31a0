"""Tables of bursts behind figures: microbenchmarks of a machine beside the closed forms, a row a point that is drawn.

Series `law` is sim/burst_gap.py, `compiled` and `simpy` are what the engines gave, as in xstage/paper/microbenchmarks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, get_args

import numpy as np
import pandas as pd

from ..paper.microbenchmarks import (
    BURSTS,
    Point,
    TrainMode,
    isolated_burst,
    knee,
    recovery_gap_us,
    run,
    slowest,
    steady_t_iss_us,
)
from ..plots.burst_figures import T_ISS
from ..sim import burst_gap
from ..sim.schedules.burst_train import BurstTrain
from ..sim.units import PS_PER_US, format_size

if TYPE_CHECKING:
    from ..sim.machine import Machine

KIB, MIB = 2**10, 2**20
MACHINE, PRODUCERS = "hgx-b200", 148
SETTING = f"{PRODUCERS} SMs of {MACHINE} store bursts to one peer GPU"
"""Said above the figures of these tables."""

SIZES_KIB = (4, 8, 12, 16, 20, 24, 28, 32, 34, 36, 40, 44, 48, 52, 56, 60, 64)
TRAIN_SIZES_KIB = (32, 48)
GAPS_US = tuple(0.75 * step for step in range(17))
SHOWN_US, SHOWN_STEPS = 30, 600
PHASES = {
    "issue_bound": BurstTrain(16, 32 * KIB, 0, mode="synchronised"),
    "recovered": BurstTrain(PRODUCERS, 32 * KIB, 8 * PS_PER_US, mode="synchronised"),
    "drain_limited": BurstTrain(PRODUCERS, 32 * KIB, 3 * PS_PER_US, mode="synchronised"),
}
DIAGRAM_SIZES_KIB = (1, 8, 16, 24, 32, 40, 48, 56, 64)
DIAGRAM_GAPS_US = tuple(1.5 * step for step in range(9))
STALLS_FROM = 0.02
"""A simulated burst counts as stalled if it takes this share longer than T_iss0, so that rounding to granules does not."""

Train: TypeAlias = tuple[TrainMode, int, float]
Tracked: TypeAlias = Callable[[Sequence[Train]], Iterable[Train]]


def isolated_points(machine: Machine) -> list[Point]:
    """The slowest producer of an isolated burst of each of `SIZES_KIB`, in the compiled engine."""
    return [slowest(run(machine, isolated_burst(PRODUCERS, size * KIB))) for size in SIZES_KIB]


def isolated_table(machine: Machine, isolated: Sequence[Point], simpy: Sequence[Point]) -> pd.DataFrame:
    """T_iss by size of an isolated burst: series, burst_kib, t_iss_us, stall_us.

    The closed form at the simulated sizes, at its own knee and in between; then the points of both engines.
    """
    stage = machine.x_stage()
    dense = np.linspace(1, max(SIZES_KIB), 127)
    sizes = np.unique([*dense, *SIZES_KIB, burst_gap.knee(stage, PRODUCERS) / KIB])
    law = burst_gap.issue_time(stage, PRODUCERS, sizes * KIB, mode="isolated") / PS_PER_US
    stall = burst_gap.stall(stage, PRODUCERS, sizes * KIB, mode="isolated") / PS_PER_US
    parts = [pd.DataFrame({"series": "law", "burst_kib": sizes, "t_iss_us": law, "stall_us": stall})]
    for series, points in (("compiled", isolated), ("simpy", simpy)):
        rows = [(series, point.burst_bytes / KIB, point.t_iss_us, point.stall_us) for point in points]
        parts.append(pd.DataFrame(rows, columns=["series", "burst_kib", "t_iss_us", "stall_us"]))
    return pd.concat([part for part in parts if len(part)], ignore_index=True)


def knee_kib(table: pd.DataFrame) -> float:
    """The knee of the compiled engine's points in a table of `isolated_table`, KiB a producer."""
    simulated = table[table["series"] == "compiled"]
    points = simulated[["burst_kib", "t_iss_us", "stall_us"]].itertuples(index=False, name=None)
    return knee([Point(*point) for point in points]).burst_bytes


def recovery_gaps_us(table: pd.DataFrame) -> dict[int, float]:
    """G* of free-running producers by burst size in KiB, from the simulated trains in a table of `train_table`."""
    simulated = table[(table["series"] == "compiled") & (table["mode"] == "free_running")]
    gaps = {}
    for size in sorted(set(simulated["burst_kib"])):
        mine = simulated[simulated["burst_kib"] == size]
        gaps[int(size)] = recovery_gap_us(mine["gap_us"].to_numpy(), mine["t_iss_us"].to_numpy())
    return gaps


def train_table(machine: Machine, tracked: Tracked = lambda points: points) -> pd.DataFrame:
    """T_iss in the steady state of trains by mode, burst size and gap: series, mode, burst_kib, gap_us, t_iss_us.

    `tracked` may watch over the (mode, size, gap) that are simulated.
    """
    modes: tuple[TrainMode, ...] = get_args(TrainMode)
    points = [(mode, size, gap) for mode in modes for size in TRAIN_SIZES_KIB for gap in GAPS_US]
    rows = []
    for mode, size, gap in tracked(points):
        trace = run(machine, BurstTrain(PRODUCERS, size * KIB, round(gap * PS_PER_US), BURSTS, mode))
        rows.append(("compiled", mode, size, gap, steady_t_iss_us(trace, mode)))
    simulated = pd.DataFrame(rows, columns=["series", "mode", "burst_kib", "gap_us", "t_iss_us"])
    return pd.concat([*_laws_by_gap(machine), simulated], ignore_index=True)


def _laws_by_gap(machine: Machine) -> Iterator[pd.DataFrame]:
    """The closed forms on a dense grid of gaps."""
    gaps = np.linspace(0, max(GAPS_US), 241)
    for mode in get_args(TrainMode):
        for size in TRAIN_SIZES_KIB:
            law = burst_gap.issue_time(machine.x_stage(), PRODUCERS, size * KIB, gaps * PS_PER_US, mode)
            columns = {"mode": mode, "burst_kib": size, "gap_us": gaps, "t_iss_us": law / PS_PER_US}
            yield pd.DataFrame({"series": "law"} | columns)


def occupancy_table(machine: Machine) -> pd.DataFrame:
    """What the stage of GPU 0 holds over time in each phase: phase, title, time_us, held_bytes, held_pct (of Q(K)).

    `title` says what was stored, and its measured T_iss.
    """
    stage, parts = machine.x_stage(), []
    for phase, shape in PHASES.items():
        period = burst_gap.period(stage, shape.producers, shape.burst_bytes, shape.gap_ps, "synchronised")
        trace = run(machine, replace(shape, bursts=int(SHOWN_US * PS_PER_US / period) + 2), trace="full")
        time, held = trace.occupancy_steps(gpu=0)
        capacity = burst_gap.capacity(stage, shape.producers)
        grid = np.arange(SHOWN_STEPS + 2) * (SHOWN_US * PS_PER_US // SHOWN_STEPS)
        in_force = np.searchsorted(time, grid, side="right")
        most = np.maximum.reduceat(np.append(0, held), in_force)[:-1]  # from each time of the grid to the next
        what = f"{shape.producers} × {format_size(shape.burst_bytes)}, gap {shape.gap_ps / PS_PER_US:g} µs"
        title = f"{phase.replace('_', '-')}: {what}, {T_ISS} {slowest(trace).t_iss_us:.2f} µs"
        columns = {"time_us": grid[:-1] / PS_PER_US, "held_bytes": most, "held_pct": 100 * most / capacity}
        parts.append(pd.DataFrame({"phase": phase, "title": title} | columns))
    return pd.concat(parts, ignore_index=True)


def phase_table(machine: Machine) -> pd.DataFrame:
    """Which phase a free-running train is in, by the volume V of all its producers and its gap G.

    Columns: series, volume_mib, gap_us, phase, t_iss_us. `law` rows are the recovery gap G*(V), `knee` the V beyond which
    producers that start together stall whatever the gap, `compiled` the simulated trains.
    """
    stage, most = machine.x_stage(), max(DIAGRAM_SIZES_KIB) * 1.06
    sizes = np.linspace(1, most, 160) * KIB
    boundary = burst_gap.recovery_gap(stage, PRODUCERS, sizes) / PS_PER_US
    law = pd.DataFrame({"series": "law", "volume_mib": PRODUCERS * sizes / MIB, "gap_us": boundary})
    knee_mib = PRODUCERS * float(burst_gap.knee(stage, PRODUCERS)) / MIB
    rows: list[tuple[str, float, float, str | None, float | None]] = [("knee", knee_mib, 0.0, None, None)]
    for size in DIAGRAM_SIZES_KIB:
        unhindered = float(burst_gap.t_iss0(stage, PRODUCERS, size * KIB)) / PS_PER_US
        alone = True
        for gap in DIAGRAM_GAPS_US:
            shape = BurstTrain(PRODUCERS, size * KIB, round(gap * PS_PER_US), BURSTS)
            time = steady_t_iss_us(run(machine, shape), "free_running")
            stalls = time > (1 + STALLS_FROM) * unhindered
            alone = alone and not stalls  # not even without a gap, the first of all
            phase = "drain_limited" if stalls else "issue_bound" if alone else "recovered"
            rows.append(("compiled", PRODUCERS * size * KIB / MIB, gap, phase, time))
    simulated = pd.DataFrame(rows, columns=["series", "volume_mib", "gap_us", "phase", "t_iss_us"])
    return pd.concat([law, simulated], ignore_index=True)
