"""Threads on cores: whatever ends one ends all, and none is left behind."""

import _thread
import threading

import pytest
from xstage.hw_validate.cpu.cores import choose_cores, run_pinned, usable_cores
from xstage.sim.errors import InputError, XstageError

CORE = usable_cores()[0]


def lanes_alive():
    return [thread for thread in threading.enumerate() if thread.name.startswith("xstage lane")]


def test_results_come_in_the_order_of_the_functions():
    assert run_pinned([lambda: "first", lambda: "second"], [CORE, CORE]) == ["first", "second"]
    assert lanes_alive() == []


def test_an_error_in_one_thread_ends_the_others_and_is_raised():
    stop = threading.Event()

    def fail():
        raise XstageError("lane 1 failed")

    with pytest.raises(XstageError, match="lane 1 failed"):
        run_pinned([lambda: stop.wait(60), fail], [CORE, CORE], abort=stop.set)
    assert stop.is_set()
    assert lanes_alive() == []


def test_ctrl_c_ends_every_thread():
    stop = threading.Event()

    def interrupt():
        _thread.interrupt_main()
        stop.wait(60)

    with pytest.raises(KeyboardInterrupt):
        run_pinned([lambda: stop.wait(60), interrupt], [CORE, CORE], abort=stop.set)
    assert stop.is_set()
    assert lanes_alive() == []


@pytest.mark.parametrize("count", [0, len(usable_cores()) + 1])
def test_cores_that_are_not_there_are_refused(count):
    with pytest.raises(InputError, match=f"cores = {count}"):
        choose_cores(count)


def test_the_cores_that_lose_least_time_are_taken():
    lost = {core: -core for core in usable_cores()}
    assert choose_cores(1, lost.__getitem__) == [max(usable_cores())]
