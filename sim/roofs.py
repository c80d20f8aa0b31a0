"""What a run did, against the most that the model lets its hardware do: one roof for each part of it.

    Tensor Cores     FLOPs that the shape needs, whatever a kernel pads, by the peak of their data type times its efficiency
    HBM              bytes that the model charges HBM with, by its rate times its efficiency
    L2 cache         operands of all tiles, by what all SMs take in; or these and the weights that HBM writes into the
                     cache, by its throughput, where that takes longer
    egress           bytes that left a GPU, by the time that its port was busy with them
    ingress          the same of what came in
    link             the same of a link, a NIC or the core of a switch, where there are some between GPUs

Efficiencies are those of the machine file, with which main loops and the combine are computed: no run gets beyond them, and
one that is bound by a roof all the time reads 100 %. Where main loops are given as measured times, the data sheet's
numbers count whole, and the L2 cache has no roof: its rate is fitted to other ones.

Each roof is that of one rank or port, the one that needs most of the time, and names it: a mean would hide it. A schedule
says in its Program's `meta` what it knows of the first three: `flops` and `memory_bytes`, a value for each simulated rank,
and `math`. The roof that takes most of the makespan is where to look first. Another order of tiles can change what is read
from HBM and from the L2 cache, but not the FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """What `where` did: `amount` (FLOP or B) in a run of `makespan_us` that takes `least_us` at the least.

    `efficiency` is the share of the data sheet's number that the model can reach, which is in `least_us`.
    """

    part: str
    where: str
    unit: Literal["FLOP", "B"]
    amount: float
    least_us: float
    makespan_us: float
    efficiency: float = 1.0

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
            "where": self.where,
            "amount": self.amount,
            "unit": self.unit,
            f"achieved_{rate}": self.achieved_per_us / per_us,
            f"most_{rate}": self.most_per_us / per_us,
            "efficiency": self.efficiency,
            "least_us": self.least_us,
            "use_pct": self.use_pct,
        }


def roofs(trace: Trace, machine: Machine) -> list[Roof]:
    """The roofs that the schedule and the machine tell enough about, in the order of the module's description."""
    return [*_of_ranks(trace, machine), *_of_ports(trace)]


def _of_ranks(trace: Trace, machine: Machine) -> list[Roof]:
    meta, compute, found = trace.program.meta, machine.compute, []
    is_measured = meta.get("schedule") == "megamoe" and meta["shape"]["l1_main_loop_ps"] is not None

    def add(
        part: str, unit: Literal["FLOP", "B"], amounts: Sequence[float], most_per_us: float, of_most: Any = None
    ) -> None:
        rank = int(np.argmax(amounts))
        amount = float(amounts[rank])
        where = "the busiest rank" if meta.get("ranks") == "symmetric" else f"rank {rank}"
        efficiency = 1.0 if of_most is None or is_measured else float(of_most.value)
        least_us = amount / (most_per_us * efficiency)
        found.append(Roof(part, where, unit, amount, least_us, _makespan_us(trace), efficiency))

    if meta.get("flops") and (peak := getattr(compute, f"{meta['math']}_tflops")) is not None:
        of_attention = meta.get("schedule") == "attention_a2a"
        name = "attention_mma_efficiency" if of_attention else f"mma_efficiency_{meta['math']}"
        add(f"Tensor Cores ({meta['math']})", "FLOP", meta["flops"], peak.value * 1e6, getattr(compute, name))
    if memory := meta.get("memory_bytes"):
        if compute.hbm_rate is not None:
            charged = [rank["hbm_weights"] + rank["hbm_combine"] for rank in memory]
            add("HBM", "B", charged, compute.hbm_rate.value * BYTES_PER_US_AT_1_KBS, compute.hbm_efficiency)
        if not is_measured and (l2 := _l2_cache(memory, machine)):
            add("L2 cache", "B", *l2)
    return found


def _l2_cache(memory: Sequence[Mapping[str, int]], machine: Machine) -> tuple[list[int], float] | None:
    """Bytes of each rank and the most of them in a us, of the bound that takes longer; None if the machine has neither."""
    compute, bounds = machine.compute, []
    operands = [rank["l2_to_sm"] for rank in memory]
    if compute.sm_feed is not None:
        bounds.append((operands, float(compute.sm_feed.value) * machine.sms * BYTES_PER_US_AT_1_KBS))
    if compute.l2_throughput is not None:
        with_fills = [read + rank["hbm_weights"] for read, rank in zip(operands, memory, strict=True)]
        bounds.append((with_fills, float(compute.l2_throughput.value) * BYTES_PER_US_AT_1_KBS))
    return max(bounds, key=lambda bound: max(bound[0]) / bound[1], default=None)


def _of_ports(trace: Trace) -> list[Roof]:
    """The busiest port of each kind, if one was busy."""
    ports, names, n_gpus = trace.outcome.ports, trace.fabric.port_names, trace.fabric.n_gpus
    found = []
    for part, first, end in (("egress", 0, n_gpus), ("ingress", n_gpus, 2 * n_gpus), ("link", 2 * n_gpus, len(ports))):
        if not ports["busy_ps"][first:end].any():
            continue
        port = first + int(np.argmax(ports["busy_ps"][first:end]))
        busy_us = float(ports["busy_ps"][port]) / PS_PER_US
        found.append(Roof(part, names[port], "B", float(ports["bytes"][port]), busy_us, _makespan_us(trace)))
    return found


def _makespan_us(trace: Trace) -> float:
    return trace.makespan_ps / PS_PER_US
