"""What predictions were to reach, whether they do, and where they do not, which kernels are furthest off and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from .choices import score
from .summary import SMALL_BATCH

if TYPE_CHECKING:
    from .published import Published

Chosen = Callable[[pd.DataFrame], "pd.Series[bool]"]


@dataclass(frozen=True)
class Target:
    """Rows, and the most that their mean absolute error may be, in percent."""

    name: str
    rows: Chosen
    most_pct: float


def _deepgemm(machines: tuple[str, ...], small: bool) -> Chosen:
    def chosen(rows: pd.DataFrame) -> pd.Series[bool]:
        in_range = rows.tokens_per_rank.astype(float).lt(SMALL_BATCH) == small
        return (rows.kind == "megamoe") & (rows.family == "deepgemm") & rows.machine.isin(machines) & in_range

    return chosen


def _families(kind: str, *families: str) -> Chosen:
    return lambda rows: (rows.kind == kind) & (rows.family.isin(families) if families else True)


def _fused(rows: pd.DataFrame) -> pd.Series[bool]:
    return (rows.kind == "tensor parallel") & rows.policy.isin(("fused", "reserved_sms"))


MACHINES = {
    "H100": ("hgx-h100",),
    "H200": ("hgx-h200",),
    "H20": ("hgx-h20",),
    "B200, GB200": ("hgx-b200", "gb200-nvl72"),
}
TARGETS = (
    *(
        Target(f"DeepGEMM, {name}, {SMALL_BATCH}+ tokens", _deepgemm(group, False), 10)
        for name, group in MACHINES.items()
    ),
    *(
        Target(f"DeepGEMM, {name}, < {SMALL_BATCH} tokens", _deepgemm(group, True), 15)
        for name, group in MACHINES.items()
    ),
    Target("FA3 forward", _families("attention", "fa3"), 7),
    Target("FA4 forward", _families("attention", "fa4"), 7),
    Target("Ulysses", _families("ulysses"), 15),
    Target("fused tensor parallel", _fused, 15),
)
LEAST_COVERAGE_PCT = 85.0
LEAST_RIGHT_PCT = 90.0
LEAST_APART_PCT = 5.0
"""Measurements of one case that lie closer together are not worth a word."""
COLUMNS = ("target", "limit", "reached", "met", "of", "furthest_off")


def targets(done: Published) -> pd.DataFrame:
    """Each target that the rows have something to say about: limit, reached, met, and the kernel most to blame."""
    rows, found = done.rows, []
    for target in TARGETS:
        judged = (
            rows[target.rows(rows).fillna(False).astype(bool) & rows.judged] if _can_ask(rows, target) else rows[:0]
        )
        if len(judged):
            reached = float(judged.error_pct.abs().mean())
            met = reached <= target.most_pct
            found.append(_line(f"error of {target.name}, %", "<=", target.most_pct, reached, met, len(judged),
                               "" if met else _blame(judged)))  # fmt: skip
    whole = rows[(rows.kind == "megamoe") & (rows.family == "deepgemm") & (rows.timed == "kernel")]
    if len(whole):
        covered = 100 * float(whole.predicted_us.notna().mean())
        found.append(
            _line(
                "DeepGEMM rows predicted, %",
                ">=",
                LEAST_COVERAGE_PCT,
                covered,
                covered >= LEAST_COVERAGE_PCT,
                len(whole),
            )
        )
    chosen = score(done.choices)
    if chosen["pairs"]:
        part = chosen["right_pct"]
        found.append(
            _line("faster schedule picked, %", ">=", LEAST_RIGHT_PCT, part, part >= LEAST_RIGHT_PCT, chosen["pairs"])
        )
    return pd.DataFrame(found, columns=list(COLUMNS))


def _can_ask(rows: pd.DataFrame, target: Target) -> bool:
    return "tokens_per_rank" in rows or not target.name.startswith("DeepGEMM")


def _line(name: str, sign: str, limit: float, reached: float, met: bool, of: int, blame: str = "") -> dict[str, Any]:
    return {
        "target": name,
        "limit": f"{sign} {limit:g}",
        "reached": reached,
        "met": met,
        "of": of,
        "furthest_off": blame,
    }


def _blame(judged: pd.DataFrame) -> str:
    """The family and version with the largest share of the absolute error, its bias, and what was taken for what."""
    size = judged.error_pct.abs()
    keys = [judged.family, judged.version]
    share = (size.groupby(keys, dropna=False).sum() / size.sum()).sort_values(ascending=False)
    family, version = share.index[0]
    mine = judged[(judged.family == family) & (judged.version == version)]
    taken = "; ".join(sorted({text for text in mine.approximation if text}))
    name = " ".join(text for text in (family, version) if text)
    said = f"{name}: {len(mine)} rows, {mine.error_pct.mean():+.0f} %, {100 * share.iloc[0]:.0f} % of the error"
    return said + (f" ({taken})" if taken else "") + _spread(judged)


def _spread(judged: pd.DataFrame) -> str:
    """How far measurements of one case lie apart, and what the best prediction for each case would be off by."""
    times = judged.groupby(["machine", "case"]).time_us
    apart = 100 * float((times.max() / times.min() - 1).max())
    least = 100 * float((times.transform("median") / judged.time_us - 1).abs().mean())
    if apart < LEAST_APART_PCT:
        return ""
    return f"; one case was measured up to {apart:.0f} % apart, and the median of each would be off by {least:.1f} %"
