"""Fit numbers of a machine to measured times of whole kernels, from what was believed before.

There are fewer times than numbers, so each number has a prior: `low` to `high` are two standard deviations of its
logarithm around the middle. Times count with a relative error of `TIME_ERROR`. What is minimised is

    sum ln(predicted / measured)^2 / TIME_ERROR^2  +  sum (ln number - ln middle)^2 / spread^2

by scipy's least squares. Intervals are two standard deviations of the linearised posterior: a number that the times say
nothing about keeps its prior, and `informed` says how much narrower it became.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

Floats = NDArray[np.float64]
Predict = Callable[[Mapping[str, float]], Sequence[float]]
"""Times of the measured calls, in us, on the machine with these numbers."""

TIME_ERROR = 0.03
"""Relative, of one published time: repeated measurements of one kernel and shape differ by about as much."""
MOST_PARAMETERS = 6
REACH = 2.0
"""Standard deviations in a prior's half interval, and in the intervals that a fit gives."""
LIMIT = 2.0
"""A number may leave its prior's interval by half of its width (in logarithms), and is then flagged."""
STEP = 0.03
"""Of a logarithm: the model is a simulation, whose tiles move by whole rounds."""


@dataclass(frozen=True)
class Parameter:
    """A free number: dotted name, unit as text in files ('' for a plain number), prior interval in that unit, and why.

    `most` is a limit that physics sets, such as 1 for an efficiency.
    """

    name: str
    unit: str
    low: float
    high: float
    reason: str
    most: float = np.inf

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high <= self.most:
            raise InputError("is no range of positive numbers", field=self.name, value=(self.low, self.high))

    @property
    def middle(self) -> float:
        return float(np.sqrt(self.low * self.high))

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm."""
        return float(np.log(self.high / self.low) / (2 * REACH))


@dataclass(frozen=True)
class FittedNumber:
    """`sensitivity` is d ln time / d ln number for each measured call; `flag` says what is implausible, or ''."""

    parameter: Parameter
    value: float
    low: float
    high: float
    sensitivity: tuple[float, ...]
    flag: str

    @property
    def informed(self) -> float:
        """Part of the prior's width that the times took away."""
        return 1 - float(np.log(self.high / self.low) / np.log(self.parameter.high / self.parameter.low))


@dataclass(frozen=True)
class Fit:
    """Numbers, and the times that they give in place of the measured ones."""

    numbers: tuple[FittedNumber, ...]
    measured_us: tuple[float, ...]
    before_us: tuple[float, ...]
    predicted_us: tuple[float, ...]
    simulations: int


def fit(parameters: Sequence[Parameter], measured_us: Sequence[float], predict: Predict) -> Fit:
    """The most credible numbers. Raises `InputError` without times, or for more than `MOST_PARAMETERS` numbers."""
    from scipy.optimize import least_squares

    if not measured_us:
        raise InputError("has no rows to fit", field="measured times", value=0, allowed="1 or more")
    if not 0 < len(parameters) <= MOST_PARAMETERS:
        raise InputError(
            "are too many or none", field="parameters", value=len(parameters), allowed=f"1 to {MOST_PARAMETERS}"
        )
    measured = np.log(np.asarray(measured_us, dtype=np.float64))
    middle = np.log([p.middle for p in parameters])
    spread = np.array([p.spread for p in parameters])
    names = [p.name for p in parameters]
    low = middle - LIMIT * REACH * spread
    high = np.minimum(middle + LIMIT * REACH * spread, np.log([p.most for p in parameters]))
    calls = 0

    def log_times(x: Floats) -> Floats:
        nonlocal calls
        calls += 1
        return np.log(np.asarray(predict(dict(zip(names, np.exp(x).tolist(), strict=True))), dtype=np.float64))

    def residuals(x: Floats) -> Floats:
        return np.concatenate([(log_times(x) - measured) / TIME_ERROR, (x - middle) / spread])

    def jacobian(x: Floats) -> Floats:
        columns = []
        for i in range(len(x)):
            step = np.zeros(len(x))
            step[i] = STEP
            up, down = np.minimum(x + step, high), np.maximum(x - step, low)
            columns.append((residuals(up) - residuals(down)) / (up - down)[i])
        return np.stack(columns, axis=1)

    before = np.exp(log_times(middle))
    found = least_squares(
        residuals, np.clip(middle, low, high), jac=jacobian, bounds=(low, high), xtol=1e-3, max_nfev=12
    )
    slope = jacobian(found.x)
    error = np.sqrt(np.diag(np.linalg.inv(slope.T @ slope)))
    numbers = tuple(
        FittedNumber(
            parameter=parameter,
            value=float(np.exp(found.x[i])),
            low=float(np.exp(found.x[i] - REACH * error[i])),
            high=float(min(parameter.most, np.exp(found.x[i] + REACH * error[i]))),
            sensitivity=tuple((slope[: len(measured), i] * TIME_ERROR).tolist()),
            flag=_flag(parameter, float(np.exp(found.x[i]))),
        )
        for i, parameter in enumerate(parameters)
    )
    return Fit(
        numbers=numbers,
        measured_us=tuple(measured_us),
        before_us=tuple(before.tolist()),
        predicted_us=tuple(np.exp(log_times(found.x)).tolist()),
        simulations=calls * len(measured_us),
    )


def _flag(parameter: Parameter, value: float) -> str:
    if value >= 0.999 * parameter.most:
        return f"at its limit of {parameter.most:g}: the model lacks something that makes it faster"
    if not parameter.low <= value <= parameter.high:
        return "outside of what was believed before"
    return ""
