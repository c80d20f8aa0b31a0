"""The commands that show what comes with xstage: `xstage scenarios` with `list`, `show` and `schema`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..terminal.output import print_json, table, tell, with_common_fields
from .options import AsJson

scenarios_app = typer.Typer(invoke_without_command=True)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(scenarios_app, name="scenarios")


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
    from ..answers.api import catalogue_rows

    started = time.perf_counter()
    rows = catalogue_rows()
    listed = {
        plural: [{"name": row["name"], "text": row["text"]} for row in rows if row["kind"] == kind]
        for kind, plural in (("scenario", "scenarios"), ("study", "studies"), ("machine", "machines"))
    }
    names = {kind: [(entry["name"], entry["text"].strip()) for entry in found] for kind, found in listed.items()}

    def printed() -> list[Any]:
        return [
            table("scenarios: xstage run NAME", ("name", "answers"), names["scenarios"]), "",
            table("studies: xstage sweep NAME -o DIR", ("name", "answers"), names["studies"]), "",
            table("machines: the `machine` of a scenario", ("name", "what it is"), names["machines"]),
        ]  # fmt: skip

    tell(listed, printed, started, as_json)


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
    from ..scenarios.any_file import find_entry
    from ..scenarios.document import parse, shown_name

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
    from ..scenarios.schemas import schemas

    started = time.perf_counter()
    answer: dict[str, Any] = schemas()
    print_json(with_common_fields(answer, {"wall_s": time.perf_counter() - started}) if as_json else answer)


def _plot_topology(name: str, file: Path, as_json: bool) -> None:
    from ..answers.topology import topology
    from ..answers.topology_facts import shown_topology
    from ..plots.figure_file import check_figure

    started = time.perf_counter()
    check_figure(file, "--plot")
    found = topology(name)
    written = [str(path) for path in found.save(file)]
    answer = {"name": name, "topology": found.facts, "files": written}
    tell(answer, lambda: [*shown_topology(found.facts), f"written: {', '.join(written)}"], started, as_json)
