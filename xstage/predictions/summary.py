"""Errors of predictions by group of rows, beside those of the roofline and the noise of repeated measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..scenarios.published.schema import repeat_key

if TYPE_CHECKING:
    from ..scenarios.published import Kind

SMALL_BATCH = 64
GROUPS = ("kind", "family", "machine", "tokens")


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each kind, family, machine and range of tokens that has a judged row."""
    ranged = rows.assign(tokens=tokens_range(rows))
    spread = repeat_spread(rows)
    made = []
    for key, group in ranged.groupby(list(GROUPS), sort=True):
        judged = group[group.judged]
        if len(judged):
            noise = spread.reindex(judged.index).dropna()
            made.append({
                **dict(zip(GROUPS, key, strict=True)),
                "rows": len(group),
                **error_numbers(judged.error_pct),
                "baseline_mae_pct": float(np.abs(100 * (judged.baseline_us / judged.time_us - 1)).mean()),
                "noise_pct": float(noise.median()) if len(noise) else None,
            })  # fmt: skip
    columns = [*GROUPS, "rows", *error_numbers(pd.Series(dtype=float)), "baseline_mae_pct", "noise_pct"]
    return pd.DataFrame(made, columns=columns)


def error_numbers(error_pct: pd.Series[float]) -> dict[str, Any]:
    """How many, mean absolute error, bias (mean error), median, 90th percentile and largest of the absolute errors."""
    size = np.abs(error_pct.to_numpy(dtype=np.float64))
    if not len(size):
        return dict.fromkeys(("mae_pct", "bias_pct", "median_pct", "p90_pct", "worst_pct"), None) | {"judged": 0}
    return {
        "judged": len(size),
        "mae_pct": float(size.mean()),
        "bias_pct": float(error_pct.mean()),
        "median_pct": float(np.median(size)),
        "p90_pct": float(np.percentile(size, 90)),
        "worst_pct": float(size.max()),
    }


def tokens_range(rows: pd.DataFrame) -> pd.Series[str]:
    """'< 64' or '64+' tokens a rank for MegaMoE, '' for the rest."""
    if "tokens_per_rank" not in rows:
        return pd.Series("", index=rows.index, dtype=str)
    tokens = rows.tokens_per_rank.astype(float)
    named = np.where(tokens < SMALL_BATCH, f"< {SMALL_BATCH}", f"{SMALL_BATCH}+")
    return pd.Series(np.where(tokens.isna(), "", named), index=rows.index, dtype=str)


def repeat_spread(rows: pd.DataFrame) -> pd.Series[float]:
    """100 |time / median - 1| of each measurement that has others of the same kernel and shape, by row.

    Equal times count once: they may be one measurement that was published twice.
    """
    found = []
    for kind, table in rows.groupby("table"):
        key = [*repeat_key(_kind(kind))]
        distinct = table.drop_duplicates([*key, "time_us"])
        grouped = distinct.groupby(key, dropna=False).time_us
        repeated = distinct[grouped.transform("size") > 1]
        found.append(100 * (repeated.time_us / grouped.transform("median")[repeated.index] - 1).abs())
    return pd.concat(found) if found else pd.Series(dtype=float)


def _kind(name: Any) -> Kind:
    kind: Kind = "megamoe" if name == "megamoe" else "attention_tp"
    return kind
