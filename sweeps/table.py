"""The records of a study as one flat table, a row a point, in the order of the points.

Columns: `point`, one for each axis (with its unit, such as burst_bytes), the metrics, `error_type`, `error`; then, apart
because they differ from sweep to sweep, `timing.*` in seconds and `timing.run`, the sweep that computed the row.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..scenarios.study import LoadedStudy
from ..sim.errors import InputError
from ..sim.files import write_whole
from .digest import model_digest
from .journal import Journal

if TYPE_CHECKING:
    import pandas as pd

FILE = "points.parquet"
UNNAMED = "unnamed"
"""The name of a study that was given as a mapping without one."""

ABOUT = ("question", "study", "axes", "metric", "model_digest")
"""What a table says of its sweep."""

FRONT, ERRORS, TIMING = range(3)  # the parts of a row


def write_table(study: LoadedStudy, keys: list[str], journal: Journal, folder: Path) -> Path:
    """Write points.parquet with the points that have a record. `keys[n]` is the key of point n."""
    import pyarrow as pa
    from pyarrow import parquet

    rows: list[tuple[dict[str, Any], ...]] = []
    for point, key in zip(study.points(), keys, strict=False):
        if (found := journal.get(key)) is None:
            continue
        record, run = found
        cells, metrics = study.cells(point), record.metrics or {}
        if taken := cells.keys() & metrics.keys():
            raise InputError("is the name of a metric", field="axes", value=min(taken))
        front = {"point": point.number, **cells, **metrics}
        errors = {"error_type": record.error_type, "error": record.error}
        timing = {f"timing.{name}": seconds for name, seconds in record.timing.items()}
        rows.append((front, errors, timing | {"timing.run": run}))
    axes = [axis.column for axis in study.axes]
    names = _in_order(rows, ["point", *axes])
    columns = {name: _column([row[part].get(name) for row in rows], part) for name, part in names.items()}
    about = {
        "question": study.study.question, "study": study.study.name, "axes": axes, "metric": study.study.metric,
        "model_digest": model_digest(), "seeds": seed_columns(study),
    }  # fmt: skip
    table = pa.table(columns).replace_schema_metadata({"xstage": json.dumps(about)})
    with write_whole(folder / FILE) as temporary:
        parquet.write_table(table, temporary, compression="zstd")
    return folder / FILE


def read_table(folder: Path) -> pd.DataFrame:
    """The points in the folder of a sweep. `attrs` has what the sweep says about itself: question, study, axes, which of
    them are seeds, metric and model_digest.

    Raises `InputError` if there is no such table.
    """
    from pyarrow import ArrowException, parquet

    file = folder / FILE
    try:
        table = parquet.read_table(file)
        said = json.loads((table.schema.metadata or {})[b"xstage"])
        about: dict[Hashable | None, Any] = {name: said[name] for name in ABOUT}
        about["seeds"] = said.get("seeds", [name for name in said["axes"] if name == "seed"])
    except FileNotFoundError:
        reason = f"has no {FILE}: it is no folder of a sweep, or of one that was stopped at once"
        raise InputError(reason, file=str(folder), allowed="a folder that `xstage sweep -o DIR` wrote") from None
    except (KeyError, TypeError):
        raise InputError("is no table of a sweep: it does not say its axes and its metric", file=str(file)) from None
    except (ArrowException, OSError, ValueError) as error:
        raise InputError(f"is no table of a sweep: {error}", file=str(file)) from None
    points: pd.DataFrame = table.to_pandas()
    points.attrs = about
    return points


def seed_columns(study: LoadedStudy) -> list[str]:
    """Axes that are seeds: points that differ in nothing else are repetitions."""
    return [axis.column for axis in study.axes if axis.path == "seed"]


def check_owner(study: LoadedStudy, folder: Path) -> None:
    """Raises `InputError` if the folder has the table of another study, which this one's would replace.

    A study is known by its name, so it may change and grow; where one of the two has none, from Python, by its question.
    """
    if not (folder / FILE).exists():
        return
    there, mine = read_table(folder).attrs, study.study
    unnamed = UNNAMED in (there["study"], mine.name)
    if there["question"] == mine.question if unnamed else there["study"] == mine.name:
        return
    known = f"asking {there['question']!r}" if unnamed else str(there["study"])
    go_on = "" if unnamed else f"; a study that was renamed goes on with `name: {there['study']}`"
    raise InputError(
        f"has the points of another study, {known}", field="output", value=str(folder), allowed=f"another folder{go_on}"
    )


def remove_leftovers(folder: Path) -> None:
    """Delete what a sweep that was killed while it wrote its table left behind."""
    for file in folder.glob(f".{FILE}.*"):
        file.unlink(missing_ok=True)


def _in_order(rows: list[tuple[dict[str, Any], ...]], first: Iterable[str]) -> dict[str, int]:
    """Each column's name, and which part of a row holds it."""
    names = dict.fromkeys(first, FRONT)
    for part in (FRONT, ERRORS, TIMING):
        found = dict.fromkeys(name for row in rows for name in row[part])
        names |= dict.fromkeys((name for name in found if name not in names), part)
    return names


def check_columns(study: LoadedStudy) -> None:
    """Raises `InputError` if an axis has the name of another column."""
    for axis in study.axes:
        if axis.column in ("point", "error", "error_type") or axis.column.startswith("timing."):
            raise InputError("is the name of another column", field="axes", value=axis.name)


def _column(values: list[Any], part: int) -> Any:
    """An Arrow array; where kinds of values are mixed, all are text."""
    import pyarrow as pa

    if part == ERRORS:
        return pa.array(values, type=pa.string())
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        if all(value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values):
            return pa.array(values, type=pa.float64())
        return pa.array([None if value is None else str(value) for value in values])
