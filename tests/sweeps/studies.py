"""Small studies, and sweeps of them as processes of their own that tests can stop."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from xstage.sweeps import journal

FAST = {
    "question": "q?",
    "scenario": {
        "question": "q?", "machine": "hgx-b200", "engine": "simpy",
        "workload": {"kind": "burst_train", "producers": 4, "burst": "4 KiB"},
    },
    "axes": {"workload.producers": [1, 2, 4], "workload.burst": ["1 KiB", "2 KiB", "3 KiB", "4 KiB"]},
}  # fmt: skip

LONG = FAST | {
    "overrides": {"workload.burst": "8 KiB"},
    "axes": {
        "workload.producers": [20, 21, 22, 23, 24, 25],
        "workload.bursts": {"range": {"start": 4, "stop": 13, "step": 1}, "path": "workload.bursts"},
    },
}
"""60 points of the readable engine, some 50 ms each."""

ENDLESS = FAST | {
    "axes": {"workload.bursts": [1, 200_000, 2]},
    "overrides": {"workload.producers": 10, "workload.burst": "8 KiB"},
}
"""Three points, the second of which takes many minutes."""

EMPTY = 8192
"""Bytes of a journal without records."""


def start(study: dict, folder: Path, *options: str, **more) -> subprocess.Popen:
    """`xstage sweep` in a process of its own; the study's file is beside the folder."""
    file = folder.parent / "study.yaml"
    file.write_text(json.dumps(study))
    command = [sys.executable, "-m", "xstage", "sweep", str(file), "-o", str(folder), "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def journal_rows(folder: Path) -> dict[str, tuple]:
    """Key to run and timing of every record in the journal, whoever was killed while writing it."""
    if not (folder / journal.FILE).exists():
        return {}
    base = sqlite3.connect(folder / journal.FILE)
    try:
        return {key: rest for key, *rest in base.execute("SELECT key, run, timing FROM records")}
    except sqlite3.OperationalError:  # killed before there was a table
        return {}
    finally:
        base.close()


def has_grown(folder: Path, size: int) -> bool:
    """Whether a running sweep has written records beyond a size of its journal, which is locked, but grows."""
    file = folder / journal.FILE
    return file.exists() and file.stat().st_size > size


def workers_of(parent: int) -> list[int]:
    """The worker processes of one sweep that are alive."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode().split("\0")
        except OSError:  # it has ended in the meantime
            continue
        if "xstage.sweeps.worker" in words and str(parent) in words:
            found.append(int(file.parent.name))
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Look again and again."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)
