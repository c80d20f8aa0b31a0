"""What can be chosen in a MegaMoE call: its policies, and the numbers of each that its kernel has as settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .workload import PolicyChoice, Setting

if TYPE_CHECKING:
    from ..sim.machine import Machine
    from ..sim.schedules.megamoe import MegaMoe
    from ..sim.schedules.megamoe_rules import Release

LONGEST_GROUP = 16
"""Units of L2 that `lag` is tried with at a time."""


def choices(machine: Machine, shape: MegaMoe, release: Release, redundant: int) -> Mapping[str, PolicyChoice]:
    """The policies with the ranges that make sense for this shape; `redundant` is copies of experts beyond one each.

    Raises `InputError` if the machine's kernels cannot run the shape under any policy.
    """
    from ..sim.schedules.megamoe import Interleaved
    from ..sim.schedules.megamoe.kernel import choose

    kernel = choose(machine, shape, Interleaved(), release)
    local = max(1, (shape.experts + redundant) // shape.ranks)
    rows = shape.tokens * shape.topk
    blocks = max(local, -(-rows // kernel.block_m))  # at least one of each expert
    units = max(1, -(-blocks // 8), local)
    warm_up = -(-blocks * (kernel.l1_n_blocks // kernel.cluster) // kernel.groups)
    lead = Setting(
        "lead_rows", "rows (D) by which L1 leads L2", 0, blocks * kernel.block_m, step=kernel.block_m, is_lead=True
    )
    return {
        "unfused": PolicyChoice("separate kernels for dispatch, both GEMMs and the return"),
        "expert_wave": PolicyChoice(
            "all L1 tiles of a wave of experts, then all their L2 tiles",
            (Setting("experts_per_wave", "experts in a wave", 1, local),),
        ),
        "lag": PolicyChoice(
            "L2 units a fixed distance behind L1 units",
            (
                Setting("lag", "units by which L2 lags L1", 0, units),
                Setting("group", "L2 units done back to back", 1, min(LONGEST_GROUP, units)),
            ),
        ),
        "alternating": PolicyChoice(
            "L2 and L1 tasks in turn, after some L1 tasks alone",
            (Setting("warm_up", "L1 tasks that each cluster does first", 1, max(1, warm_up)),),
        ),
        "interleaved": PolicyChoice("L2 as soon as L1 leads it by D rows, else L1", (lead,)),
        "interleaved_ready": PolicyChoice("the same, but L2 only once its inputs are there", (lead,)),
    }
