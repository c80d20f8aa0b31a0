"""Run a study: what was computed before comes from the journal, the rest from workers, and all of it goes into a table."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from html import escape
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..scenarios.study import LoadedStudy, Point, load_study
from ..sim.arguments import check_number, check_path, check_text, check_whole
from ..sim.compilation import compile_engine
from ..sim.errors import InputError, LimitError
from ..sim.units import format_size, parse_size
from .batch import Workers
from .cluster import Cluster
from .digest import model_digest, point_key, text_key
from .journal import Journal
from .parent import processors
from .pool import ProcessPool
from .table import FILE, check_columns, check_owner, read_table, remove_leftovers, write_table
from .task import Record, Task
from .view import check_metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COMMIT_S = 0.2
TABLE_S = 10.0
TABLE_SHARE = 20  # a table is written again at the earliest after this many times what the last one took
SAMPLE = 4
SHOWN = ("makespan_us", "stall_total_us", "occupancy_peak_bytes", "egress_use_pct")
"""Columns beside the axes that a notebook shows."""
HEADROOM = 1.25  # what a worker may need beyond the largest of the sample
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the points that are done and all points."""


def silent(done: int, expected: int) -> None:
    """No progress."""


@dataclass(frozen=True)
class Sweep:
    """A study that was run. `resumed` points were in the folder already; `failed` ones have a row with their error."""

    study: LoadedStudy
    folder: Path
    points: int
    done: int
    failed: int
    resumed: int
    timing: dict[str, float] = field(compare=False)

    @property
    def file(self) -> Path:
        return self.folder / FILE

    @property
    def frame(self) -> pd.DataFrame:
        """The table as a DataFrame: one row per point, with axes, metrics, errors and, last, times."""
        return read_table(self.folder)

    def plot(self, metric: str | None = None, at: Mapping[str, Any] | None = None) -> Figure:
        """A column (default: the study's `metric`) over the axes that have more than one value: a line over one, a heat map
        over two, panels over three.

        `at` fixes others, by column: {"workload.mode": "isolated"}. Over further axes the point with the smallest of the
        study's metric is drawn, over seeds the mean; the figure says so. Raises `InputError`.
        """
        from .view import plotted

        return plotted(self.study, self.frame, metric, at or {})

    def save(self, file: str | Path, metric: str | None = None, at: Mapping[str, Any] | None = None) -> list[Path]:
        """Write the picture of `plot`, and the table as CSV beside it. Raises `InputError` for an unknown suffix."""
        from ..plots.save import save

        path, frame = Path(file), self.frame
        return save(self.plot(metric, at), frame, path.parent, path.stem, [path.suffix.removeprefix(".")])

    def idle_axes(self) -> list[str]:
        """A sentence for each axis whose values made no difference to any result."""
        from .view import idle_axes

        return idle_axes(self.study, self.frame)

    def cautions(self) -> list[str]:
        """Warnings about points: unmeasured assumptions that they depend on, and numbers left unchanged when related
        ones were changed. Each sentence once, with its number of points. Before them, a metric that no point has.
        """
        from .view import cautions, missing_metric

        frame = self.frame
        return [*missing_metric(self.study, frame), *cautions(frame)]

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage sweep --json`, without the fields that all answers share."""
        return {
            "study": self.study.study.name,
            "points": self.points,
            "done": self.done,
            "failed": self.failed,
            "resumed": self.resumed,
            "table": str(self.file),
            "model_digest": model_digest(),
        }

    def __repr__(self) -> str:
        return f"<Sweep {self.study.study.name}: {self.done} of {self.points} points done, {self.failed} failed>"

    def _repr_html_(self) -> str:
        frame = self.frame
        axes = [axis.column for axis in self.study.axes]
        shown = [name for name in (*axes, *SHOWN, "error") if name in frame and frame[name].notna().any()]
        counts = f"{self.points} points: {self.done} done, {self.failed} failed, {self.resumed} of them computed before"
        table = frame[shown].to_html(index=False, max_rows=20, na_rep="")
        return f"<p><b>{escape(self.study.study.question)}</b><br>{counts}</p>{table}"


def sweep(
    study: str | Path | Mapping[str, Any],
    output: str | Path,
    *,
    workers: int | None = None,
    dask: str | None = None,
    timeout_s: float | None = None,
    max_memory: str | None = None,
    metric: str | None = None,
    progress: Progress = silent,
) -> Sweep:
    """Run all points of a study: a name of the catalogue, a YAML file or a mapping.

    Results go into the folder `output`: a journal, from which the next call with that folder goes on, and points.parquet.
    Points are computed by `workers` processes (default: one for each processor), or by the Dask cluster whose scheduler
    is at `dask`. A point that fails, or takes longer than `timeout_s`, is a row with its error. `max_memory` ('8 GiB') is
    for all processes together: there are fewer of them if they need more. `metric` replaces the study's own.

    Raises `InputError` for what is not acceptable, and for a folder with the points of another study; `LimitError` if not
    even one worker fits into `max_memory`.
    """
    started = time.perf_counter()
    memory = None if max_memory is None else memory_limit(max_memory)
    _check_choices(output, workers, dask, timeout_s, memory)
    loaded = load_study(study)
    if metric is not None:
        check_text(metric, "metric")
        loaded = replace(loaded, study=loaded.study.model_copy(update={"metric": metric}))
    check_columns(loaded)
    folder = Path(output)
    check_owner(loaded, folder)
    with ExitStack() as stack:
        cluster = stack.enter_context(closing(Cluster(dask, timeout_s))) if dask is not None else None
        journal = stack.enter_context(Journal(folder))
        remove_leftovers(folder)
        running = _Running(loaded, journal, folder, progress)
        pool = ProcessPool(min(workers or processors(), running.total), timeout_s, compiled=uses_compiled(loaded))
        try:
            running.look_up()
            tasks = running.tasks()
            if cluster is not None:
                running.take(cluster, tasks)
            elif (first := next(tasks, None)) is not None:
                if pool.compiled:
                    compile_engine()
                tasks = chain([first], tasks)
                if memory is not None:
                    pool = _within(memory, pool, running, tasks)
                running.take(pool, tasks)
        finally:
            running.write()
    return running.result(time.perf_counter() - started)


class _Running:
    """The state of one sweep: which key each point has, and which keys have a record."""

    def __init__(self, study: LoadedStudy, journal: Journal, folder: Path, progress: Progress):
        self.study, self.journal, self.folder, self.progress = study, journal, folder, progress
        self.total = sum(1 for _ in study.points())
        self.run = uuid.uuid4().hex
        self.keys: list[str] = []
        self.peak_bytes = 0
        journal.forget_outside_causes()
        self.ok = journal.keys()
        self.before = frozenset(self.ok)
        self._known = False
        self._metric_checked = False
        self._ended = 0
        self._table_due = time.monotonic() + TABLE_S
        self._committed = time.monotonic()

    def look_up(self) -> None:
        """If there are records from before, find the key of every point first, so that no table leaves one out.

        Raises `InputError` where they have no such metric.
        """
        if self.before:
            for point in self.study.points():
                self.keys.append(prepare(self.study, point).key)
                self._ended += self.keys[-1] in self.before
            self.progress(self._ended, self.total)
        self._known = True
        good = next((key for key in self.keys if self.ok.get(key)), None)
        if good is not None and (found := self.journal.get(good)) is not None:
            self._check_metric(found[0])

    def tasks(self) -> Iterator[Task]:
        """What is still to be computed, each key once. A point without a scenario gets its record at once."""
        asked = set(self.before)
        for point in self.study.points():
            if point.number < len(self.keys) and self.keys[point.number] in asked:
                continue
            found = prepare(self.study, point)
            if point.number >= len(self.keys):
                self.keys.append(found.key)
            if found.key in asked:
                self._ended += 1
                continue
            asked.add(found.key)
            if isinstance(found, Record):
                self._add([found])
            else:
                yield found

    def take(self, workers: Workers, tasks: Iterator[Task]) -> None:
        """Let workers compute tasks, and keep what they send."""
        with closing(workers.run(tasks)) as answers:
            for records in answers:
                self._add(records)
                now = time.monotonic()
                if now - self._committed >= COMMIT_S:
                    self.journal.commit()
                    self._committed = now
                if now >= self._table_due:
                    self.write()
                    self._table_due = time.monotonic() + max(TABLE_S, TABLE_SHARE * (time.monotonic() - now))
                self.progress(self._ended, self.total)

    def write(self) -> None:
        """Make everything so far durable, and the table agree with it."""
        self.journal.commit()
        if self._known and self.keys:
            write_table(self.study, self.keys, self.journal, self.folder)

    def result(self, wall_s: float) -> Sweep:
        done = sum(self.ok[key] for key in self.keys)
        resumed = sum(key in self.before for key in self.keys)
        return Sweep(self.study, self.folder, self.total, done, self.total - done, resumed, {"wall_s": wall_s})

    def _add(self, records: list[Record]) -> None:
        self.journal.add(records, self.run)
        for record in records:
            self.ok[record.key] = record.ok
            self.peak_bytes = max(self.peak_bytes, record.peak_bytes)
            self._check_metric(record)
        self._ended += len(records)

    def _check_metric(self, record: Record) -> None:
        """Of the first record with metrics. Raises `InputError` where that of the study is not one of them."""
        if record.metrics is not None and not self._metric_checked:
            check_metric(self.study, record.metrics)
            self._metric_checked = True


def prepare(study: LoadedStudy, point: Point) -> Task | Record:
    """The task of a point, or the record of why it has no scenario."""
    try:
        resolved = study.resolve(point)
    except InputError as error:
        said = {path: change.data for path, change in study.changes(point).items()}
        key = text_key(json.dumps([model_digest(), said, str(error)], sort_keys=True, default=str))
        return Record(key, None, type(error).__name__, str(error))
    scenario, machine = resolved.scenario.model_dump(mode="json"), resolved.machine.model_dump(mode="json")
    return Task(point_key(scenario, machine, model_digest()), scenario, machine, resolved.places)


def _within(memory: int, pool: ProcessPool, running: _Running, tasks: Iterator[Task]) -> ProcessPool:
    """The pool with as many workers as fit into `memory`, going by a sample, which is part of the sweep."""
    alone = ProcessPool(1, pool.timeout_s, memory, pool.compiled)
    running.take(alone, islice(tasks, SAMPLE))
    needed = int(running.peak_bytes * HEADROOM)
    if needed > memory:
        raise LimitError(
            f"a worker needs some {format_size(needed)}, more than the {format_size(memory)} of max_memory"
        )
    count = min(pool.count, memory // max(1, needed))
    return ProcessPool(count, pool.timeout_s, memory // count, pool.compiled)


def uses_compiled(study: LoadedStudy) -> bool:
    """Whether some point may run in the compiled engine."""
    if any(axis.path == "engine" for axis in study.axes):
        return True
    said = study.fixed.get("engine")
    written = said.data if said is not None else study.scenario.data.get("engine", "compiled")
    return bool(written == "compiled")


def memory_limit(text: str, option: str = "max_memory") -> int:
    """Bytes. Raises `InputError` for what is no size, and for none at all."""
    memory = parse_size(text, option)
    if memory == 0:
        raise InputError("is no room for a process", field=option, value=text, allowed="a size such as '8 GiB'")
    return memory


def _check_choices(
    output: str | Path, workers: int | None, dask: str | None, timeout_s: float | None, memory: int | None
) -> None:
    check_path(output, "output")
    if output == "":
        raise InputError("is no folder", field="output", value="", allowed="its name; '.' is the working folder")
    if workers is not None:
        check_whole(workers, "workers")
    if timeout_s is not None:
        check_number(timeout_s, "timeout")
        if not timeout_s > 0:
            raise InputError("is not a time limit", field="timeout", value=timeout_s, allowed="seconds above 0")
    if dask is not None:
        check_text(dask, "dask")
    if dask == "":
        raise InputError("is no address", field="dask", value=dask, allowed="that of a scheduler: tcp://HOST:8786")
    if dask is not None and (workers is not None or memory is not None):
        field_name = "workers" if workers is not None else "max_memory"
        raise InputError("has no meaning with a Dask cluster, which has its own", field=field_name)
