"""What the microbenchmarks themselves say against a calibration, in words. Needs NumPy alone.

Each caution compares two ways of measuring the same, of which the calibration uses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...sim.calibrate import LEAST_SLOPE_RATIO
from .noted import lines_of_thirds

CLOCKS_APART_PCT = 2.0
"""How far the SM clocks of two parts may be apart."""
UNEVEN = 1.05
"""The slowest SM over the mean of all, for bursts that fill the stage, from which R by means is said to be off."""
WARM_PCT = 10.0
"""How far bursts to new places may be from those to places stored to before."""
LEAST_SIZES = 3
"""Of isolated bursts, so that there are two lines through them."""
LEAST_OF_FENCE = 0.75
"""A load back that takes less than this share of a release has not been where the stores went."""
SLOWED_PCT = 10.0
BESIDE_HOGS = 2.0
"""How many times longer than by the law a release may take while other SMs store."""
IN_THE_SM = 0.25
"""What a release to the own SM may take, as a share of one to all after the same burst, which waits for its stores."""

Rows = Sequence[dict[str, Any]]


def cautions(rows: Rows, knee_bytes: float | None = None, full_ns: float | None = None) -> list[str]:
    """From the table of `summary.microbenchmarks`; rows that were not measured say nothing. `knee_bytes` is the size of a
    burst of all SMs at the knee, `full_ns` what a full stage takes to drain, Q / R (None: roughly, from the isolated
    bursts)."""
    found = (
        _clocks(rows),
        _uneven(rows),
        *_warm(rows, knee_bytes),
        _warm_long_run(rows),
        _load_back(rows),
        _fences(rows),
        _beside_hogs(rows, full_ns),
        _in_the_sm(rows),
    )
    return [text for text in found if text is not None]


def _of(rows: Rows, part: str, group: str, *names: str) -> Any:
    """[sizes, 1 + names], by size in bytes."""
    kept = [
        [row["bytes"], *(row[name] for name in names)] for row in rows if (row["part"], row["group"]) == (part, group)
    ]
    return np.array(sorted(kept), dtype=float).reshape(len(kept), 1 + len(names))


def _clocks(rows: Rows) -> str | None:
    each: dict[str, list[float]] = {}
    for row in rows:
        each.setdefault(row["part"], []).append(row["cycles_per_ns"])
    clocks = {part: float(np.median(found)) for part, found in each.items()}
    if not clocks:
        return None
    slow, fast = min(clocks, key=clocks.__getitem__), max(clocks, key=clocks.__getitem__)
    if (apart := 100 * (clocks[fast] / clocks[slow] - 1)) <= CLOCKS_APART_PCT:
        return None
    return (
        f"the SM clock was {1000 * clocks[slow]:.0f} MHz in part {slow} and {1000 * clocks[fast]:.0f} MHz in part {fast}, "
        f"{apart:.1f} % apart: what takes so many cycles, as issuing a burst or noting a time do, took longer in one of them"
    )


def _uneven(rows: Rows) -> str | None:
    isolated = _of(rows, "bursts", "isolated", "issued_ns", "slowest_ns")
    large = isolated[-(len(isolated) // 3) :]
    if not len(large) or (ratio := float(np.median(large[:, 2] / large[:, 1]))) <= UNEVEN:
        return None
    return (
        f"SMs share the link unevenly: the slowest takes {ratio:.2f} times the mean to issue a large burst. The fit is of "
        "means, so its R is too high; long_run_gbs is of a time in which all store"
    )


def _warm(rows: Rows, knee_bytes: float | None) -> list[str]:
    """Bursts up to the knee show T_iss0, larger ones R and Q. A side without sizes says nothing."""
    warm = _of(rows, "warm", "same places", "issued_ns", "cycles_per_ns")
    cold = _of(rows, "bursts", "isolated", "issued_ns")
    noting = _of(rows, "clock", "noting", "issued_ns", "cycles_per_ns")
    if not len(warm) or len(cold) < LEAST_SIZES or not len(noting):
        return []
    knee = _rough_knee_bytes(cold) if knee_bytes is None else knee_bytes
    noting_ns = noting[0, 1] * noting[0, 2] / warm[:, 2]
    there = np.interp(warm[:, 0], cold[:, 0], cold[:, 1])
    off = 100 * (warm[:, 1] - there) / np.maximum(there - noting_ns, noting_ns)
    said = []
    for what, part in (("T_iss0", off[warm[:, 0] <= knee]), ("R and Q", off[warm[:, 0] > knee])):
        if len(part) and abs(middle := float(np.median(part))) > WARM_PCT:
            said.append(_said_of_warm(f"bursts to places that were stored to before take {middle:+.0f} %", what))
    return said


def _warm_long_run(rows: Rows) -> str | None:
    warm, cold = (_of(rows, part, "long run", "gbs") for part in ("warm", "trains"))
    if not (len(warm) and len(cold)) or abs(off := 100 * (cold[0, 1] / warm[0, 1] - 1)) <= WARM_PCT:
        return None
    return _said_of_warm(
        f"long runs to places that were stored to before take {off:+.0f} %",
        "R (long_run_gbs is of new places, long_run_warm_gbs of the same)",
    )


def _said_of_warm(measured: str, what: str) -> str:
    return (
        f"{measured} against those to new places: {what} of the calibration, which is of new places, does not hold for "
        "kernels that store to the same places again"
    )


def _rough_knee_bytes(isolated: Any) -> float:
    """Where the lines through the smallest and the largest third of bursts cross (inf: they are one line)."""
    (slope, start), (steep, offset) = lines_of_thirds(isolated[:, 0], isolated[:, 1])
    if steep < LEAST_SLOPE_RATIO * slope or offset >= start:
        return float("inf")
    return float((start - offset) / (steep - slope))


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


def _beside_hogs(rows: Rows, full_ns: float | None) -> str | None:
    """Both of the smallest burst, of one SM. By the law it enters a stage that the others have filled, and so has Q of
    theirs before it: that takes Q / R more, and is no caution."""
    beside = _of(rows, "neighbours", "release beside hogs", "issued_ns", "fenced_ns")
    alone = _of(rows, "costs", "release alone", "issued_ns", "fenced_ns")
    alone = alone[alone[:, 0] > 0]
    full = _rough_full_ns(rows) if full_ns is None else full_ns
    if not (len(beside) and len(alone)) or full is None:
        return None
    took, usual = float((beside[:, 2] - beside[:, 1]).max()), float(alone[0, 2] - alone[0, 1])
    if took <= BESIDE_HOGS * (usual + full):
        return None
    return (
        f"a release takes {took:.0f} ns while other SMs store, {usual:.0f} ns alone, and {usual + full:.0f} ns behind a "
        "full stage: it waits for more than the stores before its own, so that signals of fused kernels and replays come "
        "later than simulated"
    )


def _rough_full_ns(rows: Rows) -> float | None:
    """Q / R: by how much earlier than Q = 0 would have it the largest bursts are issued (None: too few sizes)."""
    isolated = _of(rows, "bursts", "isolated", "issued_ns")
    if len(isolated) < LEAST_SIZES:
        return None
    _, (_, offset) = lines_of_thirds(isolated[:, 0], isolated[:, 1])
    return max(0.0, -float(offset))


def _in_the_sm(rows: Rows) -> str | None:
    """Both after the same burst of all SMs. One that waits for stores takes as long as one to all, however small Q is."""
    inside, to_all = (_of(rows, "costs", group, "issued_ns", "fenced_ns") for group in ("release in the SM", "release"))
    to_all = to_all[np.isin(to_all[:, 0], inside[:, 0])]
    if not (len(inside) and len(to_all)):
        return None
    took, usual = (float(one[0, 2] - one[0, 1]) for one in (inside, to_all))
    if took <= IN_THE_SM * usual:
        return None
    return (
        f"a release to the own SM takes {took:.0f} ns, one to all after the same burst {usual:.0f} ns: it waits for stores, "
        "while fused kernels and replays, whose lanes hand their signals to a courier so, are simulated as if that were free"
    )
