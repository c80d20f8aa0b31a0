"""A scenario whose schedule and fabric have been made, so that estimating it and running it make them once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..scenarios.loader import Resolved
    from ..scenarios.schema import Scenario
    from ..sim.program import Program
    from ..sim.topology import Fabric


@dataclass(frozen=True, eq=False)
class Built:
    """`build_s` is what making took."""

    resolved: Resolved
    made: tuple[Program, Fabric] = field(repr=False)
    build_s: float

    @classmethod
    def of(cls, resolved: Resolved) -> Built:
        started = time.perf_counter()
        made = resolved.program(), resolved.fabric()
        return cls(resolved, made, time.perf_counter() - started)

    @property
    def scenario(self) -> Scenario:
        return self.resolved.scenario

    def program(self) -> Program:
        return self.made[0]

    def fabric(self) -> Fabric:
        return self.made[1]
