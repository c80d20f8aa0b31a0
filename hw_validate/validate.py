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
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..sim.errors import InputError, XstageError
from .again import busy_core, compared, refused
from .calibrated import Calibrated
from .compare import compare, summarise
from .cuda.options import NOTHING_SAID, OnGpus
from .measuring import Progress, silent
from .validation import Again, Validation

if TYPE_CHECKING:
    import pandas as pd

    from ..sim.trace import Trace

BACKENDS = ("cpu", "cuda")
PROGRAMS = {"cpu": (120, 40), "cuda": (48, 12)}
"""How many unseen Programs run, and how many if it is to be quick."""


class Backend(Protocol):
    """Hardware to run bursts on; a context manager.

    unseen          simulated Programs that calibration never saw; as many as asked for, if they are drawn now
    replay          their op tables as measured, None for a Program that could not be measured
    simulated_ops   the op table to compare a measured one with; asked after the replay, as the rest is
    replay_details  what only this hardware tells of the replays, for the answer
    drift_pct       how far bursts of the calibration have moved since, None if that cannot be told
    """

    def calibrate(self, rng: np.random.Generator, progress: Progress = silent) -> Calibrated: ...

    def unseen(self, calibrated: Calibrated, count: int, rng: np.random.Generator) -> list[Trace]: ...

    def replay(
        self, traces: Sequence[Trace], rng: np.random.Generator, progress: Progress = silent
    ) -> Sequence[pd.DataFrame | None]: ...

    def simulated_ops(self, trace: Trace) -> pd.DataFrame: ...

    def replay_details(self) -> dict[str, Any]: ...

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
    _refuse_negative(seed)
    _refuse_what_is_settled(results, {"quick": quick, "seed": seed})
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
    _refuse_negative(seed)
    if repeat < 1:
        raise InputError("are too few", field="repeat", value=repeat, allowed="1 or more")
    count = programs_of(backend, programs, quick)
    on_gpus = OnGpus(transport, gpus, results, keep)
    if busy and backend == "cuda":
        raise InputError("needs backend cpu", field="busy", value=busy)
    repeated = repeat if repeat > 1 else None
    _refuse_what_is_settled(results, {"quick": quick, "seed": seed, "programs": programs, "repeat": repeated})

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


def _refuse_negative(seed: int) -> None:
    if seed < 0:
        raise InputError("must be at least 0", field="seed", value=seed)


def _refuse_what_is_settled(results: str | Path | None, given: dict[str, int | None]) -> None:
    """Raise `InputError` for an option that says how to measure where results are read."""
    for name, value in given.items():
        if results is not None and value:
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
        traces = hardware.unseen(calibrated, count, drawn)
        measured = hardware.replay(traces, order, progress)
        drift = hardware.drift_pct(order)
        details = hardware.replay_details()
    progress("comparing", 0.0)
    pairs = [(trace, table) for trace, table in zip(traces, measured, strict=True) if table is not None]
    comparisons = [compare(hardware.simulated_ops(trace), table) for trace, table in pairs]
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
