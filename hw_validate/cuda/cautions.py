"""What the microbenchmarks themselves say against a calibration, in words. Needs NumPy alone.

Each caution compares two ways of measuring the same, of which the calibration uses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

UNEVEN = 1.05
"""The slowest SM over the mean of all, for bursts that fill the stage, from which R by means is said to be off."""
WARM_PCT = 10.0
"""How far bursts to new places may be from those to places stored to before."""
LEAST_OF_FENCE = 0.75
"""A load back that takes less than this share of a release has not been where the stores went."""
SLOWED_PCT = 10.0

Rows = Sequence[dict[str, Any]]


def cautions(rows: Rows) -> list[str]:
    """From the table of `summary.microbenchmarks`; rows that were not measured say nothing."""
    found = (_uneven(rows), *_warm(rows), _load_back(rows), _fences(rows))
    return [text for text in found if text is not None]


def _of(rows: Rows, part: str, group: str, *names: str) -> Any:
    """[sizes, 1 + names], by size in bytes."""
    kept = [
        [row["bytes"], *(row[name] for name in names)] for row in rows if (row["part"], row["group"]) == (part, group)
    ]
    return np.array(sorted(kept), dtype=float).reshape(len(kept), 1 + len(names))


def _uneven(rows: Rows) -> str | None:
    isolated = _of(rows, "bursts", "isolated", "issued_ns", "slowest_ns")
    large = isolated[-(len(isolated) // 3) :]
    if not len(large) or (ratio := float(np.median(large[:, 2] / large[:, 1]))) <= UNEVEN:
        return None
    return (
        f"SMs share the link unevenly: the slowest takes {ratio:.2f} times the mean to issue a large burst. The fit is of "
        "means, so its R is too high; long_run_gbs is of a time in which all store"
    )


def _warm(rows: Rows) -> list[str]:
    warm, cold = _of(rows, "warm", "same places", "issued_ns"), _of(rows, "bursts", "isolated", "issued_ns")
    noting = _of(rows, "clock", "noting", "issued_ns")
    if not (len(warm) and len(cold) and len(noting)):
        return []
    there = np.interp(warm[:, 0], cold[:, 0], cold[:, 1])
    off = 100 * ((warm[:, 1] - noting[0, 1]) / np.maximum(there - noting[0, 1], noting[0, 1]) - 1)
    half = len(off) // 2
    said = []
    for what, part in (("T_iss0", off[:half]), ("R and Q", off[half:])):
        if abs(middle := float(np.median(part))) > WARM_PCT:
            said.append(
                f"bursts to places that were stored to before take {middle:+.0f} % against those to new places: {what} "
                "of the calibration, which is of new places, does not hold for kernels that store to the same places again"
            )
    return said


def small_burst(rows: Rows) -> dict[str, float] | None:
    """After the smallest burst that is released, the ns until its last word is back, and until the release is done."""
    fenced = _of(rows, "costs", "release", "issued_ns", "fenced_ns")
    back = _of(rows, "bursts", "completed", "issued_ns", "back_ns")
    fenced = fenced[fenced[:, 0] > 0]
    if not len(fenced) or not len(back):
        return None
    size, issued, released = fenced[0]
    back_ns = float(np.interp(size, back[:, 0], back[:, 2] - back[:, 1]))
    return {"bytes": float(size), "back_ns": back_ns, "fenced_ns": float(released - issued)}


def _load_back(rows: Rows) -> str | None:
    """The smallest burst: of others, the stores that are still under way take longer than the way itself."""
    found = small_burst(rows)
    if found is None or found["back_ns"] >= LEAST_OF_FENCE * found["fenced_ns"]:
        return None
    return (
        f"after a burst of {found['bytes']:g} B the last word is back in {found['back_ns']:.0f} ns, but a release takes "
        f"{found['fenced_ns']:.0f} ns: a cache on the way may have answered, so that the latency and `completed` are too "
        "short"
    )


def _fences(rows: Rows) -> str | None:
    slowed = _of(rows, "neighbours", "fences under stores", "slowed_pct")
    if not len(slowed) or (most := float(slowed[:, 1].max())) <= SLOWED_PCT:
        return None
    return (
        f"releases by one thread slow the stores of other warps of its SM by {most:.0f} %: the fused kernels and replays, "
        "whose courier releases beside their stores, are slower than simulated"
    )
