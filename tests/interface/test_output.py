"""How tables for people are laid out, in terminals of any width and where there is none."""

import re

import pytest

from xstage.terminal.narrow import Bar, broken
from xstage.terminal.output import folded, parts_html, show, table

ROOFS = table(
    "what the busiest rank or port of each kind did",
    ("part", "busiest", "did", "rate", "at least, us", "of the time"),
    [["L2 cache", "the busiest rank", "4.31 GB", "6272.0 GB/s", "562.437", "81.8 %"]],
)
SENTENCE = (
    "The interval is that of 4 numbers of the machine within their intervals, by compute.mma_efficiency_bf16 alone."
)


@pytest.fixture
def printed(capsys, monkeypatch):
    """The lines that a terminal of some width shows, without its codes for bold."""

    def shown(width, *parts):
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        show(*parts)
        return re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()

    return shown


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
    assert capsys.readouterr().out.splitlines() == lines


def test_a_table_that_is_too_wide_goes_on_in_one_that_says_so(capsys):
    show(*folded("us, by policy", ("phase", "fused", "serial"), [["l1", "1.000", "2.000"]], width=14))
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "us, by policy",
        "phase  fused",
        "l1     1.000",
        "us, by policy, continued",
        "phase  serial",
        "l1      2.000",
    ]


def test_a_line_is_never_broken_where_there_is_no_terminal_and_has_no_blanks_at_its_end(capsys):
    show(SENTENCE * 3, ROOFS, table("", ("a", "b"), [("x", "one"), ("y", "")]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == SENTENCE * 3 and len(lines) == 7
    assert all(line == line.rstrip() for line in lines)


def test_a_sentence_wraps_between_words_and_a_file_is_shown_as_it_is(printed):
    assert all(len(line) <= 60 for line in printed(60, SENTENCE))
    assert " ".join(line.strip() for line in printed(60, SENTENCE)) == SENTENCE
    file = f"key: {SENTENCE}\nother: 1"
    assert printed(60, file) == file.splitlines()


@pytest.mark.parametrize("width", [60, 70, 80])
def test_no_number_wraps_in_a_narrow_terminal(printed, width):
    """Headers wrap first; then columns go below, beside the first one again."""
    lines = printed(width, ROOFS)
    assert all(len(line.rstrip()) <= width for line in lines)
    rows = [line for line in lines if line.startswith("L2 cache")]
    assert len(rows) == (2 if width == 60 else 1)
    for cell in ("the busiest rank", "4.31 GB", "6272.0 GB/s", "562.437", "81.8 %"):
        assert sum(cell in row for row in rows) == 1


NAMES = "roles.epilogue.not_running_mean_us"
DRAIN_RATE = "machine.interconnect.drain_rate"


@pytest.mark.parametrize("width", [30, 40])
@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (("metric", "old", "change"), (NAMES, "16938.904 us", "-100.0 %")),
        (("workload.file", DRAIN_RATE, "makespan_us"), ("own.npz", "1434 GB/s", "1234567890.123 us")),
        ((DRAIN_RATE, "workload.bursts", "seed"), ("717 GB/s", "12", "3")),
        (("policy", "settings", "makespan, us"), ("interleaved_ready", "lead_rows=1.5, ring_m_blocks=1234", "86.123")),
    ],
)
def test_names_break_where_a_number_would_have_to(printed, width, columns, row):
    """No letter is lost, and each number stands whole in one line."""
    lines = printed(width, table("", columns, [row]))
    assert all(len(line.rstrip()) <= width for line in lines)
    shown = "\n".join(lines)
    assert "…" not in shown
    for number in (cell for cell in row if re.fullmatch(r"[-\d.]+( \S+)?", cell)):
        assert sum(number in line for line in lines) >= 1, number
    parts = re.split(r"(?<=[._])(?=[A-Za-z])|\s+", " ".join((*columns, *row)))
    assert all(part in shown for part in parts)


def test_a_name_breaks_behind_points_and_underlines_and_a_number_does_not():
    assert broken(NAMES, 12).splitlines() == ["roles.", "epilogue.", "not_running_", "mean_us"]
    assert broken("takes 13.572 us", 9).splitlines() == ["takes", "13.572 us"]
    assert broken("abcdefgh ij", 5).splitlines() == ["abcde", "fgh", "ij"]


def test_what_room_is_left_is_first_that_of_text_and_bars(printed):
    """Of 34 characters the bar takes its 24, and the header of the number wraps into what is left."""
    rows = [("a", "1.250", Bar(0.6, 0.6, 40)), ("b", "2.500", Bar(0.3, 0.6, 40))]
    lines = printed(34, table("", ("", "of the time", "bar"), rows))
    assert [line.count("█") for line in lines if "█" in line] == [24, 12]
    assert [line.split() for line in lines[:3]] == [["of"], ["the"], ["time", "bar"]]


def test_a_bar_below_0_has_a_letter_however_small_it_is():
    assert Bar(-0.001, 0.6, 40, 0.005).text() == "░"
    assert Bar(0.001, 0.6, 40, 0.005).text() == ""


def test_text_wraps_in_its_column(printed):
    lines = printed(60, table("", ("policy", "why"), [("fused", SENTENCE)]))
    assert [line[:7].strip() for line in lines[:2]] == ["policy", "fused"]
    assert " ".join(line[7:].strip() for line in lines[1:]) == SENTENCE


def test_bars_are_as_long_as_their_shares_in_any_terminal(printed, capsys):
    rows = [(name, Bar(share, 0.6, 40, 0.005)) for name, share in (("a", 0.6), ("b", 0.3), ("c", 0.006), ("d", 0.001))]
    for width, longest in ((80, 24), (21, 14)):
        lines = printed(width, table("", ("limit", "bar"), rows))
        bars = [line.count("█") for line in lines[1:]]
        assert bars == [longest, longest // 2, 1, 0]
        assert not any("…" in line for line in lines)


def test_a_notebook_shows_rows_whole():
    wide = table("a title that is wider than its table", ("a", "b"), [("x", "y" * 200), ("z", "")])
    html = parts_html([wide, SENTENCE])
    assert "y" * 200 in html and "a title that is wider than its table" in html
    assert not any(line.endswith(" ") for line in html.replace("</span>", "").splitlines())
