"""What a section of `xstage demo` is given, and what it hands back to be printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass(frozen=True)
class Job:
    """Where a section writes, and what it reports its progress to: `for size in job.progress.track(sizes, ...)`."""

    folder: Path
    progress: Progress


@dataclass(frozen=True)
class Row:
    """A published number beside the simulated one. `predicted` is False where the number also went into the machine file."""

    name: str
    meaning: str
    unit: str
    published: float
    simulated: float
    predicted: bool

    @property
    def error_pct(self) -> float:
        return 100 * (self.simulated - self.published) / self.published

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"error_pct": self.error_pct}


@dataclass(frozen=True)
class Agreement:
    """The same programs in both engines. `differing` names each field of an outcome that was not the same, by program."""

    programs: int
    events: int
    differing: Sequence[str]
    simpy_s: float
    compiled_s: float

    @property
    def agree(self) -> bool:
        return not self.differing

    def as_dict(self) -> dict[str, Any]:
        return {
            "programs": self.programs,
            "events": self.events,
            "agree": self.agree,
            "differing": list(self.differing),
        }


@dataclass(frozen=True)
class Section:
    """What one part of the demo found. `source` says where the published numbers are from; `files` are all that it wrote."""

    name: str
    title: str
    source: str
    rows: Sequence[Row]
    notes: Sequence[str]
    agreement: Agreement | None = None
    files: Sequence[Path] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "rows": [row.as_dict() for row in self.rows],
            "notes": list(self.notes),
            "engines": self.agreement.as_dict() if self.agreement else None,
            "files": [str(path) for path in self.files],
        }
