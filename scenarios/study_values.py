"""Values of a study's axes: ranges of numbers and quantities, and conditions that pick some of them.

{start: 1 MiB, stop: 8 MiB, step: 1 MiB}                        both ends are in it, if the step meets the last
{start: 100 GB/s, stop: 800 GB/s, points: 4, scale: log}        equal ratios
64 KiB     [32 KiB, 64 KiB]     '>= 32 KiB'                     a value, one of several, a comparison
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..sim.checked import Checked, refusal
from ..sim.errors import InputError
from ..sim.quantities import Rate, SizeOrZero, Time
from ..sim.units import KBS_PER_GBS, PS_PER_US, parse_rate, parse_size, parse_time

MOST_VALUES = 100_000
LARGEST = 2**62
"""No number of a scenario is larger."""

_COMPARISONS = {"<=": le, ">=": ge, "<": lt, ">": gt}
_CONDITION = re.compile(r"\s*(<=|>=|<|>)\s*(.+?)\s*\Z")


@dataclass(frozen=True)
class Kind:
    """A kind of quantity: how its text becomes an integer and back, and the column that it makes."""

    name: str
    parse: Callable[[Any], int]
    write: Callable[[int], str]
    suffix: str
    scale: int

    def in_column(self, value: Any) -> int | float:
        """A value as tables have it: whole bytes, or fractions of the unit in the column's name."""
        number = self.parse(value)
        return number if self.scale == 1 else number / self.scale


def _kind(name: str, parse: Callable[[Any], int], field: Any, suffix: str, scale: int) -> Kind:
    return Kind(name, parse, field.__metadata__[0].write, suffix, scale)


KINDS = (
    _kind("size", parse_size, SizeOrZero, "bytes", 1),
    _kind("time", parse_time, Time, "us", PS_PER_US),
    _kind("rate", parse_rate, Rate, "gbs", KBS_PER_GBS),
)


def kind_of(values: Sequence[Any]) -> Kind | None:
    """The kind of quantity that all values are, or None; a bare 0 is of every kind, but is none by itself."""
    if not any(isinstance(value, str) for value in values):
        return None
    return next((kind for kind in KINDS if all(_reads(kind, value) for value in values)), None)


def comparable(value: Any) -> tuple[str, Any]:
    """A value such that equal quantities are equal, however they are written: 1 MiB and 1024 KiB."""
    if isinstance(value, bool):
        return "truth", value
    if isinstance(value, (int, float)):
        return "number", value
    kind = kind_of([value])
    return (kind.name, kind.parse(value)) if kind else ("text", str(value))


class Range(Checked):
    """Evenly spread values from `start` to `stop`, a `step` apart or `points` in number.

    Ends are numbers, or text with units of one kind. Whole numbers give whole numbers, each once.
    """

    start: Any
    stop: Any
    step: Any = None
    points: Annotated[int, Field(strict=True, ge=1)] | None = None
    scale: Literal["linear", "log"] = "linear"

    @model_validator(mode="after")
    def _complete(self) -> Range:
        if (self.step is None) == (self.points is None):
            raise refusal("needs either step or points")
        if self.scale == "log" and self.step is not None:
            raise refusal("has no meaning where scale is log", key=("step",), allowed="points")
        self.values()
        return self

    def values(self) -> list[Any]:
        """What the axis takes, in order; text with units where the ends are quantities."""
        kind = kind_of([self.start, self.stop])
        first, last = (self._number(name, kind) for name in ("start", "stop"))
        numbers = self._stepped(first, last, kind) if self.points is None else self._spread(first, last, self.points)
        if kind is not None:
            return list(dict.fromkeys(kind.write(round(number)) for number in numbers))
        if isinstance(self.start, int) and isinstance(self.stop, int) and isinstance(self.step, int | None):
            return list(dict.fromkeys(round(number) for number in numbers))
        return [float(f"{number:.12g}") for number in numbers]

    def _number(self, name: str, kind: Kind | None) -> float:
        value = getattr(self, name)
        if kind is not None and _reads(kind, value):
            return kind.parse(value)
        if kind is None and _is_number(value):
            return float(value)
        asked = f"a {kind.name}, as the ends are" if kind else "a number, or text with a unit, of one kind at both ends"
        raise refusal("is no end of a range" if name != "step" else "does not fit the ends", key=(name,), allowed=asked)

    def _stepped(self, first: float, last: float, kind: Kind | None) -> list[float]:
        step = self._number("step", kind)
        if step == 0 or (last - first) / step < 0:
            raise refusal("does not lead from start to stop", key=("step",), allowed="a step towards stop")
        steps = (last - first) / step * (1 + 1e-12) + 1e-9
        if steps >= MOST_VALUES:
            raise refusal(f"makes {steps + 1:.0f} values", key=("step",), allowed=f"at most {MOST_VALUES}")
        count = math.floor(steps) + 1
        return [first + number * step for number in range(count)]

    def _spread(self, first: float, last: float, count: int) -> list[float]:
        if count > MOST_VALUES:
            raise refusal(f"makes {count} values", key=("points",), allowed=f"at most {MOST_VALUES}")
        if self.scale == "log" and min(first, last) <= 0:
            raise refusal("must be above 0 where scale is log", key=("start" if first <= 0 else "stop",))
        shares = [number / max(1, count - 1) for number in range(count)]
        if self.scale == "log":
            return [first * (last / first) ** share for share in shares]
        return [first + (last - first) * share for share in shares]


def condition(match: Any) -> Callable[[Any], bool]:
    """Whether a value is what a match says. Raises `InputError` for a comparison with what has no order."""
    if isinstance(match, list):
        each = [condition(one) for one in match]
        return lambda value: any(one(value) for one in each)
    found = _CONDITION.match(match) if isinstance(match, str) else None
    if found is None:
        wanted = comparable(match)
        return lambda value: comparable(value) == wanted
    compare, (kind, bound) = _COMPARISONS[found[1]], comparable(_literal(found[2]))
    if kind == "text":
        raise InputError("cannot be compared", value=match, allowed="a number or a quantity after the sign")

    def holds(value: Any) -> bool:
        of, number = comparable(value)
        return (of == kind or number == 0) and bool(compare(number, bound))

    return holds


def _literal(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def _reads(kind: Kind, value: Any) -> bool:
    try:
        kind.parse(value)
    except InputError:
        return False
    return True
