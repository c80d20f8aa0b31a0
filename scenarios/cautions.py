"""Warnings about an answer: assumptions that decide it, and numbers that stayed when related ones were changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sim import program as p
from ..sim.units import gbs
from .loader import Resolved

if TYPE_CHECKING:
    from ..sim.program import Program
    from ..sim.trace import Trace

OTHER_ARBITRATION = {"fair": "fifo", "fifo": "fair"}
LINK_RATES = ("drain_rate", "link_rate", "nic_rate")
MOST_OF_LINKS = {"all_reduce_rate": 2}
"""The most that a rate of collectives is of what leaves a GPU, if not 1: an AllReduce counts its data going and coming."""
PHASES = {"collective_rate": "a2a", "ring_rate": "collective", "all_reduce_rate": "collective"}
"""The phase of a schedule that sends at a rate of collectives, and the key by which a policy replaces the rate."""
TENSOR_RATES = ("bf16_tflops", "fp8_tflops", "fp4_tflops")
WIDE = 1.5
"""Credible values of a rate that lie further apart than this factor decide speedups, which lie around 1.2."""
BUSY_PCT = 75
"""Up to here ranks of a whole run stay so close in step that one of them stands for all, to some percent."""


def cautions(resolved: Resolved, program: Program, trace: Trace | None = None) -> list[str]:
    """A sentence for each thing that is known to decide scenarios like this one; see docs/model.md.

    `trace` is the run of the program: only a run tells how busy its ports were.
    """
    return [
        *_arbitration(resolved, program),
        *_collectives(resolved, program),
        *_assumed_rates(resolved, program),
        *_other_sms(resolved),
        *_gpus_left_out(resolved),
        *_across_nodes(resolved),
        *([] if trace is None else _one_rank_for_all(resolved, trace)),
    ]


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


def _assumed_rates(resolved: Resolved, program: Program) -> list[str]:
    """Rates of collectives that nobody has measured, where credible values lie far apart."""
    found = []
    for name in resolved.scenario.workload.collective_rates():
        number = getattr(resolved.machine.interconnect, name)
        if number is None or not number.assumed or number.interval is None or not _sends_at(resolved, program, name):
            continue
        low, high = (gbs(end) for end in number.interval)
        if high > WIDE * low:
            found.append(
                f"the collective of its own sends at {name} = {gbs(number.value):g} GB/s, which is assumed; credible are "
                f"{low:g} to {high:g} GB/s, and speedups over it go with them: vary machine.interconnect.{name}"
            )
    return found


def _other_sms(resolved: Resolved) -> list[str]:
    """Fewer or more SMs that still share the Tensor Core rates of the whole GPU."""
    changed = resolved.scenario.machine.overrides
    multiplies = resolved.scenario.workload.kind != "burst_train"
    if not multiplies or "compute.sms" not in changed or any(f"compute.{name}" in changed for name in TENSOR_RATES):
        return []
    return [
        "compute.sms changed, but Tensor Core rates are those of the whole GPU: each SM multiplies faster or slower than "
        f"before; to keep the SM as it is, set machine.compute.{' or '.join(TENSOR_RATES)} in proportion"
    ]


def _gpus_left_out(resolved: Resolved) -> list[str]:
    """A number of GPUs that nobody chose, on a machine that has more."""
    workload, machine = resolved.scenario.workload, resolved.machine
    if "gpus" in workload.model_fields_set or workload.kind == "burst_train" or workload.gpus >= machine.gpus:
        return []
    return [
        f"{workload.gpus} of the {machine.gpus} GPUs of {machine.name} take part, which is the default; "
        f"workload.gpus={machine.gpus} takes all"
    ]


def _across_nodes(resolved: Resolved) -> list[str]:
    """MegaMoE between nodes is simulated as within one: communication libraries do more there."""
    workload, per_node = resolved.scenario.workload, resolved.machine.interconnect.gpus_per_node
    if workload.kind != "megamoe" or per_node is None or workload.gpus <= per_node.value:
        return []
    return [
        "ranks are on several nodes: each row crosses on its own, without deduplication by node, forwarding over NVLink "
        "or a cost per RDMA message"
    ]


def _sends_at(resolved: Resolved, program: Program, name: str) -> bool:
    """Whether a collective of its own sends at this rate of the machine. Known without building the schedule again."""
    workload, phase = resolved.scenario.workload, PHASES[name]
    in_switch = getattr(workload, "algorithm", None) == "in_switch"
    replaced = getattr(getattr(workload, "policy", None), phase, None) is not None
    return phase in program.phases and not replaced and (phase == "a2a" or in_switch == (name == "all_reduce_rate"))


def _one_rank_for_all(resolved: Resolved, trace: Trace) -> list[str]:
    """A mirror whose ports are busy: ranks of a whole run fall out of step, and wait for each other."""
    if getattr(resolved.scenario.workload, "ranks", "all") != "symmetric":
        return []
    busy_pct = 100 * int(trace.outcome.ports["busy_ps"].max(initial=0)) / max(1, trace.makespan_ps)
    if busy_pct < BUSY_PCT:
        return []
    return [
        f"one rank stands for all, and its busiest port is busy for over {BUSY_PCT} % of the time: ranks of a whole run "
        "fall out of step there, and can take a tenth to a third longer; compare workload.ranks=all"
    ]


def _uses(resolved: Resolved, program: Program, name: str, value: int) -> bool:
    """Whether the schedule is another one where the collective's rate is."""
    machine = resolved.machine
    number = getattr(machine.interconnect, name).model_copy(update={"value": 2 * value})
    other = machine.model_copy(update={"interconnect": machine.interconnect.model_copy(update={name: number})})
    return Resolved(resolved.scenario, other, places=resolved.places).program() != program
