"""The `xstage` command. Each subcommand calls one function of the Python interface and prints its answer.

With `--json` standard output is one JSON object and nothing else, also for an error. Exit codes: 0 done, 2 bad input,
1 failure, 143 ended by SIGTERM. Modules are imported when a command needs them, so that `--help` is quick.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .commands.diff import register as register_diff
from .commands.figures import register as register_figures
from .commands.layer import register as register_layer
from .commands.paper import register as register_paper
from .commands.published import register as register_published
from .commands.schedule import register as register_schedule
from .commands.sweep import register as register_sweep
from .commands.trace import register as register_trace
from .commands.validate import register as register_validate
from .sim.compilation import announce_compilation
from .terminal.invocation import invoked
from .terminal.output import (
    OutputLostError,
    print_json,
    progress,
    show,
    table,
    to_standard_output,
    warn,
    with_common_fields,
)

# The class of all errors in a command line; where it can be imported from depends on the version of typer.
CommandLineError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

_INTERRUPTED = 130  # what newer versions of typer make of Ctrl-C

app = typer.Typer(
    name="xstage",
    help="Simulate fused GPU communication-computation kernels.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
scenarios_app = typer.Typer(invoke_without_command=True)
app.add_typer(scenarios_app, name="scenarios")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Replace a value, such as workload.burst=64KiB. Repeatable."),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(words, "--json" in words)
        with to_standard_output():
            return code
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        pass
    except OutputLostError as error:
        print(f"xstage: {error}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again when it ends
    return 1


def _run(words: list[str], as_json: bool) -> int:
    """The exit code, after errors were told."""
    try:
        with invoked(words):
            code = app(words, prog_name="xstage", standalone_mode=False)
    except (BrokenPipeError, OutputLostError):
        raise
    except (typer.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except CommandLineError as error:
        message: str = error.format_message() if hasattr(error, "format_message") else str(error)
        return _failed({"type": "UsageError", "message": message}, as_json, 2)
    except Exception as error:
        return _raised(error, as_json)
    if code == _INTERRUPTED:
        return _failed({"type": "Interrupted", "message": "interrupted"}, as_json, 1)
    return int(code or 0)


def _raised(error: Exception, as_json: bool) -> int:
    from .sim.errors import InputError, ProgramError, XstageError

    if isinstance(error, XstageError):
        return _failed(error.as_dict(), as_json, 2 if isinstance(error, (InputError, ProgramError)) else 1)
    traceback.print_exception(error)
    return _failed({"type": type(error).__name__, "message": f"unexpected: {error}"}, as_json, 1)


def _failed(error: dict[str, object], as_json: bool, code: int) -> int:
    if as_json:
        print_json({"error": error})
    else:
        print(f"xstage: {error['message']}", file=sys.stderr)
    return code


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        from . import __version__

        print(f"xstage {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def run(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A name from `xstage scenarios`, or a YAML file.")
    ],
    engine: Annotated[
        str | None,
        typer.Option(
            help="simpy (readable) or compiled (fast); if left out, what the scenario says, or else compiled."
        ),
    ] = None,
    overrides: Overrides = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write every op of every lane: .parquet, .pftrace (Perfetto) or .json (Kineto)."
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print what each part of the scenario became.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only say what it would take: ops, memory and time.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a scenario and print where the time goes."""
    from .answers.api import run as simulate
    from .answers.no_effect import without_effect
    from .answers.run_estimate import Built, cost_parts, estimate_parts, estimate_run, peak_memory
    from .commands.trace import write
    from .plots.traces.write import check_file
    from .scenarios.cautions import cautions
    from .scenarios.loader import load, parse_overrides
    from .terminal.clock import clock

    started = time.perf_counter()
    if trace is not None:
        check_file(trace, "--trace")
    changes = parse_overrides(overrides or [])
    resolved = load(scenario, changes, label="--set")
    if (engine or resolved.scenario.engine) == "compiled":
        announce_compilation()
    level = "full" if trace else None
    with progress(f"Building {resolved.scenario.name}"):
        built = Built.of(resolved)
    if estimate:
        with progress(f"Watching the first seconds of {resolved.scenario.name}"):
            found = estimate_run(built, engine, level)
        if as_json:
            said = {"scenario": resolved.scenario.name, "estimate": found.as_dict()}
            print_json(with_common_fields(said, {"wall_s": time.perf_counter() - started}, resolved.scenario.seed))
        else:
            show(*estimate_parts(found))
        return
    with clock(f"Simulating {resolved.scenario.name}") as tell:
        done = simulate(built, engine=engine, trace=level, progress=tell)  # type: ignore[arg-type]
    answer, parts = done.as_dict(), []
    idle = without_effect(scenario, changes, done.program, done.fabric, done.trace)
    if warnings := [*idle, *cautions(resolved, done.program)]:
        answer["warnings"] = warnings
        warn(warnings)
    if explain:
        from .answers.scenario_parts import scenario_parts, shown_parts

        answer["explain"] = scenario_parts(resolved, done.program, done.fabric)
        parts += shown_parts(answer["explain"])
    if trace is not None:
        write(done.trace, trace)
        answer["trace"] = str(trace)
    timing = done.timing | {"build_s": built.build_s, "wall_s": time.perf_counter() - started} | peak_memory()
    if as_json:
        print_json(with_common_fields(answer, timing, resolved.scenario.seed))
    else:
        from .answers.run import run_parts

        show(*parts, *run_parts(done), *cost_parts(timing))


@app.command()
def audit(
    machine: Annotated[str, typer.Option(help="A machine from `xstage scenarios`, or a YAML file.")],
    producers: Annotated[int, typer.Option(help="SMs of one GPU that store at the same time.")],
    burst: Annotated[
        str,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="What each stores in one burst: a number with B, KB, KiB, MB or MiB, such as '32 KiB'.",
        ),
    ],
    gap: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Time without stores between bursts: a number with ns, us or ms, such as '4 us'."
        ),
    ],
    synchronised: Annotated[
        bool,
        typer.Option("--synchronised", help="Producers start each burst together; without it each goes on freely."),
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY.PATH=VALUE",
            help="Replace a number of the machine, such as machine.interconnect.drain_rate=900GB/s. Repeatable.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether bursts of stores fit a machine as they are, by what margins, and what to do if not."""
    from .answers.audit import audit as audited
    from .answers.audit import audit_parts
    from .scenarios.loader import machine_overrides, parse_overrides
    from .scenarios.machine_files import load_machine
    from .sim.units import parse_size, parse_time

    started = time.perf_counter()
    parse_size(burst, "--bytes"), parse_time(gap, "--gap")
    known = load_machine(machine, machine_overrides(parse_overrides(overrides or [])), prefix="--set machine.")
    found = audited(known, producers, burst, gap, synchronised)
    if as_json:
        print_json(with_common_fields(found.as_dict(), {"wall_s": time.perf_counter() - started}))
    else:
        show(*audit_parts(found))


@scenarios_app.callback()
def scenarios(context: typer.Context, as_json: AsJson = False) -> None:
    """List, show and describe the scenarios, studies and machines that come with xstage."""
    if context.invoked_subcommand is None:
        list_scenarios(as_json)
    elif as_json:
        raise typer.BadParameter(f"write it after {context.invoked_subcommand}", param_hint="--json")


@scenarios_app.command("list")
def list_scenarios(as_json: AsJson = False) -> None:
    """List the scenarios, the studies and the machines."""
    from .answers.api import catalogue_rows

    started = time.perf_counter()
    rows = catalogue_rows()
    listed = {
        plural: [{"name": row["name"], "text": row["text"]} for row in rows if row["kind"] == kind]
        for kind, plural in (("scenario", "scenarios"), ("study", "studies"), ("machine", "machines"))
    }
    if as_json:
        print_json(with_common_fields(listed, {"wall_s": time.perf_counter() - started}))
        return
    names = {kind: [(entry["name"], entry["text"].strip()) for entry in found] for kind, found in listed.items()}
    show(
        table("scenarios: xstage run NAME", ("name", "answers"), names["scenarios"]), "",
        table("studies: xstage sweep NAME -o DIR", ("name", "answers"), names["studies"]), "",
        table("machines: the `machine` of a scenario", ("name", "what it is"), names["machines"]),
    )  # fmt: skip


@scenarios_app.command("show")
def show_scenario(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A scenario, a study or a machine: a name or a YAML file.")
    ],
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the topology instead: .png, .svg or .pdf.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the file of a scenario, study or machine, to be copied and changed, or draw its topology."""
    from .scenarios.any_file import find_entry
    from .scenarios.document import parse, shown_name

    started = time.perf_counter()
    if plot is not None:
        _plot_topology(name, plot, as_json)
        return
    entry = find_entry(name)
    text, file = entry.file.read_text(encoding="utf-8"), shown_name(entry.file)
    if as_json:
        answer = {"name": name, "kind": entry.kind, "file": file, "data": parse(text, file).data}
        print_json(with_common_fields(answer, {"wall_s": time.perf_counter() - started}))
    else:
        sys.stdout.write(text)


@scenarios_app.command("schema")
def show_schema(as_json: AsJson = False) -> None:
    """Print the JSON schemas of scenario, study and machine files, for editors and checkers."""
    from .scenarios.schemas import schemas

    started = time.perf_counter()
    answer: dict[str, Any] = schemas()
    print_json(with_common_fields(answer, {"wall_s": time.perf_counter() - started}) if as_json else answer)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look at versions, processors, the compiled engine's cache and GPUs."""
    from .answers.diagnosis import doctor as diagnose

    started = time.perf_counter()
    found = diagnose()
    if as_json:
        print_json(with_common_fields(found.as_dict(), {"wall_s": time.perf_counter() - started}))
    else:
        rows = [(check.name, check.found if check.ok else f"FAILS: {check.found}") for check in found.checks]
        show(table("", ("", ""), rows))
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where the figures and their data go.")
    ] = Path("out/demo"),
    as_json: AsJson = False,
) -> None:
    """Run the paper's microbenchmarks and a MegaMoE layer, compare with the paper, and draw the figures."""
    from .demo.run import demo as run_demo
    from .demo.run import demo_parts

    started = time.perf_counter()
    announce_compilation()
    done = run_demo(output)
    if as_json:
        print_json(with_common_fields(done.as_dict(), done.timing | {"wall_s": time.perf_counter() - started}))
    else:
        show(*demo_parts(done))
    if not done.ok:
        raise typer.Exit(1)


register_diff(app)
register_figures(app)
register_layer(app)
register_paper(app)
register_published(app)
register_schedule(app)
register_sweep(app)
register_trace(app)
register_validate(app)


def _plot_topology(name: str, file: Path, as_json: bool) -> None:
    from .answers.topology import topology
    from .answers.topology_facts import shown_topology
    from .plots.figure_file import check_figure

    started = time.perf_counter()
    check_figure(file, "--plot")
    found = topology(name)
    written = [str(path) for path in found.save(file)]
    if as_json:
        answer = {"name": name, "topology": found.facts, "files": written}
        print_json(with_common_fields(answer, {"wall_s": time.perf_counter() - started}))
    else:
        show(*shown_topology(found.facts), f"written: {', '.join(written)}")
