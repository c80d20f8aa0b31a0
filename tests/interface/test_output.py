"""How tables for people are laid out."""

import pytest

from xstage.terminal.output import folded, show, table


@pytest.mark.parametrize(
    ("cells", "lines"),
    [
        ([9.5, 10], ["stall us  GPU", "   9.500  a", "      10  b"]),
        (["9.51", "+10.5"], ["stall us  GPU", "    9.51  a", "   +10.5  b"]),
        (["9.5 %", ""], ["stall us  GPU", "   9.5 %  a", "          b"]),
        (["9.51 GB/s", "1,020 kB/s"], ["  stall us  GPU", " 9.51 GB/s  a", "1,020 kB/s  b"]),
        (["9.51", "none"], ["stall us  GPU", "9.51      a", "none      b"]),
    ],
)
def test_columns_of_numbers_and_of_text_that_is_one_and_a_unit_stand_to_the_right(capsys, cells, lines):
    show(table("", ("stall us", "GPU"), list(zip(cells, "ab", strict=True))))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == lines


def test_a_table_that_is_too_wide_goes_on_in_one_that_says_so(capsys):
    show(*folded("us, by policy", ("phase", "fused", "serial"), [["l1", "1.000", "2.000"]], width=14))
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        "us, by policy",
        "phase  fused",
        "l1     1.000",
        "us, by policy, continued",
        "phase  serial",
        "l1      2.000",
    ]
