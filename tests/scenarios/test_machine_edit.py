"""New numbers in a machine file leave everything else as it was."""

import pytest
from xstage.scenarios.machine_edit import with_numbers
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError

FILE = """\
# A comment at the top.
base: hgx-b200
compute:
  # Why this is so.
  sms: {value: 148, source: "a sheet"}  # and more
  sm_feed:
    value: 56 GB/s
    source: >-
      one that runs
      over lines
    interval: [54 GB/s, 73 GB/s]

  # The next part of the part.
  tile_fixed: {value: 0.3 us, assumed: true, source: "a guess"}
interconnect:
  gpus: {value: 8, source: "a sheet"}
"""
FEED = {"value": "50 GB/s", "source": "fitted", "interval": ["48 GB/s", "52 GB/s"]}


def test_a_number_is_replaced_where_it_stands():
    before, after = FILE.splitlines(), with_numbers(FILE, {"compute.sm_feed": FEED}).splitlines()
    assert after[:5] == before[:5]
    assert after[5:10] == ["  sm_feed:", "    value: 50 GB/s", "    source: >-", "      fitted",
                           "    interval: [48 GB/s, 52 GB/s]"]  # fmt: skip
    assert after[10:] == before[11:]


def test_a_number_on_one_line_is_replaced_too():
    text = with_numbers(FILE, {"compute.sms": {"value": 152, "source": "another sheet"}})
    assert "# Why this is so.\n  sms:\n    value: 152\n    source: >-\n      another sheet\n  sm_feed:" in text


def test_a_new_number_goes_to_the_end_of_its_part():
    text = with_numbers(FILE, {"compute.pull_row": {"value": "2 us", "assumed": True, "source": "a guess"}})
    assert (
        text.index("tile_fixed")
        < text.index("  pull_row:\n    value: 2 us\n    assumed: true")
        < text.index("interconnect")
    )


def test_the_result_is_a_machine(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(with_numbers(FILE, {"compute.sm_feed": FEED}))
    number = load_machine(file).compute.sm_feed
    assert (number.value, number.interval, number.source) == (50_000_000, (48_000_000, 52_000_000), "fitted")


def test_a_part_that_the_file_does_not_spell_out_is_refused():
    with pytest.raises(InputError, match=r"stage\.t0"):
        with_numbers(FILE, {"stage.t0": FEED})
