"""Warnings about an answer: assumptions that decide it, and numbers that stayed when related ones were changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..sim import program as p
from ..sim.units import format_size, gbs
from .loader import Resolved
from .tensor_parallel import TensorParallelWorkload

if TYPE_CHECKING:
    from ..sim.layers import Kernel, KernelTime, Work
    from ..sim.machine import Machine
    from ..sim.program import Program
    from ..sim.schedules.tensor_parallel import TensorParallel
    from ..sim.trace import Trace
    from .workload import PolicyChoice

OTHER_ARBITRATION = {"fair": "fifo", "fifo": "fair"}
LINK_RATES = ("drain_rate", "link_rate", "nic_rate")
MOST_OF_LINKS = {"all_reduce_rate": 2}
"""The most that a rate of collectives is of what leaves a GPU, if not 1: an AllReduce counts its data going and coming."""
PHASES = {"collective_rate": "a2a", "ring_rate": "collective", "all_reduce_rate": "collective"}
"""The phase of a schedule that sends at a rate of collectives, and the key by which a policy replaces the rate."""
TENSOR_RATES = ("bf16_tflops", "fp8_tflops", "fp4_tflops")
WIDE = 1.5
"""Credible values of a rate that lie further apart than this factor decide speedups, which lie around 1.2."""
NOTABLE = 1.02
"""A rate that is given as the links' own is above what they drain by what both directions at once cost, and nobody minds."""
BUSY_PCT = 75
"""Up to here ranks of a whole run stay so close in step that one of them stands for all, to some percent."""
ONE_RANK = (
    f"one rank stands for all, and its busiest port is busy for over {BUSY_PCT} % of the time: ranks of a whole run "
    "may fall out of step there, and take up to a quarter longer"
)


def cautions(resolved: Resolved, program: Program, trace: Trace | None = None) -> list[str]:
    """A sentence for each thing that is known to decide scenarios like this one; see docs/model.md.

    `trace` is the run of the program: only a run tells how busy its ports were.
    """
    workload, machine, changed = resolved.scenario.workload, resolved.machine, resolved.scenario.machine.overrides
    rates = _rates_sent_at(resolved, program)
    stay = _behind_changed_links(machine, changed, workload.gpus, workload.collective_rates())
    return [
        *_arbitration(resolved, program),
        *_unchanged_collectives(machine, changed, [name for name in stay if _uses(resolved, program, name)]),
        *_assumed_rates(machine, workload.gpus, rates),
        *_above_the_links(machine, workload.gpus, _rates_given(resolved, program, rates)),
        *([] if workload.kind == "burst_train" else _other_sms(changed)),
        *_gpus_left_out(resolved),
        *(_across_nodes(machine, workload.gpus) if workload.kind == "megamoe" else []),
        *(
            _of_a_gemm(
                machine, workload.shape(), workload.policy.name, {"block_m", "block_n"} & workload.model_fields_set
            )
            + _too_coarse(machine, workload, resolved.scenario.granule)
            if isinstance(workload, TensorParallelWorkload)
            else []
        ),
        *([] if trace is None else _one_rank_for_all(resolved, trace)),
    ]


def block_cautions(
    machine: Machine, changed: Collection[str], gpus: int, kernels: Sequence[Kernel], times: Iterable[KernelTime]
) -> list[str]:
    """The same for a block of kernels on `gpus` ranks, and the times that it took.

    `changed` are the dotted paths of the machine's numbers that were replaced.
    """
    from ..sim.layers import MoeKernel

    rates = list(dict.fromkeys(name for kernel in kernels for name in _rates_of(kernel.work)))
    given = {name: _kbs(machine, name) for name in rates if f"interconnect.{name}" in changed}
    has_experts = any(isinstance(kernel.work, MoeKernel) for kernel in kernels)
    busy_pct = max((time.mirror_busy_pct for time in times), default=0.0)
    return [
        *_unchanged_collectives(machine, changed, _behind_changed_links(machine, changed, gpus, rates)),
        *_assumed_rates(machine, gpus, rates),
        *_above_the_links(machine, gpus, given),
        *_other_sms(changed),
        *(_across_nodes(machine, gpus) if has_experts else []),
        *_other_kernels_of_experts(machine, kernels),
        *_of_gemms(machine, kernels),
        *([f"of the experts {ONE_RANK}"] if busy_pct >= BUSY_PCT else []),
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


def _behind_changed_links(machine: Machine, changed: Collection[str], gpus: int, rates: Iterable[str]) -> list[str]:
    """Of the names of rates, those that stay as they were measured while the links that they use were changed.

    No rate is carried along: it is a measured one, and its part of the link's rate need not be that of another link. Those
    that the links hold up follow them.
    """
    if not _changed_links(changed):
        return []
    return [
        name
        for name in rates
        if getattr(machine.interconnect, name) is not None
        and f"interconnect.{name}" not in changed
        and _kbs(machine, name) < _drained_kbs(machine, gpus, name)
    ]


def _unchanged_collectives(machine: Machine, changed: Collection[str], rates: Iterable[str]) -> list[str]:
    return [
        f"{' and '.join(_changed_links(changed))} of the interconnect changed, but collectives of their own still send at "
        f"{name} = {gbs(_kbs(machine, name)):g} GB/s; to compare with them, set machine.interconnect.{name} in proportion"
        for name in rates
    ]


def _changed_links(changed: Collection[str]) -> list[str]:
    return [name for name in LINK_RATES if f"interconnect.{name}" in changed]


def _assumed_rates(machine: Machine, gpus: int, rates: Iterable[str]) -> list[str]:
    """Rates of collectives that nobody has measured, where credible values that the links carry lie far apart."""
    found = []
    for name in rates:
        number, most = getattr(machine.interconnect, name), _drained_kbs(machine, gpus, name)
        if not number.assumed or number.interval is None:
            continue
        low, high = number.interval
        if min(high, most) > WIDE * min(low, most):
            reached = f"{gbs(most):g} GB/s, which is all that ports drain of " if most < number.value else ""
            found.append(
                f"the collective of its own sends at {reached}{name} = {gbs(number.value):g} GB/s, which is assumed; "
                f"credible are {gbs(low):g} to {gbs(high):g} GB/s, and speedups over it go with them: vary "
                f"machine.interconnect.{name}"
            )
    return found


def _above_the_links(machine: Machine, gpus: int, given: Mapping[str, int]) -> list[str]:
    """Rates in kB/s that somebody asked for, and that the ports of the GPUs hold up."""
    drained = {name: _drained_kbs(machine, gpus, name) for name in given}
    return [
        f"the collective's rate of {gbs(kbs):g} GB/s is above the {gbs(drained[name]):g} GB/s that ports drain, so it takes "
        f"what it takes at {gbs(drained[name]):g} GB/s"
        for name, kbs in given.items()
        if kbs > NOTABLE * drained[name]
    ]


def _other_sms(changed: Collection[str]) -> list[str]:
    """Fewer or more SMs that still share the Tensor Core rates of the whole GPU."""
    if "compute.sms" not in changed or any(f"compute.{name}" in changed for name in TENSOR_RATES):
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


def _across_nodes(machine: Machine, gpus: int) -> list[str]:
    """MegaMoE between nodes is simulated as within one: communication libraries do more there."""
    per_node = machine.interconnect.gpus_per_node
    if per_node is None or gpus <= per_node.value:
        return []
    return [
        "ranks are on several nodes: each row crosses on its own, without deduplication by node, forwarding over NVLink "
        "or a cost per RDMA message"
    ]


def _between_nodes(machine: Machine, shape: TensorParallel, policy: str) -> list[str]:
    """What a schedule between nodes is not, unless it adds up or copies within a node first."""
    from ..sim.schedules.tensor_parallel import node_size

    per_node = machine.interconnect.gpus_per_node
    if per_node is None or shape.ranks <= per_node.value or policy == "compute_only":
        return []
    if shape.operation == "gemm_ar" and shape.algorithm == "in_switch":
        return ["ranks are on several nodes: no NVLink switch adds up across them, as in_switch does here"]
    if shape.operation == "gemm_ar" and policy != "serial":
        return [
            "ranks are on several nodes: each tile crosses on its own, and its sum to each rank; kernels for several nodes "
            "add up within one first, as serial does here"
        ]
    if node_size(machine, shape.ranks) == shape.ranks and per_node.value > 1:
        return [
            f"{shape.ranks} ranks are no whole nodes of {per_node.value}: each sends to every other on its own, instead of "
            "adding up or copying within a node first"
        ]
    return []


def _of_a_gemm(machine: Machine, shape: TensorParallel, policy: str, tile_given: Collection[str] = ()) -> list[str]:
    """SMs without a tile, unless somebody chose its size, and rows that all ranks send to one owner at a time."""
    from ..sim.schedules.tensor_parallel import on_one_switch

    found = _between_nodes(machine, shape, policy)
    n_tiles, sms = shape.n_tiles(policy in ("compute_only", "serial")), min(machine.sms, shape.grid or machine.sms)
    if 2 * n_tiles < sms and not tile_given:
        found.append(
            f"tiles of {shape.block_m} x {shape.block_n} are fewer than half of the {sms} SMs; libraries take smaller tiles "
            "there, or share out k too (split-K, not modelled), and may be several times faster; with another block_m and "
            "block_n another policy may be the best"
        )
    in_plain_order = policy in ("fused", "reserved_sms") and shape.operation == "gemm_rs" and shape.m > shape.block_m
    if in_plain_order and not on_one_switch(machine.fabric(shape.ranks)):
        found.append(
            "under fused and reserved_sms all ranks send to one owner of rows at a time, and other links between GPUs rest; "
            "kernels for such links deal rows over owners, as reshaped does"
        )
    return found


def _too_coarse(machine: Machine, workload: TensorParallelWorkload, granule_bytes: int | None) -> list[str]:
    """A collective of its own whose lane has no room for a granule to each peer, so that links of their own rest."""
    from ..sim.schedules.tensor_parallel import node_size, on_one_switch

    granule, peers = granule_bytes or machine.granule_bytes, node_size(machine, workload.gpus) - 1
    room = machine.stage.capacity_sm.value // granule
    if workload.policy.name != "serial" or room >= peers or on_one_switch(machine.fabric(peers + 1)):
        return []
    return [
        f"the collective of its own stores to {peers} peers from one SM, whose room holds {room} of the granules of "
        f"{format_size(granule)}, so links rest and it takes too long: take a finer granule"
    ]


def _of_gemms(machine: Machine, kernels: Sequence[Kernel]) -> list[str]:
    """The same of the kernels of a block."""
    from ..sim.layers import GemmKernel

    names: dict[str, list[str]] = {}
    for kernel in kernels:
        if isinstance(kernel.work, GemmKernel):
            for sentence in _of_a_gemm(machine, kernel.work.shape, kernel.work.policy.name):
                names.setdefault(sentence, []).append(kernel.name)
    return [f"of {', '.join(of)}, {sentence}" for sentence, of in names.items()]


def other_kernels(policy: str, given: Collection[str], choice: PolicyChoice) -> list[str]:
    """That a policy has other kernels, which are not among the settings that were `given`, and may be faster."""
    return [
        f"{policy} runs without `{setting.key}`, {setting.meaning}, and may be faster with one: `xstage tune` tries "
        f"{', '.join(setting.names)}"
        for setting in choice.settings
        if setting.names and setting.key not in given
    ]


def _other_kernels_of_experts(machine: Machine, kernels: Sequence[Kernel]) -> list[str]:
    """The same of the experts of a block, whose policies run as they are by default."""
    from ..sim.layers import MoeKernel
    from ..sim.schedules.megamoe import Unfused
    from .megamoe_policies import unfused

    calls = [kernel.work for kernel in kernels if isinstance(kernel.work, MoeKernel)]
    found = [other_kernels("unfused", (), unfused(machine, call.shape)) for call in calls if call.policy == Unfused()]
    return list(dict.fromkeys(f"of the experts, {sentence}" for sentences in found for sentence in sentences))


def _one_rank_for_all(resolved: Resolved, trace: Trace) -> list[str]:
    """A mirror whose ports are busy: ranks of a whole run fall out of step, and wait for each other."""
    if not resolved.scenario.workload.is_mirrored:
        return []
    busy_pct = 100 * int(trace.outcome.ports["busy_ps"].max(initial=0)) / max(1, trace.makespan_ps)
    return [f"{ONE_RANK}; compare workload.ranks=all"] if busy_pct >= BUSY_PCT else []


# Collectives of their own ---------------------------------------------------------------------------------------------


def _rates_sent_at(resolved: Resolved, program: Program) -> list[str]:
    """The machine's rates at which collectives of their own send. Known without building the schedule again."""
    return [name for name in _rates_with_a_phase(resolved, program) if _of_the_policy(resolved, name) is None]


def _rates_given(resolved: Resolved, program: Program, of_machine: Iterable[str]) -> dict[str, int]:
    """Those rates in kB/s that the policy says, or that replace the machine's."""
    changed = resolved.scenario.machine.overrides
    replaced = {name: _kbs(resolved.machine, name) for name in of_machine if f"interconnect.{name}" in changed}
    named = {name: _of_the_policy(resolved, name) for name in _rates_with_a_phase(resolved, program)}
    return replaced | {name: kbs for name, kbs in named.items() if kbs is not None}


def _rates_with_a_phase(resolved: Resolved, program: Program) -> list[str]:
    """Names of rates of collectives, where the schedule has a phase that sends at one of them, the machine's or another."""
    workload = resolved.scenario.workload
    in_switch = getattr(workload, "algorithm", None) == "in_switch"
    return [
        name
        for name in workload.collective_rates()
        if (phase := PHASES[name]) in program.phases and (phase == "a2a" or in_switch == (name == "all_reduce_rate"))
    ]


def _rates_of(work: Work) -> list[str]:
    """The same of a kernel of a block."""
    from ..sim.layers import AttentionKernel, Exchange, GemmKernel

    match work:
        case Exchange():
            return ["collective_rate"]
        case AttentionKernel() | GemmKernel() if work.policy.name != "serial" or work.shape.ranks == 1:
            return []
        case AttentionKernel():
            return ["collective_rate"]
        case GemmKernel():
            return ["all_reduce_rate" if work.shape.algorithm == "in_switch" else "ring_rate"]
        case _:
            return []


def _of_the_policy(resolved: Resolved, name: str) -> int | None:
    """The rate in kB/s that the policy says in place of the machine's."""
    kbs: int | None = getattr(getattr(resolved.scenario.workload, "policy", None), PHASES[name], None)
    return kbs


def _uses(resolved: Resolved, program: Program, name: str) -> bool:
    """Whether the schedule is another one where the collective's rate is."""
    machine = resolved.machine
    number = getattr(machine.interconnect, name).model_copy(update={"value": 2 * _kbs(machine, name)})
    other = machine.model_copy(update={"interconnect": machine.interconnect.model_copy(update={name: number})})
    return Resolved(resolved.scenario, other, places=resolved.places).program() != program


def _kbs(machine: Machine, name: str) -> int:
    """A rate of collectives that the machine has."""
    return int(getattr(machine.interconnect, name).value)


def _drained_kbs(machine: Machine, gpus: int, name: str) -> int:
    """The most that the ports of `gpus` GPUs let through of a rate of collectives."""
    return MOST_OF_LINKS.get(name, 1) * machine.drain_kbs("all", gpus)
