"""Processes that `map_on_workers` starts."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from xstage.sim.errors import InputError, XstageError

from xstage.workers import each_on_workers, map_on_workers

WITHOUT_A_GUARD = """
import math
from xstage.workers import map_on_workers

print(map_on_workers(math.factorial, [3, 4, 5], 2))
"""

ENDLESS = """
from xstage.workers import map_on_workers

work = "import os, pathlib, time; pathlib.Path(str(os.getpid())).touch(); time.sleep(600)"
map_on_workers(exec, [work, work], 2)
"""
"""Two workers that leave a file named by their process when they are at work."""


def refuse(value: int) -> int:
    raise InputError("is refused", field="value", value=value, line=3)


def fail(value: int) -> int:
    raise ValueError(f"cannot take {value}")


def workers_of(pid: int) -> list[int]:
    """Processes whose parent is `pid`, as /proc says."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(after_name[1]) == pid and after_name[0] != "Z":
            found.append(int(status.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_workers_give_what_one_process_gives_in_order() -> None:
    seen: list[tuple[int, int]] = []
    assert map_on_workers(abs, [-3, 2, -1], 2, lambda done, of, share=None: seen.append((done, of))) == [3, 2, 1]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert map_on_workers(abs, [-3, 2, -1], 1) == [3, 2, 1]


def test_an_input_that_cannot_be_sent_leaves_no_process() -> None:
    before = workers_of(os.getpid())
    with pytest.raises((AttributeError, pickle.PicklingError)):
        map_on_workers(abs, [lambda: 1, 2], 2)  # type: ignore[list-item]
    assert set(workers_of(os.getpid())) <= set(before)


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(WITHOUT_A_GUARD)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[6, 24, 120]\n", "")


def test_neighbours_that_belong_together_go_to_one_worker() -> None:
    by_parity = list(each_on_workers(_process, [0, 2, 4, 1, 3], 2, together=lambda value: value % 2))
    processes = {value: process for value, process in (found for _, found in by_parity)}
    assert len({processes[value] for value in (0, 2, 4)}) == len({processes[value] for value in (1, 3)}) == 1
    assert processes[0] != processes[1]


def _process(value: int) -> tuple[int, int]:
    return value, os.getpid()


def test_an_error_is_the_one_that_was_raised() -> None:
    with pytest.raises(InputError) as refused:
        map_on_workers(refuse, [7, 8], 2)
    assert (refused.value.field, refused.value.line) == ("value", 3)
    with pytest.raises(ValueError, match="cannot take") as failed:
        map_on_workers(fail, [7, 8], 2)
    assert "in fail" in failed.value.__notes__[0], "where it was in the worker"


def test_a_worker_that_dies_is_an_error() -> None:
    with pytest.raises(XstageError, match="ended with exit code 3"):
        map_on_workers(os._exit, [3, 3], 2)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    with subprocess.Popen([sys.executable, script], cwd=tmp_path, stderr=subprocess.PIPE) as parent:
        until = time.monotonic() + 60
        while len(workers := [int(file.name) for file in tmp_path.glob("[0-9]*")]) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert set(workers) <= set(workers_of(parent.pid))
        assert len(workers) == 2
        parent.send_signal(how)
        parent.communicate(timeout=60)
        while any(map(is_running, workers)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(map(is_running, workers))
