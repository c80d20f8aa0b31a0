"""The predictions of published measurements for a person: short tables, and the rows only where there are few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..table_rows import one_decimal, signed
from ..terminal.output import table
from .choices import score

if TYPE_CHECKING:
    from .published import Published

MOST_ROWS_SHOWN = 40
_ERRORS = ("judged", "mae_pct", "bias_pct", "median_pct", "p90_pct", "baseline_mae_pct", "noise_pct")
_HEADS = ("judged", "MAE", "bias", "median", "90 %", "roofline", "noise")


def published_parts(done: Published) -> list[Any]:
    """Summary, what was skipped, and targets."""
    rows = done.rows
    parts: list[Any] = []
    if len(rows) <= MOST_ROWS_SHOWN:
        shown = [
            (str(row["family"]), str(row["variant"]), str(row["machine"] or row["gpu"]), f"{row['time_us']:.1f}",
             one_decimal(row["predicted_us"]), signed(row["error_pct"]),
             row["skipped"] if isinstance(row["skipped"], str) else row["approximation"])
            for row in rows.to_dict("records")
        ]  # fmt: skip
        parts += [
            table("rows", ("family", "variant", "machine", "measured us", "predicted us", "error %", ""), shown),
            "",
        ]
    by_group = [
        (
            *(str(line[name]) for name in ("kind", "family", "machine", "tokens")),
            *(_short(line[name]) for name in _ERRORS),
        )
        for line in done.summary.to_dict("records")
    ]
    title = "errors in %: mean absolute, mean, median and 90th percentile; of the roofline; between repeats"
    if by_group:
        parts += [table(title, ("kind", "family", "machine", "tokens", *_HEADS), by_group), ""]
    skipped = rows.skipped.dropna().value_counts()
    parts.append(
        f"{int(rows.predicted_us.notna().sum())} of {len(rows)} rows predicted ({done.coverage_pct:.0f} %), "
        f"{int(rows.judged.sum())} judged"
        + (
            ": the others " + ", ".join(f"{reason} {count}" for reason, count in skipped.items())
            if len(skipped)
            else ""
        )
    )
    if len(rows) <= MOST_ROWS_SHOWN:
        parts += [
            f"{reason}: {detail}"
            for reason, detail in dict.fromkeys(zip(rows.skipped, rows.detail, strict=True))
            if detail
        ]
    if done.baseline["judged"]:
        parts.append(f"roofline on the same rows: mean absolute error {done.baseline['mae_pct']:.1f} %")
    chosen = score(done.choices)
    if chosen["pairs"]:
        parts.append(
            f"the faster of two schedules: {chosen['right']} of {chosen['pairs']} ({chosen['right_pct']:.0f} %)"
        )
    parts += _of_parts(done)
    goals = [
        (goal["target"], goal["limit"], f"{goal['reached']:.1f}", "met" if goal["met"] else "missed", goal["of"],
         goal["furthest_off"])
        for goal in done.targets.to_dict("records")
    ]  # fmt: skip
    if goals:
        parts += ["", table("targets", ("", "limit", "reached", "", "of", "furthest off"), goals)]
    return parts


def _of_parts(done: Published) -> list[Any]:
    """Phases and moments inside a call."""
    found = [
        (str(row["version"]), str(row["machine"]), str(row["part"]), f"{row['hidden']:g}", f"{row['tokens_per_rank']:g}",
         f"{row['time_us']:.1f}", one_decimal(row["predicted_us"]), signed(row["error_pct"]))
        for row in done.parts.to_dict("records")
    ]  # fmt: skip
    if not found:
        return []
    error = float(done.parts.error_pct.abs().mean())
    heads = ("kernel", "machine", "part", "hidden", "tokens", "measured us", "predicted us", "error %")
    return ["", table(f"parts of calls: mean absolute error {error:.1f} %", heads, found)]


def _short(value: Any) -> str | int:
    if isinstance(value, int):
        return value
    return one_decimal(value)
