"""Warnings about an answer: assumptions that decide it, and numbers that stayed when related ones were changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..sim import program as p
from ..sim.units import PS_PER_US, format_size, gbs
from .attention import AttentionWorkload
from .latency_cautions import latency_cautions
from .loader import Resolved
from .own_program import ISSUE, ProgramWorkload, fixed
from .tensor_parallel import TensorParallelWorkload

if TYPE_CHECKING:
    from ..sim.layers import Kernel, KernelTime, Work
    from ..sim.machine import Machine
    from ..sim.program import Program
    from ..sim.schedules.attention_a2a import Attention
    from ..sim.schedules.tensor_parallel import Policy, TensorParallel
    from ..sim.topology import Fabric
    from ..sim.trace import Trace
    from .workload import PolicyChoice, Workload

OTHER_ARBITRATION = {"fair": "fifo", "fifo": "fair"}
LINK_RATES = ("drain_rate", "link_rate", "nic_rate")
BY_SWITCH = {"in_switch": "adds up", "multicast": "copies", "one_shot": "copies"}
"""What a switch does for an algorithm of a GEMM's collective, of those that need one."""
WITHOUT_SWITCH = ("direct", "ring", "hybrid_cube_mesh")
"""Kinds of interconnect that join GPUs by links alone."""
TENSOR_RATES = ("bf16_tflops", "fp8_tflops", "fp4_tflops")
WIDE = 1.5
"""Credible values of a rate that lie further apart than this factor decide speedups, which lie around 1.2."""
NOTABLE = 1.02
"""A rate that is given as the links' own is above what they drain by what both directions at once cost, and nobody minds."""
RESTING = 0.05
"""Up to this part of its time a collective may leave its busiest link idle, as any start and end does."""
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
    gpus, disturb = workload.gpus, resolved.scenario.disturb
    rates, of_policy = _rates_of_a_workload(machine, workload), _rate_of_the_policy(machine, workload)
    given = [*_given(machine, changed, gpus, rates), *of_policy]
    has_loads = bool((program.ops["kind"] == p.LOAD).any())
    return [
        *(_arbitration(machine, gpus, bool(disturb.degraded_link)) if has_loads else []),
        *_unchanged_rates(machine, changed, gpus, rates),
        *_assumed_rates(machine, gpus, rates),
        *_above_the_links(given),
        *latency_cautions(machine, _fabric(resolved), changed, getattr(workload, "producers", machine.sms)),
        *([] if workload.kind in ("burst_train", "program") else _other_sms(changed)),
        *_gpus_left_out(resolved),
        *(_durations_of_its_own(resolved, workload) if isinstance(workload, ProgramWorkload) else []),
        *(_across_nodes(machine, gpus) if workload.kind == "megamoe" else []),
        *(_of_a_gemm_alone(machine, workload) if isinstance(workload, TensorParallelWorkload) else []),
        *(_one_owner_of_output(machine, workload) if isinstance(workload, AttentionWorkload) else []),
        *([] if trace is None else _too_coarse(resolved, trace)),
        *([] if trace is None else _one_rank_for_all(resolved, trace)),
    ]


def _fabric(resolved: Resolved) -> Fabric:
    """The wiring of all GPUs, also where one stands for all."""
    workload = resolved.scenario.workload
    return resolved.machine.fabric(workload.gpus) if workload.is_mirrored else resolved.fabric()


def block_cautions(
    machine: Machine, changed: Collection[str], gpus: int, kernels: Sequence[Kernel], times: Iterable[KernelTime]
) -> list[str]:
    """The same for a block of kernels on `gpus` ranks, and the times that it took.

    `changed` are the dotted paths of the machine's numbers that were replaced.
    """
    from ..sim.layers import MoeKernel

    rates = list(dict.fromkeys(name for kernel in kernels for name in _rates_of(machine, kernel.work)))
    has_experts = any(isinstance(kernel.work, MoeKernel) for kernel in kernels)
    busy_pct = max((time.mirror_busy_pct for time in times), default=0.0)
    return [
        *(_arbitration(machine, gpus, degraded=False) if has_experts else []),
        *_unchanged_rates(machine, changed, gpus, rates),
        *_assumed_rates(machine, gpus, rates),
        *_above_the_links(_given(machine, changed, gpus, rates)),
        *_other_sms(changed),
        *(_across_nodes(machine, gpus) if has_experts else []),
        *_other_kernels_of_experts(machine, kernels),
        *_of_gemms(machine, kernels),
        *([f"of the experts {ONE_RANK}"] if busy_pct >= BUSY_PCT else []),
    ]


def _arbitration(machine: Machine, gpus: int, degraded: bool) -> list[str]:
    """Of schedules with loads as well as stores, where a link is slower than the ports before it."""
    wiring = machine.interconnect
    chosen, network, ports = wiring.reply_arbitration, wiring.nic_rate, wiring.drain_rate
    if degraded:
        where = "beside a degraded link"
    elif _several_nodes(machine, gpus) and network is not None and ports is not None and network.value < ports.value:
        where = f"where network interfaces of {gbs(network.value):g} GB/s lie behind ports of {gbs(ports.value):g} GB/s"
    else:
        return []
    if not chosen.assumed:
        return []
    return [
        f"{where} it matters how replies and stores share a port, which nobody has published: this run has "
        f"{chosen.value}; compare machine.interconnect.reply_arbitration={OTHER_ARBITRATION[chosen.value]}"
    ]


def _unchanged_rates(machine: Machine, changed: Collection[str], gpus: int, rates: Iterable[str]) -> list[str]:
    """Rates of collectives that stay while the links that they use were changed.

    No rate is carried along: it is a measured one, and its part of the link's rate need not be that of another link. Those
    that the links hold up follow them.
    """
    links = _changed_links(changed)
    return [
        f"{' and '.join(links)} of the interconnect changed, but {name} = {gbs(_kbs(machine, name)):g} GB/s is still that "
        f"of the links as they were; set machine.interconnect.{name} in proportion, or vary it"
        for name in rates
        if links and f"interconnect.{name}" not in changed and _kbs(machine, name) < _drained_kbs(machine, gpus, name)
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
                f"the collective sends at {reached}{name} = {gbs(number.value):g} GB/s, which is assumed; "
                f"credible are {gbs(low):g} to {gbs(high):g} GB/s, and speedups over it go with them: vary "
                f"machine.interconnect.{name}"
            )
    return found


def _above_the_links(given: Iterable[tuple[int, int]]) -> list[str]:
    """Rates that somebody asked for, and the most that the ports of the GPUs let through, in kB/s."""
    return [
        f"the collective's rate of {gbs(kbs):g} GB/s is above the {gbs(most):g} GB/s that ports drain, so it takes "
        f"what it takes at {gbs(most):g} GB/s"
        for kbs, most in given
        if kbs > NOTABLE * most
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


def _durations_of_its_own(resolved: Resolved, workload: ProgramWorkload) -> list[str]:
    """What a Program keeps whatever the machine is, and stores that nobody gave a time to issue."""
    from ..sim.issue_times import issued_by_sms

    own = workload.issue_times == "own"
    found = [
        f"machine.{name} changes nothing: the Program has durations of its own"
        + ("; workload.issue_times=machine takes T_iss0 from the machine" if name in ISSUE else "")
        for name in fixed(workload, resolved.scenario.machine.overrides)
    ]
    if any(resolved.places(path).option for path in (("machine",), ("machine", "base"))):
        kept = "computation and stores to issue take" if own else "computation takes"
        found.append(f"{kept} as long as the Program says, on {resolved.machine.name} as on any other machine")
    program = workload.schedule
    stores = issued_by_sms(program)
    at_once = int((stores & (program.ops["duration_ps"] == 0)).sum())
    if own and at_once:
        found.append(
            f"{at_once} of {stores.sum()} STOREs of the Program take no time to issue; give each its duration_ps, or set "
            "workload.issue_times=machine, which takes T_iss0 from the machine"
        )
    return found


def _several_nodes(machine: Machine, gpus: int) -> bool:
    per_node = machine.interconnect.gpus_per_node
    return per_node is not None and gpus > per_node.value


def _across_nodes(machine: Machine, gpus: int) -> list[str]:
    """MegaMoE between nodes is simulated as within one: communication libraries do more there."""
    if not _several_nodes(machine, gpus):
        return []
    return [
        "ranks are on several nodes: each row crosses on its own, without deduplication by node, forwarding over NVLink "
        "or a cost per RDMA message"
    ]


def _by_switch(machine: Machine, shape: TensorParallel, policy: str) -> list[str]:
    """What no switch can do here: none joins all ranks, or there is none. Only in_switch has a collective that needs one."""
    from ..sim.schedules.tensor_parallel import node_size

    does, alone = BY_SWITCH.get(shape.algorithm), policy == "serial" and shape.algorithm != "in_switch"
    if does is None or alone or policy == "compute_only" or shape.ranks == 1:
        return []
    if _has_no_switch(machine):
        kind = machine.interconnect.kind.value
        return [f"{shape.algorithm} needs a switch that {does}, and only links join GPUs here ({kind})"]
    copies_within = shape.operation == "ag_gemm" and node_size(machine, shape.ranks) < shape.ranks
    if copies_within or not _several_nodes(machine, shape.ranks):
        return []
    return [f"ranks are on several nodes: no NVLink switch {does} across them, as {shape.algorithm} does here"]


def _has_no_switch(machine: Machine) -> bool:
    kind = machine.interconnect.kind.value
    if kind == "custom":
        return all(isinstance(node, int) for node in machine.interconnect.graph())
    return kind in WITHOUT_SWITCH


def _between_nodes(machine: Machine, shape: TensorParallel, policy: str) -> list[str]:
    """What a schedule between nodes is not, unless it adds up or copies within a node first."""
    from ..sim.schedules.tensor_parallel import node_size

    per_node = machine.interconnect.gpus_per_node
    if per_node is None or not _several_nodes(machine, shape.ranks) or policy == "compute_only":
        return []
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


def _of_a_gemm(machine: Machine, shape: TensorParallel, how: Policy, tile_given: Collection[str] = ()) -> list[str]:
    """SMs without a tile, unless somebody chose its size, and rows that all ranks send to one owner at a time."""
    from ..sim.schedules.tensor_parallel import on_one_switch

    policy = how.name
    found = _by_switch(machine, shape, policy) or _between_nodes(machine, shape, policy)
    n_tiles, sms = shape.n_tiles(policy in ("compute_only", "serial")), min(machine.sms, shape.grid or machine.sms)
    if 2 * n_tiles < sms and not tile_given:
        found.append(
            f"tiles of {shape.block_m} x {shape.block_n} are fewer than half of the {sms} SMs; libraries take smaller tiles "
            "there, or share out k too (split-K, not modelled), and may be several times faster; with another block_m and "
            "block_n another policy may be the best"
        )
    sends_in_plain_order = policy in ("fused", "reserved_sms") and not how.rotation
    if (
        sends_in_plain_order
        and shape.operation == "gemm_rs"
        and shape.m > shape.block_m
        and not on_one_switch(machine.fabric(shape.ranks))
    ):
        found.append(
            f"under {policy} without rotation all ranks send to one owner of rows at a time, and other links between GPUs "
            "rest; kernels for such links deal rows over owners, as rotation: true and reshaped do"
        )
    return found


def _of_a_gemm_alone(machine: Machine, workload: TensorParallelWorkload) -> list[str]:
    tile_given = {"block_m", "block_n"} & workload.model_fields_set
    return _of_a_gemm(machine, workload.shape(), workload.plain_policy(), tile_given)


def _one_owner_of_output(machine: Machine, workload: AttentionWorkload) -> list[str]:
    """Attention whose ranks all store to the same few of them at a time, where GPUs do not meet on one switch."""
    from ..sim.schedules.tensor_parallel import on_one_switch

    policy = workload.policy
    sends_in_plain_order = policy.name in ("piggyback", "comm_warp", "reserved_sms") and not policy.rotation
    if not sends_in_plain_order or workload.gpus == 1 or on_one_switch(machine.fabric(workload.gpus)):
        return []
    return [
        "under piggyback, comm_warp and reserved_sms all ranks send to one owner of rows, or to a few, at a time, and other "
        "links between GPUs rest; with rotation: true each rank begins with other rows, which may be faster or slower"
    ]


def _too_coarse(resolved: Resolved, trace: Trace) -> list[str]:
    """A collective of its own whose lane has no room for a granule to each peer, so that links of their own rest.

    Not if it ends about when it has issued everything, or when its busiest port has carried everything.
    """
    from ..sim.schedules.tensor_parallel import node_size, on_one_switch

    workload, machine, granule = resolved.scenario.workload, resolved.machine, trace.fabric.granule_bytes
    if workload.policy_name != "serial":
        return []
    gpus = workload.gpus if isinstance(workload, AttentionWorkload) else node_size(machine, workload.gpus)
    peers, room = gpus - 1, machine.stage.capacity_sm.value // granule
    if room >= peers or on_one_switch(machine.fabric(gpus)):
        return []
    took_ps, resting_ps = _resting(resolved, trace)
    if resting_ps <= RESTING * took_ps:
        return []
    return [
        f"the collective of its own stores to {peers} peers from one SM, whose room holds {room} of the granules of "
        f"{format_size(granule)}, so links rest for {resting_ps / PS_PER_US:.1f} of the {took_ps / PS_PER_US:.1f} us that "
        "it takes: take a finer granule"
    ]


def _resting(resolved: Resolved, trace: Trace) -> tuple[int, int]:
    """What a collective of its own takes on the rank that waits least for others, and what it would take less if it ended
    with its issue, or with its busiest port if that is later. Both in ps.
    """
    launch = getattr(resolved.scenario.workload.policy, "launch", None)  # type: ignore[attr-defined]
    if launch is None and (of_machine := resolved.machine.interconnect.collective_launch) is not None:
        launch = of_machine.value
    mine = trace.outcome.lanes[trace.program.lanes["role"] == trace.program.roles.index("comm")]
    idle_ps = mine["stall_ps"] + mine["wait_ps"][:, p.CAUSES.index("peer")]
    first = int(np.argmin(mine["busy_ps"] + idle_ps))
    sent_ps = int(mine["busy_ps"][first] + idle_ps[first]) - (launch or 0)
    busiest_ps = int(trace.outcome.ports["busy_ps"].max(initial=0))
    latency_ps = int(trace.fabric.latency_ps.max(initial=0))
    return sent_ps, min(int(idle_ps[first]), sent_ps - busiest_ps) - latency_ps


def _of_gemms(machine: Machine, kernels: Sequence[Kernel]) -> list[str]:
    """The same of the kernels of a block."""
    from ..sim.predict import GemmCall

    names: dict[str, list[str]] = {}
    for kernel in kernels:
        if isinstance(kernel.work, GemmCall):
            for sentence in _of_a_gemm(machine, kernel.work.shape, kernel.work.policy):
                names.setdefault(sentence, []).append(kernel.name)
    return [f"of {', '.join(of)}, {sentence}" for sentence, of in names.items()]


def other_kernels(policy: str, given: Collection[str], choice: PolicyChoice) -> list[str]:
    """That a policy has other kernels, which are not among the settings that were `given`, and may be faster."""
    return [
        f"{policy} runs without `{setting.key}`, {setting.meaning}, and may be faster with one: `xstage tune` tries "
        f"{', '.join(map(str, setting.values))}"
        for setting in choice.settings
        if isinstance(setting.values[0], str) and setting.key not in given
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


# Rates of collectives --------------------------------------------------------------------------------------------------


def _rates_of_a_workload(machine: Machine, workload: Workload) -> list[str]:
    """The machine's rates at which the schedule sends."""
    if not isinstance(workload, (AttentionWorkload, TensorParallelWorkload)) or _rate_of_the_policy(machine, workload):
        return []
    name = _rate_of(machine, workload.shape(), workload.policy.name)
    return [] if name is None else [name]


def _rate_of_the_policy(machine: Machine, workload: Workload) -> list[tuple[int, int]]:
    """The rate that the policy says in place of the machine's, and the most that ports let through, in kB/s.

    Each rank sends and takes in (P-1)/P of the data at most, which an AllReduce in the switch counts going and coming.
    """
    policy = getattr(workload, "policy", None)
    kbs = getattr(policy, "rate", None)
    if kbs is None or workload.gpus == 1:
        return []
    counted = 2 if getattr(workload, "algorithm", None) == "in_switch" else 1
    return [(kbs, counted * machine.drain_kbs("all", workload.gpus))]


def _rates_of(machine: Machine, work: Work) -> list[str]:
    """The machine's rates at which a kernel of a block sends."""
    from ..sim.layers import AttentionKernel, Exchange
    from ..sim.predict import GemmCall

    match work:
        case Exchange():
            return ["all_to_all_rate"]
        case AttentionKernel() | GemmCall():
            name = _rate_of(machine, work.shape, work.policy.name)
            return [] if name is None else [name]
        case _:
            return []


def _rate_of(machine: Machine, shape: Attention | TensorParallel, policy: str) -> str | None:
    """The machine's rate at which a schedule sends, unless its policy says another."""
    from ..sim.schedules.attention_a2a.cost import family_of
    from ..sim.schedules.tensor_parallel import TensorParallel

    if shape.ranks == 1 or policy == "compute_only":
        return None
    if isinstance(shape, TensorParallel) and shape.algorithm == "in_switch":
        return "all_reduce_rate"
    if policy != "serial":
        return None
    if isinstance(shape, TensorParallel):
        return "ring_rate"
    return None if family_of(machine, shape) == "portable" else "all_to_all_rate"


def _given(machine: Machine, changed: Collection[str], gpus: int, rates: Iterable[str]) -> list[tuple[int, int]]:
    """Rates of the machine that were replaced, and the most that ports let through, in kB/s."""
    return [
        (_kbs(machine, name), _drained_kbs(machine, gpus, name)) for name in rates if f"interconnect.{name}" in changed
    ]


def _kbs(machine: Machine, name: str) -> int:
    """A rate of collectives that the machine has."""
    return int(getattr(machine.interconnect, name).value)


def _drained_kbs(machine: Machine, gpus: int, name: str) -> int:
    """The most that the ports of `gpus` GPUs let through of a rate of collectives."""
    from ..sim.schedules.tensor_parallel import all_reduce_port_kbs

    if name == "all_reduce_rate":
        return all_reduce_port_kbs(machine, gpus)
    return machine.drain_kbs("all", gpus)
