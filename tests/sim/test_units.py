"""Text with units becomes whole bytes, picoseconds and kB/s, or a clear refusal."""

from __future__ import annotations

import re
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
        (parse_size, "32 kB", 32_000),
        (parse_size, "32 KB", 32_000),
        (parse_size, 0, 0),
        (parse_time, "0.76 us", 760_000),
        (parse_time, "0.76 \u00b5s", 760_000),
        (parse_time, "0.76 \u03bcs", 760_000),
        (parse_time, "1 ms", 10**9),
        (parse_time, "3ps", 3),
        (parse_rate, "717 GB/s", 717_000_000),
        (parse_rate, "1.8 TB/s", 1_800_000_000),
        (parse_rate, "5 kB/s", 5),
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


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (parse_rate, "400 Gb/s", "is not a rate in bytes: 400 Gb/s in bits are 50 GB/s, in bytes 400 GB/s"),
        (parse_rate, "400 Gbit/s", "400 Gbit/s in bits are 50 GB/s, in bytes 400 GB/s"),
        (parse_rate, "400 Gbps", "400 Gbps in bits are 50 GB/s, in bytes 400 GB/s"),
        (parse_rate, "1.6 Tb/s", "1.6 Tb/s in bits are 0.2 TB/s, in bytes 1.6 TB/s"),
        (parse_rate, "717 gb/s", "717 gb/s in bits are 89.625 GB/s, in bytes 717 GB/s"),
        (parse_size, "32 Kb", "is not a size in bytes: 32 Kb in bits are 4 KB, in bytes 32 KB"),
        (parse_rate, "9 kb/s", "9 kb/s in bits are 1.125 kB/s, in bytes 9 kB/s"),
        (parse_size, "32 kib", "32 kib in bits are 4 KiB, in bytes 32 KiB"),
        (parse_size, "8 b", "8 b in bits are 1 B, in bytes 8 B"),
        (parse_size, "32 KIB", "is not a size: upper and lower case differ; did you mean '32 KiB'?"),
        (parse_time, "4 Ms", "is not a time: upper and lower case differ; did you mean '4 ms'?"),
        (parse_time, "4 PS", "did you mean '4 ps'?"),
        (parse_rate, "717 GiB/s", "is not a rate (allowed"),
    ],
)
def test_bits_and_letters_of_the_wrong_case_are_not_taken_for_what_they_may_not_mean(
    parse: Callable[[object], int], text: str, said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        parse(text)


@pytest.mark.parametrize("rate", ["0 GB/s", "-1 GB/s"])
def test_a_rate_that_is_not_positive_is_refused(rate: str) -> None:
    with pytest.raises(InputError, match="must be above 0"):
        parse_rate(rate)


@pytest.mark.parametrize(
    ("parse", "text", "smallest"),
    [
        (parse_size, "0.4 B", "the smallest size is 1 B"),
        (parse_time, "0.4 ps", "the smallest time is 1 ps"),
        (parse_time, "1e-20 us", "the smallest time is 1 ps"),
        (parse_rate, "0.4 kB/s", "the smallest rate is 1 KB/s"),
    ],
)
def test_what_would_round_to_nothing_is_refused(parse: Callable[[object], int], text: str, smallest: str) -> None:
    with pytest.raises(InputError, match=f"{re.escape(text)}.*is too small to count: {smallest}"):
        parse(text)


@pytest.mark.parametrize(("parse", "text"), [(parse_size, "0 B"), (parse_time, "0.0 us"), (parse_time, "-0 us")])
def test_nothing_is_a_size_and_a_time(parse: Callable[[object], int], text: str) -> None:
    assert parse(text) == 0


def test_what_is_too_large_is_told_the_most_that_it_may_be() -> None:
    with pytest.raises(InputError, match=r"must be at most 2\^62 ps"):
        parse_time("1e9 s")


def test_quantities_are_written_as_people_write_them() -> None:
    assert [format_size(s) for s in (500, 32768, 4456448, 2**30)] == ["500 B", "32 KiB", "4.25 MiB", "1 GiB"]
    assert [format_time(t) for t in (3, 760_000, 12_300_000_000)] == ["3 ps", "760 ns", "12.3 ms"]
