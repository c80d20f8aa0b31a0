"""Measure the stage of real hardware, and tell how far the simulator is from it.

    calibrate   timed bursts -> T_iss0, R and Q with intervals -> a machine file
    validate    the same, then Programs that calibration never saw, run on the hardware and simulated with the machine just
                calibrated; their times are compared op by op

Nothing is fitted to the Programs that are judged. A backend is where the bursts run: "cpu" needs nothing but this computer,
"cuda" a GPU, or what the collector measured on one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..sim.calibrate import BurstTimes, Calibration
from ..sim.calibrated_machine import write_machine
from ..sim.errors import InputError, XstageError
from ..sim.files import write_whole
from ..sim.machine import Machine
from ..sim.trace import Trace
from .again import Again, busy_core, compared, refused
from .compare import Comparison, Summary, compare, summarise
from .cuda.options import NOTHING_SAID, OnGpus
from .measuring import Progress, silent
from .unseen import bounds_of, unseen_traces

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

BACKENDS = ("cpu", "cuda")
PROGRAMS = {"cpu": (120, 40), "cuda": (48, 12)}
"""How many unseen Programs run, and how many if it is to be quick."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration with the times behind it. `control_ns` are ordinary stores of `isolated_bytes` into the producer's own
    memory, `completed_ns` isolated bursts including the wait until all their stores have left the core (have arrived, on a
    GPU). `details` is what only this backend tells."""

    calibration: Calibration
    machine: Machine
    times: BurstTimes
    control_ns: Any
    completed_ns: Any
    isolated_bytes: Any
    host: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """`t_iss0_ns`, `drain_gbs`, `capacity_bytes`, `intervals`, how good the fit is, and what it cannot say."""
        return {**self.calibration.as_dict(), "warnings": self.warnings, "host": self.host, **self.details}

    def write(self, path: str | Path) -> None:
        """The machine file, for `--machine` or a scenario."""
        write_machine(self.machine, path)

    def plot(self) -> Figure:
        """The law that was fitted: issue time of an isolated burst, with the interval of the knee."""
        from ..plots.run_figures import law_figure

        return law_figure(self.as_dict())

    def _repr_html_(self) -> str:
        import pandas as pd

        found: dict[str, Any] = self.calibration.as_dict()
        rows = [(name, found[name], *interval) for name, interval in found["intervals"].items()]
        return str(pd.DataFrame(rows, columns=["number", "value", "low", "high"]).to_html(index=False))


@dataclass(frozen=True, eq=False)
class Validation:
    """A calibration, and how Programs that it never saw ran on the hardware and in the simulator.

    `drift_pct` is how far the bursts of the calibration had moved when the Programs had run (None: could not be told): the
    hardware that was calibrated and the one that was judged differ by as much. `schedules` names what each Program is,
    `not_measured` counts those that were disturbed too often or do not fit this hardware, `again` has the runs that were
    made again, and `details` is what only this backend tells of the replays.
    """

    calibrated: Calibrated
    comparisons: list[Comparison]
    summary: Summary
    drift_pct: float | None
    seed: int
    wall_s: float
    schedules: list[str] = field(default_factory=list)
    not_measured: int = 0
    again: list[Again] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        replay = asdict(self.summary) | {"drift_pct": self.drift_pct, "not_measured": self.not_measured}
        return {
            "calibration": self.calibrated.as_dict(),
            "replay": replay | {"by_schedule": self.by_schedule()} | self.details,
        } | ({"again": [run.as_dict() for run in self.again]} if self.again else {})

    def by_schedule(self) -> list[dict[str, Any]]:
        """Errors of each kind of Program."""
        found = []
        for name in dict.fromkeys(self.schedules):
            mine = [c for c, kind in zip(self.comparisons, self.schedules, strict=True) if kind == name]
            summary, waits = summarise(mine), [c for c in mine if c.simulated_wait_us > 0 and c.measured_wait_us > 0]
            wait = [abs(100 * (c.simulated_wait_us / c.measured_wait_us - 1)) for c in waits]
            names = ("programs", "programs_with_stall", "median_abs_error_pct", "p90_abs_error_pct",
                     "makespan_median_abs_error_pct", "stall_mean_abs_error_ns", "noise_pct", "programs_without_stall",
                     "without_stall_excess_pct", "without_stall_interval_pct", "without_stall_noise_pct",
                     "without_stall_within_noise")  # fmt: skip
            found.append(
                {"schedule": name}
                | {key: getattr(summary, key) for key in names}
                | {"wait_median_abs_error_pct": float(np.median(wait)) if wait else None}
            )
        return found

    def ops(self) -> pd.DataFrame:
        """The joined op tables of all Programs, numbered by `program`."""
        import pandas as pd

        tables = [c.ops.assign(program=number) for number, c in enumerate(self.comparisons)]
        return pd.concat(tables, ignore_index=True)

    def programs(self) -> pd.DataFrame:
        """One row a Program: times in microseconds, errors in percent, stall error in ns a store."""
        import pandas as pd

        names = self.schedules or ["train"] * len(self.comparisons)
        return pd.DataFrame(
            {
                "schedule": name,
                "stalled_share": c.stalled_share,
                "simulated_issue_us": c.simulated_issue_us,
                "measured_issue_us": c.measured_issue_us,
                "error_pct": c.error_pct,
                "makespan_error_pct": c.makespan_error_pct,
                "stall_error_ns": c.stall_error_ns,
                "noise_pct": c.noise_pct,
                "repeats": c.repeats,
                "simulated_wait_us": c.simulated_wait_us,
                "measured_wait_us": c.measured_wait_us,
                "simulated_makespan_us": c.simulated_makespan_us,
                "measured_makespan_us": c.measured_makespan_us,
            }
            for name, c in zip(names, self.comparisons, strict=True)
        )

    def plot(self) -> Figure:
        """Issue time of each Program, simulated against measured."""
        from ..plots.beside_figures import beside_figure

        return beside_figure(self.programs().rename(columns={"schedule": "what"}), each="a program")

    def _repr_html_(self) -> str:
        import pandas as pd

        table = pd.DataFrame(self.by_schedule()).to_html(index=False, float_format="{:.2f}".format, na_rep="")
        return f"<p>{self.summary.verdict}</p>{table}"

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
    """Hardware to run bursts on; a context manager.

    One that can run more than trains also has `unseen(calibrated, count, rng) -> list[Trace]`, and `simulated_ops(trace)`
    if the op table to compare is not `trace.ops()`; it is asked after the replay, and what `replay_details()` gives, if
    there is such a method, goes into the answer. `replay` gives None for a Program that could not be measured.
    """

    def calibrate(self, rng: np.random.Generator, progress: Progress = silent) -> Calibrated: ...

    def replay(
        self, traces: Sequence[Trace], rng: np.random.Generator, progress: Progress = silent
    ) -> Sequence[pd.DataFrame | None]: ...

    def drift_pct(self, rng: np.random.Generator) -> float | None: ...

    def __enter__(self) -> Backend: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def calibrate(
    backend: str = "cpu",
    *,
    producers: int = 1,
    quick: bool = False,
    seed: int = 0,
    transport: str | None = None,
    gpus: int | None = None,
    results: str | Path | None = None,
    keep: str | Path | None = None,
    progress: Progress = silent,
) -> Calibrated:
    """T_iss0, R and Q of this hardware: "cpu" for `producers` cores that store at the same time, "cuda" for GPUs.

    For GPUs only: `transport` is peer, host or local (default: peer if GPUs can, else host) with that many `gpus`; `results`
    is a file of the collector to read instead of measuring, `keep` one to write (.npz).

    Raises `InputError` for an unknown backend or options that it does not have, `NoLawError` where the law does not hold,
    and `MeasurementError` where the hardware cannot be measured, or too much else runs.
    """
    with open_backend(backend, producers, quick, OnGpus(transport, gpus, results, keep)) as hardware:
        return hardware.calibrate(np.random.default_rng(seed), progress)


def validate(
    backend: str = "cpu",
    *,
    producers: int = 1,
    quick: bool = False,
    seed: int = 0,
    programs: int | None = None,
    repeat: int = 1,
    busy: bool = False,
    transport: str | None = None,
    gpus: int | None = None,
    results: str | Path | None = None,
    keep: str | Path | None = None,
    progress: Progress = silent,
) -> Validation:
    """Calibrate, run `programs` unseen Programs on the hardware and simulated, and compare (default: 120, quick 40; on GPUs
    48, quick 12).

    `seed` draws the order of measurements and the Programs. With `repeat` above 1 all of it is done again with other seeds,
    with `busy` (cores only) once more while another core is kept busy; `again` of the answer, which is that of the first
    run, tells whether they agree. For `transport`, `gpus`, `results` and `keep` see `calibrate`. Raises as `calibrate` does;
    a later run that is refused only says so.
    """
    if repeat < 1:
        raise InputError("are too few", field="repeat", value=repeat, allowed="1 or more")
    count = programs_of(backend, programs, quick)
    on_gpus = OnGpus(transport, gpus, results, keep)
    _refuse_what_makes_no_sense(backend, programs, repeat, busy, on_gpus)

    def once(seed: int, on_gpus: OnGpus, progress: Progress) -> Validation:
        return _validate_once(lambda: open_backend(backend, producers, quick, on_gpus), seed, count, progress)

    found = once(seed, on_gpus, progress)
    runs = [(f"run {number}", False) for number in range(2, repeat + 1)] + (
        [("another core busy", True)] if busy else []
    )
    again = []
    for number, (what, with_load) in enumerate(runs, start=1):
        more = partial(once, seed + number, replace(on_gpus, keep=None), _prefixed(progress, what))
        free = found.calibrated.host.get("cores", [])
        if with_load:
            with busy_core(free) as core:
                again.append(
                    refused(what, "there is no other core to keep busy")
                    if core is None
                    else _run_again(what, found, more)
                )
        else:
            again.append(_run_again(what, found, more))
    return replace(found, again=again) if again else found


def programs_of(backend: str, programs: int | None, quick: bool) -> int:
    """How many Programs to run where `programs` were asked for. Raises `InputError` for none."""
    count = programs if programs is not None else PROGRAMS.get(backend, PROGRAMS["cpu"])[quick]
    if count < 1:
        raise InputError("are too few", field="programs", value=count, allowed="1 or more")
    return count


def _refuse_what_makes_no_sense(backend: str, programs: int | None, repeat: int, busy: bool, on_gpus: OnGpus) -> None:
    if busy and backend == "cuda":
        raise InputError("needs backend cpu", field="busy", value=busy)
    if on_gpus.results is not None:
        for name, value in (("programs", programs), ("repeat", repeat if repeat > 1 else None)):
            if value is not None:
                raise InputError("is settled in the results", field=name, value=value)


def _prefixed(progress: Progress, what: str) -> Progress:
    return lambda doing, share: progress(f"{what}: {doing}", share)


def _run_again(what: str, first: Validation, once_more: Callable[[], Validation]) -> Again:
    try:
        return compared(what, first, once_more())
    except XstageError as error:
        return refused(what, str(error))


def _validate_once(opened: Callable[[], Backend], seed: int, count: int, progress: Progress) -> Validation:
    started = time.perf_counter()
    order, drawn = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    with opened() as hardware:
        calibrated = hardware.calibrate(order, progress)
        progress("simulating", 0.0)
        if hasattr(hardware, "unseen"):
            traces = hardware.unseen(calibrated, count, drawn)
        else:
            knee, producers = calibrated.calibration.knee_bytes.value, calibrated.calibration.producers
            traces = unseen_traces(calibrated.machine, producers, count, bounds_of(knee), drawn)
        measured = hardware.replay(traces, order, progress)
        drift = hardware.drift_pct(order)
        details = hardware.replay_details() if hasattr(hardware, "replay_details") else {}
    progress("comparing", 0.0)
    simulated_ops = getattr(hardware, "simulated_ops", Trace.ops)
    pairs = [(trace, table) for trace, table in zip(traces, measured, strict=True) if table is not None]
    comparisons = [compare(simulated_ops(trace), table) for trace, table in pairs]
    return Validation(
        calibrated=calibrated,
        comparisons=comparisons,
        summary=summarise(comparisons),
        drift_pct=drift,
        seed=seed,
        wall_s=time.perf_counter() - started,
        schedules=[str(trace.program.meta.get("schedule", "train")) for trace, _ in pairs],
        not_measured=len(traces) - len(pairs),
        details=details,
    )


def open_backend(name: str, producers: int = 1, quick: bool = False, on_gpus: OnGpus = NOTHING_SAID) -> Backend:
    """The hardware of that name, to be used in `with`. Raises `InputError` for a name or options that there are not, and
    `MeasurementError` where there is no such hardware."""
    if name not in BACKENDS:
        raise InputError("is no backend", field="backend", value=name, allowed=BACKENDS)
    if name == "cuda":
        from .cuda.backend import open_gpus

        return open_gpus(on_gpus, producers, quick)
    from .cpu.backend import CpuBackend

    on_gpus.refuse_on_cpu()
    return CpuBackend(producers, quick)
