"""What the ops of a Program cost a core beside what they stand for: looking for the lane whose turn it is, reading the op,
reading or writing counters and slots, noting times.

A core that plays several lanes does this for one after the other, so it is part of the Program that both sides run. `lane`
keeps to it: an op takes its core the time given here, however quick the core was this time. In the simulation it is an own
store of one byte, which takes the issue port for as long and nothing else, before an op, or behind a WAIT or ACQUIRE that
has ended. `bookkeeping` measures the times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...sim import program as p

KINDS = ("compute", "store", "load", "signal", "remote_signal", "wait", "acquire", "release", "task", "note")
"""What has a cost, in the order of the op codes of `lane`: the ops, a SIGNAL to another rank, and taking a task; then noting
when a store or load has ended, which a core cannot help and a simulation counts to the op."""
AFTER = (p.WAIT, p.ACQUIRE)
"""Kinds of ops that cost when they have ended, not when they begin: until then others have the core."""


@dataclass(frozen=True)
class OpCosts:
    """Nanoseconds by kind [counts, kinds] on a core that plays `lanes` [counts] lanes, which it all looks at in turn."""

    lanes: tuple[int, ...] = (1,)
    ns: tuple[tuple[float, ...], ...] = ((0.0,) * len(KINDS),)

    def ps(self, lanes: int) -> dict[str, int]:
        """Picoseconds by kind on a core of so many lanes: between the counts measured on a straight line, else as next to
        them."""
        by_kind = np.array(self.ns).T
        return {
            kind: round(1000 * float(np.interp(lanes, self.lanes, column)))
            for kind, column in zip(KINDS, by_kind, strict=True)
        }

    def as_dict(self) -> dict[str, list[float]]:
        """Nanoseconds of each kind by the numbers of `lanes`."""
        by_kind = zip(*self.ns, strict=True)
        return {"lanes": list(self.lanes)} | {kind: list(ns) for kind, ns in zip(KINDS, by_kind, strict=True)}


NO_COSTS = OpCosts()
