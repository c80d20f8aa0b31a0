"""The demo's second section: one MegaMoE layer, expert wave by expert wave against interleaved.

Beside what the X-Stage paper reports for this model stand the spans that are simulated; the figures show why one order is
faster: when Tensor Core lanes compute and the egress is in use, what lanes wait for, which limit costs what, and how far L1
must lead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..answers.comparison import Comparison, compare
from ..answers.explanation import explain
from ..answers.figure_setting import setting_of
from ..answers.tuning import tune
from ..plots.save import save
from ..plots.schedule_figures import timeline_figure
from ..scenarios import x_stage
from ..sim.activity import store_spans_us, tile_compute_us
from ..sim.search import KNEE_PCT
from .section import Row, Section

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..sim.trace import Trace
    from .section import Job

SCENARIO = "megamoe-flash-wave"
POLICIES = ("expert_wave", "interleaved")
AS_MEASURED = {"workload.numbers": "w8a8", "workload.release": "pr304"}
"""What is known of the kernel that the paper measured; it does not give tokens, and its routing was skewed."""
SMALL = {"workload.tokens": 2048}
LEADS_TRIED = 12

SOURCE = "arXiv 2607.23264, as reported: DSv4-Flash, W8A8, skewed routing"


def schedules(job: Job) -> Section:
    """Compare two orders of the same tiles, explain the slower one, and find the row lead that the faster one needs."""
    task = job.progress.add_task("a MegaMoE layer", total=4)
    measured = compare(SCENARIO, POLICIES, overrides=AS_MEASURED, trace="full")
    wave, interleaved = (_trace(measured, position) for position in range(2))
    paper, l2_us = x_stage.tiles()["dsv4-flash"], _median(tile_compute_us(wave, "l2"))
    rows = (
        Row("l2_tile_us", "Tensor Core time of an L2 tile", "us", paper.l2_main_loop_us, l2_us, True),
        Row("wave_span_us", "its stores, expert_wave, median", "us", paper.span_wave_us, _span(wave, 50), True),
        Row("interleaved_span_us", "its stores, interleaved, median", "us", paper.span_interleaved_us,
            _span(interleaved, 50), True),
    )  # fmt: skip
    longest = _span(wave, 95)
    job.progress.advance(task)

    compared = compare(SCENARIO, POLICIES, trace="full")
    job.progress.advance(task)
    explained = explain(SCENARIO)
    job.progress.advance(task)
    tuned = tune(SCENARIO, ["interleaved"], most_runs=LEADS_TRIED, overrides=SMALL)
    timelines = compared.timelines()
    drawings: list[tuple[str, Figure, pd.DataFrame]] = [
        ("tensor-cores", timeline_figure(timelines, setting_of(compared.resolved, ("policy",))), timelines),
        ("stall", compared.plot(), compared.breakdown()),
        ("waterfall", explained.plot(), explained.frame),
        ("lead", tuned.plot(), tuned.frame),
    ]
    files = [path for name, figure, data in drawings for path in save(figure, data, job.folder, name)]
    job.progress.advance(task)
    return Section(
        name="schedules",
        title="MegaMoE of DSv4-Flash on 8 GPUs of hgx-b200, 8192 tokens per rank: the same tiles in two orders",
        source=SOURCE,
        rows=rows,
        notes=(
            "The simulated routing is balanced and the paper does not give the tokens, so spans compare in kind only. "
            f"Under expert_wave most tiles find room in the stage; the slowest twentieth takes {longest:.1f} us or more.",
            _faster(compared),
            explained.sentence,
            f"At {SMALL['workload.tokens']} tokens per rank {leads_sentence(tuned.frame)}",
        ),
        files=files,
    )


def _faster(compared: Comparison) -> str:
    slow, fast = (_found(compared, position) for position in range(2))
    stall = 100 * (1 - fast["stall_total_us"] / slow["stall_total_us"])
    published = x_stage.speedups()["largest_stall_reduction"]
    return (
        f"With W4A8 weights {POLICIES[1]} takes {fast['makespan_us']:.1f} us, {POLICIES[0]} {slow['makespan_us']:.1f} us: "
        f"{slow['makespan_us'] / fast['makespan_us']:.3f} times as fast, with {stall:.0f} % less stall "
        f"(published: up to {published:g} % less), "
        f"Tensor Core lanes computing {fast['tensor_core_use_pct']:.1f} % of the time instead of "
        f"{slow['tensor_core_use_pct']:.1f} %."
    )


def leads_sentence(tried: pd.DataFrame) -> str:
    """Of the rows of a `Tuning`: which leads are near the best that was tried, and what the least, the next smaller one and
    the largest cost.
    """
    curve = tried.dropna(subset=["lead_rows", "makespan_us"]).set_index("lead_rows")["makespan_us"].sort_index()
    over, best = 100 * (curve / curve.min() - 1), curve.idxmin()
    far = [rows for rows, pct in over.items() if pct > KNEE_PCT]
    below, above = (
        max((r for r in far if r < best), default=-1),
        min((r for r in far if r > best), default=float("inf")),
    )
    near = over[(over.index > below) & (over.index < above)]
    told = dict.fromkeys(rows for rows in (over.index[0], below, over.index[-1]) if rows in far)
    costs = [f"{over[rows]:.1f} % longer with {rows:.0f} rows" for rows in told]
    within = f"{near.index[0]:.0f} to {near.index[-1]:.0f} rows are within {KNEE_PCT:g} % of it"
    return (
        f"a lead of L1 over L2 by {best:.0f} rows is the best that "
        f"was tried, and {within}{'; it takes ' if costs else ''}{', '.join(costs)}."
    )


def _found(compared: Comparison, position: int) -> dict[str, Any]:
    found = compared.runs[position].found
    assert found is not None, compared.runs[position].error
    return found


def _trace(compared: Comparison, position: int) -> Trace:
    trace = compared.runs[position].trace
    assert trace is not None, compared.runs[position].error
    return trace


def _median(values: Any) -> float:
    return float(np.median(values))


def _span(trace: Trace, percentile: float) -> float:
    return float(np.percentile(store_spans_us(trace, "l2"), percentile))
