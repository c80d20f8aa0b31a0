"""The bursts that calibration needs, timed on real cores.

A round times every configuration once or more, in a new random order: isolated bursts of all sizes, and periodic trains of
some sizes at some gaps, of which the first bursts (while the stage fills up) do not count. What disturbs the computer for a
while then disturbs all configurations alike. Every round begins with a few small bursts as a yardstick (`Round.pace_ns`):
rounds in which these took much longer than usual were disturbed and are left out, whatever the other bursts did.

Gaps are as they were: the cost of noting the time counts as gap, since no store is issued in it.

With several producers, isolated bursts start at the same tick on all cores, and trains run freely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...sim.calibrate import BurstTimes
from ...sim.errors import XstageError
from ..centre import centre
from . import lane
from .architecture import LINE_BYTES
from .bench import Bench, Steps

Array = np.ndarray[Any, np.dtype[Any]]
Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done."""

PACE_LINES, PACE_BURSTS = 64, 8
PACE_LIMIT = 1.3
"""A round counts as disturbed if its small bursts took this much longer than those of the quietest quarter of rounds."""
REST_NS = 5_000.0
"""A gap after which the stage is empty, by a wide margin: the largest burst drains in about 2 us."""


class DisturbedError(XstageError):
    """Other programs, or other guests of this computer, kept the cores too busy to measure anything."""


@dataclass(frozen=True)
class Plan:
    """Sizes in lines, gaps in ns. A round holds each isolated size `per_round` times and each train once."""

    isolated_lines: tuple[int, ...] = (
        8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 448, 512, 640, 768, 1024,
    )  # fmt: skip
    train_lines: tuple[int, ...] = (96, 192, 288, 448)
    train_gaps_ns: tuple[float, ...] = (0, 60, 120, 180, 240, 320, 400, 500, 650, 900)
    train_bursts: int = 48
    train_counted: int = 16
    per_round: int = 8
    rounds: int = 40


QUICK = Plan(train_lines=(192, 384), train_gaps_ns=(0, 120, 300, 600), rounds=12, per_round=4)


@dataclass
class Measured:
    """What the microbenchmarks found. `control_ns` [rounds, sizes] are ordinary stores of the isolated sizes into the cache,
    `drain_ns` [rounds, sizes] isolated bursts with a fence at the end."""

    times: BurstTimes
    control_ns: Array
    drain_ns: Array
    isolated_bytes: Array
    rounds_run: int
    rounds_disturbed: int
    outliers_pct: float
    pace_ns: float
    notes: dict[str, float] = field(default_factory=dict)


def measure(bench: Bench, plan: Plan, rng: np.random.Generator, progress: Progress = lambda doing, share: None) -> Measured:
    """Time all configurations of `plan` on all cores of `bench`.

    Raises `DisturbedError` if fewer than a third of the rounds were quiet.
    """
    bench.warm_up()
    rounds = []
    for number in range(plan.rounds):
        progress(f"calibrating with {bench.producers} producer{'s' * (bench.producers > 1)}", number / plan.rounds)
        rounds.append(_round(bench, plan, rng))
    pace = np.array([r.pace_ns for r in rounds])
    usual = float(np.quantile(pace, 0.25))
    quiet = [r for r in rounds if r.pace_ns <= PACE_LIMIT * usual]
    if len(quiet) < max(3, plan.rounds / 3):
        raise DisturbedError(
            f"only {len(quiet)} of {plan.rounds} rounds were quiet: small bursts took {pace.min():.0f} to {pace.max():.0f} ns; "
            "try again when less runs on this computer"
        )
    gaps = np.stack([r.gap_ns for r in quiet])
    times = BurstTimes(
        producers=bench.producers,
        burst_bytes=LINE_BYTES * np.array(_lines(plan), dtype=float),
        gap_ns=centre(gaps, axis=0),
        issue_ns=np.stack([r.issue_ns for r in quiet]),
        resolution_ns=bench.clock.ns(bench.clock.step_ticks),
    )
    return Measured(
        times=times,
        control_ns=np.stack([r.control_ns for r in quiet]),
        drain_ns=np.stack([r.drain_ns for r in quiet]),
        isolated_bytes=LINE_BYTES * np.array(plan.isolated_lines, dtype=float),
        rounds_run=len(rounds),
        rounds_disturbed=len(rounds) - len(quiet),
        outliers_pct=float(100 * np.mean([r.outliers for r in quiet])),
        pace_ns=usual,
        notes=bench.check_clock(),
    )


@dataclass(frozen=True)
class _Round:
    pace_ns: float
    issue_ns: Array  # [isolated sizes, then trains]
    gap_ns: Array
    control_ns: Array
    drain_ns: Array
    outliers: float  # share of isolated bursts that took over twice their centre


def _lines(plan: Plan) -> list[int]:
    return [*plan.isolated_lines, *(lines for lines in plan.train_lines for _ in plan.train_gaps_ns)]


def _round(bench: Bench, plan: Plan, rng: np.random.Generator) -> _Round:
    rest = bench.clock.ticks(REST_NS)
    pace = _isolated(bench, np.full(PACE_BURSTS, PACE_LINES), rest)
    order = rng.permutation(np.tile(np.arange(len(plan.isolated_lines)), plan.per_round))
    lines = np.array(plan.isolated_lines)[order]
    issued = _isolated(bench, lines, rest)
    control = _isolated(bench, lines, rest // 5, code=lane.CACHED)
    drained = _isolated(bench, lines, rest, fence=True)
    of_size = [order == i for i in range(len(plan.isolated_lines))]
    by_size = [centre(issued[chosen]) for chosen in of_size]
    trains = [(n, gap) for n in plan.train_lines for gap in plan.train_gaps_ns]
    found = dict(zip(turns := rng.permutation(len(trains)).tolist(), (_train(bench, plan, *trains[i]) for i in turns)))
    return _Round(
        pace_ns=float(centre(pace)),
        issue_ns=np.maximum([*by_size, *(found[i][0] for i in range(len(trains)))], 0.1),
        gap_ns=np.array([np.inf] * len(by_size) + [found[i][1] for i in range(len(trains))]),
        control_ns=np.array([centre(control[chosen]) for chosen in of_size]),
        drain_ns=np.array([centre(drained[chosen]) for chosen in of_size]),
        outliers=float(np.mean(issued > 2 * np.array(by_size)[order])),
    )


def _isolated(bench: Bench, lines: Array, rest: int, code: int = lane.STORE, fence: bool = False) -> Array:
    """Times of single bursts in ns, one a line count, `rest` ticks apart; of several producers, the mean over them."""
    each = 3 if fence else 2
    steps = np.zeros((each * len(lines), 4), dtype=np.int64)
    if bench.producers == 1:
        steps[::each, 0], steps[::each, 1] = lane.SPIN, rest
    else:
        longest = bench.clock.ticks(8.0 * float(lines.max()) * bench.producers)
        steps[::each, 0], steps[::each, 1] = lane.AT, (rest + longest) * (1 + np.arange(len(lines)))
    steps[1::each, 0], steps[1::each, 1] = code, lines
    if fence:
        steps[2::each, 0] = lane.FENCE
    stamps = bench.run([steps] * bench.producers)
    took = np.mean([s[each::each] - s[1::each] for s in stamps], axis=0)
    return np.asarray((took - bench.costs.store_ticks) / bench.clock.ticks_per_ns)


def _train(bench: Bench, plan: Plan, lines: int, gap_ns: float) -> tuple[float, float]:
    """Issue time and true gap of the later bursts of a train, ns; of several producers, the mean over them."""
    steps = _train_steps(plan.train_bursts, lines, bench.clock.ticks(gap_ns))
    stamps = bench.run([steps] * bench.producers)
    cost = bench.costs.store_ticks
    issued, gaps = [], []
    for noted in stamps:
        took = np.diff(noted)
        issued.append(centre(took[1::2][-plan.train_counted :]) - cost)
        gaps.append(centre(took[2::2][-plan.train_counted :]) + cost)
    return float(np.mean(issued)) / bench.clock.ticks_per_ns, float(np.mean(gaps)) / bench.clock.ticks_per_ns


def _train_steps(bursts: int, lines: int, gap: int) -> Steps:
    steps = np.zeros((2 * bursts, 4), dtype=np.int64)
    steps[::2, 0], steps[::2, 1] = lane.SPIN, gap
    steps[1::2, 0], steps[1::2, 1] = lane.STORE, lines
    return steps
