"""Text with units becomes whole bytes, picoseconds and kB/s, or a clear refusal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xstage.sim.errors import InputError
from xstage.sim.units import format_size, format_time, parse_rate, parse_size, parse_time


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_size, "32 KiB", 32768),
        (parse_size, "4.25MiB", 4456448),
        (parse_size, "1 GB", 10**9),
        (parse_size, "1 GiB", 2**30),
        (parse_size, 0, 0),
        (parse_time, "0.76 us", 760_000),
        (parse_time, "0.76 µs", 760_000),
        (parse_time, "1 ms", 10**9),
        (parse_time, "3ps", 3),
        (parse_rate, "717 GB/s", 717_000_000),
        (parse_rate, "1.8 TB/s", 1_800_000_000),
    ],
)
def test_quantities(parse: Callable[[object], int], text: object, value: int) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("parse", [parse_size, parse_time, parse_rate])
@pytest.mark.parametrize(
    "text", ["", "5", 5, "fast", "nan us", "-1 us", "-1 KiB", "-3 GB/s", "5 Gb/h", True, None, "1e99 GB"]
)
def test_what_is_no_quantity_is_refused_with_what_is_allowed(parse: Callable[[object, str], int], text: object) -> None:
    with pytest.raises(InputError, match=r"the_field.*allowed"):
        parse(text, "the_field")


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match="above 0"):
        parse_rate("0 GB/s")


def test_quantities_are_written_as_people_write_them() -> None:
    assert [format_size(s) for s in (500, 32768, 4456448, 2**30)] == ["500 B", "32 KiB", "4.25 MiB", "1 GiB"]
    assert [format_time(t) for t in (3, 760_000, 12_300_000_000)] == ["3 ps", "760 ns", "12.3 ms"]
