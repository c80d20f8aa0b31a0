"""Interleaved against expert-wave MegaMoE over 84 kinds of calls, beside what the X-Stage paper reports (arXiv 2607.23264).

The calls are those of the study megamoe-84: seven models, W4A8 and W8A8, balanced and skewed routing, three token counts.
Tile costs come from the machine file; nothing is fitted to the paper's speedups. Balanced calls simulate one rank against
its mirror, skewed ones all eight.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .counted_progress import Report, unreported
from .workers import map_on_workers

if TYPE_CHECKING:
    import pandas as pd

STUDY = "megamoe-84"
CALL = ("model", "numbers", "tokens", "routing")
FAST_FEED = "124 GB/s"
LARGE_EXPERTS = {"hidden": 7168, "intermediate": 6144, "experts": 32, "topk": 2, "tokens": 2048, "numbers": "w8a8"}
LEAST_STALL_US_PER_SM = 1.0
"""A reduction counts only where an SM stalls at least this long under expert-wave; below there is nothing to reduce."""


@dataclass(frozen=True, repr=False, eq=False)
class Speedups:
    """`calls`: one row a call, with times and stalls under both orders."""

    calls: pd.DataFrame
    timing: dict[str, float]

    def statistics(self, routing: str | None = None) -> dict[str, float]:
        """geometric_mean, median, maximum, minimum of the speedup; largest_stall_reduction (%). Of a routing, or of all."""
        import numpy as np

        calls = self.calls if routing is None else self.calls[self.calls["routing"] == routing]
        speedup = calls["speedup"]
        counted = calls[calls["stall_wave_us_per_sm"] >= LEAST_STALL_US_PER_SM]
        return {
            "geometric_mean": float(np.exp(np.log(speedup).mean())),
            "median": float(speedup.median()),
            "maximum": float(speedup.max()),
            "minimum": float(speedup.min()),
            "largest_stall_reduction": float(counted["stall_reduction_pct"].max()) if len(counted) else 0.0,
        }

    def as_dict(self) -> dict[str, Any]:
        from .scenarios.x_stage import speedups

        routings = list(dict.fromkeys(self.calls["routing"]))
        return {
            "study": STUDY,
            "paper": speedups(),
            "all": self.statistics(),
            **{routing: self.statistics(routing) for routing in routings},
            "calls": self.calls.to_dict("records"),
        }


def speedups(
    output: str | Path,
    routings: Sequence[str] = ("balanced", "skewed"),
    *,
    workers: int = 2,
    progress: Report = unreported,
) -> Speedups:
    """Run the study into the folder `output`, from where it goes on if it was stopped, and compare the two orders.

    `routings` leaves half of it out. Raises `InputError` for another routing, `XstageError` if a call could not be run.
    """
    from .scenarios import catalogue
    from .scenarios.document import read
    from .sim.errors import InputError, XstageError
    from .sweeps.run import sweep

    started = time.perf_counter()
    ranks = {"balanced": "symmetric", "skewed": "all"}
    for routing in routings:
        if routing not in ranks:
            raise InputError("is unknown", field="routings", value=routing, allowed=ranks)
    study = dict(read(catalogue.find(STUDY, "study")).data) | {"name": STUDY}
    study["include"] = [{"workload.ranks": ranks[routing]} for routing in routings]
    done = sweep(study, output, workers=workers, progress=progress)
    points = done.frame()
    if done.failed:
        raise XstageError(f"{done.failed} of {done.points} calls failed, the first: {points['error'].dropna().iloc[0]}")
    return Speedups(by_call(points), {"wall_s": time.perf_counter() - started})


def losing_case(workers: int = 1) -> dict[str, Any]:
    """A call that interleaving slows down in the model, which none of the study's does: its kind of loss, made large.

    Experts so large that L1 weights fit into the L2 cache and L1 and L2 weights together do not, balanced routing, on an SM
    that takes in `FAST_FEED` (DSv4-Flash's L1 main loop of the paper: 896 KiB in 7.40 us). Gives speedup and, by order, the
    share of tiles that find their weights in the L2 cache (percent).
    """
    rates = map_on_workers(_large_experts, ("expert_wave", "interleaved"), workers)
    (wave_us, wave_hits), (interleaved_us, interleaved_hits) = rates
    return {
        **LARGE_EXPERTS,
        "sm_feed": FAST_FEED,
        "speedup": wave_us / interleaved_us,
        "weight_hits_wave_pct": wave_hits,
        "weight_hits_interleaved_pct": interleaved_hits,
    }


def _large_experts(policy: str) -> tuple[float, float]:
    from .api import run
    from .scenarios.loader import load

    workload = {"kind": "megamoe", **LARGE_EXPERTS, "release": "pr304", "ranks": "symmetric", "policy": policy}
    scenario = {"name": "large experts", "question": "What does crossing experts cost?", "machine": "hgx-b200",
                "granule": "4 KiB", "workload": workload}  # fmt: skip
    feed = {"value": FAST_FEED, "assumed": True, "source": "896 KiB in 7.40 us, arXiv 2607.23264"}
    done = run(load(scenario, {"machine.compute.sm_feed": feed}), engine="compiled", trace="off")
    return done.makespan_us, float(done.program.meta["weight_hits_pct"][0])


def by_call(points: pd.DataFrame) -> pd.DataFrame:
    """One row a call from one row a call and order."""
    named = points.rename(columns=lambda name: name.removeprefix("workload."))
    named["routing"] = named["ranks"].map({"symmetric": "balanced", "all": "skewed"})
    named["stall_us_per_sm"] = named["stall_total_us"] / named["roles.mma.lanes"] / 2  # a cluster has one MMA lane
    wide = named.pivot(index=list(CALL), columns="policy", values=["makespan_us", "stall_us_per_sm"])
    wave, interleaved = (wide.xs(policy, axis=1, level="policy") for policy in ("expert_wave", "interleaved"))
    calls = wide.index.to_frame(index=False)
    calls["wave_us"] = wave["makespan_us"].to_numpy()
    calls["interleaved_us"] = interleaved["makespan_us"].to_numpy()
    calls["speedup"] = calls["wave_us"] / calls["interleaved_us"]
    calls["stall_wave_us_per_sm"] = wave["stall_us_per_sm"].to_numpy()
    calls["stall_interleaved_us_per_sm"] = interleaved["stall_us_per_sm"].to_numpy()
    left = calls["stall_interleaved_us_per_sm"] / calls["stall_wave_us_per_sm"].where(calls["stall_wave_us_per_sm"] > 0)
    calls["stall_reduction_pct"] = (100 * (1 - left)).fillna(0.0)
    return calls
