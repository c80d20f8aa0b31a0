"""The bursts that calibration needs, timed on real cores.

A round times every configuration once or more, in a new random order: isolated bursts of all sizes, and periodic trains of
some sizes at some gaps, of which the first bursts (while the stage fills up) do not count. What disturbs the computer for a
while then disturbs all configurations alike. Each list of bursts is run again until it was quiet (`Bench.run_quietly`); a
round of which one never was is left out, whatever its other bursts did.

Gaps are as they were: the cost of noting the time counts as gap, since no store is issued in it.

With several producers, isolated bursts start at the same tick on all cores, and trains run freely. Every isolated size is
also timed on one core while the others are idle, which tells what of the stage a core has to itself and what is shared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...sim.calibrate import BurstTimes
from ..centre import centre
from ..measuring import DisturbedError, Progress, silent
from . import lane
from .architecture import LINE_BYTES
from .bench import WAIT_S, Bench

Array = np.ndarray[Any, np.dtype[Any]]
LEAST_NS = 0.1
"""A time that is nothing but the clock's own cost, taken off, is no time: at least this much is reported."""
REST_IN_DRAINS = 2.5
"""A gap after which the stage is empty, by what the largest burst takes to drain."""
MOST_ROUNDS, MOST_S = 3, 120.0
"""Rounds that may be run for each one wanted, and how long all of them may take."""
LINES_SPREAD, GAP_SPREAD = 4, 0.1
"""By how many lines bursts of a size differ from it at most (a quarter of them, if that is less), and by what share gaps: a
core learns when a loop ends that always ends alike, as it cannot in a program whose stores differ."""


@dataclass(frozen=True)
class Plan:
    """Sizes in lines, times in ns. A round holds each isolated size `per_round` times, `rest_ns` apart, each train once."""

    isolated_lines: tuple[int, ...]
    rest_ns: float
    train_lines: tuple[int, ...] = ()
    train_gaps_ns: tuple[float, ...] = ()
    train_bursts: int = 48
    train_counted: int = 16
    per_round: int = 8
    rounds: int = 200


FIRST_LOOK = Plan(
    isolated_lines=(3, 6, 9, 13, 18, 31, 45, 67, 93, 126, 163, 191, 226, 253, 287, 324, 385, 509, 772, 1019),
    rest_ns=5_000.0,
    per_round=4,
    rounds=20,
)
"""Where is the knee? Known ones lie at 48 lines (half of the store buffer of an Intel core) to some 270."""
SIZES_IN_KNEES = (
    0.04, 0.075, 0.13, 0.19, 0.28, 0.39, 0.53, 0.68, 0.8, 0.94, 1.05, 1.2, 1.35, 1.47, 1.6, 1.87, 2.1, 2.7, 3.2, 4.2,
)  # fmt: skip
TRAINS_IN_KNEES, QUICK_TRAINS_IN_KNEES = (0.39, 0.8, 1.2, 1.87), (0.8, 1.6)
GAPS_IN_DRAINS = (0.0, 0.17, 0.34, 0.5, 0.67, 0.9, 1.1, 1.4, 1.8, 2.5)
"""Gaps of trains, by how long a knee's worth of stores drains."""


def plan_around(knee_lines: float, drain_ns: float, quick: bool = False) -> Plan:
    """Sizes on both sides of a knee that drains in `drain_ns`.

    None is a multiple of 8, as few of those of a program are: the compiled loop stores eight lines a turn and the rest one
    by one, so such multiples are quicker than other sizes. As those of unseen programs, they are relative to the knee: how
    often a core foresees when its loop of stores ends depends on the sizes that it meets.
    """
    trains = QUICK_TRAINS_IN_KNEES if quick else TRAINS_IN_KNEES
    return Plan(
        isolated_lines=tuple(sorted({_uneven(share * knee_lines) for share in SIZES_IN_KNEES})),
        rest_ns=REST_IN_DRAINS * SIZES_IN_KNEES[-1] * drain_ns,
        train_lines=tuple(_uneven(share * knee_lines) for share in trains),
        train_gaps_ns=tuple(share * drain_ns for share in GAPS_IN_DRAINS),
        per_round=4 if quick else 8,
        rounds=24 if quick else 200,
    )


def _uneven(lines: float) -> int:
    found = max(2, round(lines))
    return found + (found % 8 == 0)


@dataclass
class Measured:
    """What the microbenchmarks found. `control_ns` [rounds, sizes] are ordinary stores of the isolated sizes into the cache,
    `drain_ns` [rounds, sizes] isolated bursts with a fence at the end, `alone_ns` [rounds, sizes] isolated bursts of one
    core alone (None for one producer). `least_gap_ns` is the gap of trains for which none was asked."""

    times: BurstTimes
    control_ns: Array
    drain_ns: Array
    isolated_bytes: Array
    rounds_run: int
    rounds_disturbed: int
    outliers_pct: float
    least_gap_ns: float = 0.0
    notes: dict[str, float] = field(default_factory=dict)
    alone_ns: Array | None = None


def measure(bench: Bench, plan: Plan, rng: np.random.Generator, progress: Progress = silent) -> Measured:
    """Time all configurations of `plan` on all cores of `bench`.

    Disturbed rounds are made up for by more rounds, up to three times as many in all. Raises `DisturbedError` if even then
    fewer than half of the rounds wanted were quiet.
    """
    rounds: list[_Round] = []
    quiet: list[_Round] = []
    give_up = time.monotonic() + MOST_S
    while len(quiet) < plan.rounds and len(rounds) < MOST_ROUNDS * plan.rounds and time.monotonic() < give_up:
        doing = f"calibrating with {bench.producers} producer{'s' * (bench.producers > 1)}"
        progress(doing + disturbed_so_far(len(rounds) - len(quiet), len(rounds), "rounds"),
                 max(len(quiet) / plan.rounds, len(rounds) / (MOST_ROUNDS * plan.rounds)))  # fmt: skip
        rounds.append(_round(bench, plan, rng))
        quiet = [r for r in rounds if not r.disturbed]
    if len(quiet) < max(3, plan.rounds / 2):
        raise DisturbedError(
            f"only {len(quiet)} of {len(rounds)} rounds were quiet: in the others something else took a core away, or small "
            f"bursts did not take what they usually take, for {WAIT_S:g} s; try again when less runs on this computer"
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
        least_gap_ns=float(times.gap_ns[~times.isolated].min(initial=np.inf)),
        notes=bench.check_clock(),
        alone_ns=np.stack([r.alone_ns for r in quiet]) if bench.producers > 1 else None,
    )


@dataclass(frozen=True)
class _Round:
    issue_ns: Array  # [isolated sizes, then trains]
    gap_ns: Array
    control_ns: Array
    drain_ns: Array
    alone_ns: Array
    outliers: float  # share of isolated bursts that took over twice their centre
    disturbed: bool  # something else took a core away, again and again


def disturbed_so_far(disturbed: int, of: int, what: str) -> str:
    """Why it takes longer than usual, for whoever waits; nothing where nothing was disturbed."""
    return f" ({disturbed} of {of} {what} disturbed, to be made up for)" if disturbed else ""


def _lines(plan: Plan) -> list[int]:
    return [*plan.isolated_lines, *(lines for lines in plan.train_lines for _ in plan.train_gaps_ns)]


def _round(bench: Bench, plan: Plan, rng: np.random.Generator) -> _Round:
    rest = bench.clock.ticks(plan.rest_ns)
    order = rng.permutation(np.tile(np.arange(len(plan.isolated_lines)), plan.per_round))
    lines = _varied(np.array(plan.isolated_lines)[order], _evenly(order, plan.per_round, rng))
    issued = _isolated(bench, lines, rest)
    control = _isolated(bench, lines, rest // 2, code=lane.CACHED)
    drained = _isolated(bench, lines, rest, fence=True)
    alone = _isolated(bench, lines, rest, producers=1) if bench.producers > 1 else issued
    trains = [(n, gap) for n in plan.train_lines for gap in plan.train_gaps_ns]
    turns = rng.permutation(len(trains)).tolist()
    of_turn = {i: _train(bench, plan, *trains[i], rng) for i in turns}
    found = [of_turn[i] for i in range(len(trains))]
    of_size = [order == i for i in range(len(plan.isolated_lines))]
    parts = [
        issued.disturbed,
        control.disturbed,
        drained.disturbed,
        alone.disturbed,
        *(train.disturbed for train in found),
    ]
    by_size = [float(centre(issued.ns[chosen])) for chosen in of_size]
    return _Round(
        issue_ns=np.maximum([*by_size, *(train.issue_ns for train in found)], LEAST_NS),
        gap_ns=np.array([np.inf] * len(by_size) + [train.gap_ns for train in found]),
        control_ns=np.array([centre(control.ns[chosen]) for chosen in of_size]),
        drain_ns=np.array([centre(drained.ns[chosen]) for chosen in of_size]),
        alone_ns=np.maximum([centre(alone.ns[chosen]) for chosen in of_size], LEAST_NS),
        outliers=float(np.mean(issued.ns > 2 * np.array(by_size)[order])),
        disturbed=any(parts),
    )


class _Bursts(NamedTuple):
    ns: Array
    disturbed: bool


class _Train(NamedTuple):
    issue_ns: float
    gap_ns: float
    disturbed: bool


def _isolated(
    bench: Bench, lines: Array, rest: int, code: int = lane.STORE, fence: bool = False, producers: int | None = None
) -> _Bursts:
    """Times of single bursts, one a line count, `rest` ticks apart; of several producers, the mean over them."""
    producers = bench.producers if producers is None else producers
    each = 3 if fence else 2
    steps = np.zeros((each * len(lines), 4), dtype=np.int64)
    if producers == 1:
        steps[::each, 0], steps[::each, 1] = lane.SPIN, rest
    else:
        longest = bench.clock.ticks(8.0 * float(lines.max()) * producers)
        steps[::each, 0], steps[::each, 1] = lane.AT, (rest + longest) * (1 + np.arange(len(lines)))
    steps[1::each, 0], steps[1::each, 1] = code, lines
    if fence:
        steps[2::each, 0] = lane.FENCE
    stamps, disturbed = bench.run_quietly([steps] * producers)
    took = np.mean([noted[each::each] - noted[1::each] for noted in stamps], axis=0)
    return _Bursts((took - bench.costs.store_ticks) / bench.clock.ticks_per_ns, disturbed)


def _train(bench: Bench, plan: Plan, lines: int, gap_ns: float, rng: np.random.Generator) -> _Train:
    """Issue time and true gap of the later bursts of a train; of several producers, the mean over them.

    Bursts differ by a few lines and gaps by some percent, evenly about their middle, in a new order each time.
    """
    gaps = bench.clock.ticks(gap_ns) * (1 + GAP_SPREAD * _scattered(plan, rng))
    bursts = _varied(np.full(plan.train_bursts, lines), _scattered(plan, rng))
    steps = np.zeros((2 * plan.train_bursts, 4), dtype=np.int64)
    steps[::2, 0], steps[::2, 1] = lane.SPIN, np.round(gaps)
    steps[1::2, 0], steps[1::2, 1] = lane.STORE, bursts
    stamps, disturbed = bench.run_quietly([steps] * bench.producers)
    cost, count = bench.costs.store_ticks, plan.train_counted
    issued = np.mean([centre(np.diff(noted)[1::2][-count:]) - cost for noted in stamps])
    gap = np.mean([centre(np.diff(noted)[2::2][-count:]) + cost for noted in stamps])
    return _Train(bench.clock.ns(float(issued)), bench.clock.ns(float(gap)), disturbed)


def _varied(lines: Array, by: Array) -> Array:
    """Sizes that differ from `lines` by up to `LINES_SPREAD`, or a quarter if that is less; `by` is from -1 to 1."""
    return np.asarray(np.round(lines + np.minimum(LINES_SPREAD, lines / 4) * by), dtype=np.int64)


def _evenly(order: Array, times: int, rng: np.random.Generator) -> Array:
    """Numbers from -1 to 1, spread alike over the `times` places at which `order` has each configuration."""
    found = np.empty(len(order))
    for number in range(len(order) // times):
        found[order == number] = rng.permutation(np.linspace(-1, 1, times))
    return found


def _scattered(plan: Plan, rng: np.random.Generator) -> Array:
    """Numbers from -1 to 1 for each burst; those of the bursts that count have the same middle each time."""
    even = np.linspace(-1, 1, plan.train_counted)
    return np.concatenate([rng.uniform(-1, 1, plan.train_bursts - plan.train_counted), rng.permutation(even)])
