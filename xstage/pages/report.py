"""`xstage report`: what a command found, as one HTML page that needs nothing else.

    an answer of `--json`   run, compare, explain, needs, tune, audit, calibrate, validate, published, paper, and any other
    an answer in Python     what the functions of those names return; of a validation with the times that were measured,
                            which its answer in JSON does not hold
    a trace .parquet        of a run, of `xstage import`, or the ops of `xstage validate --ops`
    a folder of a sweep     its table, drawn over its axes

Every page ends with parameters, provenance and how to get it again.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..answers.saved import check_regular, read_answer
from ..plots.html_page import Code, Page, Picture, Section, Table, facts, render
from ..sim.errors import InputError, XstageError
from ..sim.files import check_not_read, check_output, write_whole
from ..terminal.output import counted, with_common_fields

if TYPE_CHECKING:
    from ..scenarios.loader import Resolved
    from ..sim.trace import Trace
    from ..sweeps.run import Sweep

OF_SCENARIOS = ("run", "compare", "explain", "tune")
"""Commands whose first word is a scenario."""
SWEEP = "sweep"
SUFFIXES = (".html", ".htm")
PROGRAM_NAME = "xstage"
PARTS_OF_XSTAGE = ("xstage.answers", "xstage.differences", "xstage.hw_validate", "xstage.paper", "xstage.predictions",
                   "xstage.sweeps.estimate")  # fmt: skip
"""Where the classes of answers are."""
ALLOWED = "what a command prints with --json, a trace as .parquet, or the folder of a sweep"


@dataclass(frozen=True)
class Report:
    """A page that was written: its title, and how many tables, figures and bytes it holds."""

    file: Path
    title: str
    tables: int
    figures: int
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage report --json`, without the fields that all answers share."""
        return {"report": str(self.file), "title": self.title, "tables": self.tables, "figures": self.figures,
                "bytes": self.bytes}  # fmt: skip

    def _repr_html_(self) -> str:
        """A link to the page."""
        from html import escape

        held = f"{counted(self.tables, 'table')}, {counted(self.figures, 'figure')}"
        return f'<a href="{escape(self.file.as_posix())}">{escape(self.title)}</a> ({held})'


class Answer(Protocol):
    """What functions such as `run` and `explain` return."""

    def as_dict(self) -> Mapping[str, Any]:
        """What `--json` prints."""


def report(found: str | Path | Answer | Trace | Sweep, output: str | Path) -> Report:
    """Write the page of what was `found` to `output` (.html), whole or not at all. The same file gives the same bytes.

    `found` is what a function such as `run` or `explain` returned, a trace, or a path: of a file with an answer of
    `--json`, of a .parquet trace, or of the folder of a sweep. Raises `InputError` for what is not there or is none of
    these, and for an output without the suffix .html, or that is the path itself.
    """
    check_output(output, "output", SUFFIXES)
    if isinstance(found, (str, Path)):
        check_not_read(output, "output", found)
        return _written(page_of(Path(found)), Path(output))
    return _written(_page_of_object(found), Path(output))


def report_answer(answer: dict[str, Any], output: str | Path) -> Report:
    """`report` of an answer that is at hand, as a command prints it with --json; its options have been checked."""
    from .answers import answer_page

    return _written(_with_end(answer_page(answer), None, answer), Path(output))


def _written(page: Page, target: Path) -> Report:
    text = render(page)
    with write_whole(target) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
    return Report(target, page.title, page.count(Table), page.count(Picture), len(text.encode()))


def page_of(source: Path) -> Page:
    """The page of a file or folder. Raises `InputError` as `report` does."""
    if source.is_dir():
        from .sweeps import sweep_page

        page, about = sweep_page(source)
        maker = f"xstage sweep STUDY -o {shlex.quote(source.name)}"
        return _with_end(page, source, {"command": _sweep_of(about["study"])}, maker)
    if not source.exists():
        raise InputError("is not there", field="path", value=str(source), allowed=ALLOWED)
    check_regular(source)
    with source.open("rb") as stream:
        begins = stream.read(64)
    if begins.startswith(b"PAR1"):
        from .traces import trace_page

        page, made = trace_page(source)
        return _with_end(page, source, None, f"xstage {made} {shlex.quote(source.name)}")
    answer = read_answer(source, ALLOWED)
    from .answers import answer_page

    try:
        return _with_end(answer_page(answer), source, answer)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # an older answer, or one that was altered
        cause = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"is no whole answer of --json: {cause}", file=str(source), allowed=ALLOWED) from error


def _page_of_object(found: Any) -> Page:
    """The page of what a function returned."""
    from ..hw_validate.calibrated import Calibrated
    from ..hw_validate.validation import Validation
    from ..sim.trace import Trace
    from ..sweeps.run import Sweep

    if isinstance(found, Sweep):
        return page_of(found.folder)
    if isinstance(found, Trace):
        from .traces import ops_page

        return _with_end(ops_page(found.ops()), None, None)
    if not _is_answer(found):
        allowed = f"what run, explain or another such function returns, a trace, or the path of {ALLOWED}"
        raise InputError("is nothing that a page is made of", field="type", value=type(found).__name__, allowed=allowed)
    resolved = getattr(found, "resolved", None)
    timing = getattr(found, "timing", None) or ({"wall_s": found.wall_s} if hasattr(found, "wall_s") else {})
    seed = resolved.scenario.seed if resolved is not None else getattr(found, "seed", None)
    said = {"calibration": found.as_dict()} if isinstance(found, Calibrated) else found.as_dict()
    answer = with_common_fields(said, timing, seed)
    if isinstance(found, Validation):
        from .validation import validation_page

        return _with_end(validation_page(answer, found), None, answer)
    from .answers import answer_page

    page = answer_page(answer)
    if page.title == PROGRAM_NAME:  # the page of an answer that is named by its command, of which there is none
        page = replace(page, title=type(found).__name__)
    return _with_end(page, None, answer, resolved=resolved)


def _is_answer(found: Any) -> bool:
    """Whether it is what a function of xstage returned, with what `--json` would print."""
    return hasattr(found, "as_dict") and type(found).__module__.startswith(PARTS_OF_XSTAGE)


def _with_end(
    page: Page,
    source: Path | None,
    answer: dict[str, Any] | None,
    maker: str = "xstage ... --json",
    resolved: Resolved | None = None,
) -> Page:
    """The page with parameters, provenance and how to get it again behind it. `source` is the file that it was made from,
    `maker` a command that makes such files, for one that does not say its own, `resolved` the scenario if it is at hand."""
    from .. import __version__

    known = answer or {}
    line = known.get("command")
    of_file = {} if source is None else {"made from": source.name, "SHA-256 of it": _digest(source)}
    origin: dict[str, Any] = of_file | {
        "written by xstage": known.get("xstage_version"),
        "this page by xstage": __version__,
        "seed": known.get("seed"),
        "time it took, s": known.get("timing", {}).get("wall_s"),
    }
    if source is None:
        steps = [line or "# called from Python: there was no command"]
    else:
        made = "" if source.is_dir() else f" > {shlex.quote(source.name)}"
        steps = [line + made if line else f"# {maker}   (the command was not recorded)"]
        steps.append(f"xstage report {shlex.quote(source.name)} -o {shlex.quote(source.stem)}.html")
    ends = [
        Section("Provenance", [facts("", {name: value for name, value in origin.items() if value is not None})]),
        Section("How to get it again", [Code("\n".join(steps))]),
    ]
    parameters = _parameters(known) if resolved is None else _of_scenario(resolved, "Parameters")
    return Page(page.title, page.about, page.lead, [*page.sections, *parameters, *ends])


def _digest(source: Path) -> str:
    from ..sweeps.table import FILE

    file = source / FILE if source.is_dir() else source
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _parameters(answer: dict[str, Any]) -> list[Section]:
    """Machine and workload of a scenario: as the answer says them, or as the command's scenario says them now."""
    explained = answer.get("explain")
    if isinstance(explained, dict) and "machine" in explained:
        return _parameter_sections(explained, "Parameters")
    resolved = _resolved(answer.get("command"))
    if resolved is None:
        return []
    of = " of point 0" if str(answer.get("command")).startswith(f"xstage {SWEEP} ") else ""
    return _of_scenario(resolved, f"Parameters{of}, as they are read today")


def _of_scenario(resolved: Resolved, heading: str) -> list[Section]:
    numbers = [
        {"name": name, **number.model_dump(mode="json", exclude_none=True)}
        for name, number in resolved.machine.numbers()
    ]
    data = {
        "scenario": resolved.scenario.model_dump(mode="json"),
        "machine": {"name": resolved.machine.name, "numbers": numbers},
    }
    return _parameter_sections(data, heading)


def _sweep_of(study: str) -> str | None:
    """The command that makes a sweep of the catalogue again; None for a study of somebody's own, whose file is not known."""
    from ..scenarios.catalogue import entries

    known = any(entry.name == study for entry in entries("study"))
    return f"xstage {SWEEP} {shlex.quote(study)}" if known else None


def _resolved(line: str | None) -> Resolved | None:
    """The scenario of a recorded command, of a sweep that of its first point; None where there is none, or it can no longer
    be read.
    """
    from ..scenarios.loader import load_scenario, parse_overrides
    from ..scenarios.study import load_study

    words = shlex.split(line or "")[1:]
    if len(words) < 2 or words[0] not in (*OF_SCENARIOS, SWEEP):
        return None
    changes = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--set"]
    changes += [word.removeprefix("--set=") for word in words if word.startswith("--set=")]
    try:
        if words[0] == SWEEP:
            study = load_study(words[1])
            return study.resolve(next(study.points()))
        return load_scenario(words[1], parse_overrides(changes))
    except (XstageError, OSError):
        return None


def _parameter_sections(data: dict[str, Any], heading: str) -> list[Section]:
    workload = {name: _plain(value) for name, value in data["scenario"]["workload"].items() if value is not None}
    numbers = [
        (number["name"], _plain(number["value"]), "assumed" if number.get("assumed") else "", number.get("source", ""))
        for number in data["machine"]["numbers"]
    ]
    machine = Table(f"machine {data['machine']['name']}", ("number", "value", "", "source"), numbers)
    return [Section(heading, [facts("workload", workload), machine], folded=True)]


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else json.dumps(value)
