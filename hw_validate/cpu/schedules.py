"""Small MegaMoE and attention schedules that calibration never saw, mapped onto cores.

They are drawn as hw_validate/schedules.py says, for two ranks of a few tiles. A core drains as fast as several SMs, so the
factor of times makes them shorter: at the GPU's own pace the stage would never be full.

An op that needs no core in the simulation still costs one some time (`OP_NS`). Where all of it together would be more than
a fifth of the makespan, the core would be judged by its bookkeeping: such a draw is drawn again. The pull of a row takes the
time that leaves a core room for its ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...sim import program as p
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
from .architecture import LINE_BYTES
from .lane import DEALT_LINES
from .onto_cores import AccessTimes, machine_for, onto_cores

LANES_THAT_STORE = 2
"""Of MegaMoE, on one core: between the stores of different lanes lies bookkeeping in which the stage drains, and with many
lanes that store at the same moment there would be more of it than the law can be judged beside."""
MOST_DRAWS = 30
OP_NS = 45.0
"""What an op costs a core beside what it stands for, about: 35 to 60 ns where this was tried."""
MOST_BOOKKEEPING = 0.2
PULLED_OPS = 30
"""A lane that pulls rows takes as long for one as this many ops."""


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
    core's bookkeeping would be too much in all of them.
    """
    makers: tuple[Callable[[Drawn, np.random.Generator], Program], ...] = (megamoe_program, attention_program)
    found: list[Program] = []
    for number in range(count):
        wanted, spare = number // len(makers) % 2 == 0, None
        for _ in range(MOST_DRAWS):
            mapped = onto_cores(makers[number % len(makers)](drawn, rng), drawn.cores, drawn.times)
            share, makespan_ns = _quick_run(drawn, mapped)
            if OP_NS * len(mapped.ops) / drawn.cores > MOST_BOOKKEEPING * makespan_ns:
                continue
            spare = mapped
            if (share > STALLED_SHARE) == wanted:
                break
        found += [] if spare is None else [spare]
    return [simulate(mapped, fabric_for(drawn, mapped), trace="full") for mapped in found]


def fabric_for(drawn: Drawn, mapped: Program) -> Fabric:
    """The calibrated stage. Stores are dealt over their receivers in the pieces that a core deals."""
    machine = machine_for(drawn.machine, mapped.n_gpus - 1)
    room = min(machine.stage.capacity_sm.value, machine.stage.capacity_gpu.value)
    return machine.fabric(granule_bytes=min(DEALT_LINES * LINE_BYTES, room))


def _quick_run(drawn: Drawn, mapped: Program) -> tuple[float, float]:
    """(share of the issue time of all stores that is stall, makespan in ns)."""
    trace = simulate(mapped, fabric_for(drawn, mapped), trace="off")
    stores = mapped.ops["kind"] == p.STORE
    stores[[op for op, _, _ in mapped.meta["cores"]["loads"]]] = False
    stall, issued = trace.outcome.lanes["stall_ps"].sum(), mapped.ops["duration_ps"][stores].sum()
    return float(stall / max(1, stall + issued)), trace.makespan_ps / 1000


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
    return paced(program, pace_factor(base, drawn.machine, drawn.cores, rng), _pull_ps(program, drawn.cores))


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


def _pull_ps(program: Program, cores: int) -> int:
    lanes = int((program.lanes["role"] == program.roles.index("dispatch")).sum()) if "dispatch" in program.roles else 0
    return round(1000 * OP_NS * PULLED_OPS * max(1, lanes // cores))
