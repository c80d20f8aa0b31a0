"""How many points a second does a sweep compute, how does that grow with workers, and does it survive being killed?

    python benchmarks/sweep.py [--points 10000] [--workers 2] [--long-points 200]     processes
    python benchmarks/sweep.py dask [--points 10000]                                  and a Dask cluster: the same rows?
    python benchmarks/sweep.py kill [--points 10000] [--seed 0]                       kill -9 at random moments, resume

The study has small points (8 producers, one burst, compiled engine), whose own work is about that of reading and storing
them. The first mode also runs points that take longer, and every folder a second time, which computes nothing. Scaling is
over one worker, the start of the workers included. On a busy computer go by the CPU time: this process hands out and
writes, and is one for all workers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xstage.sweeps.journal import FILE
from xstage.sweeps.parent import processors
from xstage.sweeps.run import Sweep, sweep


def small(points: int) -> dict[str, Any]:
    """Points whose own work is about that of reading and storing them."""
    sizes = min(100, points)
    rates = {"start": "100 GB/s", "stop": "1000 GB/s", "points": -(-points // sizes)}
    bursts = {"start": "1 KiB", "stop": "100 KiB", "points": sizes}
    return _study("isolated-burst", {"workload.producers": 8, "trace": "off"}, rates, bursts)


def long(points: int) -> dict[str, Any]:
    """Points of some 100,000 model events."""
    rates = {"start": "400 GB/s", "stop": "800 GB/s", "points": -(-points // 20)}
    bursts = {"start": "16 KiB", "stop": "54 KiB", "points": 20}
    return _study("periodic-train", {"workload.bursts": 10}, rates, bursts)


def _study(scenario: str, overrides: dict[str, Any], rates: dict[str, Any], bursts: dict[str, Any]) -> dict[str, Any]:
    axes = {
        "rate": {"path": "machine.interconnect.drain_rate", "range": rates},
        "burst": {"path": "workload.burst", "range": bursts},
    }
    return {"question": "How fast is a sweep?", "scenario": scenario, "overrides": overrides, "axes": axes}


def on_processes(options: argparse.Namespace, folder: Path) -> bool:
    """One process, several, and once more into the same folder; for small points and for longer ones."""
    count = options.workers
    for name, study in (("small", small(options.points)), ("long", long(options.long_points))):
        before = _cpu_s()
        one = sweep(study, folder / f"{name}-one", workers=1)
        here_s, workers_s = (now - then for now, then in zip(_cpu_s(), before, strict=True))
        several = sweep(study, folder / f"{name}-several", workers=count)
        again = sweep(study, folder / f"{name}-several", workers=count)
        print(f"{name} points: {one.points}, {one.failed} failed")
        _print_rate("1 process", one)
        _print_rate(f"{count} processes", several)
        print(f"  scaling             {_rate(several) / _rate(one):>10.2f} x")
        print(f"  same rows           {same_rows(one, several)}")
        cost = f"{1e3 * workers_s / one.points:>10.2f} ms in workers, {1e3 * here_s / one.points:.2f} ms here"
        print(f"  CPU time a point    {cost}")
        _print_rate("found again", again, f", {again.resumed} resumed")
    return same_rows(one, several) and again.resumed == again.points


def on_dask(options: argparse.Namespace, folder: Path) -> bool:
    """The same study on processes and on a Dask cluster of one and of two workers, all of them on this computer."""
    study = small(options.points)
    here = sweep(study, folder / "processes", workers=options.workers)
    found = []
    for count in (1, options.workers):
        with dask_cluster(folder / f"cluster-{count}", count) as address:
            found.append(sweep(study, folder / f"dask-{count}", dask=address))
    print(f"small points: {here.points}, {here.failed} failed")
    _print_rate(f"{options.workers} processes", here)
    for count, done in zip((1, options.workers), found, strict=True):
        _print_rate(f"{count} Dask worker{'s' * (count > 1)}", done)
    print(f"  scaling             {_rate(found[1]) / _rate(found[0]):>10.2f} x")
    same = all(same_rows(here, done) for done in found)
    print(f"  same rows           {same}")
    return same


def killed(options: argparse.Namespace, folder: Path) -> bool:
    """Kill a sweep at random moments until it comes through, and look at the journal after each kill.

    Nothing is lost if every record that was there still is, with the run and the times that it was written with: a record
    that was computed again would have another run. The journal itself refuses a second record of a key. What was in flight
    is computed again; that is at most a batch a worker, and what came in the last 0.2 s.
    """
    study, out, chance = small(options.points), folder / "killed", random.Random(options.seed)
    before: dict[str, tuple[str, str]] = {}
    kills, lost, wall_s, window_s = 0, 0, 0.0, options.every_s
    file = folder / "study.yaml"
    file.write_text(json.dumps(study))
    while True:
        started = time.perf_counter()
        words = [sys.executable, "-m", "xstage", "sweep", str(file), "-o", str(out), "--workers", str(options.workers)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        with subprocess.Popen([*words, "--json"], **pipes) as running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(timeout=chance.uniform(0.5, 0.5 + window_s))
            if ended := running.poll() is not None:
                answer = json.loads(running.stdout.read() if running.stdout else "")
            else:
                os.kill(running.pid, signal.SIGKILL)
                kills += 1
        wall_s += time.perf_counter() - started
        now = journal_records(out)
        lost += sum(now.get(key) != record for key, record in before.items())
        what = "came through" if ended else f"kill {kills}"
        print(f"  {what:<19} {len(now):>10} records, {len(now) - len(before)} new")
        if len(now) == len(before):
            window_s *= 1.5  # this computer takes longer to begin than we leave it
        before = now
        if ended:
            break
    whole = sweep(study, folder / "whole", workers=options.workers)
    left = sweep(study, out, workers=options.workers)
    runs = len({run for run, _ in before.values()})
    same = same_rows(whole, left)
    print(f"small points: {whole.points}; killed {kills} times, in {wall_s:.1f} s")
    print(f"  without kills       {whole.timing['wall_s']:>10.1f} s")
    print(f"  records             {len(before):>10} of {answer['points']} points, by {runs} of {kills + 1} runs")
    print(f"  lost or rewritten   {lost:>10}")
    print(f"  resumed afterwards  {left.resumed:>10}, computed {left.points - left.resumed}")
    print(f"  same rows           {same}")
    return not lost and same and len(before) == whole.points and left.resumed == left.points


def journal_records(folder: Path) -> dict[str, tuple[str, str]]:
    """Key to run and times of every record, whoever was killed while writing; none if there is no journal yet."""
    if not (folder / FILE).exists():
        return {}
    with contextlib.closing(sqlite3.connect(folder / FILE)) as base:
        try:
            return {key: (run, timing) for key, run, timing in base.execute("SELECT key, run, timing FROM records")}
        except sqlite3.OperationalError:  # killed before there was a table
            return {}


@contextlib.contextmanager
def dask_cluster(folder: Path, workers: int) -> Iterator[str]:
    """The address of a scheduler on this computer with some workers, each a process with one thread."""
    from distributed import Client

    folder.mkdir()
    file = folder / "scheduler.json"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    running = [subprocess.Popen([*command, "--scheduler-file", str(file), "--no-dashboard"], **quiet)]
    try:
        while not file.exists():
            time.sleep(0.05)
        words = [
            "--scheduler-file",
            str(file),
            "--nthreads",
            "1",
            "--no-nanny",
            "--host",
            "127.0.0.1",
            "--no-dashboard",
        ]
        for _ in range(workers):
            running.append(subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_worker", *words], **quiet))
        with Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)
            address = str(client.scheduler.address)
        yield address
    finally:
        for process in reversed(running):
            process.kill()
            process.wait()


def same_rows(one: Sweep, other: Sweep) -> bool:
    """Whether two sweeps found the same, times aside."""
    frames = [done.frame for done in (one, other)]
    return bool(frames[0][_kept(frames[0])].equals(frames[1][_kept(frames[1])]))


def _kept(frame: Any) -> list[str]:
    return [name for name in frame.columns if not name.startswith("timing.")]


def _print_rate(name: str, done: Sweep, more: str = "") -> None:
    print(f"  {name:<19} {_rate(done):>10,.0f} points/s{more}")


def _rate(done: Sweep) -> float:
    return done.points / done.timing["wall_s"]


def _cpu_s() -> tuple[float, float]:
    """User and system time of this process, and of those that it has started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    here, children = (each.ru_utime + each.ru_stime for each in used)
    return here, children


MODES = {"processes": on_processes, "dask": on_dask, "kill": killed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", choices=MODES, default="processes")
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--long-points", type=int, default=200)
    parser.add_argument("--workers", type=int, default=processors())
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which `kill` kills")
    parser.add_argument(
        "--every-s", type=float, default=4.0, help="`kill` waits up to so long, more if nothing happens"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sweep(small(10), Path(folder) / "first", workers=1)  # compiles, if that was never done
        if not MODES[options.mode](options, Path(folder)):
            sys.exit("FAILED: see above")


if __name__ == "__main__":
    main()
