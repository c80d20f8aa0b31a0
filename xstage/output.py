"""How answers are printed: one JSON object for scripts, short tables for people."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .api import Run
    from .scenarios.workload import Workload

SCHEMA_VERSION = 1
"""Goes up when a field of an answer is renamed or removed, which is not planned."""


_NO_LIMIT = 10_000


def print_json(answer: dict[str, Any]) -> None:
    """One JSON object on standard output; a number that is not finite would be no JSON and raises ValueError."""
    sys.stdout.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")


def with_common_fields(answer: dict[str, Any], timing: dict[str, float], seed: int | None = None) -> dict[str, Any]:
    """`answer` with the fields that every JSON answer has; `seed` is null where nothing is random."""
    from . import __version__
    from .invocation import command

    common: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "xstage_version": __version__, "seed": seed}
    if (line := command()) is not None:
        common["command"] = line
    return common | answer | {"timing": {name: round(seconds, 6) for name, seconds in timing.items()}}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A plain table: text to the left, numbers to the right."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    made.padding, made.show_header = (0, 2, 0, 0), any(columns)
    for position, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[position], (int, float)) for row in rows)
        made.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        made.add_row(*(Text(_cell(value)) for value in row))
    return made


def folded(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int = 80) -> list[Table]:
    """A table of text as one, or as several of at most `width` characters that repeat the first column; none without rows.

    A single column that is wider stays whole.
    """
    widths = [max(len(line[at]) for line in (columns, *rows)) + 2 for at in range(len(columns))]
    parts: list[list[int]] = []
    for at in range(1, len(columns)):
        if not parts or sum(widths[i] for i in (0, *parts[-1], at)) - 2 > width:
            parts.append([])
        parts[-1].append(at)
    return [
        table(title, [columns[i] for i in (0, *part)], [[row[i] for i in (0, *part)] for row in rows])
        for part in parts
        if rows
    ]


def show(*parts: Any) -> None:
    """Text and tables for a person, on standard output. Only a terminal has a width: elsewhere a row is a line."""
    from rich.console import Console

    _print(Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _NO_LIMIT), parts)


def warn(sentences: Iterable[str]) -> None:
    """Say on standard error what a person should know, but nothing failed of."""
    for sentence in sentences:
        print(f"xstage: warning: {sentence}", file=sys.stderr)


@contextmanager
def progress(doing: str) -> Iterator[None]:
    """Say on standard error what is being done, if it is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(doing):
        yield


def _one_of_many(workload: Workload) -> list[str]:
    """What a person must know to read totals: whether they are those of all ranks."""
    if getattr(workload, "ranks", None) != "symmetric":
        return []
    return [f"1 of the {workload.gpus} ranks is simulated, against peers that mirror it: totals are those of one rank"]


def run_parts(run: Run) -> list[Any]:
    """A simulated scenario for a person: what was simulated, then the numbers."""
    from .sim.units import format_size

    metrics, scenario = run.metrics, run.resolved.scenario
    peak = metrics["occupancy_peak_bytes"]
    facts = [
        ("makespan", f"{metrics['makespan_us']:.3f} us"),
        *_ends(metrics),
        ("stalled for room in the stage", f"{metrics['stall_total_us']:.3f} us, summed over lanes"),
        ("stored", format_size(metrics["bytes_stored"])),
        ("most that a GPU's stage held", format_size(peak)),
        ("simulated", f"{metrics['ops']} ops, {metrics['events']} events in {run.timing['simulate_s']:.2f} s"),
    ]
    if load := metrics.get("rank_load"):
        placed, in_order = (f"{load[f'max_over_mean_{when}']:.3f}" for when in ("after", "before"))
        facts.append(("rows of the busiest rank", f"{placed} times the mean; {in_order} with experts in order"))
    parts: list[Any] = [
        f"{scenario.name}: {scenario.question}",
        f"{scenario.workload.kind} on {scenario.workload.gpus} GPUs of {run.resolved.machine.name}, {run.engine} engine",
        *_one_of_many(scenario.workload),
        "",
        table("", ("", ""), facts),
        "",
    ]
    roles, spans = metrics["roles"], metrics["spans"]
    causes = sorted({cause for role in roles.values() for cause in role["wait_mean_us"]})
    by_role = [
        (name, role["lanes"], role["busy_mean_us"], role["stall_mean_us"],
         *(role["wait_mean_us"].get(cause, 0.0) for cause in causes))
        for name, role in roles.items()
    ]  # fmt: skip
    by_phase = [(name, span["tasks"], span["median_us"], span["p95_us"]) for name, span in spans.items()]
    if by_role:
        columns = ("role", "lanes", "busy", "stall", *(f"wait: {cause}" for cause in causes))
        parts.append(table("where a lane's time goes, us, mean by role", columns, by_role))
    if by_phase:
        parts += ["", table("how long a task takes, us, by phase", ("phase", "tasks", "median", "95 %"), by_phase)]
    return parts


def _ends(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """The two ends of a run, of which the makespan is the later; none where nothing is sent."""
    if not metrics["remote_visible_us"]:
        return []
    return [
        ("sender-visible", f"{metrics['sender_visible_us']:.3f} us, when the last lane is free"),
        ("remote-visible", f"{metrics['remote_visible_us']:.3f} us, when the last byte has arrived"),
    ]


def run_html(run: Run) -> str:
    """The same as HTML, for notebooks."""
    return parts_html(run_parts(run))


def parts_html(parts: Iterable[Any]) -> str:
    """Text and tables as HTML, for notebooks."""
    from rich.console import Console

    console = Console(record=True, width=160, file=io.StringIO(), highlight=False)
    _print(console, parts)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _print(console: Console, parts: Iterable[Any]) -> None:
    from rich.text import Text

    for part in parts:  # text is printed as it is: brackets are no markup
        console.print(Text(part) if isinstance(part, str) else part)


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
