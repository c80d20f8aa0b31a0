"""Pages of `xstage paper`: MegaMoE beside what the X-Stage paper measured."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..plots.html_page import Page, Picture, Section, facts, table_of
from ..sim.search import KNEE_PCT


def leads_page(answer: dict[str, Any]) -> Page:
    """The curve of the row lead."""
    from ..plots.paper_figures import lead_figure

    rows, knee = pd.DataFrame(answer["rows"]), int(answer["knee_rows"])
    shown = Picture(lead_figure(rows, knee), "Makespan, and the ring that each lead needs.")
    lead = f"D_knee is {knee} rows: the smallest lead that is within {KNEE_PCT:g} % of the fastest."
    title = f"The row lead of {answer['model']}, {answer['tokens']} tokens a rank"
    return Page(title, "xstage paper lead", lead, [Section("Leads", [shown, table_of("", rows)])])


def calls_page(answer: dict[str, Any]) -> Page:
    """Interleaved against expert-wave, call by call."""
    from ..plots.shape_figures import calls_figure

    calls = pd.DataFrame(answer["calls"])
    found = {of: answer[of] for of in ("all", "balanced", "skewed") if of in answer}
    statistics = pd.DataFrame(
        [{"calls": of, **numbers} for of, numbers in (found | {"the paper's": answer["paper"]}).items()]
    )
    mean = answer["all"]["geometric_mean"]
    lead = f"Interleaved is {mean:.3f} times as fast in the geometric mean of {len(calls)} calls; the paper reports "
    lead += f"{answer['paper']['geometric_mean']:g}."
    shown = Picture(calls_figure(calls, answer["paper"]), "A mark a call.")
    sections = [Section("Speedups", [shown, table_of("", statistics)]), Section("Calls", [table_of("", calls)])]
    return Page("Interleaved against expert-wave MegaMoE", "xstage paper speedups", lead, sections)


def tiles_page(answer: dict[str, Any]) -> Page:
    """Spans and stalls of L2 tiles."""
    from ..plots.paper_figures import tiles_figure

    rows = pd.DataFrame(answer["rows"])
    shown = Picture(tiles_figure(rows), "Outlined as the paper measured, filled as simulated.")
    others = {
        name: value for name, value in answer.items() if isinstance(value, (int, float, str)) and name != "command"
    }
    sections = [Section("Tiles", [shown, table_of("", rows)]), Section("What it was run with", [facts("", others)])]
    lead = "Span of the stores of an L2 tile, and the wait of Tensor Core lanes for a free buffer, beside the paper's."
    return Page("L2 tiles of MegaMoE", "xstage paper tiles", lead, sections)
