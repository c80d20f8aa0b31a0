"""A sweep may be stopped at any moment, in any way: what was done stays, and nothing is computed twice."""

import json
import random
import signal
import subprocess
import sys
from functools import partial

import pandas as pd
import pytest
from xstage.sweeps.journal import FILE

from .studies import EMPTY, LONG, has_grown, journal_rows, start, wait_until, workers_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def test_killed_at_random_moments_it_goes_on_and_computes_nothing_twice(tmp_path):
    folder, chance = tmp_path / "out", random.Random(0)
    before = {}
    for _ in range(3):
        running = start(LONG, folder, "--workers", "2")
        try:
            running.wait(timeout=chance.uniform(0.8, 2.5))
        except subprocess.TimeoutExpired:
            running.kill()
        running.communicate()
        wait_until(lambda pid=running.pid: not workers_of(pid))
        now = journal_rows(folder)
        assert {key: now.get(key) for key in before} == before  # no record has gone, or was written again
        before = now
    last = start(LONG, folder, "--workers", "2")
    out, err = last.communicate(timeout=120)
    answer = json.loads(out)
    assert (last.returncode, answer["points"], answer["done"]) == (0, 60, 60), err
    rows = journal_rows(folder)
    assert answer["resumed"] == len(before) and len(rows) == 60
    assert {key: rows[key] for key in before} == before
    frame = pd.read_parquet(folder / "points.parquet")
    assert list(frame["point"]) == list(range(60))
    assert frame["timing.run"].nunique() == len({run for run, _ in rows.values()})


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_keeps_what_is_done_and_leaves_no_worker(tmp_path, stop):
    folder = tmp_path / "out"
    running = start(LONG, folder, "--workers", "2")
    wait_until(partial(has_grown, folder, EMPTY))
    running.send_signal(stop)
    out, _ = running.communicate(timeout=60)
    assert not workers_of(running.pid)
    rows = journal_rows(folder)
    assert 0 < len(rows) < 60
    if stop == signal.SIGINT:
        assert running.returncode == -signal.SIGINT
        assert json.loads(out)["error"]["type"] == "Interrupted"
        assert len(pd.read_parquet(folder / "points.parquet")) == len(rows)
        assert sorted(file.name for file in folder.iterdir()) == ["journal.sqlite", "points.parquet"]


def test_stopped_while_it_resumes_the_table_loses_no_row(tmp_path):
    folder = tmp_path / "out"
    rows = []
    for _ in range(2):
        size = (folder / FILE).stat().st_size if rows else EMPTY
        running = start(LONG, folder, "--workers", "1")
        wait_until(partial(has_grown, folder, size))
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
        rows.append(len(pd.read_parquet(folder / "points.parquet")))
    assert 0 < rows[0] < rows[1] < 60
