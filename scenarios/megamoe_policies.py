"""What can be chosen in a MegaMoE call: its policies, and the numbers of each that its kernel has as settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from .workload import PolicyChoice, Ring, Setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..sim.machine import Machine
    from ..sim.schedules.megamoe import MegaMoe
    from ..sim.schedules.megamoe.rules import Release

LONGEST_GROUP = 16
"""Units of L2 that `lag` is tried with at a time."""


def choices(machine: Machine, shape: MegaMoe, release: Release, rows: NDArray[np.int64]) -> Mapping[str, PolicyChoice]:
    """The policies with the ranges that make sense for this shape; `rows` of each copy of an expert, [copies].

    Ranges go as far as the busiest rank: beyond it a setting changes nothing. Raises `InputError` if the machine's kernels
    cannot run the shape under any policy.
    """
    from ..sim.schedules.megamoe import Interleaved, Lag, ring_of_lead
    from ..sim.schedules.megamoe.blocks import m_blocks_of_ranks
    from ..sim.schedules.megamoe.kernel import choose
    from ..sim.schedules.megamoe.order import TASKS_HELD

    shape = replace(shape, experts=len(rows))
    kernel = choose(machine, shape, Interleaved(), release)
    m_blocks = m_blocks_of_ranks(shape, rows, kernel.block_m)
    blocks = max(1, int(m_blocks.sum(axis=1).max()))
    units = max(1, int((-(-m_blocks // Lag().unit)).sum(axis=1).max()))
    warm_up = -(-blocks * (kernel.l1_n_blocks // kernel.cluster) // kernel.groups)

    def lead(ready: bool) -> Setting:
        """The row lead D, whose rows stand between L1 and L2 in the smallest ring that it can do with, with both inputs."""
        held = -(-TASKS_HELD * kernel.groups // (kernel.l1_n_blocks // kernel.cluster))
        row = shape.format.activation_bytes(shape.hidden) + shape.format.activation_bytes(shape.intermediate)

        def ring(rows: int) -> Ring:
            m_blocks = ring_of_lead(-(-rows // kernel.block_m)) + held * ready
            return Ring(m_blocks, m_blocks * kernel.block_m * row)

        leads = range(0, blocks * kernel.block_m + 1, kernel.block_m)
        return Setting("lead_rows", "rows (D) by which L1 leads L2", leads, ring=ring)

    return {
        "unfused": unfused(machine, shape),
        "expert_wave": PolicyChoice(
            "all L1 tiles of a wave of experts, then all their L2 tiles",
            (Setting("experts_per_wave", "experts in a wave", range(1, shape.local_experts + 1)),),
        ),
        "split": PolicyChoice("two launches: dispatch and the first GEMM, then the second, return and combine"),
        "lag": PolicyChoice(
            "L2 units a fixed distance behind L1 units",
            (
                Setting("lag", "units by which L2 lags L1", range(units + 1)),
                Setting("group", "L2 units done back to back", range(1, min(LONGEST_GROUP, units) + 1)),
            ),
        ),
        "alternating": PolicyChoice(
            "L2 and L1 tasks in turn, after some L1 tasks alone",
            (Setting("warm_up", "L1 tasks that each cluster does first", range(1, max(1, warm_up) + 1)),),
        ),
        "interleaved": PolicyChoice("L2 as soon as L1 leads it by D rows, else L1", (lead(False),)),
        "interleaved_ready": PolicyChoice("the same, but L2 only once its inputs are there", (lead(True),)),
    }


def unfused(machine: Machine, shape: MegaMoe) -> PolicyChoice:
    """Separate kernels; on SM90, where weights are not FP4, their GEMMs can be those of DeepGEMM."""
    from ..sim.schedules.megamoe.shape import GroupedGemm
    from ..sim.tile_cost import needed

    gemm = Setting("gemm", "layout of rows of DeepGEMM's grouped GEMM", get_args(GroupedGemm))
    has_gemms = needed(machine, "kernels") == "sm90" and shape.format.weight_bits > 4
    return PolicyChoice("separate kernels for dispatch, both GEMMs and the return", (gemm,) * has_gemms)
