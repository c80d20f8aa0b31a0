"""Pages of what bursts do to the stage and what a scenario needs of it: `xstage audit` and `xstage needs`."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from ..answers.audit import BurstAudit
from ..plots.html_page import Page, Picture, Section, Table, facts, table_of
from ..sim.units import PS_PER_US, gbs

FOUND = {
    "advice": "advice", "phase": "phase", "t_iss_us": "a burst issues in, in the long run, µs",
    "stall_us": "of which stalled, µs", "first_stall_us": "the first burst stalls, µs",
    "recovery_gap_us": "gap that removes the stall, µs", "long_run_gap_us": "gap that the long run needs, µs",
    "missing_gap_us": "of which missing, µs", "rate_margin_gbs": "drain rate to spare, GB/s", "peak_bytes": "peak, bytes",
    "peak_sm_bytes": "peak of an SM, bytes", "capacity_margin_bytes": "room to spare at the peak, bytes",
}  # fmt: skip
"""Fields of an audit as its page names them."""
NEEDED = {
    "text": "limit", "now": "there is", "verdict": "verdict", "value": "enough", "factor": "times what there is",
    "time_us": "time with it, µs", "best_us": "without limit, µs",
}  # fmt: skip
"""Columns of what is needed as its page names them."""


def audit_page(answer: dict[str, Any]) -> Page:
    """The verdict, what was asked, and the issue time of bursts of other sizes."""
    audit = BurstAudit.of_answer(answer)
    values = {name: answer[field] for field, name in FOUND.items()} | {"phase": audit.phase.replace("_", "-")}
    question = {
        "machine": audit.machine, "SMs that store": audit.producers, "burst of each, bytes": audit.burst_bytes,
        "gap, µs": audit.gap_ps / PS_PER_US, "all start every burst together": audit.synchronised,
        "drain rate (R), GB/s": gbs(audit.stage.drain_kbs), "R is that of stores": audit.stores_to,
    }  # fmt: skip
    picture = Picture(audit.plot(), "Issue time against the size of the burst.")
    sure = [line] if (line := audit.certainty.told) else []
    found = {name: "none: no gap helps by itself" if value is None else value for name, value in values.items()}
    sections = [
        Section("What was asked", [*sure, *audit.warnings, picture, facts("", question)]),
        Section("Found", [facts("", found)]),
        Section("Parameters and their sources", [_numbers_table(audit)], folded=True),
    ]
    return Page(f"Do bursts fit the stage of {audit.machine}?", "xstage audit", answer["reason"], sections)


def _numbers_table(audit: BurstAudit) -> Table:
    """The numbers of the machine that T_iss0, R and Q follow from."""
    rows = [
        (number["name"], _text(number["value"]), _text(number.get("interval", "")),
         "assumed" if number["assumed"] else "", number["source"])
        for number in audit.certainty.numbers
    ]  # fmt: skip
    return Table(f"machine {audit.machine}", ("number", "value", "interval", "", "source"), rows)


def _text(value: Any) -> str:
    """A value of a machine file, the ends of an interval, or a list of links."""
    if isinstance(value, str | int | float):
        return str(value)
    plain = all(isinstance(one, str | int | float) for one in value)
    return " to ".join(map(str, value)) if plain else json.dumps(value)


def needs_page(answer: dict[str, Any]) -> Page:
    """How much of R and of Q is enough, and the time at each factor that was tried."""
    from ..plots.needs_figures import needs_figure

    needs = answer["needs"]
    tried = [
        {"limit": need["scaled"], "factor": factor, "makespan_us": us, "needed_factor": need["factor"],
         "best_us": need["best_us"]}
        for need in needs
        for factor, us in need["tried"]
    ]  # fmt: skip
    curve = pd.DataFrame(tried).astype({"needed_factor": float})
    time = answer["time_is"].removesuffix("_us").replace("_", "-")
    figure = needs_figure(curve, f"{answer['scenario']} on {answer['machine']}", time)
    shown = Picture(figure, f"Time ({time}) over a factor of each, the other as it is.")
    table = pd.DataFrame(needs)[list(NEEDED)].rename(columns=NEEDED)
    inputs = {f"{time} as it is, µs": answer["time_us"], "may be lost to a limit, %": answer["loss_pct"]}
    sections = [Section("What is enough", [*answer.get("warnings", []), shown, table_of("", table), facts("", inputs)])]
    return Page(f"What {answer['scenario']} needs of {answer['machine']}", "xstage needs", answer["sentence"], sections)
