"""`xstage import`, which reads a profiler's trace and lays it beside a simulation, and the writing of any trace."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..sim.compilation import compile_engine
from ..terminal.output import counted, table, tell
from ..terminal.progress import share_progress, working
from .options import AsJson, Overrides, names

if TYPE_CHECKING:
    import pandas as pd

    from ..differences.beside import Beside
    from ..sim.trace import Trace

_MOST_NAMES = 10


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("import")(import_trace)


def import_trace(
    file: Annotated[Path, typer.Argument(
        metavar="FILE", help="Nsight Systems .sqlite, torch.profiler .json or .json.gz, FlashInfer buffer .npy, "
        "or an op table .parquet.", show_default=False,
    )],
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", metavar="TRACE", help="Write .parquet, .pftrace (Perfetto) or .json (Kineto).", show_default=False,
    )] = None,
    event_names: Annotated[str | None, typer.Option(
        metavar="A,B,...", help="Names of a FlashInfer buffer's events, from event 0 on.",
    )] = None,
    gpu: Annotated[int | None, typer.Option(
        min=0, help="Keep one GPU; of a FlashInfer buffer: the GPU that it comes from.", show_default=False,
    )] = None,
    scenario: Annotated[str | None, typer.Option(
        "--beside", metavar="SCENARIO", help="Simulate this and compare each op with it.", show_default=False,
    )] = None,
    match: Annotated[list[str] | None, typer.Option(
        metavar="NAME=PART", help="Which part of the simulation a measured name is: a phase, a role, ROLE:PHASE, all, or "
        "all:PHASE. A name may have a *. Repeatable.",
    )] = None,
    overrides: Overrides = None,
    joined: Annotated[Path | None, typer.Option(
        "--ops", metavar="FILE", help="Write both times of every op to this .parquet file.", show_default=False,
    )] = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Read a profiler's trace and print its summary; write it as a simulated one is written, or compare it with one."""
    from ..answers.saved import check_regular
    from ..differences.matching import on_one_line
    from ..hw_validate.readers.read import FORMATS, format_of, read_trace
    from ..plots.traces.write import check_file
    from ..sim.files import check_not_read, is_same_file

    started = time.perf_counter()
    _check(scenario, {"--match": match, "--set": overrides, "--ops": joined})
    events = names(event_names, "--event-names") or ()
    if output is not None:
        check_file(output, "-o")
        check_not_read(output, "-o", file, scenario)
    if joined is not None:
        check_not_read(joined, "--ops", file, scenario)
        if output is not None and is_same_file(output, joined):
            raise typer.BadParameter("is the file of -o too", param_hint="--ops")
    check_regular(file)
    kind = format_of(file)
    with working(f"Reading {file}"):
        ops = read_trace(file, events, gpu)
    if output is not None:
        write(ops, output)
    answer = _summary(ops) | {"file": str(file), "format": kind} | ({"trace": str(output)} if output else {})
    compared = _beside(ops, scenario, match or [], overrides or [], joined) if scenario is not None else None
    if compared is not None:
        answer["beside"] = compared.as_dict()
    facts = [
        ("read", FORMATS[kind]),
        ("ops", f"{answer['ops']} on {counted(answer['lanes'], 'lane')} of {counted(answer['gpus'], 'GPU')}"),
        ("from the first to the last", f"{answer['makespan_us']:.3f} us"),
        *([("written to", str(output))] if output else []),
    ]
    rows = [(on_one_line(row["name"]), row["ops"], row["total_us"], row["median_us"]) for row in answer["names"]]

    def printed() -> list[Any]:
        longest = table("what takes longest", ("name", "ops", "total us", "median us"), rows)
        beside = [] if compared is None else ["", *compared.printed()]
        return [
            table("", ("", ""), facts),
            "",
            longest,
            *beside,
            *([f"Both times of every op: {joined}"] if joined else []),
        ]

    tell(answer, printed, started, as_json)


def _check(scenario: str | None, needing: dict[str, Any]) -> None:
    """Raises if an option is given that needs --beside."""
    for option, value in needing.items():
        if value and scenario is None:
            raise typer.BadParameter("needs --beside SCENARIO", param_hint=option)
    from ..sim.files import check_output

    if needing["--ops"] is not None:
        check_output(needing["--ops"], "--ops", (".parquet",))


def _beside(ops: pd.DataFrame, scenario: str, match: list[str], overrides: list[str], joined: Path | None) -> Beside:
    from ..differences.beside import beside
    from ..scenarios.loader import load_scenario, parse_overrides

    pairs = {}
    for pair in match:
        name, equals, part = pair.rpartition("=")
        if not equals:
            raise typer.BadParameter(f"{pair!r} is not NAME=PART", param_hint="--match")
        pairs[name] = part
    resolved = load_scenario(scenario, parse_overrides(overrides), label="--set")
    if resolved.scenario.engine == "compiled":
        compile_engine()
    with working(f"Simulating {resolved.scenario.name}"):
        done = beside(ops, resolved, pairs)
    if joined is not None:
        done.write_ops(joined)
    return done


def write(trace: Trace | pd.DataFrame, file: Path) -> None:
    """Write a trace; a large one is announced on standard error, with its size."""
    from ..plots.traces.write import LARGE_BYTES, estimated_bytes, write_trace

    expected = estimated_bytes(trace, file)
    if expected > LARGE_BYTES:
        print(f"Writing {file}, about {expected / 1e6:.0f} MB", file=sys.stderr)
    with share_progress(f"Writing {file}") as progress:
        write_trace(trace, file, progress)


def _summary(ops: pd.DataFrame) -> dict[str, Any]:
    took = ops["end_us"] - ops["start_us"]
    by_name = took.groupby(ops["name" if "name" in ops else "kind"].astype(str)).agg(["count", "sum", "median"])
    longest = by_name.sort_values(["sum", "count"], ascending=False).head(_MOST_NAMES)
    return {
        "ops": len(ops),
        "lanes": int(ops["lane"].nunique()),
        "gpus": int(ops["gpu"].nunique()),
        "makespan_us": float(ops["end_us"].max() - ops["start_us"].min()) if len(ops) else 0.0,
        "names": [
            {"name": str(name), "ops": int(count), "total_us": float(total), "median_us": float(median)}
            for name, count, total, median in longest.itertuples()
        ],
    }
