"""Parts of a call add up, and are what a trace shows."""

from __future__ import annotations

import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.predict import MegaMoeCase, PartCase, predict_us
from xstage.sim.schedules.megamoe import ExpertWave, Lag, MegaMoe, Split, Unfused

H200 = load_machine("hgx-h200")
SHAPE = MegaMoe(1024, 512, 32, 4, 512, ranks=4, numbers="w8a8")
SPLIT, WAVE, LAG = (
    MegaMoeCase(SHAPE, policy) for policy in (Split(launch_gap_ps=0), ExpertWave(), Lag(lag=2, group=1))
)


def part(call, name):
    return predict_us(H200, PartCase(call, name))


def test_two_launches_are_the_call():
    assert part(SPLIT, "l1_launch") + part(SPLIT, "l2_launch") == pytest.approx(predict_us(H200, SPLIT))


def test_phases_of_the_busiest_sm_fit_into_the_call():
    spent = [part(WAVE, name) for name in ("l1", "l2", "combine")]
    assert min(spent) > 0
    assert sum(spent) < predict_us(H200, WAVE)


def test_l1_has_twice_the_flops_of_l2():
    assert 1.3 < part(WAVE, "l1") / part(WAVE, "l2") < 2.5


def test_the_pull_ends_after_it_took_as_long_as_the_slowest_sm():
    assert part(LAG, "dispatch_pull") < part(LAG, "dispatch_pull_end") < predict_us(H200, LAG)


def test_separate_kernels_and_their_gaps_fit_into_the_call():
    call = MegaMoeCase(SHAPE, Unfused("psum"))
    l1, swiglu, l2 = (part(call, name) for name in ("l1_gemm", "swiglu", "l2_gemm"))
    gap_us = H200.compute.kernel_gap.value / 1e6
    assert l1 > l2 > 0 and swiglu > 2 * gap_us
    assert l1 + swiglu + l2 + 2 * gap_us < predict_us(H200, call)


def test_one_kernel_has_no_launch_between_its_phases():
    for call in (WAVE, SPLIT):
        with pytest.raises(InputError, match="is not in this run"):
            part(call, "swiglu")


def test_a_call_without_tokens_has_no_phase():
    empty = MegaMoeCase(MegaMoe(1024, 512, 32, 4, 0, ranks=4, numbers="w8a8"), ExpertWave())
    with pytest.raises(InputError, match="is not in this run"):
        part(empty, "l1")
