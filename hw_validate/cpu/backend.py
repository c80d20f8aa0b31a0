"""The CPU as something to calibrate and validate on: what hw_validate/validate.py asks of every backend."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim.calibrate import BurstTimes, Calibration, NoLawError, fit
from ...sim.calibrated_machine import machine_of
from ...sim.machine import Machine
from ...sim.trace import Trace
from ..calibrated import Calibrated
from ..centre import centre
from ..compare import AGREES_PCT, STALLED_SHARE
from ..measuring import DisturbedError, Progress, silent
from ..unseen import bounds_of, unseen_traces
from .access import measure_access
from .architecture import LINE_BYTES
from .bench import Bench
from .microbenchmark import FIRST_LOOK, LEAST_NS, Measured, Plan, measure, plan_around
from .onto_cores import AccessTimes, judged_ops
from .replay import replay
from .schedules import Drawn, schedule_traces, stalled_share_on_cores
from .shared_stage import shared_stage

if TYPE_CHECKING:
    import pandas as pd

REPEATS, QUICK_REPEATS = 80, 20
SCHEDULES, QUICK_SCHEDULES = 0.2, 0.2
"""Share of unseen Programs that are MegaMoE and attention schedules; the others are trains."""
DRIFT_ROUNDS = 10


class CpuBackend:
    """Cores of this computer that store past their caches. Use it in `with`: it holds memory.

    Raises `UnsupportedProcessorError` where there are no such stores, `InputError` for more producers than cores.
    """

    def __init__(self, producers: int = 1, quick: bool = False) -> None:
        self.quick = quick
        self.bench = Bench(producers)
        self._plan: Plan = FIRST_LOOK
        self._before: Measured | None = None
        self._access: AccessTimes | None = None

    def calibrate(self, rng: np.random.Generator, progress: Progress = silent) -> Calibrated:
        """Parameters of this computer's stage. Raises `NoLawError` or `DisturbedError`."""
        self._plan = self._look(rng)
        measured = self._before = measure(self.bench, self._plan, rng, progress)
        shared, found = shared_stage(measured), self._fit(measured)
        name = f"cpu-{self.bench.producers}"
        source = f"xstage calibrate --backend cpu on {processor_name()}, {_cores(self.bench.producers)} producing"
        machine: Machine = machine_of(
            found,
            name,
            source,
            f"{_cores(self.bench.producers)} of {processor_name()}",
            capacity_alone=shared.capacity_alone(found) if shared else None,
        )
        return Calibrated(
            calibration=found,
            machine=machine,
            times=measured.times,
            control_ns=centre(measured.control_ns, axis=0),
            completed_ns=centre(measured.drain_ns, axis=0),
            isolated_bytes=measured.isolated_bytes,
            host=self._host(measured) | (shared.as_dict() if shared else {}),
            warnings=[*_misfit(found), *(shared.warnings() if shared else [])],
        )

    def unseen(self, calibrated: Calibrated, count: int, rng: np.random.Generator) -> list[Trace]:
        """`count` Programs: trains, and MegaMoE and attention schedules mapped onto the cores. Half of them stall."""
        producers, machine = self.bench.producers, calibrated.machine
        knee_bytes = calibrated.calibration.knee_bytes.value
        least_gap_ns = self._before.least_gap_ns if self._before else 0.0
        self._access = measure_access(self.bench, calibrated.times, knee_bytes)
        drawn = Drawn(machine, producers, self._access)
        schedules = schedule_traces(drawn, round(count * (QUICK_SCHEDULES if self.quick else SCHEDULES)), rng)
        bounds, trains = bounds_of(knee_bytes, least_gap_ns), count - len(schedules)
        stalled = sum(stalled_share_on_cores(trace) > STALLED_SHARE for trace in schedules)
        return [*unseen_traces(machine, producers, trains, bounds, rng, (count + 1) // 2 - stalled), *schedules]

    def simulated_ops(self, trace: Trace) -> pd.DataFrame:
        """The op table that a measured one is compared with."""
        return judged_ops(trace) if "cores" in trace.program.meta else trace.ops()

    def replay(
        self, traces: Sequence[Trace], rng: np.random.Generator, progress: Progress = silent
    ) -> list[pd.DataFrame | None]:
        """Trains first, then schedules: what one kind leaves in the caches does not meet the other."""
        repeats = QUICK_REPEATS if self.quick else REPEATS
        kinds = [
            ["cores" not in trace.program.meta for trace in traces],
            ["cores" in trace.program.meta for trace in traces],
        ]
        found: list[pd.DataFrame | None] = [None] * len(traces)
        for chosen in (np.flatnonzero(kind).tolist() for kind in kinds):
            tables = replay([traces[i] for i in chosen], self.bench, repeats, rng, progress)
            for i, table in zip(chosen, tables, strict=True):
                found[i] = table
        return found

    def replay_details(self) -> dict[str, Any]:
        """`op_costs`: what ops of the schedules cost a core, by its lanes, in ns."""
        if self._access is None:
            return {}
        return {"op_costs": self._access.ops.as_dict() | {"beside_loads": self._access.ops_beside_loads.as_dict()}}

    def drift_pct(self, rng: np.random.Generator) -> float | None:
        """Times some rounds of the calibration again: median |now / then - 1| over its configurations.

        None if there was no calibration, or too much else runs to tell.
        """
        if self._before is None:
            return None
        try:
            now = measure(self.bench, replace(self._plan, rounds=DRIFT_ROUNDS), rng).times
        except DisturbedError:
            return None
        return float(100 * np.median(np.abs(now.centre_ns() / self._before.times.centre_ns() - 1)))

    def close(self) -> None:
        self.bench.close()

    def __enter__(self) -> CpuBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look(self, rng: np.random.Generator) -> Plan:
        """Bursts around the knee that a few isolated ones show."""
        found = self._fit(measure(self.bench, FIRST_LOOK, rng))
        knee = found.knee_bytes.value
        return plan_around(knee / LINE_BYTES, self.bench.producers * knee / found.drain_gbs.value, self.quick)

    def _fit(self, measured: Measured) -> Calibration:
        """Raises `NoLawError`, which says so where it may be that cores share their drain at some times only."""
        try:
            return self._best_fit(measured)
        except NoLawError as refusal:
            shared = shared_stage(measured)
            if shared is None or not shared.mixed:
                raise
            raise NoLawError("; ".join([str(refusal), *shared.warnings()])) from refusal

    def _best_fit(self, measured: Measured) -> Calibration:
        if self.bench.producers == 1:
            return fit(measured.times, "synchronised")
        # A few producers neither march in step nor drift apart for good: take what describes the trains better.
        fits = [fit(measured.times, "free_running"), fit(measured.times, "synchronised")]
        return min(fits, key=lambda found: found.residual_pct)

    def _host(self, measured: Measured) -> dict[str, Any]:
        bench = self.bench
        return {
            "processor": processor_name(),
            "architecture": bench.architecture.name,
            "store": bench.architecture.store_instruction,
            "cores": bench.cores,
            "buffer_bytes": bench.buffers[0].size,
            "huge_pages_asked": bench.buffers[0].huge_pages,
            "huge_page_bytes": bench.buffers[0].huge_bytes,
            "ticks_per_ns": bench.clock.ticks_per_ns,
            "clock_step_ns": bench.clock.ns(bench.clock.step_ticks),
            "store_cost_ns": bench.clock.ns(bench.costs.store_ticks),
            "control_has_knee": _has_knee(measured),
            "rounds_run": measured.rounds_run,
            "rounds_disturbed": measured.rounds_disturbed,
            "outliers_pct": measured.outliers_pct,
            "core_speed_change_pct": measured.notes["core_speed_change_pct"],
        }


def _cores(count: int) -> str:
    return f"{count} core{'s' * (count > 1)}"


def _misfit(found: Calibration) -> list[str]:
    """What it means that the law misses the bursts by a lot."""
    if found.residual_pct <= AGREES_PCT:
        return []
    return [
        f"the law is off by {found.residual_pct:.0f} % in the median of all bursts, which is more than their noise. Where "
        "it is trains that are slower than it says, the stage drains more slowly in gaps than under load, and programs "
        "with gaps will stall longer than simulated"
    ]


def _has_knee(measured: Measured) -> bool:
    """Whether ordinary stores into the cache show a knee too; then it is none of the stage's."""
    sizes = measured.isolated_bytes
    control = np.maximum(measured.control_ns, LEAST_NS)
    try:
        fit(BurstTimes(1, sizes, np.full(len(sizes), np.inf), control, measured.times.resolution_ns))
    except NoLawError:
        return False
    return True


def processor_name() -> str:
    """What the processor calls itself, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
