"""FlashInfer's profiler buffer, written here as its kernels write it."""

import numpy as np
import pytest
from xstage.hw_validate.readers.flashinfer import BEGIN, END, INSTANT, decode
from xstage.hw_validate.readers.read import read_trace
from xstage.sim.errors import InputError

WRAP = 2**32


class Kernel:
    """A grid whose groups note events; `sm_of` says on which SM a block runs (0 in versions that do not note it)."""

    def __init__(self, blocks, groups, slots=8, sm_of=lambda block: 10 + block):
        self.blocks, self.groups, self.sm_of = blocks, groups, sm_of
        self.buffer = np.zeros(1 + blocks * groups * slots, dtype=np.uint64)
        self.buffer[0] = groups << 32 | blocks
        self.slot = np.zeros((blocks, groups), dtype=int)

    def note(self, block, group, event, kind, time_ns):
        track = block * self.groups + group
        place = 1 + self.slot[block, group] * self.blocks * self.groups + track
        tag = (self.sm_of(block) << 24) | (track % 4096) << 12 | event << 2 | kind
        self.buffer[place] = time_ns % WRAP << 32 | tag
        self.slot[block, group] += kind != INSTANT

    def span(self, block, group, event, start, end):
        self.note(block, group, event, BEGIN, start)
        self.note(block, group, event, END, end)


def spans(table):
    return table[["sm", "role", "name", "start_us", "end_us"]].astype(object).to_numpy().tolist()


def test_groups_of_blocks_are_lanes_and_events_have_their_names(tmp_path):
    kernel = Kernel(blocks=2, groups=2)
    kernel.span(0, 0, 0, 1_000, 1_500)
    kernel.span(0, 0, 1, 1_500, 4_000)
    kernel.span(1, 1, 1, 1_250, 2_000)
    np.save(tmp_path / "buffer.npy", kernel.buffer)
    table = read_trace(tmp_path / "buffer.npy", event_names=["load", "mma"], gpu=3)
    assert spans(table) == [
        [10, "block 0 group 0", "load", 0.0, 0.5],
        [11, "block 1 group 1", "mma", 0.25, 1.0],
        [10, "block 0 group 0", "mma", 0.5, 3.0],
    ]
    assert set(table["gpu"]) == {3} and table["lane"].tolist() == [0, 1, 0]


def test_the_clock_may_come_round_within_a_group_and_between_groups():
    kernel = Kernel(blocks=2, groups=1)
    kernel.span(0, 0, 0, WRAP - 500, WRAP + 500)
    kernel.span(0, 0, 0, WRAP + 700, WRAP + 900)
    kernel.span(1, 0, 0, WRAP + 100, WRAP + 300)
    assert [row[3:] for row in spans(decode(kernel.buffer))] == [[0.0, 1.0], [0.6, 0.8], [1.2, 1.4]]

    kernel = Kernel(blocks=2, groups=1)
    kernel.span(0, 0, 0, WRAP + 100, WRAP + 300)
    kernel.span(1, 0, 0, WRAP - 500, WRAP + 500)
    assert [row[3:] for row in spans(decode(kernel.buffer))] == [[0.0, 1.0], [0.6, 0.8]]


def test_a_kernel_may_run_longer_than_the_clock_takes_to_come_round():
    kernel = Kernel(blocks=1, groups=1, slots=10)
    for second in range(0, 10, 2):
        kernel.span(0, 0, 0, second * 10**9, (second + 1) * 10**9)
    assert spans(decode(kernel.buffer))[-1][3:] == [8e6, 9e6]


def test_nested_events_are_two_lanes():
    kernel = Kernel(blocks=1, groups=1)
    kernel.note(0, 0, 0, BEGIN, 100)
    kernel.span(0, 0, 1, 200, 300)
    kernel.note(0, 0, 0, END, 400)
    table = decode(kernel.buffer, ["tile", "mma"])
    assert table[["name", "lane"]].astype(object).to_numpy().tolist() == [["tile", 0], ["mma", 1]]


def test_an_instant_takes_no_time():
    kernel = Kernel(blocks=1, groups=1)
    kernel.span(0, 0, 0, 100, 200)
    kernel.note(0, 0, 1, INSTANT, 250)
    assert spans(decode(kernel.buffer))[1][3:] == [0.15, 0.15]


def test_more_groups_than_the_tag_can_number_are_told_apart_by_their_place():
    kernel = Kernel(blocks=3_000, groups=2, slots=2, sm_of=lambda block: block % 148)
    for block in (0, 2_048, 2_999):
        kernel.span(block, 1, 0, 1_000 + block, 2_000 + block)
    assert [row[1] for row in spans(decode(kernel.buffer))] == [f"block {n} group 1" for n in (0, 2_048, 2_999)]


def test_a_version_that_does_not_note_the_sm_gives_none():
    kernel = Kernel(blocks=2, groups=1, sm_of=lambda block: 0)
    for block in range(2):
        kernel.span(block, 0, 0, 100, 200)
    assert set(decode(kernel.buffer)["sm"]) == {-1}


def test_an_event_that_begins_or_ends_alone_is_refused():
    kernel = Kernel(blocks=2, groups=2)
    kernel.note(1, 0, 5, BEGIN, 100)
    with pytest.raises(InputError, match="event 5 of block 1, group 0 begins but never ends: is the buffer too small"):
        decode(kernel.buffer)
    kernel = Kernel(blocks=2, groups=2)
    kernel.note(0, 1, 5, END, 100)
    with pytest.raises(InputError, match="event 5 of block 0, group 1 ends but never begins"):
        decode(kernel.buffer)


def test_what_is_no_buffer_is_refused(tmp_path):
    np.save(tmp_path / "floats.npy", np.zeros(4))
    with pytest.raises(InputError, match=r"floats\.npy: array = 'float64 \[4\]': is no profiler buffer"):
        read_trace(tmp_path / "floats.npy")
    with pytest.raises(InputError, match=r"0 blocks, 0 groups.*was the kernel built with its profiler"):
        decode(np.zeros(4, dtype=np.uint64))
    with pytest.raises(InputError, match="holds nothing that ran"):
        decode(Kernel(1, 1).buffer)
    kernel = Kernel(blocks=2, groups=2)
    kernel.span(0, 0, 0, 100, 200)
    with pytest.raises(InputError, match="has entries of other blocks than their place says"):
        decode(np.concatenate([kernel.buffer[:1], np.roll(kernel.buffer[1:], 1)]))


def test_an_event_without_a_name_is_refused():
    kernel = Kernel(blocks=1, groups=1)
    kernel.span(0, 0, 4, 100, 200)
    with pytest.raises(InputError, match=r"event = 4: has no name \(allowed: 2 names were given\)"):
        decode(kernel.buffer, ["a", "b"])
    assert spans(decode(kernel.buffer))[0][2] == "event 4"


@pytest.mark.parametrize("first", [2**64 - 1, 3 << 32 | 3])
def test_a_buffer_without_room_for_its_groups_is_refused(first):
    with pytest.raises(InputError, match="has 8 entries, fewer than one for each group of a block"):
        decode(np.array([first] + [1] * 8, dtype=np.uint64))


def test_a_gpu_that_cannot_be_is_refused():
    kernel = Kernel(blocks=1, groups=1)
    kernel.span(0, 0, 0, 1_000, 1_500)
    with pytest.raises(InputError, match="gpu = 99999999999: is out of range"):
        decode(kernel.buffer, gpu=99_999_999_999)
