"""The page of a folder that `xstage sweep` wrote: its points drawn over their axes, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from ..plots.html_page import Page, Picture, Section, facts, table_of
from ..plots.study_figures import MOST_AXES, MOST_PANELS, axis_label, label, study_figure, valued
from ..sweeps.table import FILE, read_table
from ..table_rows import errors, plain

MOST_COLUMNS = 14


def sweep_page(folder: Path) -> tuple[Page, dict[str, Any]]:
    """The page, and what the table says of its sweep. Raises `InputError` for a folder without the table of a sweep."""
    points = read_table(folder)
    about: dict[str, Any] = dict(points.attrs)  # type: ignore[arg-type]  # JSON has text for keys
    groups = _free_axes(points, about["axes"])
    axes = [group[0] for group in groups]
    good = points[points["error"].isna()] if "error" in points else points
    metric = str(about["metric"])
    metrics = [name for name in dict.fromkeys((metric, "makespan_us", "stall_total_us"))
               if name in good and good[name].nunique() > 1]  # fmt: skip
    failed = len(points) - len(good)
    shown = _columns(points, axes)
    facts_of = {
        "points": len(points),
        "failed": failed,
        "axes": ", ".join(about["axes"]),
        "model digest": about["model_digest"],
    }
    pictures = [_picture(good, groups, name) for name in metrics if groups]
    sections = [Section("Over its axes", pictures)] if pictures else []
    sections.append(Section("Points", [table_of(f"{FILE} has {len(points.columns)} columns", points[shown])]))
    if failed:
        sections.append(Section("What failed", [table_of("", errors(points))]))
    sections.append(Section("The sweep", [facts("", facts_of)]))
    lead = _sentence(about["question"]) + smallest(good, metric, [name for group in groups for name in group])
    if failed:
        lead += f" {failed} of {len(points)} points failed."
    return Page(f"Sweep {about['study']}", "xstage sweep", lead, sections), about


def _sentence(text: str) -> str:
    """With the stop that a question may have been written without, so that another sentence can follow."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def smallest(good: pd.DataFrame, metric: str, axes: list[str]) -> str:
    """Where the study's metric is smallest, or nothing where several points share that value."""
    known = good[good[metric].notna()] if metric in good else good.iloc[:0]
    at_least = known[known[metric] == known[metric].min()] if len(known) > 1 else known.iloc[:0]
    if len(at_least) != 1:
        return ""
    best = at_least.iloc[0]
    at = ", ".join(f"{axis_label([name]).partition(',')[0]} {valued(name, plain(best[name]))}" for name in axes)
    name, least = label(metric).rpartition(", ")[0] or label(metric), float(f"{best[metric]:.4g}")
    return f" The smallest {name}, {valued(metric, least)}, is at {at}."


def _picture(good: pd.DataFrame, groups: list[list[str]], metric: str) -> Picture:
    """`metric` over the three axes with most values at most; over others the smallest is taken, and the caption says so."""
    by_length = sorted(groups, key=lambda group: good[group[0]].nunique(), reverse=True)
    kept, left = by_length[:MOST_AXES], by_length[MOST_AXES:]
    if len(kept) == MOST_AXES and good[kept[-1][0]].nunique() > MOST_PANELS:
        left.insert(0, kept.pop())
    named = " and ".join(axis_label(group) for group in left)
    over = f", the smallest over {named}" if left else ""
    axes = [name for name, *_ in kept]
    least = good.loc[good.groupby(axes, sort=False, dropna=False)[metric].idxmin()] if left else good
    figure = study_figure(least, axes, metric, "", {name: rest for name, *rest in kept})
    return Picture(figure, f"{label(metric)} over the axes of the study{over}.")


def _columns(points: pd.DataFrame, axes: list[str]) -> list[str]:
    """Point, axes, then metrics that differ, as many as a page holds."""
    shown = ["point", *axes]
    skipped = {"point", "error", "error_type", *axes}
    others = [str(name) for name in points if name not in skipped and not str(name).startswith("timing.")]
    differing = [name for name in others if points[name].map(str).nunique() > 1]
    return [*shown, *differing[: MOST_COLUMNS - len(shown)]]


def _free_axes(points: pd.DataFrame, names: list[str]) -> list[list[str]]:
    """The axes that vary, those that always change together in one list."""
    groups: list[list[str]] = []
    for name in names:
        if name not in points or points[name].nunique(dropna=False) < 2:
            continue
        together = (group for group in groups if _move_together(points[name], points[group[0]]))
        group = next(together, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return groups


def _move_together(one: pd.Series, other: pd.Series) -> bool:
    pairs = set(zip(one.map(str), other.map(str), strict=True))
    return len(pairs) == one.map(str).nunique() == other.map(str).nunique()
