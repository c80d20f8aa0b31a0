"""`xstage demo`: what the project is about in one to three minutes, as numbers beside the published ones and as figures.

A new part is a function that takes a `Job` and returns a `Section`, and its name in `SECTIONS`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ..sim.files import make_folder
from ..terminal.output import table
from .bursts import bursts
from .schedules import schedules
from .section import Agreement, Job, Section
from .validation import validation

SECTIONS: tuple[Callable[[Job], Section], ...] = (bursts, schedules, validation)


@dataclass(frozen=True)
class Demo:
    """What all sections found. `ok` is False if the engines disagreed anywhere."""

    folder: Path
    sections: tuple[Section, ...]
    timing: dict[str, float]

    @property
    def ok(self) -> bool:
        return all(section.agreement is None or section.agreement.agree for section in self.sections)

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage demo --json`, without the fields that all answers share."""
        return {"ok": self.ok, "output": str(self.folder), "sections": [s.as_dict() for s in self.sections]}


def demo(folder: str | Path) -> Demo:
    """Run every section and write its figures and their data to `folder`. A terminal sees the progress on standard error.

    Raises `InputError` if `folder` cannot be made.
    """
    make_folder(folder)
    started, timing, sections = time.perf_counter(), {}, []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        for run in SECTIONS:
            begun = time.perf_counter()
            section = run(Job(Path(folder), progress))
            sections.append(section)
            timing[f"{section.name}_s"] = time.perf_counter() - begun
            if section.agreement:
                timing[f"{section.name}_simpy_s"] = section.agreement.simpy_s
                timing[f"{section.name}_compiled_s"] = section.agreement.compiled_s
    return Demo(Path(folder), tuple(sections), {"wall_s": time.perf_counter() - started} | timing)


def demo_parts(done: Demo) -> list[Any]:
    """The demo for a person: a table a section, whether the engines agreed, and where the files are."""
    parts: list[Any] = []
    for section in done.sections:
        rows = [
            (row.meaning, row.unit, f"{row.published:g}", row.simulated, f"{row.error_pct:+.1f} %")
            for row in section.rows
        ]
        columns = ("", "unit", "published", "simulated", "difference")
        head = [table(section.title, columns, rows), f"published: {section.source}"] if rows else [section.title]
        parts += [*head, "", *section.notes, ""]
        if section.agreement:
            parts += [_agreement_text(section.agreement), ""]
        if section.files:
            parts += ["figures, and the numbers in them", *_by_figure(section), ""]
    return [*parts, f"Done in {done.timing['wall_s']:.1f} s."]


def _agreement_text(found: Agreement) -> str:
    if not found.agree:
        return "The engines DISAGREE: " + "; ".join(found.differing)
    return (
        f"Both engines ran {found.programs} of these programs, a subset that takes SimPy seconds, and agree to the last "
        f"integer: every op, every granule, {found.events} events. "
        f"SimPy took {found.simpy_s:.1f} s, the compiled engine {found.compiled_s:.3f} s."
    )


def _by_figure(section: Section) -> list[str]:
    """The files of a section, one figure a line."""
    by_name: dict[str, list[str]] = {}
    for path in section.files:
        by_name.setdefault(path.stem, []).append(str(path))
    return ["  ".join(paths) for paths in by_name.values()]
