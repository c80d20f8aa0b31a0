"""The loop on a core: no store leaves its buffer, waits end, and an abort is obeyed."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from xstage.hw_validate.cpu import lane
from xstage.hw_validate.cpu.architecture import LINE_BYTES
from xstage.hw_validate.cpu.bench import check_steps
from xstage.sim.errors import InputError

GUARD_BYTES = 4096
FOREVER = 2**40
WRITTEN = 7  # every 32-bit word that a store writes


class Memory:
    """Lines between two guards, at an address that stores accept."""

    def __init__(self, lines):
        self.size = lines * LINE_BYTES
        self.all = np.zeros(2 * GUARD_BYTES + self.size + LINE_BYTES, dtype=np.uint8)
        start = -(-(self.all.ctypes.data + GUARD_BYTES) // LINE_BYTES) * LINE_BYTES - self.all.ctypes.data
        self.address = self.all.ctypes.data + start
        self.inside = self.all[start : start + self.size].view(np.int32).reshape(-1, LINE_BYTES // 4)
        self.outside = [self.all[:start], self.all[start + self.size :]]

    def guards_are_untouched(self):
        return all((guard == 0).all() for guard in self.outside)

    def lines_written(self):
        assert np.isin(self.inside, (0, WRITTEN)).all()
        return np.flatnonzero((self.inside == WRITTEN).all(axis=1)).tolist()


def run(steps, memory=None, cached=None, first=0, shared=None, n_lanes=1, patience=FOREVER):
    steps = np.array(steps, dtype=np.int64).reshape(-1, 4)
    stamps = np.zeros(len(steps) + 1, dtype=np.int64)
    shared = np.zeros(lane.N_SHARED, dtype=np.int64) if shared is None else shared
    memory, cached = memory or Memory(1), cached or Memory(1)
    outcome, offset = lane.run_lane(
        steps, first, stamps, shared.ctypes.data, n_lanes, memory.address, memory.size, cached.address, cached.size, patience
    )  # fmt: skip
    return outcome, offset, stamps


@given(st.integers(1, 40), st.lists(st.integers(0, 40), max_size=12))
def test_no_store_leaves_its_buffer(lines, bursts):
    memory, cached = Memory(lines), Memory(3)
    bursts = [min(burst, lines) for burst in bursts]
    steps = [(code, burst, 0, 0) for burst in bursts for code in (lane.STORE, lane.CACHED)]
    outcome, offset, _ = run(steps, memory, cached)
    assert outcome == lane.DONE
    assert 0 <= offset <= memory.size
    assert memory.guards_are_untouched()
    assert cached.guards_are_untouched()


@given(st.integers(0, 100), st.integers(0, 50), st.integers(50, 100))
def test_a_burst_starts_where_it_fits(offset, lines, room):
    start = lane.next_offset(offset * LINE_BYTES, lines, room * LINE_BYTES)
    assert start in (0, offset * LINE_BYTES)
    assert start + lines * LINE_BYTES <= room * LINE_BYTES


def test_bursts_follow_each_other_and_start_again_at_the_front():
    memory = Memory(10)
    _, offset, _ = run([(lane.STORE, 4, 0, 0)], memory)
    assert memory.lines_written() == [0, 1, 2, 3]
    _, offset, _ = run([(lane.STORE, 3, 0, 0)], memory, first=offset)
    assert memory.lines_written() == [0, 1, 2, 3, 4, 5, 6]
    _, offset, _ = run([(lane.STORE, 4, 0, 0)], memory, first=offset)
    assert (memory.lines_written(), offset) == ([0, 1, 2, 3, 4, 5, 6], 4 * LINE_BYTES)


@pytest.mark.parametrize("lines", [11, -1])
def test_a_burst_larger_than_the_buffer_is_refused(lines):
    steps = np.array([(lane.STORE, lines, 0, 0)], dtype=np.int64)
    with pytest.raises(InputError, match=r"does not fit into the buffer.*0 to 10"):
        check_steps(steps, 10 * LINE_BYTES)


def test_time_is_noted_after_every_step_and_never_goes_back():
    steps = [(lane.SPIN, 1000, 0, 0), (lane.STORE, 1, 0, 0), (lane.FENCE, 0, 0, 0), (lane.AT, 100_000, 0, 0)]
    outcome, _, stamps = run(steps)
    assert outcome == lane.DONE
    assert (np.diff(stamps) >= 0).all()
    assert stamps[1] - stamps[0] >= 1000


def test_counters_count_and_slots_are_taken_and_given():
    words = np.zeros(2, dtype=np.int64)
    counter, slot = words.ctypes.data, words.ctypes.data + 8
    outcome, _, _ = run(
        [
            (lane.SIGNAL, counter, 3, 0),
            (lane.WAIT, counter, 3, 0),
            (lane.RELEASE, slot, 5, 0),
            (lane.ACQUIRE, slot, 2, 0),
        ]
    )
    assert outcome == lane.DONE
    assert words.tolist() == [3, 3]


@pytest.mark.parametrize("code", [lane.WAIT, lane.ACQUIRE])
def test_a_wait_that_nobody_ends_gives_up(code):
    word = np.zeros(1, dtype=np.int64)
    assert run([(code, word.ctypes.data, 1, 0)], patience=1000)[0] == lane.TIMED_OUT


@pytest.mark.parametrize("steps", [[(lane.WAIT, 0, 1, 0)], [(lane.SPIN, 10, 0, 0)]])
def test_an_abort_ends_a_lane(steps):
    word = np.zeros(1, dtype=np.int64)
    steps = [(code, word.ctypes.data if code == lane.WAIT else a, b, c) for code, a, b, c in steps]
    shared = np.zeros(lane.N_SHARED, dtype=np.int64)
    shared[lane.ABORT] = 1
    assert run(steps, shared=shared)[0] == lane.ABORTED


def test_a_lane_does_not_start_without_the_others():
    assert run([(lane.SPIN, 1, 0, 0)], n_lanes=2, patience=1000)[0] == lane.TIMED_OUT
