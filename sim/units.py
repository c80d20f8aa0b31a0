"""Quantities at the edge (text with units) and inside (integers: bytes, picoseconds, kB/s).

Inside the simulator a time is a whole number of picoseconds, a size a whole number of bytes and a rate a whole number of
kB/s (1 GB/s = 10^6 kB/s), so that two engines can agree to the last digit. GB is 10^9 bytes, GiB is 2^30.
"""

from __future__ import annotations

import math
import re
from typing import Literal

from .errors import InputError

Rounding = Literal["nearest", "up", "down"]

PS_PER_NS = 1_000
PS_PER_US = 1_000_000
KBS_PER_GBS = 1_000_000

# Upper and lower case differ: Gb are bits, GB bytes; Ms are megaseconds, ms milliseconds.
_SIZE = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_TIME_PS = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}
_RATE_KBS = {"KB/s": 1, "kB/s": 1, "MB/s": 10**3, "GB/s": 10**6, "TB/s": 10**9}
_SPELLING = {
    "size": "a number with B, KB, MB, GB, KiB, MiB or GiB, such as '32 KiB'",
    "time": "a number with ps, ns, us, ms or s, such as '0.76 us'",
    "rate": "a number with kB/s, MB/s, GB/s or TB/s, such as '717 GB/s'",
}
_TOO_SMALL = {"size": "must be zero or more", "time": "must be zero or more", "rate": "must be above 0"}
_MICRO = str.maketrans({"\u00b5": "u", "\u03bc": "u"})  # the micro sign and the Greek letter look the same
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)\s*\Z")
_BITS = re.compile(r"([KkMmGgTt]?i?)b(?:its?)?(/s|ps)?\Z")


def parse_size(text: str | int | float, field: str = "size") -> int:
    """Bytes in `text`, such as '32 KiB'. Raises `InputError` if it is no size, is negative or rounds to 0."""
    return _parse(text, field, "size", _SIZE)


def parse_time(text: str | int | float, field: str = "time") -> int:
    """Picoseconds in `text`, such as '0.76 us'. Raises `InputError` if it is no time, is negative or rounds to 0."""
    return _parse(text, field, "time", _TIME_PS)


def parse_rate(text: str | int | float, field: str = "rate") -> int:
    """kB/s in `text`, such as '717 GB/s'. Raises `InputError` if it is no rate, is not positive or rounds to 0."""
    rate = _parse(text, field, "rate", _RATE_KBS)
    if rate == 0:
        raise InputError(_TOO_SMALL["rate"], field=field, value=text, allowed=_SPELLING["rate"])
    return rate


def _parse(text: str | int | float, field: str, kind: str, scales: dict[str, int]) -> int:
    allowed = _SPELLING[kind]
    match = _QUANTITY.match(text.translate(_MICRO)) if isinstance(text, str) else None
    number, unit = match.groups() if match else ("", "")
    if unit not in scales:
        is_number = isinstance(text, (int, float)) and not isinstance(text, bool)
        if text == "0" or (is_number and text == 0):
            return 0  # zero needs no unit
        reason = f"is not a {kind}{_meant(number, unit, scales)}"
        raise InputError(reason, field=field, value=text, allowed=allowed)
    amount = float(number) * scales[unit]
    if amount < 0:
        raise InputError(_TOO_SMALL[kind], field=field, value=text, allowed=allowed)
    if not math.isfinite(amount) or amount > 2**62:
        reason = f"must be at most 2^62 {next(iter(scales))}"
        raise InputError(reason, field=field, value=text, allowed=allowed)
    whole = round(amount)
    if amount > 0 and whole == 0:
        reason = f"is too small to count: the smallest {kind} is 1 {next(iter(scales))}"
        raise InputError(reason, field=field, value=text, allowed=allowed)
    return whole


def _meant(number: str, unit: str, scales: dict[str, int]) -> str:
    """What an unknown unit was meant to be, if it counts bits or differs in upper and lower case alone; else nothing."""
    known = {name.lower(): name for name in scales}
    bits = _BITS.match(unit)
    if bits and (name := known.get(f"{bits[1]}b{'/s' if bits[2] else ''}".lower())):
        return f" in bytes: {number} {unit} in bits are {float(number) / 8:g} {name}, in bytes {number} {name}"
    if name := known.get(unit.lower()):
        return f": upper and lower case differ; did you mean '{number} {name}'?"
    return ""


def gbs(rate_kbs: int | float) -> float:
    """GB/s of a rate in kB/s."""
    return rate_kbs / KBS_PER_GBS


def us(time_ps: int | float) -> float:
    """Microseconds of a time in ps."""
    return time_ps / PS_PER_US


def format_size(size: int | float, rounding: Rounding = "nearest") -> str:
    """A size as people write it, in four digits: '32 KiB', '4.25 MiB', '500 B'."""
    for name, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= scale:
            return f"{_four_digits(size / scale, rounding)} {name}"
    return f"{_four_digits(size, rounding)} B"


def format_time(time_ps: int | float, rounding: Rounding = "nearest") -> str:
    """A time as people write it, in four digits: '0.76 us', '12.3 ms'."""
    for name, scale in (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3)):
        if abs(time_ps) >= scale:
            return f"{_four_digits(time_ps / scale, rounding)} {name}"
    return f"{_four_digits(time_ps, rounding)} ps"


def _four_digits(value: float, rounding: Rounding) -> str:
    nearest = f"{value:.4g}"
    if rounding == "nearest" or value == 0:
        return nearest
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 3)
    steps = math.ceil(value / step) if rounding == "up" else math.floor(value / step)
    return nearest if float(nearest) == value else f"{steps * step:.4g}"
