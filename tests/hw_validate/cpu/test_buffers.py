"""Memory for stores: aligned, inside its bounds, and on huge pages as far as the system tells."""

import pytest
from xstage.hw_validate.cpu.buffers import HUGE_PAGE_BYTES, Buffer, huge_bytes_of
from xstage.sim.errors import InputError

SMAPS = """7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Size:               2048 kB
AnonHugePages:         0 kB
VmFlags: rd wr
7f0000400000-7f0000a00000 rw-p 00000000 00:00 0
Size:               6144 kB
AnonHugePages:      4096 kB
"""


@pytest.mark.parametrize("size", [64, 1 << 20, HUGE_PAGE_BYTES + 64])
def test_a_buffer_begins_where_a_huge_page_can_and_its_pages_can_be_written(size):
    with Buffer(size) as buffer:
        assert buffer.address % HUGE_PAGE_BYTES == 0
        assert len(buffer.bytes) == size
        buffer.bytes[:] = 7
        assert buffer.huge_bytes is None or 0 <= buffer.huge_bytes <= size


@pytest.mark.parametrize("size", [0, -64, 65])
def test_a_size_that_is_no_number_of_lines_is_refused(size):
    with pytest.raises(InputError, match=f"size = {size}"):
        Buffer(size)


@pytest.mark.parametrize(
    "address, size, expected",
    [(0x7F0000000000, 1 << 20, 0), (0x7F0000400000, 1 << 20, 1 << 20), (0x7F0000600000, 6 << 20, 4 << 20)],
)
def test_huge_pages_are_those_of_the_mapping_that_holds_the_buffer(tmp_path, address, size, expected):
    smaps = tmp_path / "smaps"
    smaps.write_text(SMAPS)
    assert huge_bytes_of(smaps, address, size) == expected


def test_a_system_that_does_not_tell_leaves_it_open(tmp_path):
    assert huge_bytes_of(tmp_path / "none", 0x7F0000000000, 64) is None
