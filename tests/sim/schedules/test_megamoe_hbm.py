"""What streaming weights costs a whole call: HBM gives the same bytes in every order, so no order pays more for them."""

from __future__ import annotations

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.execute import simulate
from xstage.sim.routing import balanced
from xstage.sim.schedules.megamoe import Alternating, ExpertWave, Interleaved, MegaMoe, Policy, build

SHAPE = MegaMoe(hidden=7168, intermediate=2048, experts=64, topk=8, tokens=128, ranks=2, numbers="w4a8")
"""32 experts of DeepSeek-V3 a rank. A tile of L1 is 3.5 times as deep as one of L2, and few rows share its weights."""


def main_loops_and_makespan_us(policy: Policy) -> tuple[float, float]:
    """Main loops of all lanes together, and the makespan."""
    machine = load_machine("hgx-b200")
    program = build(machine, SHAPE, policy, balanced(2, 128, 8, 64, np.random.default_rng(0)))
    trace = simulate(program, machine.fabric(2), trace="summary")
    lanes = program.lanes["role"] == program.roles.index("mma")
    return float(trace.outcome.lanes["busy_ps"][lanes].sum()) / 1e6, trace.makespan_ps / 1e6


def test_an_order_that_mixes_l1_and_l2_pays_hbm_what_waves_pay() -> None:
    loops, makespans = zip(
        *(main_loops_and_makespan_us(policy) for policy in (ExpertWave(), Alternating(), Interleaved())), strict=True
    )
    assert loops[1:] == pytest.approx([loops[0]] * 2, rel=0.01)
    assert max(makespans[1:]) < 1.01 * makespans[0]
