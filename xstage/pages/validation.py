"""The page of `xstage calibrate` and `xstage validate`: the stage of real hardware, and how far the simulator is from it.

An answer of --json has all numbers. The times behind them are in a `Validation`; with it the page also draws what was
measured beside the law and the simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..hw_validate.compare import AGREES_PCT, MOST_NOISE_PCT, STALLED_SHARE
from ..plots.html_page import Code, Page, Picture, Section, Table, facts, table_of
from ..terminal.output import counted

if TYPE_CHECKING:
    from ..hw_validate.validation import Validation

Answer = dict[str, Any]

WORST_PROGRAMS = 8
NUMBERS = (
    ("T_iss0", "to issue {} KiB with no backpressure", "t_iss0_ns", 1, "ns"),
    ("t0", "start of a burst", "t0_ns", 1, "ns"),
    ("w", "issue rate of one producer", "issue_gbs", 1, "GB/s"),
    ("R", "drain rate of all together", "drain_gbs", 1, "GB/s"),
    ("Q", "outstanding capacity of all together", "capacity_bytes", 1024, "KiB"),
    ("knee", "largest isolated burst without stall", "knee_bytes", 1024, "KiB a producer"),
)
"""Symbol, meaning, field of a calibration, what of the field makes a unit, unit."""
DRAWN_KINDS = {"compute": "compute", "signal": "compute", "store": "store", "load": "store"}
"""Kinds of ops that lanes are busy with, as a timeline shows them; the others wait."""
SAID = (
    *("t_iss0_ns", "t0_ns", "issue_gbs", "drain_gbs", "capacity_bytes", "knee_bytes", "producers", "reference_bytes"),
    *("residual_pct", "trains_residual_pct", "r_squared", "noise_pct", "rounds", "configurations"),
    *("intervals", "host", "warnings", "programs", "programs_with_stall", "programs_without_stall", "verdict"),
    *("median_abs_error_pct", "p90_abs_error_pct", "worst_error_pct", "stalled_median_abs_error_pct"),
    *("without_stall_excess_pct", "without_stall_interval_pct", "without_stall_noise_pct", "t_iss0_known_to_pct"),
    *("makespan_median_abs_error_pct", "stall_mean_abs_error_ns", "op_median_abs_error_pct", "drift_pct"),
    *("not_measured", "by_schedule", "without_stall_by_size", "op_costs"),
)
"""Fields that the page says in words; its last section has the others."""


def validation_page(answer: Answer, measured: Validation | None = None) -> Page:
    """The page of an answer of `xstage calibrate` or `xstage validate`; `measured` is the validation that it tells of."""
    found, replay = answer["calibration"], answer.get("replay")
    host = found.get("host", {})
    sections = []
    if replay is not None:
        sections += [_in_all(replay, measured), _by_kind(replay, measured), _below_the_knee(replay)]
    if answer.get("again"):
        sections.append(_again(answer["again"]))
    sections.append(_calibration(found, measured))
    if measured is not None:
        sections.append(_largest_errors(measured))
    others = {name: value for name, value in (found | (replay or {})).items() if name not in SAID}
    sections.append(
        Section("The computer", [facts("", {name.replace("_", " "): value for name, value in host.items()})])
    )
    if replay is not None and "op_costs" in replay:
        sections.append(_op_costs(replay["op_costs"]))
    sections.append(Section("Other numbers", [facts("named as with --json", others)], folded=True))
    processor, command = host.get("processor", "this hardware"), "calibrate" if replay is None else "validate"
    title = f"The stage of {processor}" if replay is None else f"How far is the simulator from {processor}?"
    about = ", ".join([counted(found["producers"], "producer"), *([host["store"]] if "store" in host else [])])
    return Page(title, f"xstage {command}, {about}", _lead(found, replay), sections)


def _lead(found: Answer, replay: Answer | None) -> str:
    numbers = f"R is {found['drain_gbs']:.3g} GB/s, Q {found['capacity_bytes'] / 1024:.3g} KiB."
    if replay is None:
        return numbers
    return (
        f"Verdict: {replay['verdict']}. The time to issue the stores of {replay['programs']} programs that calibration "
        f"never saw is predicted to {replay['median_abs_error_pct']:.1f} % in the median and "
        f"{replay['p90_abs_error_pct']:.1f} % at the 90th percentile; repeats of one program differ by "
        f"{replay['noise_pct']:.1f} %. {numbers}"
    )


def _in_all(replay: Answer, measured: Validation | None) -> Section:
    excess, between = replay["without_stall_excess_pct"], replay["without_stall_interval_pct"]
    rows = {
        f"with simulated stall above {100 * STALLED_SHARE:g} % of issue time": replay["programs_with_stall"],
        "issue time, median absolute error": _in_pct(replay["median_abs_error_pct"]),
        "the same, of the programs with stall": _in_pct(replay["stalled_median_abs_error_pct"]),
        "issue time, 90th percentile": _in_pct(replay["p90_abs_error_pct"]),
        "issue time, worst error": _in_pct(replay["worst_error_pct"], "+.1f"),
        "single stores, median absolute error": _in_pct(replay["op_median_abs_error_pct"]),
        "makespan, median absolute error": _in_pct(replay["makespan_median_abs_error_pct"]),
        "stall, mean absolute error": f"{replay['stall_mean_abs_error_ns']:.1f} ns a store",
        "noise from repeat to repeat": _in_pct(replay["noise_pct"]),
        "bursts of the calibration, moved since": _in_pct(replay["drift_pct"]) or "not known",
    }
    if excess is not None:
        within = "" if between is None else f", 95 %: {between[0]:+.1f} to {between[1]:+.1f} %"
        rows |= {
            f"more time measured in the {replay['programs_without_stall']} with no stall simulated":
                f"{excess:+.1f} %{within}",
            "noise of these": _in_pct(replay["without_stall_noise_pct"]),
            "T_iss0 is known to": _in_pct(replay["t_iss0_known_to_pct"], ".0f"),
        }  # fmt: skip
    left_out = replay["not_measured"]
    parts: list[str | Table | Picture | Code] = [
        facts(f"over {replay['programs']} programs that calibration never saw", rows),
        f'"agrees" means a median error of at most {AGREES_PCT:g} %; with noise above {MOST_NOISE_PCT:g} % there is no '
        "verdict.",
        *([f"{counted(left_out, 'more program')} could not be judged: disturbed too often."] if left_out else []),
    ]
    if measured is not None:
        parts.append(_programs_picture(measured))
    return Section("Simulated against measured", parts)


def _programs_picture(measured: Validation) -> Picture:
    from ..plots.beside_figures import beside_figure

    programs = measured.programs().sort_values("stalled_share", kind="stable")
    stalled = np.where(programs["stalled_share"] > STALLED_SHARE, "with stall", "almost none")
    drawn = beside_figure(programs.assign(what=stalled), "in the stores of a program", AGREES_PCT)
    return Picture(
        drawn,
        "Each point is a program: a train of 6 to 48 bursts whose sizes and gaps change, or a small schedule of a fused "
        "kernel, mapped onto the producers.",
    )


def _by_kind(replay: Answer, measured: Validation | None) -> Section:
    columns = ("kind", "programs", "with stall", "issue time, %", "90th percentile, %", "makespan, %", "waits, %",
               "stall, ns a store", "noise, %", "no stall simulated", "more measured there, %")  # fmt: skip
    rows = [
        (kind["schedule"], kind["programs"], kind["programs_with_stall"], _text(kind["median_abs_error_pct"]),
         _text(kind["p90_abs_error_pct"]), _text(kind["makespan_median_abs_error_pct"]),
         _text(kind["wait_median_abs_error_pct"]), _text(kind["stall_mean_abs_error_ns"]), _text(kind["noise_pct"]),
         kind["programs_without_stall"], _text(kind["without_stall_excess_pct"], "+.1f"))
        for kind in replay["by_schedule"]
    ]  # fmt: skip
    picture = None if measured is None else _schedule_picture(measured)
    table = Table("median absolute errors", columns, rows)
    return Section("By kind of program", [table, *([picture] if picture else [])])


def _schedule_picture(measured: Validation) -> Picture | None:
    """One schedule, simulated and measured: of those with stall the one with the fewest ops. None where there is none."""
    from ..plots.lane_figures import lanes_figure

    stalled = [c for c in measured.comparisons if c.stalled_share > STALLED_SHARE and "role" in c.ops]
    schedules = [c for c in stalled if c.ops["role"].nunique() > 1]
    if not schedules:
        return None
    chosen = min(schedules, key=lambda c: len(c.ops))
    ops = chosen.ops[chosen.ops["kind"].isin(DRAWN_KINDS)]
    lanes = np.unique(ops["lane"])
    panels = []
    for who in ("simulated", "measured"):
        start, waited = ops[f"{who}_start_us"], ops[f"{who}_wait_us"].where(ops["kind"] == "store", 0.0)
        panels.append(pd.DataFrame({
            "policy": who, "makespan_us": getattr(chosen, f"{who}_makespan_us"),
            "row": np.searchsorted(lanes, ops["lane"]), "role": ops["role"].astype(str) + " " + ops["lane"].astype(str),
            "phase": ops["kind"].map(DRAWN_KINDS), "start_us": start, "end_us": start + ops[f"{who}_issue_us"] + waited,
        }))  # fmt: skip
    drawn = lanes_figure(pd.concat(panels, ignore_index=True), "lanes")
    return Picture(
        drawn,
        "A small schedule, simulated and measured: what each lane does when; white is waiting. The lanes of a core or SM "
        "compute side by side and store one after the other.",
    )


def _below_the_knee(replay: Answer) -> Section:
    rows = [
        ("{:g} to {:g}".format(*row["of_knee"]), row["stores"], _text(row["excess_pct"], "+.1f"),
         _text(row["calibration_excess_pct"], "+.1f"))
        for row in replay["without_stall_by_size"]
    ]  # fmt: skip
    text = (
        "How much longer than T_iss0 stores of trains took for which no stall is simulated, and isolated bursts of the "
        "calibration of the same size, in the median. Where both are off alike it is the law's shape: it has a knee where "
        "hardware bends."
    )
    columns = ("size, in knees", "stores", "more measured, %", "bursts of the calibration, %")
    return Section("Below the knee", [text, Table("", columns, rows)])


def _op_costs(costs: Answer) -> Section:
    text = "To read it, to find the lane whose turn it is, and so on; simulated and measured programs both have it."
    tables = []
    for beside, of in (("", costs), (", beside loads", costs.get("beside_loads"))):
        if of is not None:
            ns = {kind.replace("_", " "): of[kind] for kind in of if kind not in ("lanes", "beside_loads")}
            by_lanes = pd.DataFrame(ns, index=[f"{lanes} lanes" for lanes in of["lanes"]]).T.reset_index(names="op")
            tables.append(table_of(f"on a core that plays so many lanes{beside}, ns", by_lanes))
    return Section("What an op costs a core", [text, *tables], folded=True)


def _again(runs: list[Answer]) -> Section:
    columns = ("run", "T_iss0, ns", "R, GB/s", "Q, KiB", "knee, KiB", "median error, %", "verdict",
               "within the intervals of the first run")  # fmt: skip
    fields = (("t_iss0_ns", 1), ("drain_gbs", 1), ("capacity_bytes", 1024), ("knee_bytes", 1024))
    rows = [
        (run["run"], *(run["numbers"][name][0] / unit if run["numbers"] else None for name, unit in fields),
         _text(run["median_abs_error_pct"]), run["verdict"], "yes" if run["agrees"] else "; ".join(run["why_not"]))
        for run in runs
    ]  # fmt: skip
    return Section("Does it agree with itself?", [Table("", columns, rows)])


def _calibration(found: Answer, measured: Validation | None) -> Section:
    rows = [
        (symbol, meaning.format(f"{found['reference_bytes'] / 1024:g}"), found[name] / unit,
         *(found["intervals"][name][at] / unit for at in (0, 1)), unit_name)
        for symbol, meaning, name, unit, unit_name in NUMBERS
    ]  # fmt: skip
    trains = found["trains_residual_pct"]
    fit = (
        f"The law misses {found['configurations']} configurations by {found['residual_pct']:.1f} % in the median"
        f"{'' if trains is None else f' (trains alone: {trains:.1f} %)'}, R² = {found['r_squared']:.3f}; one round differs "
        f"from the median of {found['rounds']} by {found['noise_pct']:.1f} %."
    )
    notes = [f"Note: {text}." for text in found.get("warnings", ())]
    table = Table("with 95 % intervals", ("number", "what it is", "value", "from", "to", "unit"), rows)
    return Section("Calibration", [table, fit, *notes, *_burst_pictures(found, measured)])


def _burst_pictures(found: Answer, measured: Validation | None) -> list[Picture]:
    from ..plots.calibration_figures import isolated_figure, trains_figure
    from ..plots.run_figures import law_figure

    if measured is None:
        law = "The law that was fitted: issue time of an isolated burst, with the interval of the knee."
        return [Picture(law_figure(found), law)]
    seen = measured.calibrated
    beside = pd.DataFrame(
        {"burst_bytes": seen.isolated_bytes, "completed_ns": seen.completed_ns, "control_ns": seen.control_ns}
    )
    pictures = [
        Picture(
            isolated_figure(seen.times, seen.calibration, beside),
            "Isolated bursts: each meets an empty stage. Beyond the knee a burst waits for its own overflow. Bars hold the "
            "middle half of the rounds.",
        )
    ]
    if not seen.times.isolated.all():
        pictures.append(
            Picture(
                trains_figure(seen.times, seen.calibration),
                "Trains of bursts: a longer gap drains more, until nothing waits. Where points stay above their line, the "
                "stage recovers more slowly in a gap than it drains under load, which three numbers cannot express.",
            )
        )
    return pictures


def _largest_errors(measured: Validation) -> Section:
    programs = measured.programs()
    worst = programs.loc[programs["error_pct"].abs().sort_values(ascending=False, kind="stable").index[:WORST_PROGRAMS]]
    columns = ("kind", "simulated, µs", "measured, µs", "error, %", "of which stall, %", "stall error, ns a store",
               "noise, %", "repeats")  # fmt: skip
    rows = [
        (one["schedule"], f"{one['simulated_issue_us']:.2f}", f"{one['measured_issue_us']:.2f}",
         f"{one['error_pct']:+.1f}", f"{100 * max(one['stalled_share'], 0):.0f}", f"{one['stall_error_ns']:.1f}",
         f"{one['noise_pct']:.1f}", one["repeats"])
        for one in worst.to_dict("records")
    ]  # fmt: skip
    return Section("Programs with the largest errors", [Table("time in stores", columns, rows)])


def _in_pct(value: float | None, spec: str = ".1f") -> str | None:
    return None if value is None else f"{value:{spec}} %"


def _text(value: float | None, spec: str = ".1f") -> str | None:
    return None if value is None else format(value, spec)
