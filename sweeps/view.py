"""What a finished sweep shows: a picture of one of its columns, and axes whose values made no difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..scenarios.study import LoadedStudy
from ..sim.checked import closest
from ..sim.errors import InputError
from .table import seed_columns
from .task import CAUTIONS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NOT_MEANT_TO_MATTER = ("engine", "trace", "name", "question", "seed")
"""Paths of axes that say how a point is run rather than what it is."""


def plotted(study: LoadedStudy, frame: pd.DataFrame, metric: str | None, at: Mapping[str, Any]) -> Figure:
    """The `metric` (default: the study's) over all axes with more than one value, where columns have the values in `at`.

    Axes that move together are one, named by all of them. Over seeds the mean is drawn, and over axes beyond three the point
    with the smallest of the study's metric; the figure says so. Raises `InputError` for a column that there is not or that
    has no value there, and a value that no point has.
    """
    from ..plots.study_figures import axis_label, study_figure, valued
    from .drawn import drawn

    metric = metric or study.study.metric
    known = [str(name) for name in frame if frame[name].dtype.kind in "iuf" and name not in ("point",)]
    if metric not in known:
        raise _no_metric(metric, known)
    for name, value in at.items():
        columns = [axis.column for axis in study.axes]
        if name not in columns:
            raise InputError(f"is no axis{closest(name, columns)}", field="at", value=name, allowed=columns)
        values = list(dict.fromkeys(frame[name]))
        frame = frame[frame[name] == value]
        if frame.empty:
            raise InputError("is the value of no point", field=f"at {name}", value=value, allowed=values)
    if frame[metric].isna().all():
        raise InputError("has no value at any of these points", field="metric", value=metric)
    groups = column_groups(study)
    varying = [group for group in groups if frame[group[0]].nunique() > 1] or groups[:1]
    judged_by = study.study.metric if study.study.metric in known else metric
    found = drawn(frame, varying, metric, judged_by, seed_columns(study))
    fixed = [f"{axis_label([name]).partition(',')[0]} {valued(name, value)}" for name, value in at.items()]
    setting = ", ".join([*fixed, *_machine(study), *([found.note] if found.note else [])])
    together = {name: rest for name, *rest in found.groups}
    return study_figure(
        found.data, list(together), metric, study.study.question, together, setting, deviation=found.deviation
    )


def _machine(study: LoadedStudy) -> list[str]:
    """On which machine all points are; nothing where that is an axis."""
    if any(axis.path in ("machine", "machine.base") for axis in study.axes):
        return []
    for point in study.points():
        with suppress(InputError):
            return [f"on {study.resolve(point).machine.name}"]
    return []


def check_metric(study: LoadedStudy, metrics: Mapping[str, Any]) -> None:
    """Raises `InputError` where the metric of a study is no column of a table that has the `metrics` of a point.

    A name with a dot, such as roles.mma.stall_mean_us, may be a metric of other points alone.
    """
    metric, known = study.study.metric, [*metrics, *(axis.column for axis in study.axes)]
    if "." not in metric and metric not in known:
        raise _no_metric(metric, known)


def missing_metric(study: LoadedStudy, frame: pd.DataFrame) -> list[str]:
    """A sentence if no point that was done has the metric of the study."""
    metric = study.study.metric
    if metric in frame or frame["error"].notna().all():
        return []
    return [f"no point has the metric {metric}{closest(metric, map(str, frame))}"]


def _no_metric(metric: str, known: Sequence[str]) -> InputError:
    reason = f"is no number of these points{closest(metric, known)}"
    return InputError(reason, field="metric", value=metric, allowed=known)


def column_groups(study: LoadedStudy) -> list[list[str]]:
    """The columns of axes, those that move together in one list."""
    return [[study.axes[number].column for number in group] for group in study.groups]


def idle_axes(study: LoadedStudy, frame: pd.DataFrame) -> list[str]:
    """A sentence for each axis whose values changed no result at any point, the other axes being equal."""
    import pandas as pd

    axes = [axis.column for axis in study.axes]
    results = [
        name
        for name in map(str, frame)
        if name not in ("point", "error", "error_type", CAUTIONS, *axes) and not _is_time(name)
    ]
    done = frame[frame["error"].isna()]
    if done.empty:
        return []
    result = pd.util.hash_pandas_object(done[results].astype(str), index=False)
    path_of = {axis.column: axis.path for axis in study.axes}
    found = []
    for group in column_groups(study):
        others = [name for name in axes if name not in group]
        if any(path_of[name] in NOT_MEANT_TO_MATTER for name in group) or not _is_idle(done, result, others):
            continue
        found.append(f"{' and '.join(group)} changed nothing at any point: {_reason(len(group))}")
    return found


def cautions(frame: pd.DataFrame) -> list[str]:
    """Each caution of the points once, with how many of them it is about."""
    if CAUTIONS not in frame:
        return []
    counted = frame[CAUTIONS].dropna().str.split("\n").explode().value_counts(sort=False)
    return [f"{sentence} ({count} of {len(frame)} points)" for sentence, count in counted.items()]


def _is_idle(done: pd.DataFrame, result: Any, others: Sequence[str]) -> bool:
    """Whether points that agree in the `others` agree in their results, and some do."""
    if not others:
        return len(done) > 1 and result.nunique() == 1
    groups = result.groupby([done[name] for name in others], dropna=False, observed=True)
    return bool((groups.size() > 1).any() and (groups.nunique() == 1).all())


def _reason(axes: int) -> str:
    return (
        "results are the same whatever value it has" if axes == 1 else "results are the same whatever values they have"
    )


def _is_time(name: str) -> bool:
    return name.startswith("timing.")
