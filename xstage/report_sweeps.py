"""The page of a folder that `xstage sweep` wrote: its points drawn over their axes, and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from .plots.html_page import Page, Picture, Section, cell, facts, table_of
from .sim.errors import InputError

DRAWN = ("makespan_us", "stall_total_us")
"""Metrics that are drawn, where a study has them and they differ from point to point."""
MOST_COLUMNS = 14


def sweep_page(folder: Path) -> Page:
    """The page. Raises `InputError` for a folder without the table of a sweep."""
    from .plots.sweep_figures import axes_figure

    points, about = _points(folder)
    axes = _free_axes(points, about["axes"])
    good = points[points["error"].isna()] if "error" in points else points
    metrics = [name for name in DRAWN if name in good and good[name].nunique() > 1]
    pictures = [
        Picture(axes_figure(good, axes, metric), f"{metric} over the axes of the study; other axes: the smallest.")
        for metric in metrics
        if axes
    ]
    failed = points[points["error"].notna()] if "error" in points else points.iloc[:0]
    shown = _columns(points, axes)
    lead = about["question"]
    facts_of = {
        "points": len(points),
        "failed": len(failed),
        "axes": ", ".join(about["axes"]),
        "model digest": about["model_digest"],
    }
    sections = [Section("Over its axes", pictures)] if pictures else []
    if metrics and len(good):
        best = good.iloc[int(good[metrics[0]].to_numpy().argmin())]
        least = ", ".join(f"{name} {cell(_plain(best[name]))}" for name in axes)
        lead += (
            f" The shortest makespan, {best[metrics[0]]:.1f} µs, is at {least}." if metrics[0] == "makespan_us" else ""
        )
    sections.append(Section("Points", [table_of(f"points.parquet has {len(points.columns)} columns", points[shown])]))
    if len(failed):
        sections.append(Section("What failed", [table_of("", failed[["point", "error_type", "error"]])]))
    sections.append(Section("The sweep", [facts("", facts_of)]))
    return Page(f"Sweep {about['study']}", "xstage sweep", lead, sections)


def _points(folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    from pyarrow import ArrowInvalid, parquet

    from .sweeps.table import FILE

    file = folder / FILE
    try:
        table = parquet.read_table(file)
        about = json.loads((table.schema.metadata or {})[b"xstage"])
    except (OSError, ArrowInvalid) as error:
        raise InputError(
            f"holds no table of a sweep: {error}", file=str(file), allowed="a folder that `xstage sweep -o DIR` wrote"
        ) from error
    except (KeyError, ValueError) as error:
        raise InputError("was not written by `xstage sweep`: it does not say its axes", file=str(file)) from error
    return table.to_pandas(), about


def _columns(points: pd.DataFrame, axes: list[str]) -> list[str]:
    """Point, axes, then metrics that differ, as many as a page holds."""
    shown = ["point", *axes]
    skipped = {"point", "error", "error_type", *axes}
    others = [str(name) for name in points if name not in skipped and not str(name).startswith("timing.")]
    differing = [name for name in others if points[name].map(str).nunique() > 1]
    return [*shown, *differing[: MOST_COLUMNS - len(shown)]]


def _free_axes(points: pd.DataFrame, names: list[str]) -> list[str]:
    """The axes that vary, each of several that always change together once: the first of them."""
    free: list[str] = []
    for name in names:
        if name not in points or points[name].nunique(dropna=False) < 2:
            continue
        codes = points[name].map(str)
        pairs = [len(set(zip(codes, points[other].map(str), strict=True))) for other in free]
        if not any(
            count == codes.nunique() == points[other].map(str).nunique()
            for count, other in zip(pairs, free, strict=True)
        ):
            free.append(name)
    return free


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value
