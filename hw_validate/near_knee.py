"""How much longer than T_iss0 stores took for which no stall is simulated, by their size in knees.

The law has a knee where hardware bends, so bursts a little below the knee take longer than T_iss0. Isolated bursts of the
calibration tell whether that is all: where they and the stores of unseen trains are off alike, it is the law's shape, and
where only the trains are off, it is something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .compare import Comparison

if TYPE_CHECKING:
    from .calibrated import Calibrated

OF_KNEE = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Bounds of the ranges."""


def excess_by_size(comparisons: Sequence[Comparison], calibrated: Calibrated) -> list[dict[str, Any]]:
    """A row a range of sizes: `of_knee` (above, up to), `stores` of trains with no stall simulated, and by how many percent
    more time they (`excess_pct`) and isolated bursts of the calibration (`calibration_excess_pct`) took in the median.

    None where there are no such stores or bursts. Schedules whose lanes share a core are left out: a store there waits for
    those of other lanes too.
    """
    found, times = calibrated.calibration, calibrated.times
    stores = [
        c.ops[(c.ops["kind"] == "store") & (c.ops["simulated_stall_us"] <= 0)]
        for c in comparisons
        if not c.port_is_shared
    ]
    sizes = np.concatenate([np.zeros(0), *(table["bytes"].to_numpy(dtype=float) for table in stores)])
    excess = np.concatenate(
        [np.zeros(0), *((t["measured_issue_us"] / t["simulated_issue_us"]).to_numpy() for t in stores)]
    )
    bursts = times.burst_bytes[times.isolated]
    unhindered_ns = found.t0_ns.value + bursts / found.issue_gbs.value
    of_burst = times.centre_ns()[times.isolated] / unhindered_ns
    knee = found.knee_bytes.value

    def median_pct(size: Any, ratio: Any, low: float, high: float) -> float | None:
        chosen = ratio[(size > low * knee) & (size <= high * knee) & np.isfinite(ratio)]
        return float(100 * (np.median(chosen) - 1)) if len(chosen) else None

    return [
        {
            "of_knee": [low, high],
            "stores": int(np.sum((sizes > low * knee) & (sizes <= high * knee) & np.isfinite(excess))),
            "excess_pct": median_pct(sizes, excess, low, high),
            "calibration_excess_pct": median_pct(bursts, of_burst, low, high),
        }
        for low, high in pairwise(OF_KNEE)
    ]
