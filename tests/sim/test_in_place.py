"""Facts about a MegaMoE call with its rows in place: what is left of it, and what it does not depend on."""

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.execute import simulate
from xstage.sim.layers import MoeKernel, kernel_length
from xstage.sim.routing import balanced
from xstage.sim.schedules import megamoe
from xstage.sim.schedules.megamoe import POLICIES, MegaMoe
from xstage.sim.schedules.megamoe.in_place import with_rows_in_place

SHAPE = MegaMoe(2048, 512, 16, 2, 256, ranks=4, numbers="w8a8")
ROUTING = balanced(4, 256, 2, 16, np.random.default_rng(0))
MACHINES = [(name, how) for name, hows in (("hgx-b200", ("unfused", "expert_wave", "alternating", "interleaved")),
            ("hgx-h100", ("unfused", "split", "lag", "interleaved"))) for how in hows]  # fmt: skip


def times(machine, policy, **changes):
    work = MoeKernel(SHAPE, POLICIES[policy](), ROUTING)
    return kernel_length(load_machine(machine, changes), work, 2048)[:2]


@pytest.mark.parametrize("machine, policy", MACHINES)
@pytest.mark.parametrize(
    "change",
    [
        {"compute.pull_row": "20 us"},
        {"compute.count_rows": "50 us"},
        {"interconnect.latency": "9 us"},
        {"interconnect.drain_rate": "40 GB/s"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_slower_way_of_rows_is_exposed_and_changes_nothing_with_rows_in_place(machine, policy, change):
    (took, alone), (slower, still) = times(machine, policy), times(machine, policy, **change)
    assert slower > took
    assert still == pytest.approx(alone, rel=0.002)


@pytest.mark.parametrize("machine", ["hgx-b200", "hgx-h100"])
def test_separate_kernels_with_rows_in_place_are_l1_swiglu_l2_and_the_combine(machine):
    """A launch stands before SwiGLU and before L2; those of the pull and of the return are gone with their kernels."""
    loaded = load_machine(machine)
    program = with_rows_in_place(megamoe.build(loaded, SHAPE, POLICIES["unfused"](), ROUTING))
    ops = simulate(program, loaded.fabric(4), trace="full").ops()
    computed = ops[ops.kind == "compute"].assign(us=ops.end_us - ops.start_us)
    assert computed[computed.phase.isin(["count", "barrier", "dispatch"])].us.sum() == 0
    assert computed[computed.phase == "l1"].start_us.min() < 1.1 * loaded.interconnect.latency.value / 1e6
    launches = computed[(computed.phase == "launch") & (computed.gpu == 0)].us.tolist()
    assert launches[1] > 2 * loaded.compute.kernel_gap.value / 1e6
    assert launches == [0, launches[1], 0]


@pytest.mark.parametrize("machine", ["hgx-b200", "hgx-h100"])
def test_two_of_four_launch_gaps_are_communication(machine):
    (slow, slow_alone), (fast, fast_alone) = (
        times(machine, "unfused", **{"compute.kernel_gap": gap}) for gap in ("9 us", "2 us")
    )
    assert slow - fast == 4 * 7_000_000
    assert slow_alone - fast_alone == 2 * 7_000_000


@pytest.mark.parametrize("policy", ["unfused", "expert_wave"])
def test_one_rank_has_nobody_to_communicate_with(policy):
    alone = MegaMoe(2048, 512, 16, 2, 256, ranks=1, numbers="w8a8")
    routing = balanced(1, 256, 2, 16, np.random.default_rng(0))
    took, in_place, _ = kernel_length(load_machine("hgx-b200"), MoeKernel(alone, POLICIES[policy](), routing))
    assert took == in_place
