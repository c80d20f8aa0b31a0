"""The bursts that calibration needs, timed on real cores.

A round times every configuration once or more, in a new random order: isolated bursts of all sizes, and periodic trains of
some sizes at some gaps, of which the first bursts (while the stage fills up) do not count. What disturbs the computer for a
while then disturbs all configurations alike. Every round begins with a few small bursts as a yardstick (`Round.pace_ns`):
rounds in which these took much longer than usual were disturbed and are left out, whatever the other bursts did.

Gaps are as they were: the cost of noting the time counts as gap, since no store is issued in it.

With several producers, isolated bursts start at the same tick on all cores, and trains run freely. Every isolated size is
also timed on one core while the others are idle, which tells what of the stage a core has to itself and what is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...sim.calibrate import BurstTimes
from ..centre import centre
from ..measuring import DisturbedError, Progress, silent
from . import lane
from .architecture import LINE_BYTES
from .bench import Bench

Array = np.ndarray[Any, np.dtype[Any]]
PACE_LINES = (60, 61, 62, 63, 64, 65, 66, 67) * 3
"""The yardstick. Its bursts also make the loop that stores warm, for every rest of lines that its unrolled body leaves:
without that, the first bursts of a short program take up to 40 ns more than later ones."""
PACE_LIMIT = 1.3
"""A round counts as disturbed if its small bursts took this much longer than those of the quietest quarter of rounds."""
LEAST_NS = 0.1
"""A time that is nothing but the clock's own cost, taken off, is no time: at least this much is reported."""
MOST_ROUNDS = 3
"""Rounds that may be run for each one wanted."""
LINES_SPREAD, GAP_SPREAD = 4, 0.1
"""By how many lines the bursts of a train differ from their middle at most, and by what share its gaps."""
REST_NS = 5_000.0
"""A gap after which the stage is empty, by a wide margin: the largest burst drains in about 2 us."""


@dataclass(frozen=True)
class Plan:
    """Sizes in lines, gaps in ns. A round holds each isolated size `per_round` times and each train once.

    Few sizes are multiples of 8, as few of those of a program are: the compiled loop stores eight lines a turn and the rest
    one by one, so such multiples are quicker than other sizes.
    """

    isolated_lines: tuple[int, ...] = (
        9, 18, 31, 45, 67, 93, 126, 163, 191, 226, 253, 287, 324, 352, 385, 449, 509, 638, 772, 1019,
    )  # fmt: skip
    train_lines: tuple[int, ...] = (93, 191, 290, 449)
    train_gaps_ns: tuple[float, ...] = (0, 60, 120, 180, 240, 320, 400, 500, 650, 900)
    train_bursts: int = 48
    train_counted: int = 16
    per_round: int = 8
    rounds: int = 40


FULL = Plan(rounds=200)
QUICK = Plan(train_lines=(191, 386), rounds=24, per_round=4)


@dataclass
class Measured:
    """What the microbenchmarks found. `control_ns` [rounds, sizes] are ordinary stores of the isolated sizes into the cache,
    `drain_ns` [rounds, sizes] isolated bursts with a fence at the end, `alone_ns` [rounds, sizes] isolated bursts of one
    core alone (None for one producer)."""

    times: BurstTimes
    control_ns: Array
    drain_ns: Array
    isolated_bytes: Array
    rounds_run: int
    rounds_disturbed: int
    outliers_pct: float
    pace_ns: float
    notes: dict[str, float] = field(default_factory=dict)
    alone_ns: Array | None = None


def measure(bench: Bench, plan: Plan, rng: np.random.Generator, progress: Progress = silent) -> Measured:
    """Time all configurations of `plan` on all cores of `bench`.

    Disturbed rounds are made up for by more rounds, up to three times as many in all. Raises `DisturbedError` if even then
    fewer than half of the rounds wanted were quiet.
    """
    bench.warm_up()
    rounds: list[_Round] = []
    quiet: list[_Round] = []
    usual = np.inf
    while len(quiet) < plan.rounds and len(rounds) < MOST_ROUNDS * plan.rounds:
        doing = f"calibrating with {bench.producers} producer{'s' * (bench.producers > 1)}"
        progress(doing + disturbed_so_far(len(rounds) - len(quiet), len(rounds), "rounds"),
                 max(len(quiet) / plan.rounds, len(rounds) / (MOST_ROUNDS * plan.rounds)))  # fmt: skip
        rounds.append(_round(bench, plan, rng))
        usual = usual_pace_ns([r.pace_ns for r in rounds])
        quiet = [r for r in rounds if r.pace_ns <= PACE_LIMIT * usual and not r.disturbed]
    if len(quiet) < max(3, plan.rounds / 2):
        pace, away = [r.pace_ns for r in rounds], sum(r.disturbed for r in rounds)
        raise DisturbedError(
            f"only {len(quiet)} of {len(rounds)} rounds were quiet: in {away} something else took a core "
            f"away, and small bursts took {min(pace):.0f} to {max(pace):.0f} ns; try again when less runs on this computer"
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
        alone_ns=np.stack([r.alone_ns for r in quiet]) if bench.producers > 1 else None,
    )


@dataclass(frozen=True)
class _Round:
    pace_ns: float
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


def usual_pace_ns(paces_ns: Sequence[float]) -> float:
    """What small bursts take in the quietest quarter of rounds or runs."""
    return float(np.quantile(paces_ns, 0.25))


def _lines(plan: Plan) -> list[int]:
    return [*plan.isolated_lines, *(lines for lines in plan.train_lines for _ in plan.train_gaps_ns)]


def _round(bench: Bench, plan: Plan, rng: np.random.Generator) -> _Round:
    rest = bench.clock.ticks(REST_NS)
    pace = _isolated(bench, np.array(PACE_LINES), rest)
    order = rng.permutation(np.tile(np.arange(len(plan.isolated_lines)), plan.per_round))
    lines = np.array(plan.isolated_lines)[order]
    issued = _isolated(bench, lines, rest)
    control = _isolated(bench, lines, rest // 5, code=lane.CACHED)
    drained = _isolated(bench, lines, rest, fence=True)
    alone = _isolated(bench, lines, rest, producers=1) if bench.producers > 1 else issued
    trains = [(n, gap) for n in plan.train_lines for gap in plan.train_gaps_ns]
    turns = rng.permutation(len(trains)).tolist()
    of_turn = {i: _train(bench, plan, *trains[i], rng) for i in turns}
    found = [of_turn[i] for i in range(len(trains))]
    of_size = [order == i for i in range(len(plan.isolated_lines))]
    parts = [
        pace.disturbed,
        issued.disturbed,
        control.disturbed,
        drained.disturbed,
        alone.disturbed,
        *(train.disturbed for train in found),
    ]
    by_size = [float(centre(issued.ns[chosen])) for chosen in of_size]
    return _Round(
        pace_ns=float(centre(pace.ns)),
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

    Bursts differ by a few lines and gaps by some percent, evenly about their middle, in a new order each time: a core would
    learn when a loop ends that always ends alike, as it cannot in a program whose stores differ.
    """
    gaps = bench.clock.ticks(gap_ns) * (1 + GAP_SPREAD * _scattered(plan, rng))
    bursts = lines + LINES_SPREAD * _scattered(plan, rng)
    steps = np.zeros((2 * plan.train_bursts, 4), dtype=np.int64)
    steps[::2, 0], steps[::2, 1] = lane.SPIN, np.round(gaps)
    steps[1::2, 0], steps[1::2, 1] = lane.STORE, np.round(bursts)
    stamps, disturbed = bench.run_quietly([steps] * bench.producers)
    cost, count = bench.costs.store_ticks, plan.train_counted
    issued = np.mean([centre(np.diff(noted)[1::2][-count:]) - cost for noted in stamps])
    gap = np.mean([centre(np.diff(noted)[2::2][-count:]) + cost for noted in stamps])
    return _Train(bench.clock.ns(float(issued)), bench.clock.ns(float(gap)), disturbed)


def _scattered(plan: Plan, rng: np.random.Generator) -> Array:
    """Numbers from -1 to 1 for each burst; those of the bursts that count have the same middle each time."""
    even = np.linspace(-1, 1, plan.train_counted)
    return np.concatenate([rng.uniform(-1, 1, plan.train_bursts - plan.train_counted), rng.permutation(even)])
