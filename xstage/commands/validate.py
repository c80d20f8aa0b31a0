"""The commands that measure real hardware: `xstage calibrate` and `xstage validate`."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..terminal.output import tell
from ..terminal.progress import step_progress
from .options import AsJson

if TYPE_CHECKING:
    from ..hw_validate.cuda.options import OnGpus

Backend = Annotated[
    str, typer.Option(help="Where to measure: cpu (non-temporal stores of this computer's cores), or cuda (GPUs).")
]
Producers = Annotated[int, typer.Option(help="cpu: cores that store at the same time, 1 to all of this computer.")]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="In a quarter of the time, less precise: on cores some 15 s, and up to a minute while other programs run on "
        "them, as disturbed measurements are made again.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Draws the order of measurements, and the programs.")]
Transport = Annotated[
    str | None, typer.Option(help="cuda: peer, host or local (default: peer if GPUs can, else host).")
]
Gpus = Annotated[int | None, typer.Option(help="cuda: how many GPUs take part in transport peer (default: all).")]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="cuda: write a plan for the collector (.npz), and stop.")]
ResultsFile = Annotated[Path | None, typer.Option("--results", help="cuda: read what the collector measured (.npz).")]
Keep = Annotated[Path | None, typer.Option(help="cuda: keep all that was measured in this file (.npz).")]
PlanMachine = Annotated[str | None, typer.Option("--machine", help="cuda: draw a plan's programs for this machine.")]


def register(app: typer.Typer) -> None:
    """Add both commands to the command line."""
    app.command()(calibrate)
    app.command()(validate)


@dataclass(frozen=True)
class _Asked:
    """What to measure, where and how: what both commands, and a plan for the collector, are asked."""

    backend: str
    producers: int
    quick: bool
    seed: int
    transport: str | None
    gpus: int | None
    results: Path | None
    keep: Path | None

    def on_gpus(self) -> OnGpus:
        from ..hw_validate.cuda.options import OnGpus

        return OnGpus(self.transport, self.gpus, self.results, self.keep)


def calibrate(
    backend: Backend = "cpu",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write a machine file (.yaml).")] = None,
    producers: Producers = 1,
    quick: Quick = False,
    transport: Transport = None,
    gpus: Gpus = None,
    plan: PlanFile = None,
    results: ResultsFile = None,
    keep: Keep = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure T_iss0, R and Q of real hardware."""
    from ..answers.validation import calibration_parts
    from ..hw_validate.validate import calibrate as calibrated
    from ..sim.files import check_output

    started = time.perf_counter()
    asked = _Asked(backend, producers, quick, seed, transport, gpus, results, keep)
    if output is not None:
        check_output(output, "-o", (".yaml", ".yml"))
    if plan is not None:
        _refuse_with_plan({"-o": output})
        _write_plan(plan, asked, as_json)
        return
    with step_progress() as progress:
        found = calibrated(**asdict(asked), progress=progress)
    if output is not None:
        found.write(output)
    answer: dict[str, Any] = {"calibration": found.as_dict()} | ({"machine": str(output)} if output else {})
    written = ["", f"written to {output}"] if output else []
    tell(answer, lambda: [*calibration_parts(answer["calibration"]), *written], started, as_json, seed)


def validate(
    backend: Backend = "cpu",
    report: Annotated[Path | None, typer.Option(help="Write everything to this .html file.")] = None,
    ops: Annotated[Path | None, typer.Option(help="Write both times of every op to this .parquet file.")] = None,
    producers: Producers = 1,
    quick: Quick = False,
    programs: Annotated[
        int | None,
        typer.Option(
            help="How many unseen programs to run, 1 or more; by default 120, quick 40, on GPUs 48, quick 12."
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option(help="Repeat the whole validation this many times (1 or more) and check that the runs agree.")
    ] = 1,
    busy: Annotated[bool, typer.Option("--busy", help="Run once more while another core is kept busy.")] = False,
    transport: Transport = None,
    gpus: Gpus = None,
    plan: PlanFile = None,
    results: ResultsFile = None,
    keep: Keep = None,
    machine: PlanMachine = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Calibrate, run programs that calibration never saw, and compare them with the simulator."""
    from ..answers.validation import validation_parts
    from ..hw_validate.validate import validate as validated

    started = time.perf_counter()
    asked = _Asked(backend, producers, quick, seed, transport, gpus, results, keep)
    files = {name: path for name, path in (("report", report), ("ops", ops)) if path is not None}
    _check(files, plan, machine)
    if plan is not None:
        _refuse_with_plan({"--report": report, "--ops": ops, "--repeat": repeat if repeat != 1 else None,
                           "--busy": busy or None})  # fmt: skip
        _write_plan(plan, asked, as_json, machine, programs)
        return
    with step_progress() as progress:
        found = validated(**asdict(asked), programs=programs, repeat=repeat, busy=busy, progress=progress)
    if report is not None:
        from ..pages.report import report as write_page

        write_page(found, report)
    if ops is not None:
        found.write_ops(ops)
    answer = found.as_dict() | {name: str(path) for name, path in files.items()}
    written = [f"written to {path}" for path in files.values()]
    tell(answer, lambda: [*validation_parts(answer), *written], started, as_json, seed)


def _check(files: dict[str, Path], plan: Path | None, machine: str | None) -> None:
    """Raises `InputError` for files of other kinds, and for a machine without a plan or a plan without a machine."""
    from ..sim.errors import InputError
    from ..sim.files import check_output

    suffixes = {"report": (".html",), "ops": (".parquet",)}
    for name, path in files.items():
        check_output(path, f"--{name}", suffixes[name])
    if plan is not None and machine is None:
        raise InputError("is missing: Programs are drawn for its stage", field="--machine",
                         allowed="a machine of `xstage scenarios`, or a file of `xstage calibrate -o`")  # fmt: skip
    if plan is None and machine is not None:
        raise InputError("is only for --plan: else Programs are drawn for the hardware as measured", field="--machine",
                         value=machine)  # fmt: skip


def _refuse_with_plan(given: dict[str, Any]) -> None:
    """Raises `InputError` for an option that says how to measure, or what to do with what was measured."""
    from ..sim.errors import InputError

    for name, value in given.items():
        if value is not None:
            raise InputError("has no effect on a plan, which measures nothing", field=name, value=str(value),
                             allowed="without --plan")  # fmt: skip


def _write_plan(
    path: Path, asked: _Asked, as_json: bool, machine: str | None = None, programs: int | None = None
) -> None:
    """Write a plan for the collector, and print what to do with it."""
    from ..hw_validate.cuda.command import write_plan
    from ..hw_validate.validate import programs_of
    from ..scenarios.machine_files import load_machine
    from ..sim.errors import InputError

    started = time.perf_counter()
    if asked.backend != "cuda":
        raise InputError("needs --backend cuda", field="--plan", value=str(path))
    known = load_machine(machine) if machine is not None else None
    count = programs_of(asked.backend, programs, asked.quick)
    answer = write_plan(
        path, asked.on_gpus(), producers=asked.producers, quick=asked.quick, seed=asked.seed, machine=known,
        programs=count,
    ).as_dict()  # fmt: skip
    rows = sum(answer["rows"].values())
    printed = [
        f"written to {answer['plan']}: {rows} rows in {len(answer['rows'])} tables, {answer['programs']} programs",
        f"on a node with GPUs, NumPy and CuPy:  {answer['next']}",
        "then here:  --backend cuda --results RESULTS.npz",
    ]
    tell(answer, lambda: printed, started, as_json, asked.seed)
