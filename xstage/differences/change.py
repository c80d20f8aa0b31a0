"""One thing that two sides of `xstage diff` do not have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..scenarios.study_values import comparable


@dataclass(frozen=True)
class Change:
    """One thing that is not the same. A side that does not have it is None.

    `relative_pct` is 100 * (new - old) / old, where both are numbers or quantities of one kind and old is not 0. For a
    column of two sweeps, old and new are those of the point `at` with the largest change, one of `points` that differ.
    """

    what: str
    old: Any
    new: Any
    relative_pct: float | None = None
    points: int | None = None
    at: str | None = None


def same(old: Any, new: Any) -> bool:
    return type(old) is type(new) and (old == new or (old != old and new != new))


def relative_pct(old: Any, new: Any) -> float | None:
    """100 * (new - old) / old of two numbers or quantities, None where that is not defined or no finite number."""
    if old is None or new is None:
        return None
    (kind, before), (its, after) = comparable(old), comparable(new)
    if kind != its or kind in ("text", "truth") or before == 0:
        return None
    change = float(100.0 * (after - before) / before)
    return change if math.isfinite(change) else None
