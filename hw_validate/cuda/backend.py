"""GPUs as something to calibrate and validate on: what hw_validate/validate.py asks of every backend.

    GpuBackend   GPUs of this computer: microbenchmarks run and are fitted, then Programs run that are drawn for the machine
                 just calibrated
    Recorded     what the collector measured, here or elsewhere; its Programs were drawn beforehand

Both tell the same of the same results, because a `GpuBackend` is `Recorded` once it has measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim.program import Program
from ...sim.trace import Trace
from ..calibrated import Calibrated
from ..measuring import MeasurementError, Progress, silent
from . import calibration
from .calibration import GpuCalibration
from .collect import AGAIN_ROUNDS, Settings, collect, collect_more
from .container import Container, load
from .device import Devices
from .options import OnGpus
from .parts import CALIBRATION_PARTS, FULL, QUICK, Extent
from .planning import plan
from .ranks import simulated_ranks
from .replayed import Judged, judged_programs
from .run_programs import program_of
from .transport import AUTO
from .unseen import Ranks, unseen_traces

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class How:
    """How to measure. `repeats` of each Program, far and as the control (default: 11 and 5)."""

    transport: str = AUTO
    gpus: int | None = None
    quick: bool = False
    extent: Extent | None = None
    repeats: tuple[int, int] | None = None
    settings: Settings = field(default_factory=Settings)

    def collector(self) -> Settings:
        return replace(self.settings, transport=self.transport, gpus=self.gpus)

    def again(self) -> Extent:
        """A few rounds of the same bursts: they tell how far the hardware had moved when the Programs had run."""
        return replace(self.extent or (QUICK if self.quick else FULL), rounds=AGAIN_ROUNDS)


class Recorded:
    """A results file of the collector as a backend. Raises `InputError` where parts are missing, and says which and why."""

    def __init__(self, results: Container) -> None:
        self.results = results
        self._found: GpuCalibration | None = None
        self._traces: list[Trace] = []
        self._judged: list[Judged | None] = []

    def calibrate(self, rng: np.random.Generator, progress: Progress = silent) -> Calibrated:
        self._found = calibration.calibrate(self.results)
        return self._found.seen

    def unseen(self, calibrated: Calibrated, count: int, rng: np.random.Generator) -> list[Trace]:
        """All Programs that the results hold, whatever `count`."""
        planned = Container("plan", self.results.header["plan"], self.results.arrays)
        programs = [program_of(planned, number) for number in range(len(planned.header["programs"]))]
        transport = self.results.header["transport"]["name"]
        return [simulated_ranks(program, calibrated.machine, transport) for program in programs]

    def replay(
        self, traces: Sequence[Trace], rng: np.random.Generator, progress: Progress = silent
    ) -> list[pd.DataFrame | None]:
        """What was measured of these, which are the Programs of the results; None for those that did not run."""
        assert self._found is not None
        self._traces, self._judged = list(traces), judged_programs(self.results, self._found)
        return [None if one is None else one.measured for one in self._judged]

    def simulated_ops(self, trace: Trace) -> pd.DataFrame:
        """The op table to compare with: priced with what the control of the replay told."""
        judged = next(one for mine, one in zip(self._traces, self._judged, strict=True) if mine is trace)
        assert judged is not None
        return judged.simulated

    def replay_details(self) -> dict[str, Any]:
        """`kernel_adds`: what the replay kernel adds to a store, a pause and a signal, in ns, medians over Programs."""
        names = ("store_ns", "compute_ns", "signal_ns")
        told = [[getattr(one.overheads, name) for name in names] for one in self._judged if one is not None]
        return {"kernel_adds": dict(zip(names, np.median(told, axis=0).tolist(), strict=True))}

    def drift_pct(self, rng: np.random.Generator) -> float | None:
        return calibration.drift_pct(self.results)

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *ended: object) -> None:
        return None


class GpuBackend:
    """GPUs of this computer. `keep` is a file for everything that is measured; what ends a run early is told in it.

    Without `keep` that file is a temporary one, and stays only if something goes wrong after something was measured.
    """

    def __init__(self, how: How, devices: Devices, keep: str | Path | None = None) -> None:
        self.how, self.devices = how, devices
        self._folder = None if keep is not None else tempfile.mkdtemp(prefix="xstage-cuda-")
        self.path = Path(keep) if keep is not None else Path(self._folder or "") / "results.npz"
        self._recorded: Recorded | None = None

    def calibrate(self, rng: np.random.Generator, progress: Progress = silent) -> Calibrated:
        """Measure and fit. Raises what `collect` and the fit raise."""
        self._recorded = Recorded(self._collect(CALIBRATION_PARTS, (), self.how.extent, rng, progress))
        return self._recorded.calibrate(rng, progress)

    def unseen(self, calibrated: Calibrated, count: int, rng: np.random.Generator) -> list[Trace]:
        """`count` Programs drawn for the machine just calibrated; ranks are its GPUs, or ranges of SMs of its one GPU."""
        transport = self._measured.results.header["transport"]
        where = Ranks(transport["name"], len(transport["devices"])) if transport["name"] == "peer" else Ranks()
        return unseen_traces(calibrated.machine, calibrated.calibration.producers, count, rng, where)

    def replay(
        self, traces: Sequence[Trace], rng: np.random.Generator, progress: Progress = silent
    ) -> list[pd.DataFrame | None]:
        programs = [trace.program for trace in traces]
        self._measured.results = self._collect(("clock", "bursts"), programs, self.how.again(), rng, progress)
        return self._measured.replay(traces, rng, progress)

    def simulated_ops(self, trace: Trace) -> pd.DataFrame:
        return self._measured.simulated_ops(trace)

    def replay_details(self) -> dict[str, Any]:
        return self._measured.replay_details()

    def drift_pct(self, rng: np.random.Generator) -> float | None:
        return self._measured.drift_pct(rng)

    def __enter__(self) -> GpuBackend:
        return self

    def __exit__(self, *ended: object) -> None:
        if self._folder is not None and (ended[0] is None or not _holds_something(self.path)):
            self._drop()

    @property
    def _measured(self) -> Recorded:
        assert self._recorded is not None, "nothing is measured yet"
        return self._recorded

    def _collect(
        self,
        parts: tuple[str, ...],
        programs: Sequence[Program],
        extent: Extent | None,
        rng: np.random.Generator,
        progress: Progress,
    ) -> Container:
        how, seed = self.how, int(rng.integers(1 << 31))
        made = plan(how.quick, seed, how.transport, parts, extent, programs, how.repeats)
        try:
            if self._recorded is None:
                return collect(made, self.devices, self.path, how.collector(), progress)
            return collect_more(self._recorded.results, made, self.devices, self.path, how.collector(), progress)
        except MeasurementError as error:
            if not _holds_something(self.path):
                raise
            raise type(error)(f"{error}; what was measured until then is in {self.path}") from error

    def _drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self.path.parent.rmdir()


def _holds_something(path: Path) -> bool:
    """Whether any part of a results file is done."""
    if not path.exists():
        return False
    return any(told["state"] == "done" for told in load(path, "results").header["parts"].values())


def open_gpus(on_gpus: OnGpus, producers: int = 1, quick: bool = False) -> GpuBackend | Recorded:
    """The backend "cuda". Raises `InputError` for options that make no sense, `NoGpuError` where there is no GPU."""
    on_gpus.check(producers)
    if on_gpus.results is not None:
        return Recorded(load(on_gpus.results, "results"))
    return GpuBackend(How(on_gpus.transport or AUTO, on_gpus.gpus, quick), gpus_here(), on_gpus.keep)


def gpus_here() -> Devices:
    """The GPUs of this computer."""
    from .cupy_devices import CupyDevices

    return CupyDevices()
