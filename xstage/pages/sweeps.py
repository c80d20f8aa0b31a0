"""The page of a folder that `xstage sweep` wrote: its points drawn over their axes, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from ..plots.html_page import Page, Picture, Section, facts, table_of
from ..plots.study_figures import axis_label, label, study_figure, valued
from ..sweeps.drawn import DEVIATION, REPEATS, drawn, means, name_of, repeats_note, without_seeds
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
    judged_by = metric if metric in good else (metrics or [metric])[0]
    pictures = [_picture(good, groups, name, judged_by, about["seeds"]) for name in metrics if groups]
    sections = [Section("Over its axes", pictures)] if pictures else []
    kept, repeated = without_seeds(groups, about["seeds"])
    found = means(good, kept, metric) if repeated and metric in good else good
    if found is not good:
        shown_of = [*(name for name, *_ in kept), metric, DEVIATION, REPEATS]
        sections.append(Section("Means over seeds", [table_of("", found[shown_of])]))
    sections.append(Section("Points", [table_of(f"{FILE} has {len(points.columns)} columns", points[shown])]))
    if failed:
        sections.append(Section("What failed", [table_of("", errors(points))]))
    sections.append(Section("The sweep", [facts("", facts_of)]))
    lead = _sentence(about["question"]) + _headline(found, metric, kept, about["seeds"])
    if failed:
        lead += f" {failed} of {len(points)} points failed."
    return Page(f"Sweep {about['study']}", "xstage sweep", lead, sections), about


def _sentence(text: str) -> str:
    """With the stop that a question may have been written without, so that another sentence can follow."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _headline(found: pd.DataFrame, metric: str, groups: list[list[str]], seeds: list[str]) -> str:
    """Where the metric is smallest, of the mean over seeds; of a sweep of seeds alone, its mean."""
    axes = [name for group in groups for name in group]
    if axes and set(axes) <= set(seeds):
        if metric not in found or found[metric].count() < 2:
            return ""
        known = found[metric].dropna()
        mean, deviation = (f"{number:.4g}" for number in (known.mean(), known.std()))
        is_ = f"is {valued(metric, float(mean))} in the mean of {len(known)} seeds"
        return f" The {name_of(metric)} {is_}, {_with(deviation)}."
    return smallest(found, metric, axes)


def _with(deviation: str) -> str:
    return f"with a standard deviation of {deviation}"


def smallest(good: pd.DataFrame, metric: str, axes: list[str]) -> str:
    """Where the study's metric, or its mean over seeds, is smallest, or nothing where several points share that value."""
    known = good[good[metric].notna()] if metric in good else good.iloc[:0]
    at_least = known[known[metric] == known[metric].min()] if len(known) > 1 else known.iloc[:0]
    if len(at_least) != 1:
        return ""
    best = at_least.iloc[0]
    at = ", ".join(f"{axis_label([name]).partition(',')[0]} {valued(name, plain(best[name]))}" for name in axes)
    least = float(f"{best[metric]:.4g}")
    repeats = f" ({repeats_note(at_least)}, {_with(f'{best[DEVIATION]:.3g}')})" if REPEATS in known else ""
    return f" The smallest {name_of(metric)}, {valued(metric, least)}{repeats}, is at {at}."


def _picture(good: pd.DataFrame, groups: list[list[str]], metric: str, judged_by: str, seeds: list[str]) -> Picture:
    """`metric` over the three axes with most values at most; the caption says which point stands for those of the others."""
    found = drawn(good, groups, metric, judged_by, seeds)
    note = f", {found.note}" if found.note else ""
    together = {name: rest for name, *rest in found.groups}
    figure = study_figure(found.data, list(together), metric, "", together, deviation=found.deviation)
    return Picture(figure, f"{label(metric)} over the axes of the study{note}.")


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
