"""When the clock of a GPU counts as steady, and how long that is waited for."""

from types import SimpleNamespace

import pytest
from xstage.hw_validate.cuda import steady
from xstage.hw_validate.cuda.steady import MOST_RUNS, until_steady

STATED = 1980.0


class Gpu:
    """Runs take `run_s` by a clock of its own; the SM clock of each is the next of `clocks`, the last one for ever."""

    def __init__(self, monkeypatch, clocks, run_s=0.0):
        self.clocks, self.run_s, self.runs, self.now = clocks, run_s, 0, 0.0
        monkeypatch.setattr(steady, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def run(self):
        self.runs, self.now = self.runs + 1, self.now + self.run_s
        return self.clocks[min(self.runs, len(self.clocks)) - 1]

    def until_steady(self, wanted=2):
        return until_steady(self.run, lambda clock: clock, lambda clock: clock, STATED, wanted, self)


@pytest.mark.parametrize(("run_s", "wanted"), [(0.2, 3), (0.3, 2), (0.11, 5), (2.0, 2), (0.001, 60)])
def test_runs_at_one_clock_are_steady_however_long_or_many_they_are(monkeypatch, run_s, wanted):
    gpu = Gpu(monkeypatch, [STATED], run_s)
    assert gpu.until_steady(wanted) == ([STATED] * wanted, True)
    assert gpu.runs == wanted


def test_long_runs_whose_clock_moved_are_not_steady(monkeypatch):
    assert Gpu(monkeypatch, [1900.0, 1980.0], run_s=0.6).until_steady() == ([1900.0, 1980.0], False)


@pytest.mark.parametrize(("run_s", "runs"), [(0.0, MOST_RUNS + 2), (0.1, 7)])
def test_a_clock_that_never_rests_is_waited_for_so_often_or_so_long(monkeypatch, run_s, runs):
    """Half a second is over after the sixth run, of which the fifth is not thrown away any more."""
    gpu = Gpu(monkeypatch, [1400.0, 1500.0] * 40, run_s)
    found, is_steady = gpu.until_steady()
    assert len(found) == 2 and not is_steady
    assert gpu.runs <= runs and (run_s or gpu.runs == runs)


def test_a_clock_that_is_capped_is_waited_for_once(monkeypatch):
    gpu = Gpu(monkeypatch, [800.0])
    for runs in (MOST_RUNS + 2, 2, 2):
        before = gpu.runs
        assert gpu.until_steady() == ([800.0, 800.0], False)  # and it is told each time
        assert gpu.runs - before == runs


def test_a_cap_is_forgotten_when_the_clock_was_above_it(monkeypatch):
    gpu = Gpu(monkeypatch, [800.0] * (MOST_RUNS + 2) + [1980.0] * 2 + [800.0, 800.0, 1980.0])
    assert gpu.until_steady() == ([800.0, 800.0], False)
    assert gpu.until_steady() == ([1980.0, 1980.0], True)
    assert gpu.until_steady() == ([1980.0, 1980.0], True)


def test_below_a_cap_a_gpu_still_counts_as_idle(monkeypatch):
    gpu = Gpu(monkeypatch, [800.0] * (MOST_RUNS + 2) + [345.0, 345.0, 800.0])
    assert gpu.until_steady() == ([800.0, 800.0], False)
    assert gpu.until_steady() == ([800.0, 800.0], False)
    assert gpu.runs == MOST_RUNS + 2 + 4
