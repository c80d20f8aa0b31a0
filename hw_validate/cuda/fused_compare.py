"""The fused kernel as measured against the same Program simulated, policy by policy.

The simulated Program has the costs of the control (fused_costs.py) and runs on a calibrated machine: stalls, and the waits
that follow from them, are predicted, never fitted to the runs that are judged. Several ranks on one GPU share its egress and
its Q (ranks.py).

Near a ratio V / R over (T_mma + T_iss0) of 1 a few percent of R or Q decide whether anything stalls, so that an error in
percent of the stall says little there. What decides is whether R and Q, anywhere in their intervals, give the stall that was
measured: `Band`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim.program import Program
from .fused_calls import ERRORS
from .fused_costs import Pauses, measured_pauses, with_measured_costs
from .ranks import simulated_ranks

if TYPE_CHECKING:
    import pandas as pd

    from ...sim.machine import Machine
    from ...sim.quantities import Sourced

JUDGED = (
    *("makespan_us", "span_us", "span_p95_us", "stores_total_us", "mma_stall_us"),
    *("pull_us", "mma_inputs_us"),  # of MegaMoE: what holds up loads, and the tiles that wait for them
)
Summary = Callable[["pd.DataFrame"], Mapping[str, float]]
"""Of an op table, see fused_times.py."""
RANGED = ("stores_total_us", "makespan_us")
"""Of these the lowest and the highest of the repeats are kept as well, and their median absolute deviation."""
OFF_OF_MEDIAN = 3.0
"""How far a median of repeats may be off, in median absolute deviations of the repeats. If these are normal, a difference of
two medians is off by more than both together in one case of ten with three repeats, of seventy with five."""


def over_repeats(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians, the largest errors, and ends and spread of `RANGED` (`stores_total_low_us`, `_high_us`, `_spread_us`)."""
    found = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
    found |= {name: float(np.max([row[name] for row in rows])) for name in ERRORS if name in found}
    for name in RANGED:
        if name in found:
            each, stem = [row[name] for row in rows], name.removesuffix("_us")
            found |= {f"{stem}_low_us": float(min(each)), f"{stem}_high_us": float(max(each))}
            found[f"{stem}_spread_us"] = float(np.median(np.abs(np.array(each) - found[name])))
    return found


def middle_repeat(totals: Sequence[float]) -> int:
    """The repeat whose sum is the median, or next to it if their number is even."""
    return int(np.argsort(totals, kind="stable")[(len(totals) - 1) // 2])


@dataclass(frozen=True)
class Compared:
    """One policy: what a summary of fused_times.py says of the measured run, its control, and the simulation, in us.

    The first two are `over_repeats`; what was simulated has the costs of one repeat of the control, `middle_repeat`.
    """

    policy: str
    measured: Mapping[str, float]
    control: Mapping[str, float]
    simulated: Mapping[str, float]

    def error_pct(self, name: str) -> float:
        """100 * (simulated - measured) / measured; of what was measured as 0, nan or infinite."""
        return _error_pct(self.simulated[name], self.measured[name])

    def stall_us(self) -> dict[str, float]:
        """What the stores of tiles took beyond T_iss0, which the control has alone: `measured`, `simulated`, the error in
        percent of the former and of T_iss0 (`error_of_control_pct`), and `noise_us`: how far the repeats let the measured
        one be off to either side (0 if there is one), which a single disturbed repeat of three or more does not change.

        Noise of the control may leave it a little below 0.
        """
        issued = self.control["stores_total_us"]
        measured, simulated = (side["stores_total_us"] - issued for side in (self.measured, self.simulated))
        spread = sum(side["stores_total_spread_us"] for side in (self.measured, self.control))
        return {
            "measured": measured,
            "simulated": simulated,
            "error_pct": _error_pct(simulated, measured),
            "error_of_control_pct": _percent(simulated - measured, issued),
            "noise_us": OFF_OF_MEDIAN * spread,
        }

    def speedup(self, baseline: Compared) -> dict[str, float]:
        """Makespan of `baseline` over that of this policy, measured and simulated."""
        sides = {"measured": (baseline.measured, self.measured), "simulated": (baseline.simulated, self.simulated)}
        return {side: slow["makespan_us"] / fast["makespan_us"] for side, (slow, fast) in sides.items()}

    def as_dict(self) -> dict[str, Any]:
        sides = {"measured": self.measured, "control": self.control, "simulated": self.simulated}
        errors = {name: self.error_pct(name) for name in JUDGED if name in self.measured}
        told = {side: dict(numbers) for side, numbers in sides.items()}
        return {"policy": self.policy, **told, "stall_us": self.stall_us(), "error_pct": errors}


@dataclass(frozen=True, eq=False)
class Prediction:
    """A Program with the costs of its control, to be simulated on any machine that was calibrated on `transport`."""

    costed: Program
    pauses: Pauses
    transport: str

    @classmethod
    def of(cls, program: Program, control: pd.DataFrame, transport: str) -> Prediction:
        """`control` is the op table of a run of the same Program with all memory on the GPU itself."""
        return cls(with_measured_costs(program, control), measured_pauses(program, control), transport)

    def on(self, machine: Machine) -> pd.DataFrame:
        """The op table of the Program as it should run there."""
        ops = simulated_ranks(self.pauses.put_into(self.costed), machine, self.transport).ops()
        return self.pauses.taken_out_of(ops)


def at_ends(machine: Machine) -> tuple[Machine, Machine]:
    """The machine with R and Q at the low ends of their intervals, where most stalls, and at the high ones.

    Q of an SM without an interval of its own has that of the GPU, in proportion. What has none at all stays as it is.
    """
    stage, way = machine.stage, machine.interconnect
    made = []
    for end in (0, 1):
        gpu, sm = _at(stage.capacity_gpu, end), _at(stage.capacity_sm, end)
        if stage.capacity_sm.interval is None:
            in_proportion = round(stage.capacity_sm.value * gpu.value / stage.capacity_gpu.value)
            sm = sm.model_copy(update={"value": max(stage.granule.value, in_proportion)})
        rate = None if way.drain_rate is None else _at(way.drain_rate, end)
        parts = {
            "stage": stage.model_copy(update={"capacity_gpu": gpu, "capacity_sm": sm}),
            "interconnect": way.model_copy(update={"drain_rate": rate}),
        }
        made.append(machine.model_copy(update=parts))
    return made[0], made[1]


def _at(number: Sourced[Any], end: int) -> Sourced[Any]:
    return number if number.interval is None else number.model_copy(update={"value": number.interval[end]})


@dataclass(frozen=True)
class Band:
    """Between what a stall is simulated, in us, with R and Q anywhere in the intervals of the calibration."""

    low: float
    high: float

    @classmethod
    def of(cls, prediction: Prediction, machine: Machine, summary: Summary, row: Compared) -> Band:
        """`row` is the same policy as measured and simulated on `machine`."""
        issued_us = row.control["stores_total_us"]
        ends = [summary(prediction.on(one))["stores_total_us"] - issued_us for one in at_ends(machine)]
        found = [*ends, row.stall_us()["simulated"]]
        return cls(min(found), max(found))

    def judged(self, stall_us: Mapping[str, float]) -> dict[str, Any]:
        """A `stall_us` of `Compared` with the band, and whether, widened by the noise, it covers what was measured. Where it
        is 0, that is whether no more than noise was measured."""
        low, high = self.low - stall_us["noise_us"], self.high + stall_us["noise_us"]
        verdict = "agrees" if low <= stall_us["measured"] <= high else "does not"
        return {**stall_us, "simulated_between": [self.low, self.high], "verdict": verdict}


def _error_pct(simulated: float, measured: float) -> float:
    return _percent(simulated - measured, measured)


def _percent(part: float, whole: float) -> float:
    """Of a whole of 0, nan or infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(100 * np.float64(part) / whole)


def ranked_alike(rows: list[Compared], noise_pct: float = 1.0) -> bool:
    """Whether makespans come in the same order, for every pair of policies that differ by more than the noise."""
    for one in rows:
        for other in rows:
            ratio = one.measured["makespan_us"] / other.measured["makespan_us"]
            if ratio > 1 + noise_pct / 100 and one.simulated["makespan_us"] <= other.simulated["makespan_us"]:
                return False
    return True
