"""Pages of what a command printed with `--json`: a sentence, figures where there is something to draw, and its numbers.

What an answer holds decides, not its name. An answer that none of the functions here knows is shown as tables.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from ..answers.comparison import comparison_tables
from ..answers.run import roof_table, totals
from ..answers.tuning import drawn_setting
from ..plots.html_page import Code, Page, Picture, Section, Table, facts, flat, table_of
from .layers import layer_page
from .paper import calls_page, leads_page, tiles_page
from .stage import audit_page, needs_page
from .validation import validation_page

Answer = dict[str, Any]

MOST_PUBLISHED = 3000
"""Rows of published measurements that a page holds."""
EXPLAINED = ("limit, then what is left on the busiest lane", "µs", "share, %", "removed alone, µs", "gone with")
"""Columns of a waterfall."""
SPANS = ("phase", "tasks", "median", "95 %")
"""Columns of how long tasks take."""
TUNED = {"makespan_us": "makespan, µs", "room_bytes": "ring, bytes"}
"""Columns of the runs of `tune` as its page names them."""
COMMON = ("schema_version", "xstage_version", "seed", "timing", "command", "explain", "question", "changed")


def answer_page(answer: Answer) -> Page:
    """The page of an answer of `--json`, which asks what its scenario asks."""
    build = next((build for needed, build in _KINDS if all(name in answer for name in needed)), _any_page)
    page = build(answer)
    return replace(page, about=f"{_question(answer)} ({page.about})") if answer.get("question") else page


def _question(answer: Answer) -> str:
    changed = ", ".join(answer.get("changed", []))
    return str(answer["question"]) + (f" As written; here with {changed}." if changed else "")


def _run_page(answer: Answer) -> Page:
    from ..plots.run_figures import roles_figure, roles_table

    roles = roles_table(answer["roles"])
    spans = [(phase, found["tasks"], f"{found['median_us']:.3f}", f"{found['p95_us']:.3f}")
             for phase, found in answer["spans"].items()]  # fmt: skip
    lead = f"The makespan is {answer['makespan_us']:.1f} µs" + _stalled(answer["roles"]) + _nearest_roof(answer)
    drawn = roles_figure(roles, answer["makespan_us"], _what(answer))
    pictures = [Picture(drawn, "Where the time of a lane goes, the mean of each role.")]
    others = _rest(answer, ("roles", "spans", "roofs", "warnings", "trace"))
    in_all = totals(answer, answer.get("timing", {}).get("simulate_s"))
    sections = [
        Section(
            "Where the time goes",
            [*answer.get("warnings", []), *pictures, table_of("mean of a role's lanes, µs", roles)],
        ),
        *_against_roofs(answer),
        Section("How long tasks take", [Table("from a task's first op to its last, waits included, µs", SPANS, spans)]),
        Section("Totals", [Table("", ("", ""), in_all)]),
        Section("All numbers, named as with --json", [facts("", others)], folded=True),
    ]
    return Page(
        f"{answer['scenario']} on {answer['machine']}", f"xstage run, {answer['engine']} engine", lead, sections
    )


def _what(answer: Answer) -> str:
    """What was simulated, said above each figure."""
    return f"{answer['scenario']} on {answer['machine']}"


def _stalled(roles: Mapping[str, Any]) -> str:
    worst = max(roles, key=lambda role: roles[role]["stall_mean_us"], default=None)
    if worst is None or not roles[worst]["stall_mean_us"]:
        return ", and no store waits for room in the stage."
    return f". Lanes of role {worst} wait longest for room in the stage: {roles[worst]['stall_mean_us']:.1f} µs in the mean."


def _nearest_roof(answer: Answer) -> str:
    """Which part has least to spare; nothing where the machine tells no roof."""
    nearest = max(answer["roofs"], key=lambda roof: roof["use_pct"], default=None)
    if nearest is None:
        return ""
    return f" The nearest roof is {nearest['part']} ({nearest['where']}): {nearest['use_pct']:.0f} % of the makespan."


def _against_roofs(answer: Answer) -> list[Section]:
    return [Section("Against the roofs", [Table(*roof_table(answer["roofs"]))])] if answer["roofs"] else []


def _fastest(ran: Sequence[Mapping[str, Any]], baseline: str) -> str:
    """The fastest policy beside the baseline, or beside the next one where it is the baseline."""
    best, *others = sorted(ran, key=lambda row: row["makespan_us"])
    said = f"{best['policy']} is fastest with {best['makespan_us']:.1f} µs"
    if best["policy"] != baseline:
        return said + (f", {best['speedup']:.3f} times as fast as {baseline}." if best["speedup"] else ".")
    if not others:
        return f"{said}."
    times = others[0]["makespan_us"] / max(best["makespan_us"], 1e-6)
    return f"{said}: the baseline, {times:.3f} times as fast as the next, {others[0]['policy']}."


def _comparison_page(answer: Answer) -> Page:
    from ..plots.run_figures import makespans_figure
    from ..plots.schedule_figures import breakdown_figure

    ran = [row for row in answer["policies"] if row["error"] is None]
    rows = pd.DataFrame([{name: row[name] for name in ("policy", "makespan_us")} for row in ran])
    failed = [(row["policy"], row["error"]) for row in answer["policies"] if row["error"] is not None]
    of_policy = {row["policy"]: {"policy": row["policy"], "makespan_us": row["makespan_us"]} for row in ran}
    breakdown = pd.DataFrame([of_policy[row["policy"]] | part for row in ran for part in row["breakdown"]])
    lead = "None of the policies could run."
    if ran:
        lead = _fastest(ran, answer["baseline"])
    pictures = [
        Picture(makespans_figure(rows), "Makespan of each policy."),
        Picture(breakdown_figure(breakdown, _what(answer)), "Stall and waits, the mean of a role's lanes."),
    ] if ran else []  # fmt: skip
    sections = [
        Section("Policies", [*pictures, *(Table(*one) for one in comparison_tables(ran) if one[-1])]),
    ]
    if failed:
        sections.append(Section("What cannot run", [Table("", ("policy", "why"), failed)]))
    return Page(f"Policies of {answer['scenario']} on {answer['machine']}", "xstage compare", lead, sections)


def _explanation_page(answer: Answer) -> Page:
    from ..plots.schedule_figures import waterfall_figure

    bars = pd.DataFrame(answer["bars"])
    whole = answer["total_is"].removesuffix("_us").replace("_", "-")
    drawn = waterfall_figure(bars, _what(answer), whole)
    shown = Picture(drawn, f"Limits removed one after the other, then what is left of the time ({whole}).")
    rows = [
        (bar["cause"], f"{bar['us']:.3f}", f"{bar['share_pct']:.1f}",
         "" if bar["alone_us"] is None else f"{bar['alone_us']:.3f}", bar["removed_by"] or "")
        for bar in answer["bars"]
    ]  # fmt: skip
    sections = [Section("Waterfall", [shown, Table("", EXPLAINED, rows)])]
    title = f"Where the time of {answer['scenario']} on {answer['machine']} goes"
    return Page(title, f"xstage explain, {answer['total_us']:.1f} µs in all", answer["sentence"], sections)


def _tuning_page(answer: Answer) -> Page:
    from ..plots.schedule_figures import tune_figure

    best, own = answer["best"], answer["own"]
    curve = pd.DataFrame([flat(row) for row in answer["curve"]])
    curve = curve.rename(columns=lambda name: str(name).removeprefix("parameters."))
    policy = answer["d_knee_policy"] or best["policy"]
    setting = drawn_setting(row["parameters"] for row in answer["curve"] if row["policy"] == policy)
    figure = tune_figure(curve, policy, setting, answer["d_knee"], own["makespan_us"], _what(answer))
    lead = f"{best['policy']} takes {best['makespan_us']:.1f} µs"
    if answer.get("advice") == "leave":
        lead = "Nothing that was tried is worth a change"
    elif best["saving_pct"] is not None:
        between = best["saving_interval_pct"]
        within = f" ({between[0]:.1f} to {between[1]:.1f} %)" if between else ""
        lead += f" instead of {own['makespan_us']:.1f} µs: saves {best['saving_pct']:.1f} %{within}"
    knee = [answer["d_knee_told"]] if answer.get("d_knee_told") else []
    as_fast = [f"As fast: {', '.join(best['as_fast'])}."] if best["as_fast"] else []
    curve = curve.dropna(axis="columns", how="all").sort_values("makespan_us", kind="stable")
    curve = curve[[name for name in curve if name != "error"] + [name for name in curve if name == "error"]]
    sections = [
        Section("What to change", [*answer["changes"], *as_fast, *answer["notes"]]),
        Section(
            "Runs",
            [
                Picture(figure, "Makespan of the runs that were tried."),
                *knee,
                table_of("the fastest first", curve.rename(columns=TUNED)),
            ],
        ),
    ]
    return Page(f"Tuning of {answer['scenario']} on {answer['machine']}", "xstage tune", lead + ".", sections)


def _published_page(answer: Answer) -> Page:
    from ..plots.reach_figures import measured_figure

    rows = pd.DataFrame(answer["rows"])
    judged = rows[rows["judged"].astype(bool)]
    columns = [name for name in ("kind", "family", "variant", "machine", "tokens_per_rank", "time_us", "predicted_us",
                                 "error_pct", "judged", "skipped", "source_url") if name in rows]  # fmt: skip
    pictures = (
        [Picture(measured_figure(judged), "Predicted against measured, rows that are judged.")] if len(judged) else []
    )
    lead = f"{answer['coverage_pct']:.0f} % of {len(rows)} published rows are predicted"
    if len(judged):
        lead += f", with a median absolute error of {judged['error_pct'].abs().median():.1f} % where they are judged"
    others = {name.replace("_", " "): answer[name] for name in ("baseline", "faster_schedule") if name in answer}
    order = rows["error_pct"].astype(float).abs().sort_values(ascending=False, kind="stable", na_position="last").index
    targets = [table_of("", pd.DataFrame(answer["targets"]))] if answer.get("targets") else []
    sections = [
        Section("Predicted and measured", [*pictures, table_of("by kind of kernel", pd.DataFrame(answer["summary"]))]),
        Section("Targets" if targets else "In all", [*targets, facts("", others)]),
        Section("Rows", [table_of("the largest errors first", rows.loc[order, columns], MOST_PUBLISHED)], folded=True),
    ]
    return Page("Predictions beside published measurements", "xstage published", lead + ".", sections)


def _any_page(answer: Answer) -> Page:
    """Facts in one table, and each list of records in one of its own."""
    lists = {name: value for name, value in answer.items() if name not in COMMON and _records(value)}
    found = _rest(answer, tuple(lists))
    tables = [Section(name.replace("_", " "), _record_tables(rows)) for name, rows in lists.items()]
    words = shlex.split(answer.get("command") or "xstage")
    named = itertools.takewhile(lambda word: not word.startswith("-"), words)
    lead = str(answer.get("reason") or answer.get("sentence") or "What the command found, as tables.")
    return Page(" ".join(named), "an answer of --json", lead, [Section("Found", [facts("", found)]), *tables])


_KINDS: tuple[tuple[tuple[str, ...], Callable[[Answer], Page]], ...] = (
    (("scenario", "makespan_us", "roles", "spans"), _run_page),
    (("scenario", "policies", "baseline"), _comparison_page),
    (("model", "policies", "baseline"), layer_page),
    (("scenario", "bars", "sentence"), _explanation_page),
    (("scenario", "best", "curve"), _tuning_page),
    (("calibration",), validation_page),
    (("rows", "summary", "coverage_pct"), _published_page),
    (("rows", "knee_rows", "model"), leads_page),
    (("calls", "paper", "all"), calls_page),
    (("rows", "fitted", "zipf_exponent"), tiles_page),
    (("scenario", "needs", "sentence"), needs_page),
    (("fits", "advice", "stage"), audit_page),
)


def _records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _record_tables(rows: list[Any]) -> list[str | Table | Picture | Code]:
    """A table of records; lists of records in them are tables of their own, under the first value of their record."""
    inner = [(next(iter(row.values())), name, value) for row in rows for name, value in row.items() if _records(value)]
    kept = [{name: value for name, value in row.items() if not _records(value)} for row in rows]
    tables = [table_of("", pd.DataFrame([flat(row) for row in kept]))]
    return [*tables, *(table_of(f"{of}: {name}", pd.DataFrame(list(map(flat, value)))) for of, name, value in inner)]


def _rest(answer: Answer, used: tuple[str, ...]) -> dict[str, Any]:
    """What is neither common to all answers nor shown elsewhere, with nested names joined by dots."""
    left = {name: value for name, value in answer.items() if name not in COMMON and name not in used}
    return flat(left)
