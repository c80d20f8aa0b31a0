"""What `xstage calibrate` and `xstage validate` do with `--backend cuda`: here, a plan to a file, or results from one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...sim.errors import InputError
from ..measuring import Progress
from .calibration import GpuCalibration
from .container import Container, check_suffix
from .transport import AUTO, TRANSPORTS
from .validation import (
    GpuValidation,
    How,
    calibrate_here,
    calibrate_results,
    cupy_devices,
    plan_file,
    validate_here,
    validate_results,
)


@dataclass(frozen=True)
class Asked:
    """The options that only GPUs have, as given; None where not. `plan` is written, `results` read, `keep` written."""

    transport: str | None = None
    gpus: int | None = None
    plan: Path | None = None
    results: Path | None = None
    keep: Path | None = None
    machine: str | None = None

    def refuse_on_cpu(self) -> None:
        """Raise `InputError` for an option that has no meaning without GPUs."""
        for name, value in vars(self).items():
            if value is not None:
                raise InputError("needs --backend cuda", field=f"--{name}", value=str(value))


@dataclass(frozen=True)
class Planned:
    """A plan that was written, and what to do with it."""

    path: Path
    plan: Container

    def as_dict(self) -> dict[str, Any]:
        header = self.plan.header
        rows = {name: part["rows"] for name, part in header["parts"].items()}
        return {"plan": str(self.path), "rows": rows, "programs": len(header["programs"]), "next": self.next}

    @property
    def next(self) -> str:
        return f"python -m xstage.hw_validate.cuda.collect {self.path} -o RESULTS.npz"


def calibrate(asked: Asked, producers: int, quick: bool, seed: int, progress: Progress) -> GpuCalibration | Planned:
    """Raises `InputError` for options that exclude each other, and what measuring and fitting raise."""
    how = _checked(asked, producers, quick, seed)
    if asked.machine is not None:
        raise InputError("is only for a plan of `xstage validate`", field="--machine", value=asked.machine)
    if asked.plan is not None:
        return Planned(asked.plan, plan_file(how, asked.plan))
    if asked.results is not None:
        return calibrate_results(asked.results)
    return calibrate_here(how, cupy_devices(), progress, asked.keep)


def validate(
    asked: Asked, producers: int, quick: bool, seed: int, programs: int | None, progress: Progress
) -> GpuValidation | Planned:
    """As `calibrate`, with Programs; a plan needs `machine`, for whose stage they are drawn."""
    how = _checked(asked, producers, quick, seed)
    if asked.plan is not None:
        if asked.machine is None:
            raise InputError("is missing: Programs are drawn for its stage", field="--machine",
                             allowed="a machine of `xstage scenarios`, or a file of `xstage calibrate -o`")  # fmt: skip
        from ...scenarios.machine_files import load_machine

        return Planned(asked.plan, plan_file(how, asked.plan, load_machine(asked.machine), programs))
    if asked.machine is not None:
        raise InputError("is only for --plan: else Programs are drawn for the GPU as measured", field="--machine",
                         value=asked.machine)  # fmt: skip
    if asked.results is not None:
        if programs is not None:
            raise InputError("is settled in the results", field="--programs", value=programs)
        return validate_results(asked.results, progress)
    return validate_here(how, programs, cupy_devices(), progress, asked.keep)


def _checked(asked: Asked, producers: int, quick: bool, seed: int) -> How:
    if producers != 1:
        raise InputError("is for --backend cpu: a GPU stores with all SMs, and with fewer to tell Q(K)", field="--producers",
                         value=producers)  # fmt: skip
    transport = asked.transport or AUTO
    if transport not in (AUTO, *TRANSPORTS):
        raise InputError("is no transport", field="--transport", value=transport, allowed=(AUTO, *TRANSPORTS))
    given = [f"--{name}" for name in ("plan", "results", "keep") if getattr(asked, name) is not None]
    if len(given) > 1:
        raise InputError("exclude each other", field=" and ".join(given))
    for name in given:
        check_suffix(getattr(asked, name[2:]), name)
    if asked.results is not None and (asked.transport or asked.gpus):
        raise InputError("is settled in the results", field="--transport" if asked.transport else "--gpus",
                         value=asked.transport or asked.gpus)  # fmt: skip
    return How(transport, asked.gpus, quick, seed)
