"""Processes that `map_on_workers` starts."""

import subprocess
import sys
from pathlib import Path

from xstage.workers import map_on_workers

ENDLESS = """
import time
from xstage.workers import map_on_workers

def work(seconds):
    print("at work", flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    map_on_workers(work, [600, 600], 2)
"""


def test_workers_give_what_one_process_gives_in_order() -> None:
    seen: list[tuple[int, int]] = []
    assert map_on_workers(abs, [-3, 2, -1], 2, lambda done, of: seen.append((done, of))) == [3, 2, 1]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert map_on_workers(abs, [-3, 2, -1], 1) == [3, 2, 1]


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Also when that one is killed: their common standard output is closed then."""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["at work\n", "at work\n"]
        parent.kill()
        assert parent.communicate(timeout=60) == ("", None)
