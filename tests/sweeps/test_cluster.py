"""A sweep on a Dask cluster gives the rows that one on processes gives. Scheduler and workers are real, on this computer."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pandas as pd
import pytest
from xstage.sim.errors import InputError

import xstage as xs

from .studies import ENDLESS, FAST, wait_until
from .test_sweep import without_times

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'xstage[dask]'")


@contextmanager
def processes():
    """Starts processes, and ends them at the end."""
    running = []

    def start(module, *words, **more):
        command = [sys.executable, "-m", f"distributed.cli.{module}", *words, "--no-dashboard"]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more))

    try:
        yield start
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()


@contextmanager
def cluster(folder, environments):
    """The address of a scheduler with a worker for each environment."""
    file = folder / "scheduler.json"
    with processes() as start:
        start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
        wait_until(file.exists)
        for environment in environments:
            words = ("--scheduler-file", str(file), "--nthreads", "1", "--no-nanny", "--host", "127.0.0.1")
            start("dask_worker", *words, env=os.environ | environment, cwd=folder)
        from distributed import Client

        with Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(len(environments), timeout=60)
            address = client.scheduler.address
        yield address


def test_a_cluster_gives_the_rows_that_processes_give(tmp_path):
    alone = xs.sweep(FAST, tmp_path / "alone", workers=1)
    with cluster(tmp_path, [{}, {}]) as address:
        found = xs.sweep(FAST, tmp_path / "cluster", dask=address)
        assert (found.points, found.done, found.resumed) == (12, 12, 0)
        pd.testing.assert_frame_equal(without_times(alone.frame), without_times(found.frame))
        assert xs.sweep(FAST, tmp_path / "cluster", dask=address).resumed == 12
        late = xs.sweep(ENDLESS, tmp_path / "late", dask=address, timeout_s=2)
        assert list(late.frame["error_type"].fillna("")) == ["", "Timeout", ""]


def test_a_worker_with_other_sources_is_refused(tmp_path, changed_model):
    with cluster(tmp_path, [{}, changed_model]) as address:
        with pytest.raises(InputError) as caught:
            xs.sweep(FAST, tmp_path / "out", dask=address)
        assert "has xstage 0.1.0 with model" in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_an_address_where_nobody_answers_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("xstage.sweeps.cluster.CONNECT_S", 0.5)
    with pytest.raises(InputError) as caught:
        xs.sweep(FAST, tmp_path, dask="tcp://127.0.0.1:9")
    assert "does not answer as a Dask scheduler" in str(caught.value)
