"""What of the stage several cores share: isolated bursts of one core alone beside those of all cores at once.

The law has a capacity of each producer and one of all together, Q(K) = min(K q, Q), and one drain rate R that all share. So
a machine file can say that cores share their drain, and that a core alone holds more than its part of Q(K). It cannot say
that a core has a drain rate of its own, nor that it sometimes has: on a virtual computer the host may run two cores as two
threads of one processor core for a while, and on two processor cores after that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...sim.calibrate import BurstTimes, Calibration, Estimate, NoLawError, fit
from .microbenchmark import Measured

MIXED_PCT = (10.0, 90.0)
"""Share of rounds with a shared drain between which R is no one number."""


@dataclass(frozen=True)
class SharedStage:
    """`shared_pct` of the rounds had one drain for all cores: in them the largest burst took longer on all cores at once
    than on one by more than half of the factor that sharing would give. `alone` is the fit of one core (None: no fit)."""

    producers: int
    shared_pct: float
    together_over_alone: float
    alone: Calibration | None

    def capacity_alone(self, together: Calibration) -> Estimate | None:
        """Q of one core, where it is more than its part of Q(K) and no more than all of it."""
        if self.alone is None:
            return None
        found, all_of_it = self.alone.capacity_bytes, together.capacity_bytes.value
        return found if all_of_it / self.producers < found.value <= all_of_it else None

    @property
    def mixed(self) -> bool:
        return MIXED_PCT[0] < self.shared_pct < MIXED_PCT[1]

    def as_dict(self) -> dict[str, Any]:
        alone = self.alone
        return {
            "rounds_with_shared_drain_pct": self.shared_pct,
            "together_over_alone": self.together_over_alone,
            "drain_alone_gbs": None if alone is None else alone.drain_gbs.value,
            "capacity_alone_bytes": None if alone is None else alone.capacity_bytes.value,
        }

    def warnings(self) -> list[str]:
        """What the law has no term for, as sentences."""
        if self.mixed:
            return [
                f"R of {self.producers} cores is no one number here: in {self.shared_pct:.0f} % of the rounds they shared "
                "one drain, in the others each had its own. A host that moves the cores of a virtual computer does this"
            ]
        if self.shared_pct <= MIXED_PCT[0]:
            return [
                f"the {self.producers} cores do not share their drain. The law has one R for all, so a core that stores "
                "while the others do not is simulated as draining faster than it does"
            ]
        return []


def shared_stage(measured: Measured) -> SharedStage | None:
    """What `measured` says of several cores; None for one."""
    if measured.alone_ns is None:
        return None
    sizes, producers = measured.isolated_bytes, measured.times.producers
    largest = int(np.argmax(sizes))
    together = measured.times.issue_ns[:, measured.times.isolated][:, largest]
    ratio = together / measured.alone_ns[:, largest]
    try:
        alone = fit(BurstTimes(1, sizes, np.full(len(sizes), np.inf), measured.alone_ns, measured.times.resolution_ns))
    except NoLawError:
        alone = None
    return SharedStage(
        producers=producers,
        shared_pct=float(100 * np.mean(ratio > (1 + producers) / 2)),
        together_over_alone=float(np.median(ratio)),
        alone=alone,
    )
