"""Which rows of a sweep a picture shows: means over seeds, and of more axes than it holds the smallest point.

Points that differ in their seed alone are repetitions: their mean stands for them, beside its standard deviation and their
number. A picture holds three axes; over others the point with the smallest of what the study is about is taken, and a
place where no point has that is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..plots.study_figures import MOST_AXES, MOST_PANELS, axis_label, label

if TYPE_CHECKING:
    import pandas as pd

DEVIATION, REPEATS = "standard deviation", "seeds"
"""Columns beside means."""


@dataclass(frozen=True)
class Drawn:
    """`data` has a row a place of the picture, `groups` its axes, each with those that move with it. `note` says what was
    done to the points; empty where nothing was. `deviation` is the column of the standard deviation, if any.
    """

    data: pd.DataFrame
    groups: list[list[str]]
    note: str
    deviation: str | None


def drawn(
    points: pd.DataFrame, groups: Sequence[Sequence[str]], metric: str, judged_by: str, seeds: Collection[str]
) -> Drawn:
    """The picture of `metric` over `groups` of axes, of which each has several values; of what is too many, the points with
    the smallest `judged_by`, or of `metric` where no point has that. `seeds` are the axes that are seeds.
    """
    kept, repeated = without_seeds(groups, seeds)
    notes = []
    if repeated:
        points = means(points, kept, metric, judged_by)
        notes.append(repeats_note(points))
    by_length = sorted(kept, key=lambda group: points[group[0]].nunique(), reverse=True)
    kept, left = by_length[:MOST_AXES], by_length[MOST_AXES:]
    if len(kept) == MOST_AXES and points[kept[-1][0]].nunique() > MOST_PANELS:
        left.insert(0, kept.pop())
    if left:
        axes = [name for name, *_ in kept]
        if points[judged_by].isna().all():
            judged_by = metric
        valued = points[points[[metric, judged_by]].notna().any(axis="columns")]
        known = valued[valued[judged_by].notna()]
        places, all_places = (rows.groupby(axes, sort=False, dropna=False) for rows in (known, valued))
        points = known.loc[places[judged_by].idxmin()]
        over = " and ".join(axis_label(group) for group in left)
        least = "the smallest" if judged_by == metric else f"of the point with the smallest {name_of(judged_by)}"
        notes.append(f"{least} over {over}")
        if missing := all_places.ngroups - places.ngroups:
            notes.append(f"without {missing} place{'' if missing == 1 else 's'} where no point has that")
    return Drawn(points, kept, ", ".join(notes), DEVIATION if repeated else None)


def without_seeds(groups: Sequence[Sequence[str]], seeds: Collection[str]) -> tuple[list[list[str]], bool]:
    """The axes that are no seeds, and whether there were such; all of them where the seed is all that there is."""
    kept = [list(group) for group in groups if not set(group) <= set(seeds)]
    return (kept, len(kept) < len(groups)) if kept else ([list(group) for group in groups], False)


def means(points: pd.DataFrame, groups: Sequence[Sequence[str]], *metrics: str) -> pd.DataFrame:
    """A row for each place of the axes: means of the metrics, the sample standard deviation of the first, and how many."""
    axes = [name for name, *_ in groups]
    beside = [name for _, *rest in groups for name in rest]
    grouped = points.groupby(axes, sort=False, dropna=False)
    table = grouped[[*beside]].first() if beside else grouped[[]].first()
    for metric in dict.fromkeys(metrics):
        table[metric] = grouped[metric].mean()
    table[DEVIATION], table[REPEATS] = grouped[metrics[0]].std(), grouped[metrics[0]].count()
    return table.reset_index()


def repeats_note(table: pd.DataFrame) -> str:
    """'mean of 5 seeds'."""
    least, most = int(table[REPEATS].min()), int(table[REPEATS].max())
    return f"mean of {most} seeds" if least == most else f"mean of {least} to {most} seeds"


def name_of(metric: str) -> str:
    """A metric in a sentence: its label without the unit."""
    return label(metric).rpartition(", ")[0] or label(metric)
