"""The page of a trace .parquet: what its lanes did over time, and for how long by phase, kind and name.

Also of a joined table, which lays measured beside simulated ops (`xstage import --beside`, `xstage validate --ops`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..plots.html_page import Page, Picture, Section, Table, facts, table_of
from ..terminal.output import counted

LANES_SHOWN = 14
MOST_BARS = 4000
"""Of more ops of the chosen lanes the longest are drawn."""
ROUNDING_US = 1e-7
"""Of times in µs: a tenth of a picosecond."""
WORST_SHOWN = 20
SHOWN = ("program", "gpu", "lane", "task", "op", "occurrence", "bytes", "measured_issue_us", "simulated_issue_us",
         "error_pct", "measured_stall_us", "simulated_stall_us")  # fmt: skip


def trace_page(file: Path) -> tuple[Page, str]:
    """The page, and the command that writes such a file, up to its name. Raises `InputError` for a table that is neither an
    op table nor a joined one."""
    from ..hw_validate.readers.read import check_ops, read_parquet

    table = read_parquet(file)
    if {"measured_issue_us", "simulated_issue_us"} <= set(table):
        made = "validate --ops" if "program" in table else "import TRACE --beside SCENARIO --ops"
        return _joined_page(table, file), made
    check_ops(table, str(file))
    return ops_page(table, f"Trace {file.name}"), "import TRACE -o" if "name" in table else "run SCENARIO --trace"


def ops_page(ops: pd.DataFrame, title: str = "Trace") -> Page:
    """The page of an op table."""
    from ..plots.lane_figures import lanes_figure

    took = ops["end_us"] - ops["start_us"]
    ends = float(ops["end_us"].max()) if len(ops) else 0.0
    sections = []
    if len(ops):
        bars, ylabel, which = _bars(ops, ends)
        what = f"{which}: a bar an op in the colour of its phase or name; what is white is nothing or waiting."
        if len(bars):
            sections.append(Section("Over time", [Picture(lanes_figure(bars, ylabel), what)]))
    groups = [name for name in ("role", "phase", "name", "kind") if name in ops and ops[name].notna().any()]
    frame = (
        ops[groups]
        .astype(str)
        .where(ops[groups].notna(), "")
        .assign(took=took, stall=ops["stall_us"], wait=ops["wait_us"])
    )
    by = frame.groupby(groups, sort=False).agg(
        ops=("took", "count"), total_us=("took", "sum"), median_us=("took", "median"), p95_us=("took", _p95),
        stall_us=("stall", "sum"), wait_us=("wait", "sum"),
    )  # fmt: skip
    rows = by.reset_index().sort_values("total_us", ascending=False, kind="stable")
    lanes = ops.assign(took=took).groupby(["gpu", "sm", "lane", "role"], observed=True, dropna=False)
    per_lane = lanes.agg(ops=("took", "count"), in_ops_us=("took", "sum"), stall_us=("stall_us", "sum"),
                         wait_us=("wait_us", "sum"), until_us=("end_us", "max")).reset_index()  # fmt: skip
    n_lanes, n_gpus = int(ops["lane"].nunique()), int(ops["gpu"].nunique())
    totals = {
        "ops": len(ops), "lanes": n_lanes, "GPUs": n_gpus,
        "until the last op ends, µs": ends, "stalled, µs, all lanes": float(ops["stall_us"].sum()),
    }  # fmt: skip
    sections += [
        Section("How long ops take", [table_of("", rows)]),
        Section("Lanes", [table_of("", per_lane)], folded=len(per_lane) > 20),
        Section("Totals", [facts("", totals)]),
    ]
    on = f"{counted(n_lanes, 'lane')} of {counted(n_gpus, 'GPU')}"
    lead = f"{counted(len(ops), 'op')} on {on}, over {ends:.1f} µs."
    return Page(title, "a trace", lead, sections)


def _bars(ops: pd.DataFrame, ends: float) -> tuple[pd.DataFrame, str, str]:
    """What is drawn of an op table, without ops that take no time or only wait: lanes of the GPU that ends last, evenly
    chosen in order of their roles.

    With the label of their axis, and which they are.
    """
    gpu = ops["gpu"].to_numpy()[int(ops["end_us"].to_numpy().argmax())]
    mine = ops[ops["gpu"] == gpu]
    role = mine.drop_duplicates("lane").set_index("lane")["role"].astype(str).sort_index()
    known = role.index[np.argsort(pd.factorize(role)[0], kind="stable")].to_numpy()
    chosen = known[np.linspace(0, len(known) - 1, min(LANES_SHOWN, len(known))).round().astype(int)]
    busy = mine["end_us"] - mine["start_us"] - mine["wait_us"].fillna(0) > ROUNDING_US
    mine = mine[mine["lane"].isin(chosen) & busy]
    named = mine["phase"].astype(object)
    named = named.where(named.notna(), mine["name"].astype(object) if "name" in mine else mine["kind"].astype(object))
    bars = pd.DataFrame(
        {"policy": "", "makespan_us": ends, "row": mine["lane"].map({lane: row for row, lane in enumerate(chosen)}),
         "role": mine["lane"].map(role), "phase": named.astype(str), "start_us": mine["start_us"], "end_us": mine["end_us"]}
    )  # fmt: skip
    longest = (bars["end_us"] - bars["start_us"]).nlargest(MOST_BARS).index
    bars = bars.loc[longest.sort_values()]
    common = bars["phase"].value_counts().index[:5]
    bars["phase"] = bars["phase"].where(bars["phase"].isin(common), "other")
    others = int(ops["gpu"].nunique()) - 1
    which = f"GPU {gpu}" + (", which ends last" if others else "")
    return bars, f"lanes of GPU {gpu}", f"{len(chosen)} of {counted(len(known), 'lane')} of {which}"


def _joined_page(ops: pd.DataFrame, file: Path) -> Page:
    from ..plots.beside_figures import beside_figure

    error = 100 * (ops["simulated_issue_us"] / ops["measured_issue_us"].where(ops["measured_issue_us"] > 0) - 1)
    ops = ops.assign(error_pct=error)
    groups = [name for name in ("what",) if name in ops] or [name for name in ("role", "phase", "kind") if name in ops]
    frame = ops.assign(absolute=error.abs(), **{name: ops[name].astype(str) for name in groups})
    by = frame.groupby(groups, sort=False).agg(
        ops=("error_pct", "size"), measured_median_us=("measured_issue_us", "median"),
        simulated_median_us=("simulated_issue_us", "median"),
        median_error_pct=("error_pct", "median"), median_abs_error_pct=("absolute", "median"),
        p90_abs_error_pct=("absolute", _p90),
    ).reset_index()  # fmt: skip
    off = (ops["simulated_issue_us"] - ops["measured_issue_us"]).abs()
    columns = [name for name in (*SHOWN[:6], *groups, *SHOWN[6:]) if name in ops]
    worst = ops.loc[off.sort_values(ascending=False, kind="stable").index[:WORST_SHOWN], columns]
    drawn = Picture(beside_figure(ops), "Each op: its time simulated against its time measured.")
    tables: list[Table | Picture | str] = [drawn, table_of("errors by op", by)]
    sections = [Section("Op by op", tables), Section("Ops that differ most", [table_of("", worst)])]
    median = float(error.abs().median())
    lead = f"{counted(len(ops), 'op')}, measured and simulated: the median absolute error of an op is {median:.1f} %."
    return Page(f"Measured beside simulated: {file.name}", "two traces", lead, sections)


def _p95(values: Any) -> float:
    return float(np.percentile(values, 95))


def _p90(values: Any) -> float:
    known = values.dropna()
    return float(np.percentile(known, 90)) if len(known) else float("nan")
