"""What an answer hangs on without being asked: assumptions that nobody has measured, and numbers that did not go along."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sim import program as p
from ..sim.units import gbs
from .loader import Resolved

if TYPE_CHECKING:
    from ..sim.program import Program

OTHER_ARBITRATION = {"fair": "fifo", "fifo": "fair"}
LINK_RATES = ("drain_rate", "link_rate", "nic_rate")
MOST_OF_LINKS = {"all_reduce_rate": 2}
"""The most that a rate of collectives is of what leaves a GPU, if not 1: an AllReduce counts its data going and coming."""


def cautions(resolved: Resolved, program: Program) -> list[str]:
    """A sentence for each thing that is known to decide scenarios like this one; see docs/model.md."""
    return [*_arbitration(resolved, program), *_collectives(resolved, program)]


def _arbitration(resolved: Resolved, program: Program) -> list[str]:
    chosen = resolved.machine.interconnect.reply_arbitration
    has_loads = bool((program.ops["kind"] == p.LOAD).any())
    if not (resolved.scenario.disturb.degraded_link and chosen.assumed and has_loads):
        return []
    return [
        f"beside a degraded link it matters how replies and stores share a port, which nobody has published: this run has "
        f"{chosen.value}; compare machine.interconnect.reply_arbitration={OTHER_ARBITRATION[chosen.value]}"
    ]


def _collectives(resolved: Resolved, program: Program) -> list[str]:
    """Collectives that stay as they were measured while the links that they use were changed.

    No rate is carried along: it is a measured one, and its part of the link's rate need not be that of another link.
    """
    changed = [name for name in LINK_RATES if f"interconnect.{name}" in resolved.scenario.machine.overrides]
    if not changed:
        return []
    wiring = resolved.machine.interconnect
    links = resolved.machine.drain_kbs("all", resolved.scenario.workload.gpus)
    stay = {
        name: number.value
        for name in resolved.scenario.workload.collective_rates()
        if (number := getattr(wiring, name)) is not None
        and number.value < MOST_OF_LINKS.get(name, 1) * links  # others follow the links, which hold them up
        and f"interconnect.{name}" not in resolved.scenario.machine.overrides
    }
    return [
        f"{' and '.join(changed)} of the interconnect changed, but collectives of their own still send at {name} = "
        f"{gbs(value):g} GB/s; to compare with them, set machine.interconnect.{name} in proportion"
        for name, value in stay.items()
        if _uses(resolved, program, name, value)
    ]


def _uses(resolved: Resolved, program: Program, name: str, value: int) -> bool:
    """Whether the schedule is another one where the collective's rate is."""
    machine = resolved.machine
    number = getattr(machine.interconnect, name).model_copy(update={"value": 2 * value})
    other = machine.model_copy(update={"interconnect": machine.interconnect.model_copy(update={name: number})})
    return Resolved(resolved.scenario, other, places=resolved.places).program() != program
