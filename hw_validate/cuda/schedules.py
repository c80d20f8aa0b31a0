"""MegaMoE and attention schedules of two ranks that calibration never saw, for all SMs that there are.

They are drawn as hw_validate/schedules.py says. What a GPU cannot replay (lower.py) is drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...sim.errors import ProgramError
from ...sim.machine import Machine
from ...sim.program import Program
from ...sim.schedules import attention_a2a, megamoe
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
from .lower import lower

TASKS_AN_SM = 4
"""About so many tiles of MegaMoE has each SM, and half as many of attention."""
MOST_DRAWS = 20
TILE = 128


def schedule_program(machine: Machine, sms: int, rng: np.random.Generator) -> Program:
    """A schedule of two ranks with `sms` SMs each (an even number is used), MegaMoE or attention, for `machine`'s stage.

    Raises `ProgramError` if none can be found that a GPU can replay.
    """
    makers: tuple[Callable[..., Program], ...] = (megamoe_program, attention_program)
    refusals = []
    for _ in range(MOST_DRAWS):
        program = makers[int(rng.integers(len(makers)))](machine, max(2, sms // 2 * 2), rng)
        try:
            lower(program)
        except ProgramError as refusal:
            refusals.append(str(refusal))
            continue
        return program
    raise ProgramError(f"no schedule for {sms} SMs a rank can be replayed: {refusals[-1]}")


def megamoe_program(machine: Machine, sms: int, rng: np.random.Generator) -> Program:
    """A MegaMoE call with a policy of the kernel family drawn, of a few tiles an SM."""
    base = base_machine(str(rng.choice(BASES)))
    policies = MEGAMOE[family_of(base)]
    policy = policies[int(rng.integers(len(policies)))]
    hidden, topk = int(rng.choice([1024, 2048])), int(rng.integers(1, 3))
    intermediate, experts = int(rng.choice([256, 512])), RANKS * int(rng.integers(1, 5))
    n_blocks = (2 * intermediate + hidden) // TILE
    tokens = int(np.clip(TASKS_AN_SM * sms * TILE // n_blocks // topk // 32 * 32, 32, 4096))
    shape = megamoe.MegaMoe(
        hidden=hidden, intermediate=intermediate, experts=experts, topk=topk, tokens=tokens, ranks=RANKS, numbers="bf16"
    )
    rows = drawn_routing(shape, rng)
    return paced(
        megamoe.build(few_sms(base, machine, sms), shape, policy, rows), pace_factor(base, machine, machine.sms, rng), 0
    )


def attention_program(machine: Machine, sms: int, rng: np.random.Generator) -> Program:
    """Attention with the All-to-All of its output, of a few tiles an SM."""
    base = base_machine(str(rng.choice(BASES)))
    name: Any = str(rng.choice(ATTENTION))
    reserved = max(1, sms // 8) if name == "reserved_sms" else 0
    tokens, head_dim = int(rng.choice([512, 768, 1024])), int(rng.choice([64, 128]))
    heads = RANKS * max(1, round(TASKS_AN_SM / 2 * sms * TILE / tokens))
    shape = attention_a2a.Attention(tokens=tokens, heads=heads, head_dim=head_dim, ranks=RANKS)
    policy = attention_a2a.Policy(name, reserved_sms=reserved, rotation=bool(rng.integers(2)))
    return paced(
        attention_a2a.build(few_sms(base, machine, sms), shape, policy), pace_factor(base, machine, machine.sms, rng), 0
    )
