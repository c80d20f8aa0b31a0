"""What an answer hangs on that nobody has measured, where that can decide it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sim import program as p

if TYPE_CHECKING:
    from .scenarios.loader import Resolved
    from .sim.program import Program

OTHER_ARBITRATION = {"fair": "fifo", "fifo": "fair"}


def cautions(resolved: Resolved, program: Program) -> list[str]:
    """A sentence for each assumption that is known to decide scenarios like this one; see docs/model.md."""
    chosen = resolved.machine.interconnect.reply_arbitration
    has_loads = bool((program.ops["kind"] == p.LOAD).any())
    if not (resolved.scenario.disturb.degraded_link and chosen.assumed and has_loads):
        return []
    return [
        f"beside a degraded link it matters how replies and stores share a port, which nobody has published: this run has "
        f"{chosen.value}; compare machine.interconnect.reply_arbitration={OTHER_ARBITRATION[chosen.value]}"
    ]
