"""A prediction is a simulated time: never below the roofline, and larger for more work."""

from dataclasses import replace

import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.layers import Exchange, kernel_length
from xstage.sim.predict import AttentionCase, GemmCall, MegaMoeCase, predict_us, roofline_us
from xstage.sim.schedules import attention_a2a, megamoe, tensor_parallel

B200, H20 = load_machine("hgx-b200"), load_machine("hgx-h20")
MOE = MegaMoeCase(megamoe.MegaMoe(1024, 512, 32, 4, 16, ranks=4), megamoe.ExpertWave())
ATTENTION = AttentionCase(attention_a2a.Attention(2048, 8, ranks=4), attention_a2a.Policy("serial"))
GEMM = GemmCall(tensor_parallel.TensorParallel("gemm_rs", 1024, 1024, 4096, 4), tensor_parallel.Policy("fused"))


@pytest.mark.parametrize("case", [MOE, ATTENTION, GEMM])
def test_nothing_is_faster_than_the_roofline(case):
    assert 0 < roofline_us(B200, case) < predict_us(B200, case)


def test_the_roofline_of_a_large_call_is_its_flops():
    shape = megamoe.MegaMoe(7168, 3072, 384, 6, 8192, ranks=8, numbers="w8a8")
    flops = 6 * 8192 * 6 * 7168 * 3072
    assert roofline_us(H20, MegaMoeCase(shape, megamoe.ExpertWave())) == pytest.approx(flops / 296e6)


def test_the_roofline_of_one_token_is_the_weights_of_the_experts_that_it_touches():
    shape = megamoe.MegaMoe(4096, 2048, 256, 6, 1, ranks=8, numbers="w8a8")
    touched = 32 * (1 - (1 - 1 / 256) ** 48)
    weights_us = touched * 3 * 4096 * 2048 / 4e6
    assert roofline_us(H20, MegaMoeCase(shape, megamoe.ExpertWave())) == pytest.approx(weights_us, rel=0.001)


def test_a_second_launch_costs_the_gap_between_kernels():
    gap_us = B200.compute.kernel_gap.value / 1e6
    assert predict_us(B200, replace(MOE, launches=1)) - predict_us(B200, MOE) == pytest.approx(gap_us)


def test_an_all_to_all_before_attention_costs_launches_and_bytes():
    wiring = B200.interconnect
    before = replace(ATTENTION, launches=3, bytes_before=10**6)
    expected_us = 3 * wiring.collective_launch.value / 1e6 + 10**6 / (wiring.all_to_all_rate.value / 1e3)
    assert predict_us(B200, before) - predict_us(B200, ATTENTION) == pytest.approx(expected_us)


def test_an_all_to_all_before_attention_is_no_faster_than_the_links():
    """The same as in a block of sim/layers.py."""
    slow = load_machine("hgx-b200", {"interconnect.drain_rate": "50 GB/s"})
    case = replace(ATTENTION, launches=1, bytes_before=10**6)
    took_us = predict_us(slow, case) - predict_us(slow, ATTENTION)
    assert took_us == pytest.approx(slow.interconnect.collective_launch.value / 1e6 + 10**6 / 50e3)
    assert took_us == pytest.approx(kernel_length(slow, Exchange(10**6, ranks=4)).time_ps / 1e6)


def test_few_rows_are_not_padded_to_a_tile_where_weights_are_the_first_operand():
    decode = MegaMoeCase(megamoe.MegaMoe(4096, 2048, 64, 6, 8, ranks=8, numbers="w8a8"), megamoe.ExpertWave())
    assert predict_us(H20, replace(decode, swap_ab=True)) < 0.9 * predict_us(H20, decode)


def test_that_variant_is_refused_where_no_kernel_has_it():
    with pytest.raises(InputError, match="swap_ab"):
        predict_us(B200, replace(MOE, swap_ab=True))


def test_equal_cases_are_equal_keys():
    assert {MOE, replace(MOE), replace(MOE, launches=1)} == {MOE, replace(MOE, launches=1)}


def test_kernels_that_pack_read_and_write_their_bytes_once_each_behind_a_gap():
    compute = B200.compute
    packed = replace(ATTENTION, packs=3, bytes_packed=10**6)
    expected_us = 3 * compute.kernel_gap.value / 1e6 + 2 * 10**6 / (
        compute.hbm_rate.value / 1e3 * compute.hbm_efficiency.value
    )
    assert predict_us(B200, packed) - predict_us(B200, ATTENTION) == pytest.approx(expected_us)


def test_the_roofline_of_a_slow_link_is_what_crosses_it():
    """Of MegaMoE's rows those of other ranks; of a one-shot AllReduce the P - 1 copies that reach a rank."""
    slow = load_machine("hgx-b200", {"interconnect.drain_rate": "1 GB/s"})
    rate = slow.drain_kbs("all", 4) / 1e3
    shape = MOE.shape
    rows = 16 * 4 * 3 / 4 * (shape.pull_bytes + 2 * 1024)
    assert roofline_us(slow, MOE) == pytest.approx(rows / rate)
    reduce = tensor_parallel.TensorParallel("gemm_ar", 1024, 1024, 4096, 4, "one_shot")
    found = roofline_us(slow, GemmCall(reduce, tensor_parallel.Policy("fused")))
    assert found == pytest.approx(3 * 1024 * 1024 * 2 / rate)
