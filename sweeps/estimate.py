"""What a sweep will take, extrapolated from a few of its points, which are run for that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from ..scenarios.study import LoadedStudy, load_study
from ..sim.arguments import check_path, check_whole
from ..sim.compilation import compile_engine
from ..sim.units import format_size
from .journal import FILE, Journal
from .parent import processors
from .pool import ProcessPool
from .run import prepare, uses_compiled
from .task import Record, Task, peak_bytes

SAMPLE = 8
SAMPLE_S = 10.0
START_S = 2.0  # what it takes until a worker has loaded the engine


@dataclass(frozen=True)
class Estimate:
    """`ops`, `wall_s` and `memory_bytes` are for the points `to_run`; None where no point of the sample had a result.

    `first_error` is that of the first point of the sample that failed.
    """

    points: int
    to_run: int
    sampled: int
    sample_failed: int
    workers: int
    ops: int | None
    wall_s: float | None
    memory_bytes: int
    first_error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def facts(self) -> list[tuple[str, str]]:
        """The same for a person."""
        workers = f"with {self.workers} workers"
        return [
            ("points", f"{self.points}, of which {self.to_run} are to be run"),
            ("ops", "not known" if self.ops is None else f"about {self.ops:.3g}"),
            ("time", "not known" if self.wall_s is None else f"about {self.wall_s:.3g} s {workers}"),
            ("memory", f"about {format_size(self.memory_bytes)} {workers}"),
            ("sample", f"{self.sampled} points were run for this, {self.sample_failed} of them failed"),
            *([("the first error", self.first_error)] if self.first_error else []),
        ]

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self.facts())
        return f"<table>{rows}</table>"


def estimate(
    study: str | Path | Mapping[str, Any], output: str | Path | None = None, workers: int | None = None
) -> Estimate:
    """Run up to 8 points, spread over the study, or as many as start within 10 s, and extrapolate from them.

    Points with a record in the folder `output` are left out. Nothing is written. Raises `InputError`.
    """
    if workers is not None:
        check_whole(workers, "workers")
    if output is not None:
        check_path(output, "output")
    loaded = load_study(study)
    waiting = _waiting(loaded, output)
    points = sum(1 for _ in loaded.points())
    count = max(1, min(workers or processors(), len(waiting)))
    records = _run_sample(loaded, waiting, timeout_s=SAMPLE_S)
    good = [record.metrics["ops"] for record in records if record.metrics is not None]
    seconds = [record.timing.get("wall_s", 0.0) for record in records]
    share = len(waiting) / max(1, len(records))
    ops = round(sum(good) * share) if good else None
    wall = START_S + fmean(seconds) * len(waiting) / count if good else None
    if not waiting:
        ops, wall = 0, 0.0
    memory = count * max((record.peak_bytes for record in records), default=0) + peak_bytes()
    errors = [f"{record.error_type}: {record.error}" for record in records if not record.ok]
    return Estimate(
        points, len(waiting), len(records), len(errors), count, ops, wall, memory, errors[0] if errors else None
    )


def _waiting(study: LoadedStudy, output: str | Path | None) -> list[int]:
    """Numbers of the points without a record in the folder."""
    if output is None or not (Path(output) / FILE).exists():
        return [point.number for point in study.points()]
    with Journal(Path(output)) as journal:
        known = journal.keys()
    return [point.number for point in study.points() if prepare(study, point).key not in known]


def _run_sample(study: LoadedStudy, waiting: list[int], timeout_s: float) -> list[Record]:
    """Records of points in the middle of equal parts of those waiting."""
    parts = min(SAMPLE, len(waiting))
    chosen = {waiting[(2 * part + 1) * len(waiting) // (2 * parts)] for part in range(parts)}
    records: list[Record] = []

    def tasks() -> Iterator[Task]:
        for point in study.points():
            if point.number in chosen and sum(r.timing.get("wall_s", 0) for r in records) < timeout_s:
                found = prepare(study, point)
                if isinstance(found, Task):
                    yield found
                else:
                    records.append(found)

    if uses_compiled(study):
        compile_engine()
    with closing(ProcessPool(1, timeout_s, compiled=uses_compiled(study)).run(tasks())) as answers:
        for some in answers:
            records += some
    return records
