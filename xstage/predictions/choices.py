"""Whether the model tells which of two schedules is faster, where both were measured by the same people on the same call."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from ..table_rows import plain_rows

LEAST_DIFFERENCE = 0.05
"""Two measured times that differ by less do not count."""
_CALL = {
    "megamoe": ("hidden", "intermediate", "experts", "topk", "tokens_per_rank", "act_dtype", "combine_dtype"),
    "attention_tp": ("operation", "batch", "seq", "heads", "head_dim", "causal", "m", "n", "k", "dtype"),
}
COLUMNS = ("kind", "machine", "faster", "slower", "measured_ratio", "predicted_ratio", "right", "source_url")


def choices(rows: pd.DataFrame) -> pd.DataFrame:
    """Pairs of judged kernels whose measured medians differ by over 5 %, and that are different cases to the model.

    `right` if the model prefers the one that was faster. Repeats of one kernel in one source count as their median.
    """
    found: list[dict[str, Any]] = []
    for table, group in rows[rows.judged].groupby("table"):
        call = ["machine", "n_gpus", "source_url", "cold_l2", *_CALL[str(table)]]
        for _, same in group.groupby(call, dropna=False):
            kernels = same.groupby(["family", "version"], dropna=False).agg(
                time_us=("time_us", "median"), predicted_us=("predicted_us", "median"), case=("case", "first"),
                kind=("kind", "first"),
            )  # fmt: skip
            for one, other in combinations(plain_rows(kernels.reset_index()), 2):
                if one["case"] != other["case"]:
                    found += _pair(one, other, same.machine.iloc[0], same.source_url.iloc[0])
    return pd.DataFrame(found, columns=list(COLUMNS))


def score(pairs: pd.DataFrame) -> dict[str, Any]:
    """How many pairs, how many the model got right, and the part in percent (None without pairs)."""
    right = int(pairs.right.sum()) if len(pairs) else 0
    return {"pairs": len(pairs), "right": right, "right_pct": 100 * right / len(pairs) if len(pairs) else None}


def _pair(one: dict[str, Any], other: dict[str, Any], machine: str, source: str) -> list[dict[str, Any]]:
    faster, slower = sorted((one, other), key=lambda kernel: kernel["time_us"])
    measured = slower["time_us"] / faster["time_us"]
    if measured <= 1 + LEAST_DIFFERENCE:
        return []
    predicted = slower["predicted_us"] / faster["predicted_us"]
    return [{
        "kind": one["kind"],
        "machine": machine,
        "faster": _name(faster),
        "slower": _name(slower),
        "measured_ratio": float(measured),
        "predicted_ratio": float(predicted),
        "right": bool(predicted > 1 and np.isfinite(predicted)),
        "source_url": source,
    }]  # fmt: skip


def _name(kernel: dict[str, Any]) -> str:
    return " ".join(str(kernel[name]) for name in ("family", "version") if kernel[name])
