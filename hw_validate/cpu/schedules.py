"""Small MegaMoE and attention schedules that calibration never saw, mapped onto cores.

They are drawn as hw_validate/schedules.py says, for two ranks of a few tiles. A core drains as fast as several SMs, so the
factor of times makes them shorter: at the GPU's own pace the stage would never be full.

Ops cost a core some time beside what they stand for (`op_costs`). Where all of it together would be more than a fifth of
the makespan, the core would be judged by its bookkeeping: such a draw is drawn again. The pull of a row takes the time that
leaves a core room for its ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...sim.execute import simulate
from ...sim.machine import Machine
from ...sim.program import Program
from ...sim.schedules import attention_a2a, megamoe
from ...sim.topology import Fabric
from ...sim.trace import Trace
from ..compare import STALLED_SHARE
from ..schedules import (
    ATTENTION,
    BASES,
    MEGAMOE,
    RANKS,
    base_machine,
    drawn_routing,
    family_of,
    few_sms,
    pace_factor,
    paced,
)
from ..unseen import stalled_share
from .architecture import LINE_BYTES
from .lane import DEALT_LINES
from .onto_cores import AccessTimes, core_of_group, machine_for, most_lanes, onto_cores

LANES_THAT_STORE = 2
"""Of MegaMoE, on one core: between the stores of different lanes lies bookkeeping in which the stage drains, and of many
lanes that store at the same moment none would meet a full one."""
MOST_DRAWS, MOST_DRAWS_IN_ALL = 30, 120
"""Draws for one that stalls (or does not), and for one with little enough bookkeeping."""
MOST_BOOKKEEPING = 0.2
PULLED_OPS = 30
"""A lane that pulls rows takes at least as long for one as this many ops cost."""


@dataclass(frozen=True)
class Drawn:
    """What every draw starts from: the calibrated machine, its cores, and what they need for what the law does not tell."""

    machine: Machine
    cores: int
    times: AccessTimes


def schedule_traces(drawn: Drawn, count: int, rng: np.random.Generator) -> list[Trace]:
    """`count` simulated schedules with full traces, MegaMoE and attention in turn; of each every second one is to stall for
    more than a fifth of its issue time. Which are drawn depends on the simulated machine alone.

    Where none is found in 30 draws that stalls (or does not), one of the other kind is taken; fewer are returned if the
    core's bookkeeping would be too much in 120.
    """
    makers: tuple[Callable[[Drawn, np.random.Generator], Program], ...] = (megamoe_program, attention_program)
    found: list[Trace] = []
    for number in range(count):
        wanted, spare = number // len(makers) % 2 == 0, None
        for draw in range(MOST_DRAWS_IN_ALL):
            if draw >= MOST_DRAWS and spare is not None:
                break
            mapped = onto_cores(makers[number % len(makers)](drawn, rng), drawn.cores, drawn.times)
            trace = simulate(mapped, fabric_for(drawn, mapped), trace="full")
            if 1000 * bookkeeping_ns(mapped) / drawn.cores > MOST_BOOKKEEPING * trace.makespan_ps:
                continue
            spare = trace
            if (stalled_share_on_cores(trace) > STALLED_SHARE) == wanted:
                break
        found += [] if spare is None else [spare]
    return found


def stalled_share_on_cores(trace: Trace) -> float:
    """`stalled_share` of a mapped Program, in which loads and costs are stores too."""
    mapped = trace.program.meta["cores"]
    return stalled_share(trace, left_out=[op for op, *_ in [*mapped["loads"], *mapped["costing"]]])


def fabric_for(drawn: Drawn, mapped: Program) -> Fabric:
    """The calibrated stage. Stores are dealt over their receivers in the pieces that a core deals."""
    machine = machine_for(drawn.machine, mapped.n_gpus - 1)
    room = min(machine.stage.capacity_sm.value, machine.stage.capacity_gpu.value)
    return machine.fabric(granule_bytes=min(DEALT_LINES * LINE_BYTES, room))


def bookkeeping_ns(mapped: Program) -> float:
    """What all ops of a mapped Program cost the cores beside what they stand for."""
    costing = [number for number, _ in mapped.meta["cores"]["costing"]]
    return float(mapped.ops["duration_ps"][costing].sum()) / 1000


def megamoe_program(drawn: Drawn, rng: np.random.Generator) -> Program:
    """A MegaMoE call of two ranks with an SM each, or a cluster of two, with a policy of its kernel family."""
    while True:
        base = base_machine(str(rng.choice(BASES)))
        policies = MEGAMOE[family_of(base)]
        policy = policies[int(rng.integers(len(policies)))]
        clusters = family_of(base) == "sm100" or isinstance(policy, megamoe.Lag)
        if RANKS * (2 if clusters else 1) <= LANES_THAT_STORE * drawn.cores:
            break
    machine = few_sms(base, drawn.machine, 2 if clusters else 1)
    shape = megamoe.MegaMoe(
        hidden=int(rng.choice([1024, 2048])),
        intermediate=256,
        experts=RANKS * int(rng.integers(1, 3)),
        topk=int(rng.integers(1, 3)),
        tokens=int(rng.choice([32, 64])),
        ranks=RANKS,
        numbers="bf16",
    )
    program = megamoe.build(machine, shape, policy, drawn_routing(shape, rng))
    return paced(program, pace_factor(base, drawn.machine, drawn.cores, rng), _pull_ps(program, drawn))


def attention_program(drawn: Drawn, rng: np.random.Generator) -> Program:
    """Attention of two ranks with the All-to-All of its output."""
    base = base_machine(str(rng.choice(BASES)))
    name: Any = str(rng.choice(ATTENTION))
    reserved = int(name == "reserved_sms")
    machine = few_sms(base, drawn.machine, 1 + reserved)
    heads, head_dim = RANKS * int(rng.integers(1, 4)), int(rng.choice([64, 128]))
    shape = attention_a2a.Attention(
        tokens=int(rng.choice([512, 768, 1024])), heads=heads, head_dim=head_dim, ranks=RANKS
    )
    policy = attention_a2a.Policy(name, reserved_sms=reserved, rotation=bool(rng.integers(2)))
    return paced(attention_a2a.build(machine, shape, policy), pace_factor(base, drawn.machine, drawn.cores, rng), 0)


def _pull_ps(program: Program, drawn: Drawn) -> int:
    pulling = (
        int((program.lanes["role"] == program.roles.index("dispatch")).sum()) if "dispatch" in program.roles else 0
    )
    lanes = most_lanes(program, core_of_group(program, drawn.cores))
    op_ps = drawn.times.costs_for(program).ps(lanes)["signal"]
    return PULLED_OPS * op_ps * max(1, pulling // drawn.cores)
