"""The commands that measure real hardware: `xstage calibrate` and `xstage validate`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..terminal.clock import BETWEEN_LINES_S, PATIENCE_S
from ..terminal.output import print_json, show, table, with_common_fields

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
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
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
    from ..hw_validate.cuda.options import OnGpus
    from ..hw_validate.validate import calibrate as calibrated
    from ..sim.files import check_output

    started = time.perf_counter()
    if output is not None:
        check_output(output, "-o", (".yaml", ".yml"))
    if plan is not None:
        _write_plan(plan, backend, OnGpus(transport, gpus, results, keep), producers, quick, seed, as_json)
        return
    with _progress() as progress:
        found = calibrated(
            backend, producers=producers, quick=quick, seed=seed, transport=transport, gpus=gpus, results=results,
            keep=keep, progress=progress,
        )  # fmt: skip
    if output is not None:
        found.write(output)
    answer: dict[str, Any] = {"calibration": found.as_dict()} | ({"machine": str(output)} if output else {})
    if as_json:
        print_json(with_common_fields(answer, {"wall_s": time.perf_counter() - started}, seed))
    else:
        show(*_calibration_parts(answer["calibration"]), *(["", f"written to {output}"] if output else []))


def _without_stall(replay: dict[str, Any]) -> list[tuple[str, str]]:
    """Programs in which no stall is predicted: whether any was measured."""
    excess, noise = replay["without_stall_excess_pct"], replay["without_stall_noise_pct"]
    if excess is None:
        return []
    told = f"more measured in {replay['programs_without_stall']} with no stall predicted"
    known = replay["t_iss0_known_to_pct"]
    return [(told, f"{excess:+.1f} %; their noise {noise:.1f} %, T_iss0 is known to {known:.0f} %")]


def validate(
    backend: Backend = "cpu",
    report: Annotated[Path | None, typer.Option(help="Write everything to this .html file.")] = None,
    ops: Annotated[Path | None, typer.Option(help="Write both times of every op to this .parquet file.")] = None,
    producers: Producers = 1,
    quick: Quick = False,
    programs: Annotated[
        int | None,
        typer.Option(
            help="How many unseen programs to run, 1 or more; if left out 120, quick 40, on GPUs 48, quick 12."
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option(help="Do all of it this many times, 1 or more: does it agree with itself?")
    ] = 1,
    busy: Annotated[bool, typer.Option("--busy", help="And once more while another core is kept busy.")] = False,
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
    from ..hw_validate.cuda.options import OnGpus
    from ..hw_validate.validate import validate as validated
    from ..sim.errors import InputError
    from ..sim.files import check_output

    started = time.perf_counter()
    for path, option, suffixes in ((report, "--report", (".html",)), (ops, "--ops", (".parquet",))):
        if path is not None:
            check_output(path, option, suffixes)
    if plan is not None:
        if machine is None:
            raise InputError("is missing: Programs are drawn for its stage", field="--machine",
                             allowed="a machine of `xstage scenarios`, or a file of `xstage calibrate -o`")  # fmt: skip
        _write_plan(
            plan, backend, OnGpus(transport, gpus, results, keep), producers, quick, seed, as_json, machine, programs
        )
        return
    if machine is not None:
        raise InputError("is only for --plan: else Programs are drawn for the hardware as measured", field="--machine",
                         value=machine)  # fmt: skip
    with _progress() as progress:
        found = validated(
            backend, producers=producers, quick=quick, seed=seed, programs=programs, repeat=repeat, busy=busy,
            transport=transport, gpus=gpus, results=results, keep=keep, progress=progress,
        )  # fmt: skip
    if report is not None:
        found.report(report)
    if ops is not None:
        found.write_ops(ops)
    answer = found.as_dict()
    answer |= {name: str(path) for name, path in (("report", report), ("ops", ops)) if path is not None}
    if as_json:
        print_json(with_common_fields(answer, {"wall_s": time.perf_counter() - started}, seed))
        return
    replay = answer["replay"]
    rows = [
        ("programs", f"{replay['programs']}, of which {replay['programs_with_stall']} with stall"),
        ("issue time, median error", f"{replay['median_abs_error_pct']:.1f} %"),
        ("issue time, 90 % are within", f"{replay['p90_abs_error_pct']:.1f} %"),
        *_without_stall(replay),
        ("stall, mean error", f"{replay['stall_mean_abs_error_ns']:.1f} ns a store"),
        ("noise from repeat to repeat", f"{replay['noise_pct']:.1f} %"),
        ("moved since the calibration", "not known" if replay["drift_pct"] is None else f"{replay['drift_pct']:.1f} %"),
        ("verdict", replay["verdict"]),
    ]
    kinds = [
        (kind["schedule"], str(kind["programs"]), str(kind["programs_with_stall"]), f"{kind['median_abs_error_pct']:.1f} %",
         f"{kind['makespan_median_abs_error_pct']:.1f} %", f"{kind['stall_mean_abs_error_ns']:.1f} ns")
        for kind in replay["by_schedule"]
    ]  # fmt: skip
    show(
        *_calibration_parts(answer["calibration"]),
        "",
        table("unseen programs: simulated against measured", ("", ""), rows),
        "",
        table("by kind", ("", "programs", "with stall", "issue time", "makespan", "stall a store"), kinds),
        *_again_parts(answer),
    )
    for path in (report, ops):
        if path is not None:
            show(f"written to {path}")


def _write_plan(
    path: Path,
    backend: str,
    on_gpus: OnGpus,
    producers: int,
    quick: bool,
    seed: int,
    as_json: bool,
    machine: str | None = None,
    programs: int | None = None,
) -> None:
    """Write a plan for the collector, and say what to do with it."""
    from ..hw_validate.cuda.command import write_plan
    from ..hw_validate.validate import programs_of
    from ..scenarios.machine_files import load_machine
    from ..sim.errors import InputError

    started = time.perf_counter()
    if backend != "cuda":
        raise InputError("needs --backend cuda", field="--plan", value=str(path))
    known = load_machine(machine) if machine is not None else None
    count = programs_of(backend, programs, quick)
    answer = write_plan(
        path, on_gpus, producers=producers, quick=quick, seed=seed, machine=known, programs=count
    ).as_dict()
    if as_json:
        print_json(with_common_fields(answer, {"wall_s": time.perf_counter() - started}, seed))
        return
    rows = sum(answer["rows"].values())
    show(
        f"written to {answer['plan']}: {rows} rows in {len(answer['rows'])} tables, {answer['programs']} programs",
        f"on a node with GPUs, NumPy and CuPy:  {answer['next']}",
        "then here:  --backend cuda --results RESULTS.npz",
    )


def _calibration_parts(found: dict[str, Any]) -> list[Any]:
    between = found["intervals"]
    rows = [
        ("T_iss0", f"{found['t_iss0_ns']:.1f} ns", _interval(between["t_iss0_ns"], 1, ".1f"),
         f"to issue {found['reference_bytes'] / 1024:g} KiB"),
        ("R", f"{found['drain_gbs']:.2f} GB/s", _interval(between["drain_gbs"], 1, ".2f"), "drain rate"),
        ("Q", f"{found['capacity_bytes'] / 1024:.2f} KiB", _interval(between["capacity_bytes"], 1024, ".2f"),
         "outstanding capacity"),
        ("knee", f"{found['knee_bytes'] / 1024:.2f} KiB", _interval(between["knee_bytes"], 1024, ".2f"),
         "largest isolated burst of a producer without stall"),
    ]  # fmt: skip
    title = (
        f"{found['host']['processor']}, {found['producers']} producing: the law is off by {found['residual_pct']:.1f} %"
    )
    warnings = [part for text in found["warnings"] for part in ("", f"Note: {text}.")]
    return [table(title, ("", "value", "95 % interval", "what it is"), rows), *warnings]


def _again_parts(answer: dict[str, Any]) -> list[Any]:
    """What runs that were made again say, if there are any."""
    parts: list[Any] = []
    for run in answer.get("again", []):
        says = "agrees with the first run within the intervals" if run["agrees"] else "; ".join(run["why_not"])
        parts += ["", f"{run['run']}: {says}"]
        if run["numbers"]:
            numbers = run["numbers"]
            parts.append(
                f"  T_iss0 {numbers['t_iss0_ns'][0]:.1f} ns, R {numbers['drain_gbs'][0]:.2f} GB/s, "
                f"Q {numbers['capacity_bytes'][0] / 1024:.2f} KiB; median error {run['median_abs_error_pct']:.1f} %, "
                f"{run['verdict']}{'' if run['same_verdict'] else ', unlike the first run'}"
            )
    return parts


def _interval(bounds: list[float], scale: float, spec: str) -> str:
    return " to ".join(format(bound / scale, spec) for bound in bounds)


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A callback that shows on standard error what is being done: always on a terminal, now and then in a log file."""
    if not sys.stderr.isatty():
        yield _lines(time.monotonic)
        return
    from rich.console import Console

    with Console(stderr=True).status("Starting") as status:
        yield lambda doing, share: status.update(_said(doing, share))


def _lines(clock: Callable[[], float]) -> Callable[[str, float], None]:
    next_line = clock() + PATIENCE_S

    def tell(doing: str, share: float) -> None:
        nonlocal next_line
        if (now := clock()) >= next_line:
            print(_said(doing, share), file=sys.stderr, flush=True)
            next_line = now + BETWEEN_LINES_S

    return tell


def _said(doing: str, share: float) -> str:
    return f"{doing[:1].upper()}{doing[1:]}: {100 * share:.0f} %"
