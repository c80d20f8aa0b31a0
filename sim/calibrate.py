"""T_iss0(B) = t0 + B / w, R and Q of a machine from timed bursts, or a refusal where the law does not hold.

A calibration needs isolated bursts of many sizes (each meets an empty stage) and, better, periodic trains at several gaps.
The law of the X-Stage (arXiv 2607.23264; `burst_gap` has the closed forms) is the largest of three straight lines:

    issue-bound    t0 + B / w             everywhere
    drain-limited  V / R - G              trains
    overflow       (V - Q) / R            isolated bursts, and trains of producers that start each burst together

so t0, 1/w, 1/R and Q/R enter linearly once it is known which line binds where. The fit alternates between the two: it
assigns every point to the line that is highest there, solves both weighted least squares, and starts anew until nothing
changes, from several knees. Residuals count relative to the time, with Huber weights, so that a few disturbed points do
not pull.

Intervals are of 95 %, from a bootstrap that draws rounds with replacement and weighs configurations at random: they hold
both how well the times repeat and how far the points scatter about the law. `residual_pct` and `r_squared` say how well it
fits as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, XstageError

Mode = Literal["free_running", "synchronised"]
Array = NDArray[np.float64]

LEAST_SIZES, LEAST_ROUNDS = 8, 3
LEAST_EACH_SIDE = 3
"""Isolated sizes that must lie on either side of the knee."""
LEAST_SLOPE_RATIO = 1.25
"""How much steeper the time of a burst must be beyond the knee than before it."""
MOST_OF_STRAIGHT = 0.7
"""How far the law may miss isolated bursts, as a share of how far a straight line misses them."""
LEAST_EFFECT = 5.0
"""The stall of the largest isolated burst, in standard errors."""
MOST_NOISE_PCT = 15.0
"""Median distance of a round from the median of all rounds."""
MOST_RESIDUAL_PCT = 17.5
"""Median miss over configurations beyond which three straight lines are no description; how good they are below that is for
a validation to say. Of synthetic data (tests/sim/test_calibrate.py) none that follows the law misses by more than 5 %, with
noise up to the limit; stages that drain a quarter as fast in a gap as under load miss by 13 to 15 %; and those that do not
drain in a gap, so that a gap does not help, by 18 to 22 %. The limit refuses the last kind and no other."""

LEAST_NS_PER_BYTE = 1e-5
"""1/w is no less: where issuing takes the same time whatever the size, noise alone would say whether it rises or falls."""

_WORD_BYTES = 16
"""What one thread stores at once: T_iss0 at the knee is told for a whole number of them."""
_HUBER = 1.5
_ITERATIONS = 40
_RELATIVE_ERROR = 0.02


class NoLawError(XstageError):
    """The measured times do not follow the law of the X-Stage, so there are no parameters to give."""


@dataclass(frozen=True, eq=False)
class BurstTimes:
    """Measured issue times: `issue_ns` [rounds, configurations], of bursts of `burst_bytes` a producer at gaps `gap_ns`.

    An infinite gap means isolated. `resolution_ns` is what the clock can tell apart. Raises `InputError` where sizes do
    not match, a time is not above 0, or there are fewer than 3 rounds.
    """

    producers: int
    burst_bytes: Array
    gap_ns: Array
    issue_ns: Array
    resolution_ns: float = 0.0

    def __post_init__(self) -> None:
        for name in ("burst_bytes", "gap_ns", "issue_ns"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        shape, n = self.issue_ns.shape, len(self.burst_bytes)
        if len(shape) != 2 or shape[1] != n or len(self.gap_ns) != n:
            raise InputError(
                "must be rounds by configurations", field="issue_ns", value=str(shape), allowed=f"(rounds, {n})"
            )
        if shape[0] < LEAST_ROUNDS:
            raise InputError("are too few", field="rounds", value=shape[0], allowed=f"{LEAST_ROUNDS} or more")
        if not (np.isfinite(self.issue_ns).all() and (self.issue_ns > 0).all() and (self.burst_bytes > 0).all()):
            raise InputError("times and sizes must be finite and above 0", field="issue_ns")

    @property
    def isolated(self) -> NDArray[np.bool_]:
        return np.isinf(self.gap_ns)

    def only_isolated(self) -> BurstTimes:
        """These measurements without the trains."""
        kept = self.isolated
        return replace(
            self, burst_bytes=self.burst_bytes[kept], gap_ns=self.gap_ns[kept], issue_ns=self.issue_ns[:, kept]
        )

    def centre_ns(self) -> Array:
        """The typical time of each configuration: midmean over rounds."""
        return np.asarray(_midmean(self.issue_ns[None])[0])


@dataclass(frozen=True)
class Estimate:
    """A fitted number with its 95 % interval."""

    value: float
    low: float
    high: float

    def as_list(self) -> list[float]:
        return [self.low, self.high]

    @property
    def known_to_pct(self) -> float:
        """Half the width of the interval, in percent of the value."""
        return 50 * (self.high - self.low) / self.value


@dataclass(frozen=True)
class Calibration:
    """The three numbers of a stage as fitted, for one number of producers.

    `t_iss0_ns` is the time to issue a burst of `reference_bytes` without backpressure, which is no more than the knee: of
    larger bursts nothing was seen that backpressure had not slowed.
    `capacity_bytes` is Q of all producers together, `knee_bytes` the largest isolated burst of one producer that does not
    stall. `residual_pct` is the median of |law / measured - 1| over configurations, `trains_residual_pct` the same of
    trains alone (None if there were none), `noise_pct` the median over configurations of |round / median - 1|.
    """

    producers: int
    mode: Mode
    reference_bytes: float
    t_iss0_ns: Estimate
    t0_ns: Estimate
    issue_gbs: Estimate
    drain_gbs: Estimate
    capacity_bytes: Estimate
    knee_bytes: Estimate
    residual_pct: float
    trains_residual_pct: float | None
    r_squared: float
    noise_pct: float
    rounds: int
    configurations: int

    def issue_ns(self, burst_bytes: Any, gap_ns: Any) -> Any:
        """Issue time of bursts of one producer at a gap (infinite: isolated) by the law."""
        size, gap = np.broadcast_arrays(np.asarray(burst_bytes, dtype=float), np.asarray(gap_ns, dtype=float))
        parameters = _parameters(self.t0_ns, self.issue_gbs, self.drain_gbs, self.capacity_bytes)
        return _law(parameters, size, gap, self.producers, self.mode).max(axis=0)

    def as_dict(self) -> dict[str, object]:
        names = ("t_iss0_ns", "t0_ns", "issue_gbs", "drain_gbs", "capacity_bytes", "knee_bytes")
        numbers: dict[str, object] = {name: getattr(self, name).value for name in names}
        rest = ("producers", "mode", "reference_bytes", "residual_pct", "trains_residual_pct", "r_squared", "noise_pct",
                "rounds", "configurations")  # fmt: skip
        return (
            numbers
            | {name: getattr(self, name) for name in rest}
            | {"intervals": {name: getattr(self, name).as_list() for name in names}}
        )


def fit(
    times: BurstTimes,
    mode: Mode = "synchronised",
    reference_bytes: float = 8192,
    draws: int = 200,
    seed: int = 0,
) -> Calibration:
    """The parameters that describe `times` best. `mode` says how producers of a train meet, see `burst_gap`. T_iss0 is that
    of a burst of `reference_bytes`, or at the knee where that is smaller.

    Raises `InputError` for too few sizes or an unknown mode, `NoLawError` where there is no knee, where noise is above
    the effect, or where the law misses most of the measurements.
    """
    if mode not in get_args(Mode):
        raise InputError("is not a mode", field="mode", value=mode, allowed=get_args(Mode))
    sizes = len(np.unique(times.burst_bytes[times.isolated]))
    if sizes < LEAST_SIZES:
        raise InputError("are too few", field="sizes of isolated bursts", value=sizes, allowed=f"{LEAST_SIZES} or more")
    noise = _noise_pct(times)
    if noise > MOST_NOISE_PCT:
        raise NoLawError(
            f"noise is above the effect: repeats of one burst differ by {noise:.1f} % from their median "
            f"(allowed: {MOST_NOISE_PCT:g} %)"
        )
    rounds = len(times.issue_ns)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, rounds, size=(draws, rounds))
    importance = rng.exponential(size=(draws, len(times.burst_bytes)))
    resampled = np.stack([_midmean(times.issue_ns[pick][None])[0] for pick in picks])
    centre = times.centre_ns()
    _check_knee(times.only_isolated())
    best = _best_start(times, centre[None], mode)
    if not (best[0, 1:] > 0).all():
        raise NoLawError("the law is off: trains and isolated bursts together leave no rate and capacity above 0")
    predicted = _law(best[0], times.burst_bytes, times.gap_ns, times.producers, mode).max(axis=0)
    residual = np.abs(predicted / centre - 1)
    if 100 * np.median(residual) > MOST_RESIDUAL_PCT:
        raise NoLawError(
            f"the law is off by {100 * np.median(residual):.0f} % in the median of {len(centre)} configurations "
            f"(allowed: {MOST_RESIDUAL_PCT:g} %)"
        )
    spread = _solve(times, resampled, np.repeat(best, draws, axis=0), mode, importance)
    _check_effect(times, best[0], spread)
    words_below_knee = float(_knee_bytes(best[0], times.producers)) // _WORD_BYTES
    reference_bytes = min(float(reference_bytes), _WORD_BYTES * words_below_knee)
    estimates = _estimates(best[0], spread, times.producers, rounds, reference_bytes)
    trains = ~times.isolated
    return Calibration(
        producers=times.producers,
        mode=mode,
        reference_bytes=reference_bytes,
        **estimates,
        residual_pct=float(100 * np.median(residual)),
        trains_residual_pct=float(100 * np.median(residual[trains])) if trains.any() else None,
        r_squared=float(1 - np.sum((predicted - centre) ** 2) / np.sum((centre - centre.mean()) ** 2)),
        noise_pct=noise,
        rounds=rounds,
        configurations=len(centre),
    )


def _parameters(t0: Estimate, issue: Estimate, drain: Estimate, capacity: Estimate) -> Array:
    """(t0, 1/w, 1/R, Q/R) in ns and ns per byte; a GB/s is a byte a ns."""
    return np.array([t0.value, 1 / issue.value, 1 / drain.value, capacity.value / drain.value])


def _law(x: Array, size: Array, gap: Array, producers: int, mode: Mode) -> Array:
    """The three lines [3, ..., n] at parameters x [..., 4]; minus infinity where one does not apply."""
    t0, a, r, q = (x[..., i, None] for i in range(4))
    isolated, total = np.isinf(gap), producers * size
    drained = np.where(isolated, -np.inf, total * r - np.where(isolated, 0, gap))
    overflows = isolated | (mode == "synchronised")
    return np.stack([t0 + size * a, drained, np.where(overflows, total * r - q, -np.inf)])


def _best_start(times: BurstTimes, y: Array, mode: Mode) -> Array:
    """The best of the fits that start from a knee at each isolated size but the outermost, [1, 4]."""
    inner = np.unique(times.burst_bytes[times.isolated])[1:-2]
    found = []
    for knee in inner:
        below = times.isolated & (times.burst_bytes <= knee)
        above = times.isolated & (times.burst_bytes > knee)
        weight = np.ones_like(y)
        t0, a = _line(times.burst_bytes, y, weight * below)
        minus_q, r = _line(times.producers * times.burst_bytes, y, weight * above)
        start = np.stack([np.maximum(t0, 0), a, r, -minus_q], axis=-1)
        if np.isfinite(start).all() and (r > 0).all():
            found.append(_solve(times, y, start, mode))
    finite = [x for x in found if np.isfinite(x).all()]
    if not finite:
        raise NoLawError("no knee: no burst size splits the isolated bursts into two straight lines")
    return min(finite, key=lambda x: float(_loss(times, y, x, mode)[0]))


def _solve(times: BurstTimes, y: Array, x: Array, mode: Mode, importance: Array | float = 1.0) -> Array:
    """Fits of y [draws, n] from the parameters x [draws, 4]; rows that have no solution become NaN.

    `importance` multiplies the weights of the points.
    """
    size, total = times.burst_bytes, times.producers * times.burst_bytes
    gap = np.where(times.isolated, 0, times.gap_ns)
    x, bound = x.copy(), np.full(y.shape, -1)
    for _ in range(_ITERATIONS):
        lines = _law(x, size, times.gap_ns, times.producers, mode)
        now_bound = lines.argmax(axis=0)
        predicted = lines.max(axis=0)
        weight = importance * _weights(times, y, predicted)
        issue = weight * (now_bound == 0)
        t0, a = _line(size, y, issue)
        with np.errstate(divide="ignore", invalid="ignore"):
            through_zero = np.sum(issue * size * y, axis=-1) / np.sum(issue * size**2, axis=-1)
        a = np.where(t0 < 0, through_zero, a)
        flat = a < LEAST_NS_PER_BYTE
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.sum(issue * (y - LEAST_NS_PER_BYTE * size), axis=-1) / np.sum(issue, axis=-1)
        t0, a = np.where(flat, level, t0), np.where(flat, LEAST_NS_PER_BYTE, a)
        overflow = now_bound == 2
        minus_q, r = _plane(overflow, total, np.where(overflow, y, y + gap), weight * (now_bound > 0))
        new = np.stack([np.maximum(t0, 0), a, r, -minus_q], axis=-1)
        settled = np.array_equal(now_bound, bound) and np.allclose(new, x, rtol=1e-9, equal_nan=True)
        x, bound = new, now_bound
        if settled:
            break
    return x


def _weights(times: BurstTimes, y: Array, predicted: Array) -> Array:
    """Inverse variance of a point (relative, with a floor from the clock), less for points far off (Huber)."""
    sigma = _RELATIVE_ERROR * y + times.resolution_ns / 4
    standard = np.abs(y - predicted) / sigma
    scale = np.maximum(1.0, np.median(standard, axis=-1, keepdims=True) / 0.6745)
    return np.minimum(1.0, _HUBER / np.maximum(standard / scale, 1e-9)) / sigma**2


def _line(x: Array, y: Array, weight: Array) -> tuple[Array, Array]:
    """Weighted least squares y = c + b x over the last axis."""
    return _plane(np.ones_like(x, dtype=bool), x, y, weight)


def _plane(has_constant: NDArray[np.bool_], x: Array, y: Array, weight: Array) -> tuple[Array, Array]:
    """Weighted least squares y = c h + b x, with h 1 where `has_constant`, else 0."""
    h = has_constant.astype(float)
    hh, hx, xx = (np.sum(weight * product, axis=-1) for product in (h * h, h * x, x * x))
    hy, xy = np.sum(weight * h * y, axis=-1), np.sum(weight * x * y, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        determinant = hh * xx - hx * hx
        good = determinant > 1e-9 * hh * xx
        scale = np.where(good, determinant, np.nan)
        return (hy * xx - xy * hx) / scale, (xy * hh - hy * hx) / scale


def _loss(times: BurstTimes, y: Array, x: Array, mode: Mode) -> Array:
    predicted = _law(x, times.burst_bytes, times.gap_ns, times.producers, mode).max(axis=0)
    off = np.abs(y - predicted) / (_RELATIVE_ERROR * y + times.resolution_ns / 4)
    return np.asarray(np.where(off < _HUBER, off**2 / 2, _HUBER * (off - _HUBER / 2)).mean(axis=-1))


def _check_knee(times: BurstTimes) -> None:
    """Refuse isolated bursts that one straight line describes, or whose knee lies outside of the sizes measured."""
    sizes, y = times.burst_bytes, times.centre_ns()
    x = _best_start(times, y[None], "synchronised")[0]
    _, a, r, q = (float(value) for value in x)
    slope = times.producers * r
    if slope < LEAST_SLOPE_RATIO * a or q <= 0:
        raise NoLawError(
            f"no knee: a byte takes {a:.4g} ns in small bursts and {slope:.4g} ns in large ones "
            f"(needed: {LEAST_SLOPE_RATIO:g} times as much or more)"
        )
    knee = float(_knee_bytes(x, times.producers))
    below, above = int(np.sum(sizes <= knee)), int(np.sum(sizes > knee))
    if min(below, above) < LEAST_EACH_SIDE:
        raise NoLawError(
            f"no knee within the sizes measured: {below} of them lie below {knee:.4g} B and {above} above it "
            f"(needed: {LEAST_EACH_SIDE} on each side)"
        )
    c, b = _line(sizes, y, 1 / (_RELATIVE_ERROR * y + times.resolution_ns / 4) ** 2)
    law = _law(x, sizes, times.gap_ns, times.producers, "synchronised").max(axis=0)
    straight, bent = (np.median(np.abs(p / y - 1)) for p in (c + b * sizes, law))
    if bent > MOST_OF_STRAIGHT * straight:
        raise NoLawError(
            f"no knee: a straight line misses the isolated bursts by {100 * straight:.1f} % in the median, "
            f"the law by {100 * bent:.1f} %"
        )


def _check_effect(times: BurstTimes, best: Array, spread: Array) -> None:
    largest = times.burst_bytes[times.isolated].max()

    def stall(x: Array) -> Array:
        return np.asarray((times.producers * largest * x[..., 2] - x[..., 3]) - (x[..., 0] + largest * x[..., 1]))

    lost = ~np.isfinite(spread).all(axis=-1)
    if lost.mean() > 0.2:
        raise NoLawError(f"noise is above the effect: {100 * lost.mean():.0f} % of the resampled rounds show no knee")
    effect, error = float(stall(best)), float(np.std(stall(spread[~lost])))
    if effect < LEAST_EFFECT * error:
        raise NoLawError(
            f"noise is above the effect: the largest burst stalls {effect:.4g} ns, give or take {error:.4g} "
            f"(needed: {LEAST_EFFECT:g} times its error)"
        )


def _knee_bytes(x: Array, producers: int) -> Array:
    """Where the lines of issue and of overflow cross, in bytes of one producer."""
    t0, a, r, q = np.moveaxis(x, -1, 0)
    with np.errstate(divide="ignore"):
        return np.asarray((q + t0) / (producers * r - a))


def _estimates(best: Array, spread: Array, producers: int, rounds: int, reference_bytes: float) -> dict[str, Estimate]:
    """Each number with its interval: Student's t times the bootstrap's spread, widened for the small number of rounds."""
    from scipy.stats import t as student

    reach = float(student.ppf(0.975, rounds - 1)) * np.sqrt(rounds / (rounds - 1))
    spread = spread[np.isfinite(spread).all(axis=-1)]

    def numbers(x: Array) -> dict[str, Array]:
        t0, a, r, q = np.moveaxis(x, -1, 0)
        return {
            "t_iss0_ns": t0 + reference_bytes * a,
            "t0_ns": t0,
            "issue_gbs": 1 / a,
            "drain_gbs": 1 / r,
            "capacity_bytes": q / r,
            "knee_bytes": _knee_bytes(x, producers),
        }

    found, drawn = numbers(best), numbers(spread)
    estimates = {}
    for name, value in found.items():
        half = reach * float(np.std(drawn[name]))
        estimates[name] = Estimate(float(value), float(max(0.0, value - half)), float(value + half))
    return estimates


def _noise_pct(times: BurstTimes) -> float:
    middle = np.median(times.issue_ns, axis=0)
    return float(100 * np.median(np.abs(times.issue_ns / middle - 1)))


def _midmean(values: Array) -> Array:
    """Mean of the middle half over rounds: [draws, rounds, n] to [draws, n]."""
    ordered = np.sort(values, axis=1)
    cut = ordered.shape[1] // 4
    return np.asarray(ordered[:, cut : ordered.shape[1] - cut].mean(axis=1))
