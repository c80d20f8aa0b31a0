"""Pages of what bursts do to the stage and what a scenario needs of it: `xstage audit` and `xstage needs`."""

from __future__ import annotations

import itertools
import shlex
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..plots.html_page import Code, Page, Picture, Section, Table, facts, table_of
from ..sim.errors import XstageError

if TYPE_CHECKING:
    from ..answers.audit import BurstAudit

FOUND = {
    "advice": "advice", "phase": "phase", "t_iss_us": "a burst issues in, in the long run, µs",
    "stall_us": "of which stalled, µs", "first_stall_us": "the first burst stalls, µs",
    "recovery_gap_us": "gap that removes the stall, µs",
    "missing_gap_us": "of which missing, µs", "rate_margin_gbs": "drain rate to spare, GB/s", "peak_bytes": "peak, bytes",
    "capacity_margin_bytes": "room to spare at the peak, bytes",
}  # fmt: skip
"""Fields of an audit as its page names them."""
NEEDED = {
    "text": "limit", "now": "there is", "verdict": "verdict", "value": "enough", "factor": "times what there is",
    "makespan_us": "makespan with it, µs", "best_us": "without limit, µs",
}  # fmt: skip
"""Columns of what is needed as its page names them."""


def audit_page(answer: dict[str, Any]) -> Page:
    """The verdict, its curve and what was asked. Curve and question are read from the recorded command."""
    asked = _asked(answer.get("command"))
    values = {name: answer[field] for field, name in FOUND.items()}
    found = facts("", {name: "none: no gap helps" if value is None else value for name, value in values.items()})
    sections = [Section("Found", [found])]
    if asked is not None:
        question = {
            "machine": asked.machine, "SMs that store": asked.producers, "burst of each, bytes": asked.burst_bytes,
            "gap, µs": asked.gap_ps / 1e6, "all start every burst together": asked.synchronised,
        }  # fmt: skip
        what = "Issue time against the size of the burst, on the machine as it is read today."
        parts: list[str | Table | Picture | Code] = [Picture(asked.plot(), what), facts("", question)]
        sections.insert(0, Section("What was asked", parts))
    title = "Do bursts fit the stage" + (f" of {asked.machine}?" if asked else "?")
    return Page(title, "xstage audit", answer["reason"], sections)


def needs_page(answer: dict[str, Any]) -> Page:
    """How much of R and of Q is enough, and the makespan at each factor that was tried."""
    from ..plots.needs_figures import needs_figure

    needs = answer["needs"]
    tried = [
        {"limit": need["scaled"], "factor": factor, "makespan_us": us, "needed_factor": need["factor"],
         "best_us": need["best_us"]}
        for need in needs
        for factor, us in need["tried"]
    ]  # fmt: skip
    curve = pd.DataFrame(tried).astype({"needed_factor": float})
    figure = needs_figure(curve, f"{answer['scenario']} on {answer['machine']}")
    lead = " ".join(_said(need) for need in needs)
    shown = Picture(figure, "Makespan over a factor of each, the other as it is.")
    table = pd.DataFrame(needs)[list(NEEDED)].rename(columns=NEEDED)
    inputs = {"makespan as it is, µs": answer["makespan_us"], "may be lost to a limit, %": answer["loss_pct"]}
    sections = [Section("What is enough", [*answer.get("warnings", []), shown, table_of("", table), facts("", inputs)])]
    return Page(f"What {answer['scenario']} needs of {answer['machine']}", "xstage needs", lead, sections)


def _said(need: dict[str, Any]) -> str:
    text = need["text"][:1].upper() + need["text"][1:]
    enough = f"; {need['value']} is" if need["verdict"] == "is not enough" and need["value"] else ""
    return f"{text}, {need['now']}: {need['verdict']}{enough}."


def _asked(line: str | None) -> BurstAudit | None:
    """The audit of a recorded command; None where there is none, or it can no longer be made."""
    from ..answers.audit import audit
    from ..scenarios.loader import machine_overrides, parse_overrides

    words = [
        part for word in shlex.split(line or "")[2:] for part in word.split("=", 1 if word.startswith("--") else 0)
    ]
    given = dict(itertools.pairwise(words))
    changes = [value for option, value in itertools.pairwise(words) if option == "--set"]
    try:
        overrides = machine_overrides(parse_overrides(changes))
        return audit(given["--machine"], int(given["--producers"]), given["--bytes"], given["--gap"],
                     "--synchronised" in words, overrides)  # fmt: skip
    except (XstageError, OSError, KeyError, ValueError):
        return None
