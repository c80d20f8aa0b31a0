"""How long one kernel takes on a machine: a case (what runs, under which policy), simulated, in microseconds.

A case is plain and can be hashed, so equal ones are simulated once. `roofline_us` is the answer that needs no simulation,
against which predictions are judged.

MegaMoE calls have the routing that public benchmarks use, the top-k of random scores. All ranks are simulated where that
takes about a second, the busiest against its mirror image above, where the loads of the ranks differ by a few percent.

Ulysses calls begin with an All-to-All that the attention schedule does not contain: it is added as launches and bytes, and
so are kernels that bring data into the layout of a collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .execute import simulate
from .mirror import are_alike, mirrored
from .predict_parts import Part, part_of_run_us
from .routing import balanced
from .schedules import attention_a2a, megamoe, tensor_parallel
from .tile_cost import needed, needed_wiring
from .units import PS_PER_US

if TYPE_CHECKING:
    from .machine import Machine
    from .routing import Routing
    from .schedules.megamoe.kernel import WaveTile
    from .schedules.megamoe.rules import Release
    from .topology import Fabric
    from .trace import Trace

Ints = NDArray[np.int64]

MOST_ROWS_OF_ALL_RANKS = 110_000
"""(token, slot) pairs over all ranks up to which every rank is simulated: 2048 tokens, top-k 6, 8 ranks."""
SEED = 0
COMPUTE_ONLY = tensor_parallel.Policy("compute_only")


@dataclass(frozen=True)
class MegaMoeCase:
    """A MegaMoE call. `launches` counts kernels beyond those of the schedule; each costs the machine's `kernel_gap`.
    `swap_ab`: the variant of SM90 kernels for small batches; `tile`: that of the SM90 wave kernel, see
    `megamoe.kernel.choose`.
    """

    shape: megamoe.MegaMoe
    policy: megamoe.Policy
    release: Release = "june"
    launches: int = 0
    swap_ab: bool = False
    tile: WaveTile = "wide"


@dataclass(frozen=True)
class AttentionCase:
    """Attention, and what follows it. Before it, `launches` All-to-Alls of together `bytes_before` a rank.

    `packs` kernels read and write `bytes_packed` once, one after the other with everything else.
    """

    shape: attention_a2a.Attention
    policy: attention_a2a.Policy
    launches: int = 0
    bytes_before: int = 0
    packs: int = 0
    bytes_packed: int = 0


@dataclass(frozen=True)
class GemmCall:
    """A GEMM, with its collective by `policy`; with one rank a GEMM alone."""

    shape: tensor_parallel.TensorParallel
    policy: tensor_parallel.Policy = COMPUTE_ONLY


@dataclass(frozen=True)
class PartCase:
    """A part of a MegaMoE call."""

    call: MegaMoeCase
    part: Part

    @property
    def shape(self) -> megamoe.MegaMoe:
        return self.call.shape


Case = MegaMoeCase | PartCase | AttentionCase | GemmCall


def predict_us(machine: Machine, case: Case) -> float:
    """Time of one call, from the launch of the first rank until the last lane is free and the last byte has arrived.

    A kernel that is timed from outside ends when its stores have been performed: never the sender-visible end. Of a part of
    a call, what `predict_parts` says.

    Raises `InputError` if the machine lacks a number, or its kernels cannot run the shape.
    """
    if isinstance(case, PartCase):
        return part_of_run_us(_run_with_spans(machine, case.call), case.part)
    if isinstance(case, MegaMoeCase):
        extra_us = case.launches * _compute_us(machine, "kernel_gap") if case.launches else 0.0
        return float(_run_megamoe(machine, case, trace="off").makespan_ps / PS_PER_US) + extra_us
    fabric = machine.fabric(case.shape.ranks)
    extra_us = 0.0
    if isinstance(case, AttentionCase):
        program = attention_a2a.build(machine, case.shape, case.policy)
        extra_us = _all_to_all_us(machine, case) + _packing_us(machine, case)
    else:
        program = tensor_parallel.build(machine, case.shape, case.policy)
    return float(simulate(program, fabric, trace="off").makespan_ps / PS_PER_US) + extra_us


@lru_cache(maxsize=1)
def _run_with_spans(machine: Machine, case: MegaMoeCase) -> Trace:
    """The run of a call, kept for its other parts."""
    return _run_megamoe(machine, case, trace="summary")


def _run_megamoe(machine: Machine, case: MegaMoeCase, trace: Literal["off", "summary"]) -> Trace:
    shape, routing = case.shape, _random_scores(*routing_key(case.shape))
    fabric = machine.fabric(shape.ranks)
    ranks: Literal["all", "symmetric"] = "all"
    if shape.experts % shape.ranks == 0:
        rows_per_rank = routing.expert_rows.reshape(shape.ranks, -1).sum(axis=1)
        ranks = "symmetric" if one_stands_for_all(fabric, rows_per_rank, shape.tokens) else "all"
    program = megamoe.build(
        machine,
        shape,
        case.policy,
        routing,
        ranks=ranks,
        release=case.release,
        swap_ab=case.swap_ab,
        tile=case.tile,
    )
    return simulate(program, mirrored(fabric) if ranks == "symmetric" else fabric, trace=trace)


def one_stands_for_all(fabric: Fabric, rows_per_rank: Ints, tokens: int) -> bool:
    """Whether a MegaMoE call has many rows, and ranks and links that a mirror image can stand for."""
    is_large = int(rows_per_rank.sum()) > MOST_ROWS_OF_ALL_RANKS
    return is_large and are_alike(fabric) and megamoe.are_alike(rows_per_rank, tokens)


def roofline_us(machine: Machine, case: Case) -> float:
    """The longest of FLOPs at the peak, compulsory bytes at the rate of HBM, and bytes on the wire at that of the link.

    Of one rank, everything else free. Raises `InputError` if the machine lacks a number.
    """
    flops, math, memory, wire = _work(case)
    peak = getattr(machine.compute, f"{math}_tflops")
    if peak is None or machine.compute.hbm_rate is None:
        raise InputError(f"is not given for {machine.name}", field=f"compute.{math}_tflops or compute.hbm_rate")
    link = machine.drain_kbs("all", case.shape.ranks) if case.shape.ranks > 1 else 1
    hbm_us = memory / (machine.compute.hbm_rate.value / 1e3)
    return float(max(flops / (peak.value * 1e6), hbm_us, wire / (link / 1e3)))


def _work(case: Case) -> tuple[float, str, float, float]:
    """FLOPs, math type, bytes of HBM and bytes sent of one rank."""
    shape = case.shape
    if isinstance(shape, megamoe.MegaMoe):
        rows, h, i = shape.tokens * shape.topk, shape.hidden, shape.intermediate
        local = shape.experts / shape.ranks
        touched = local * (1 - (1 - 1 / shape.experts) ** (shape.ranks * rows))
        activations = shape.format.activation_bits / 8
        memory = touched * 3 * h * i * shape.format.weight_bits / 8 + rows * (activations * (h + 2 * i) + 2 * h)
        wire = rows * (shape.pull_bytes + shape.return_bytes(h)) * (shape.ranks - 1) / shape.ranks
        return shape.flops(rows), shape.format.math, memory, wire
    if isinstance(shape, attention_a2a.Attention):
        assert isinstance(case, AttentionCase)
        sent = 0 if case.policy.name == "compute_only" else shape.output_bytes_sent + case.bytes_before
        tensors = shape.local_heads * (shape.head_dim + shape.output_dim)
        tensors += max(1, shape.n_kv_heads // shape.ranks) * (shape.head_dim + shape.output_dim)
        return attention_a2a.attention_flops(shape), "bf16", 2.0 * shape.batch * shape.tokens * tensors, sent
    operands = shape.m * shape.local_k + shape.local_k * shape.local_n + shape.m * shape.local_n
    return shape.flops, "bf16", 2.0 * operands, max(shape.bytes_sent, shape.bytes_received)


def routing_key(shape: megamoe.MegaMoe) -> tuple[int, int, int, int]:
    """What the routing of a call is drawn for: calls that have it in common share the draw."""
    return shape.ranks, shape.tokens, shape.topk, shape.experts


@lru_cache(maxsize=8)
def _random_scores(ranks: int, tokens: int, topk: int, experts: int) -> Routing:
    return balanced(ranks, tokens, topk, experts, np.random.default_rng(SEED))


def _all_to_all_us(machine: Machine, case: AttentionCase) -> float:
    if not case.launches:
        return 0.0
    return exchange_ps(machine, case.bytes_before, case.shape.ranks, case.launches) / PS_PER_US


def exchange_ps(machine: Machine, bytes_sent: int, ranks: int, launches: int = 1) -> int:
    """All-to-Alls of their own, in which one of `ranks` sends so many bytes in all, ps: `launches` and the time to send.

    Bytes leave at the machine's `all_to_all_rate`, or at what its links carry of an All-to-All where that is less. Raises
    `InputError` if the machine lacks a number.
    """
    rate_kbs = min(needed_wiring(machine, "all_to_all_rate"), machine.drain_kbs("all", ranks))
    return launches * needed_wiring(machine, "collective_launch") - (-bytes_sent * 10**9 // rate_kbs)


def _packing_us(machine: Machine, case: AttentionCase) -> float:
    if not case.packs:
        return 0.0
    rate = needed(machine, "hbm_rate") / 1e3 * needed(machine, "hbm_efficiency")
    return float(case.packs * _compute_us(machine, "kernel_gap") + 2 * case.bytes_packed / rate)


def _compute_us(machine: Machine, name: str) -> float:
    return float(needed(machine, name) / PS_PER_US)
