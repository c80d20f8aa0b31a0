"""`xstage calibrate|validate --backend cuda`: plan, collect, compare; here, or by files with the collector elsewhere.

here        microbenchmarks run and are fitted; Programs are drawn for the machine just calibrated, and run in turn
by files    `plan_*` writes PLAN.npz, the collector makes RESULTS.npz of it on a node with GPUs, `*_results` reads that.
            Programs are then drawn for a machine that is known beforehand, and judged on the one that was measured
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...sim.errors import InputError
from ...sim.machine import Machine
from ...sim.program import Program
from ..compare import summarise
from ..measuring import Progress, silent
from ..validate import Validation
from . import calibration
from .calibration import GpuCalibration
from .collect import AGAIN_ROUNDS, Settings, collect
from .container import Container, check_suffix, load, merged, save
from .device import Devices
from .parts import CALIBRATION_PARTS, FULL, PARTS, QUICK, Extent
from .planning import plan
from .replayed import Overheads, compare_programs
from .transport import AUTO
from .unseen import unseen_programs

PROGRAMS, QUICK_PROGRAMS = 48, 12
FOR_A_FILE = tuple(PARTS)
"""A node is seldom at hand twice: a plan that is written to a file measures everything."""


@dataclass(frozen=True)
class How:
    """How to measure: as in the command line. `repeats` of each Program, far and as the control (default: 11 and 5)."""

    transport: str = AUTO
    gpus: int | None = None
    quick: bool = False
    seed: int = 0
    extent: Extent | None = None
    repeats: tuple[int, int] | None = None
    settings: Settings = field(default_factory=Settings)

    def collector(self) -> Settings:
        s = self.settings
        return Settings(self.transport, self.gpus, s.budget_s, s.most_bytes, s.ctas, s.threads)


@dataclass(frozen=True, eq=False)
class GpuValidation:
    """A validation with what only GPUs have: the whole calibration, and what the replay kernel adds to each Program."""

    shared: Validation
    found: GpuCalibration
    overheads: list[Overheads]

    def as_dict(self) -> dict[str, Any]:
        added = np.array([[one.store_ns, one.compute_ns, one.signal_ns] for one in self.overheads])
        names = ("store_ns", "compute_ns", "signal_ns")
        medians = dict(zip(names, np.median(added, axis=0).tolist(), strict=True))
        answer = self.shared.as_dict()
        return answer | {
            "calibration": self.found.as_dict(),
            "replay": answer["replay"] | {"kernel_adds": medians},
        }

    def report(self, path: str | Path) -> None:
        """One HTML file with everything in it."""
        self.shared.report(path)

    def write_ops(self, path: str | Path) -> None:
        """Both times of every op, as Parquet."""
        self.shared.write_ops(path)


def calibrate_here(
    how: How, devices: Devices, progress: Progress = silent, output: str | Path | None = None
) -> GpuCalibration:
    """Measure and fit. `output` keeps the results. Raises what `collect` and the fit raise."""
    return calibration.calibrate(_measured(how, CALIBRATION_PARTS, (), devices, progress, output))


def validate_here(
    how: How, programs: int | None, devices: Devices, progress: Progress = silent, output: str | Path | None = None
) -> GpuValidation:
    """Calibrate, then draw, run and simulate `programs` Programs (default: 48, quick 12). `output` keeps all results."""
    started = time.perf_counter()
    count = _count(programs, how.quick)
    first = _measured(how, CALIBRATION_PARTS, (), devices, progress, output)
    found = calibration.calibrate(first)
    progress("simulating", 0.0)
    drawn = unseen_programs(
        found.machine, found.seen.calibration.producers, count, np.random.default_rng([how.seed, 1])
    )
    second = _measured(replace(how, extent=again(how)), ("clock", "bursts"), drawn, devices, progress, None)
    results = merged(first, second)
    if output is not None:
        save(results, output)
    return _validation(results, found, started, progress)


def again(how: How) -> Extent:
    """A few rounds of the same bursts: they tell how far the hardware had moved when the Programs had run."""
    return replace(how.extent or (QUICK if how.quick else FULL), rounds=AGAIN_ROUNDS)


def plan_file(how: How, path: str | Path, machine: Machine | None = None, programs: int | None = None) -> Container:
    """Write a plan that measures everything; with `machine`, also Programs drawn for all of its SMs."""
    check_suffix(path, "--plan")
    drawn: list[Program] = []
    if machine is not None:
        rng = np.random.default_rng([how.seed, 1])
        drawn = unseen_programs(machine, machine.sms, _count(programs, how.quick), rng)
    made = plan(how.quick, how.seed, how.transport, FOR_A_FILE, how.extent, drawn, how.repeats)
    save(made, path)
    return made


def calibrate_results(path: str | Path) -> GpuCalibration:
    """The calibration that a results file holds."""
    return calibration.calibrate(load(path, "results"))


def validate_results(path: str | Path, progress: Progress = silent) -> GpuValidation:
    """The validation that a results file holds. Raises `InputError` where parts are missing, and says which and why."""
    started = time.perf_counter()
    results = load(path, "results")
    return _validation(results, calibration.calibrate(results), started, progress)


def _validation(results: Container, found: GpuCalibration, started: float, progress: Progress) -> GpuValidation:
    progress("comparing", 0.0)
    comparisons, overheads = compare_programs(results, found)
    told = results.header["parts"]["programs"]["programs"]
    ran = [i for i, one in enumerate(told) if one.get("far_repeats")]
    metas = [results.header["plan"]["programs"][i]["meta"] for i in ran]
    shared = Validation(
        calibrated=found.seen,
        comparisons=comparisons,
        summary=summarise(comparisons),
        drift_pct=calibration.drift_pct(results),
        seed=int(results.header["plan"]["seed"]),
        wall_s=time.perf_counter() - started,
        schedules=[str(meta.get("schedule", "train")) for meta in metas],
        not_measured=len(told) - len(ran),
    )
    return GpuValidation(shared, found, overheads)


def _measured(
    how: How,
    parts: tuple[str, ...],
    programs: tuple[Program, ...] | list[Program],
    devices: Devices,
    progress: Progress,
    output: str | Path | None,
) -> Container:
    made = plan(how.quick, how.seed, how.transport, parts, how.extent, programs, how.repeats)
    if output is not None:
        check_suffix(output, "--keep")
        return collect(made, devices, output, how.collector(), progress)
    with tempfile.TemporaryDirectory(prefix="xstage-cuda-") as folder:
        return collect(made, devices, Path(folder) / "results.npz", how.collector(), progress)


def _count(programs: int | None, quick: bool) -> int:
    count = programs if programs is not None else QUICK_PROGRAMS if quick else PROGRAMS
    if count < 1:
        raise InputError("are too few", field="programs", value=count, allowed="1 or more")
    return count


def cupy_devices() -> Devices:
    """The GPUs of this computer."""
    from .cupy_devices import CupyDevices

    return CupyDevices()
