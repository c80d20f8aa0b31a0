"""How large the Program of a MegaMoE call will be, from its sizes alone: asked before tokens are routed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..size_limit import check_ops
from .kernel import Kernel, choose
from .rules import Release
from .shape import MegaMoe, Policy, Ranks

if TYPE_CHECKING:
    from ...machine import Machine

OPS_OF_ROW = 3
"""A dispatch lane asks for a row, waits for it and publishes it; what a ring or a batch adds is left out."""
OPS_OF_TILE = 5
"""Of one CTA, at least: it waits for the inputs, computes, turns the sums over in two steps and says that it is done."""


def check_size(machine: Machine, shape: MegaMoe, policy: Policy, ranks: Ranks, release: Release) -> None:
    """Raises `InputError` if the Program has more ops than can be built, and as `choose`."""
    n_ops = least_ops(choose(machine, shape, policy, release), shape, ranks)
    check_ops(n_ops, "tokens", shape.tokens)


def least_ops(kernel: Kernel, shape: MegaMoe, ranks: Ranks) -> int:
    """Ops of the simulated ranks if each gets its share of the rows; they have up to three times as many."""
    simulated = 1 if ranks == "symmetric" else shape.ranks
    rows = simulated * shape.tokens * shape.topk
    blocks = (rows + simulated * shape.tokens * shape.shared_experts) // kernel.block_m
    return OPS_OF_ROW * rows + OPS_OF_TILE * blocks * (kernel.l1_n_blocks + kernel.l2_n_blocks)
