"""How many points a second does a sweep compute, and how does that grow with processes?

    python benchmarks/sweep.py [--points 10000]

Runs a study of small points (8 producers, one burst, compiled engine) with one process and with as many as there are
processors, then again into the same folder, which computes nothing; then the same for points that take longer. On a
busy computer go by the CPU time: this process hands out and writes, and is one for all workers.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path
from typing import Any

from xstage.sweeps.run import Sweep, processors, sweep

LONG_POINTS = 200


def small(points: int) -> dict[str, Any]:
    """Points whose own work is about that of reading and storing them."""
    rates = {"start": "100 GB/s", "stop": "1000 GB/s", "points": -(-points // 100)}
    sizes = {"start": "1 KiB", "stop": "100 KiB", "points": 100}
    return _study("isolated-burst", {"workload.producers": 8, "trace": "off"}, rates, sizes)


def long(points: int) -> dict[str, Any]:
    """Points of some 100,000 model events."""
    rates = {"start": "400 GB/s", "stop": "800 GB/s", "points": -(-points // 20)}
    sizes = {"start": "16 KiB", "stop": "54 KiB", "points": 20}
    return _study("periodic-train", {"workload.bursts": 10}, rates, sizes)


def _study(scenario: str, overrides: dict[str, Any], rates: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    axes = {
        "rate": {"path": "machine.interconnect.drain_rate", "range": rates},
        "burst": {"path": "workload.burst", "range": sizes},
    }
    return {"question": "How fast is a sweep?", "scenario": scenario, "overrides": overrides, "axes": axes}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=10_000)
    points = parser.parse_args().points
    many = processors()
    with tempfile.TemporaryDirectory() as folder:
        sweep(small(100), Path(folder) / "first", workers=1)  # compiles, if that was never done
        for name, study in (("small", small(points)), ("long", long(LONG_POINTS))):
            before = _cpu_s()
            one = sweep(study, Path(folder) / f"{name}-one", workers=1)
            here_s, workers_s = (now - then for now, then in zip(_cpu_s(), before, strict=True))
            all_of_them = sweep(study, Path(folder) / f"{name}-many", workers=many)
            again = sweep(study, Path(folder) / f"{name}-many", workers=many)
            print(f"{name} points: {one.points}, {one.failed} failed")
            print(f"  1 process          {_rate(one):>10,.0f} points/s")
            print(f"  {many} processes        {_rate(all_of_them):>10,.0f} points/s")
            print(
                f"  scaling            {_rate(all_of_them) / _rate(one):>10.2f} x   (start of the processes included)"
            )
            cost = f"{1e3 * workers_s / one.points:>10.2f} ms in workers, {1e3 * here_s / one.points:.2f} ms here"
            print(f"  CPU time a point   {cost}")
            print(f"  found again        {_rate(again):>10,.0f} points/s, {again.resumed} resumed")


def _cpu_s() -> tuple[float, float]:
    """User and system time of this process, and of those that it has started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    here, children = (each.ru_utime + each.ru_stime for each in used)
    return here, children


def _rate(done: Sweep) -> float:
    return done.points / done.timing["wall_s"]


if __name__ == "__main__":
    main()
