"""Measure the stage of real hardware, and tell how far the simulator is from it.

    calibrate   timed bursts -> T_iss0, R and Q with intervals -> a machine file
    validate    the same, then Programs that calibration never saw, run on the hardware and simulated with the machine just
                calibrated; their times are compared op by op

Nothing is fitted to the Programs that are judged. A backend is where the bursts run; "cpu" needs nothing but this computer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..sim.calibrate import BurstTimes, Calibration
from ..sim.calibrated_machine import write_machine
from ..sim.errors import InputError
from ..sim.files import write_whole
from ..sim.machine import Machine
from ..sim.trace import Trace
from .compare import Comparison, Summary, compare, summarise
from .measuring import Progress, silent
from .unseen import bounds_of, unseen_traces

if TYPE_CHECKING:
    import pandas as pd

BACKENDS = ("cpu",)
PROGRAMS, QUICK_PROGRAMS = 120, 40


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration with the times behind it. `control_ns` are ordinary stores of `isolated_bytes` into the producer's own
    memory, `completed_ns` isolated bursts including the wait until all their stores have left the core."""

    calibration: Calibration
    machine: Machine
    times: BurstTimes
    control_ns: Any
    completed_ns: Any
    isolated_bytes: Any
    host: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """`t_iss0_ns`, `drain_gbs`, `capacity_bytes`, `intervals`, and how good the fit is."""
        return {**self.calibration.as_dict(), "host": self.host}

    def write(self, path: str | Path) -> None:
        """The machine file, for `--machine` or a scenario."""
        write_machine(self.machine, path)


@dataclass(frozen=True, eq=False)
class Validation:
    """A calibration, and how Programs that it never saw ran on the hardware and in the simulator.

    `drift_pct` is how far the bursts of the calibration had moved when the Programs had run (None: could not be told): the
    hardware that was calibrated and the one that was judged differ by as much.
    """

    calibrated: Calibrated
    comparisons: list[Comparison]
    summary: Summary
    drift_pct: float | None
    seed: int
    wall_s: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "calibration": self.calibrated.as_dict(),
            "replay": asdict(self.summary) | {"drift_pct": self.drift_pct},
        }

    def ops(self) -> pd.DataFrame:
        """The joined op tables of all Programs, numbered by `program`."""
        import pandas as pd

        tables = [c.ops.assign(program=number) for number, c in enumerate(self.comparisons)]
        return pd.concat(tables, ignore_index=True)

    def programs(self) -> pd.DataFrame:
        """One row a Program: times in microseconds, errors in percent, stall error in ns a store."""
        import pandas as pd

        return pd.DataFrame(
            {
                "stalled_share": c.stalled_share,
                "simulated_issue_us": c.simulated_issue_us,
                "measured_issue_us": c.measured_issue_us,
                "error_pct": c.error_pct,
                "makespan_error_pct": c.makespan_error_pct,
                "stall_error_ns": c.stall_error_ns,
                "noise_pct": c.noise_pct,
                "repeats": c.repeats,
            }
            for c in self.comparisons
        )

    def report(self, path: str | Path) -> None:
        """One HTML file with everything in it."""
        from .report import render

        text = render(self)
        with write_whole(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_ops(self, path: str | Path) -> None:
        """`ops` as Parquet."""
        table = self.ops()
        with write_whole(path) as temporary:
            table.to_parquet(temporary)


class Backend(Protocol):
    """Hardware to run bursts on; a context manager."""

    def calibrate(self, rng: np.random.Generator, progress: Progress = silent) -> Calibrated: ...

    def replay(
        self, traces: Sequence[Trace], rng: np.random.Generator, progress: Progress = silent
    ) -> list[pd.DataFrame]: ...

    def drift_pct(self, rng: np.random.Generator) -> float | None: ...

    def __enter__(self) -> Backend: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def calibrate(
    backend: str = "cpu", *, producers: int = 1, quick: bool = False, seed: int = 0, progress: Progress = silent
) -> Calibrated:
    """T_iss0, R and Q of this hardware for `producers` that store at the same time.

    Raises `InputError` for an unknown backend or too many producers, `NoLawError` where the law does not hold,
    and `MeasurementError` where the hardware cannot be measured, or too much else runs.
    """
    with open_backend(backend, producers, quick) as hardware:
        return hardware.calibrate(np.random.default_rng(seed), progress)


def validate(
    backend: str = "cpu",
    *,
    producers: int = 1,
    quick: bool = False,
    seed: int = 0,
    programs: int | None = None,
    progress: Progress = silent,
) -> Validation:
    """Calibrate, run `programs` unseen Programs (default: 120, quick 40) on the hardware and simulated, and compare.

    `seed` draws the order of measurements and the Programs. Raises as `calibrate` does.
    """
    started = time.perf_counter()
    count = programs if programs is not None else QUICK_PROGRAMS if quick else PROGRAMS
    if count < 1:
        raise InputError("are too few", field="programs", value=count, allowed="1 or more")
    order, drawn = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    with open_backend(backend, producers, quick) as hardware:
        calibrated = hardware.calibrate(order, progress)
        progress("simulating", 0.0)
        bounds = bounds_of(calibrated.calibration.knee_bytes.value)
        traces = unseen_traces(calibrated.machine, producers, count, bounds, drawn)
        measured = hardware.replay(traces, order, progress)
        drift = hardware.drift_pct(order)
    progress("comparing", 0.0)
    comparisons = [compare(trace.ops(), table) for trace, table in zip(traces, measured, strict=True)]
    return Validation(calibrated, comparisons, summarise(comparisons), drift, seed, time.perf_counter() - started)


def open_backend(name: str, producers: int, quick: bool) -> Backend:
    if name not in BACKENDS:
        raise InputError("is no backend", field="backend", value=name, allowed=BACKENDS)
    from .cpu.backend import CpuBackend

    return CpuBackend(producers, quick)
