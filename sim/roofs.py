"""What a rank of a run did, against the most that its GPU could do: one roof for each part of the hardware.

    Tensor Cores   FLOPs that the shape needs, whatever a kernel pads, by the peak of their data type
    HBM            bytes that the model charges HBM with, by its rate
    L2 to SMs      operands of all tiles, by what L2 gives or what all SMs take in, whichever is less
    egress         bytes that left, by the time that the port was busy with them

A schedule says in its Program's `meta` what it knows of this: `flops` and `memory_bytes`, a value for each simulated rank,
and `math`. The roof that takes most of the makespan is where to look first. Another order of tiles can change what is read
from HBM and from L2, but not the FLOPs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .units import PS_PER_US

if TYPE_CHECKING:
    from .machine import Machine
    from .trace import Trace

BYTES_PER_US_AT_1_KBS = 1e3 / 1e6


@dataclass(frozen=True)
class Roof:
    """Of one rank, in the mean: `amount` (FLOP or B) in a run of `makespan_us` that takes `least_us` at the least."""

    part: str
    unit: Literal["FLOP", "B"]
    amount: float
    least_us: float
    makespan_us: float

    @property
    def use_pct(self) -> float:
        """Share of the makespan that the part would need if it did nothing but this, percent."""
        return 100 * self.least_us / self.makespan_us if self.makespan_us else 0.0

    @property
    def achieved_per_us(self) -> float:
        return self.amount / self.makespan_us if self.makespan_us else 0.0

    @property
    def most_per_us(self) -> float:
        return self.amount / self.least_us if self.least_us else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON: rates in TFLOPS or GB/s."""
        per_us = 1e6 if self.unit == "FLOP" else 1e3
        rate = "tflops" if self.unit == "FLOP" else "gbs"
        return {
            "part": self.part,
            "amount": self.amount,
            "unit": self.unit,
            f"achieved_{rate}": self.achieved_per_us / per_us,
            f"most_{rate}": self.most_per_us / per_us,
            "least_us": self.least_us,
            "use_pct": self.use_pct,
        }


def roofs(trace: Trace, machine: Machine) -> list[Roof]:
    """The roofs that the schedule and the machine tell enough about, in the order of the module's description."""
    meta, compute, makespan_us = trace.program.meta, machine.compute, trace.makespan_ps / PS_PER_US
    found = []

    def add(part: str, unit: Literal["FLOP", "B"], amount: float, most_per_us: float) -> None:
        found.append(Roof(part, unit, amount, amount / most_per_us, makespan_us))

    if meta.get("flops") and (peak := getattr(compute, f"{meta['math']}_tflops")) is not None:
        add(f"Tensor Cores ({meta['math']})", "FLOP", float(np.mean(meta["flops"])), peak.value * 1e6)
    if memory := meta.get("memory_bytes"):
        if compute.hbm_rate is not None:
            hbm = float(np.mean([rank["hbm_weights"] + rank["hbm_combine"] for rank in memory]))
            add("HBM", "B", hbm, compute.hbm_rate.value * BYTES_PER_US_AT_1_KBS)
        if (feed := _feed_kbs(machine)) is not None:
            given = float(np.mean([rank["l2_to_sm"] for rank in memory]))
            add("L2 to SMs", "B", given, feed * BYTES_PER_US_AT_1_KBS)
    egress = trace.outcome.ports[: trace.fabric.n_gpus]
    egress = egress[egress["busy_ps"] > 0]
    if len(egress):
        busy_us = float(egress["busy_ps"].mean()) / PS_PER_US
        found.append(Roof("egress", "B", float(egress["bytes"].mean()), busy_us, makespan_us))
    return found


def _feed_kbs(machine: Machine) -> float | None:
    """The most that all SMs take in from L2; None if the machine does not tell."""
    compute = machine.compute
    rates = [] if compute.sm_feed is None else [float(compute.sm_feed.value) * machine.sms]
    rates += [] if compute.l2_throughput is None else [float(compute.l2_throughput.value)]
    return min(rates, default=None)
