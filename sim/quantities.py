"""Types of the fields that people fill in: quantities with units, plain numbers with limits, numbers with sources.

`Size`, `Time` and `Rate` read text such as '32 KiB' into the integers of sim/units.py and are written back as text that
reads to the same integer, so that a dumped model can be read again. A bare number is no quantity, but for 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import core_schema

from .checked import Checked, refusal
from .errors import InputError
from .units import parse_rate, parse_size, parse_time


@dataclass(frozen=True)
class Quantity:
    """How an integer in inside units is read from text, and written as the shortest text that reads to the same number."""

    kind: str
    parse: Callable[[Any], int]
    units: tuple[tuple[str, int], ...]
    example: str
    least: int = 0

    def read(self, value: Any) -> int:
        try:
            number = self.parse(value)
        except InputError as error:
            raise refusal(error.reason, allowed=error.allowed) from None
        if number < self.least:
            raise refusal("must be above 0", allowed=f"a {self.kind} above 0, such as {self.example!r}")
        return number

    def write(self, number: int) -> str:
        for unit, scale in self.units[:-1]:
            text = f"{number / scale:.6g} {unit}"
            if number >= scale and "e" not in text and self.parse(text) == number:
                return text
        return f"{number} {self.units[-1][0]}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        writer = core_schema.plain_serializer_function_ser_schema(self.write, return_schema=core_schema.str_schema())
        return core_schema.no_info_plain_validator_function(self.read, serialization=writer)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "description": f"a {self.kind}", "examples": [self.example]}


_SIZES = (("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10), ("KB", 10**3), ("B", 1))
_TIMES = (("ms", 10**9), ("us", 10**6), ("ns", 10**3), ("ps", 1))
_RATES = (("GB/s", 10**6), ("MB/s", 10**3), ("kB/s", 1))

Size = Annotated[int, Quantity("size", parse_size, _SIZES, "32 KiB", least=1)]
"""Bytes, at least 1."""
SizeOrZero = Annotated[int, Quantity("size", parse_size, _SIZES, "32 KiB")]
"""Bytes, 0 or more."""
Time = Annotated[int, Quantity("time", parse_time, _TIMES, "0.76 us")]
"""Picoseconds, 0 or more."""
Rate = Annotated[int, Quantity("rate", parse_rate, _RATES, "717 GB/s", least=1)]
"""kB/s, at least 1."""
Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Efficiency = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True, min_length=1)]

T = TypeVar("T")


class Sourced(Checked, Generic[T]):
    """A number from the world with where it comes from.

    In YAML `{value: 717 GB/s, source: "who measured it"}`, or with `assumed: true` where nobody did and `source` says why
    this value. `interval` is the range of credible values, if known. A bare value is refused.
    """

    value: T
    source: Text
    assumed: Annotated[bool, Field(strict=True)] = False
    interval: tuple[T, T] | None = None

    @model_validator(mode="before")
    @classmethod
    def _not_bare(cls, data: Any) -> Any:
        if not isinstance(data, (Mapping, cls)):
            raise refusal(
                "has no source",
                allowed=f"{{value: {data}, source: where it was measured}} or {{value: {data}, assumed: true, source: why}}",
            )
        return data

    @model_validator(mode="after")
    def _ordered_interval(self) -> Sourced[T]:
        if self.interval is not None:
            low, high = self.interval
            value: Any = self.value
            if not low <= value <= high:
                raise refusal("must hold the value, lowest first", key=("interval",))
        return self


def not_given(value: T, meaning: str) -> Any:
    """The default of a sourced field that a file leaves out."""
    return Sourced[Any](value=value, assumed=True, source=f"not given: {meaning}")
