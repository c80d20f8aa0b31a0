"""Tensor-parallel kernels against published times. Nothing was fitted to any of them.

Sources: https://github.com/bytedance/flux/issues/90, https://github.com/vllm-project/vllm/issues/55261,
https://github.com/flagos-ai/FlagTree/pull/861, https://github.com/flashinfer-ai/flashinfer/pull/5116.
"""

import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.execute import simulate
from xstage.sim.schedules.tensor_parallel import Policy, TensorParallel, build


def outcome(machine, shape, policy):
    machine = load_machine(machine)
    return simulate(build(machine, shape, policy), machine.fabric(shape.ranks, 8192), trace="off").outcome


def time_us(machine, shape, policy):
    """Of a kernel timed from outside: until the last lane is free and the last byte visible."""
    done = outcome(machine, shape, policy)
    return max(done.lanes_end_ps, done.arrived_ps) / 1e6


@pytest.mark.parametrize(
    "rows, published", [(1024, 180), (2048, 289.5), (4096, 542.25), (8192, 1040), (16384, 2010.63)]
)
def test_gemm_and_reduce_scatter_on_h100_as_a_user_measured_it(rows, published):
    """torch + NCCL, n = 8192, k = 28672. Few rows are off most: collectives have not reached their rate there."""
    shape = TensorParallel("gemm_rs", rows, 8192, 28672, 8)
    assert time_us("hgx-h100", shape, Policy("serial")) == pytest.approx(published, rel=0.18 if rows == 1024 else 0.1)


# --- vLLM's ablation on B200: N = 7168, K = 1536 a rank, 8 ranks


def kimi(rows, algorithm="one_shot"):
    return TensorParallel("gemm_ar", rows, 7168, 8 * 1536, 8, algorithm)


@pytest.mark.parametrize("rows, published", [(16, 16.4), (128, 14.4), (256, 14.5)])
def test_the_gemm_with_a_local_store(rows, published):
    """28 or 56 tiles on 148 SMs: one wave, whatever the rows."""
    assert time_us("hgx-b200", kimi(rows), Policy("compute_only")) == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize("rows, published", [(128, 36.9), (256, 63.5)])
def test_with_a_multicast_store_the_ingress_of_seven_copies_comes_on_top(rows, published):
    """The stores are the end of this kernel, and it ends when they have been performed. The wire takes 17.9 us for 128
    rows, for a measured 22.5, and twice that for 256.
    """
    arrived = outcome("hgx-b200", kimi(rows), Policy("fused")).arrived_ps / 1e6
    assert arrived == pytest.approx(published, rel=0.23)


@pytest.mark.parametrize("rows, published", [(128, 57.3), (256, 94.2)])
def test_the_whole_one_shot_kernel_is_predicted_too_fast(rows, published):
    """The miss: it polls while it adds up, and what polls and late copies cost is not modelled."""
    assert 0.7 * published < time_us("hgx-b200", kimi(rows), Policy("fused")) < published


@pytest.mark.parametrize("rows, published", [(16, 36.9), (128, 38.9), (256, 43.0)])
def test_the_two_shot_kernel_with_sums_from_the_switch(rows, published):
    """Its lanes go through whole tiles, so that 16 rows take what 128 do."""
    assert time_us("hgx-b200", kimi(rows, "in_switch"), Policy("fused")) == pytest.approx(published, rel=0.15)


# --- others


@pytest.mark.parametrize(
    "rows, local_k, published",
    [(2048, 1024, 337.8), (2048, 3584, 373.9), (8192, 1024, 1164.2), (8192, 3584, 1193.1), (16384, 1024, 2251.4)],
)
def test_sums_from_the_switch_on_h800_are_faster_than_any_stores_could_be(rows, local_k, published):
    """FlagTree. By stores of every rank the wire alone takes longer from 8192 rows on; 16 SMs move data, an assumption."""
    shape = TensorParallel("gemm_ar", rows, 8192, 8 * local_k, 8, "in_switch")
    assert time_us("hgx-h800", shape, Policy("reserved_sms", 16)) == pytest.approx(published, rel=0.15)
    if rows >= 8192:
        stores = TensorParallel("gemm_ar", rows, 8192, 8 * local_k, 8, "two_shot")
        assert stores.bytes_sent / 165.5e3 > published


def test_a_kernel_of_20_ctas_is_bound_by_what_its_sms_take_in():
    """FlashInfer's AG-GEMM for B200 has a grid of 20 x 1 over 1280 columns: 686 to 808 us in six repeats."""
    shape = TensorParallel("ag_gemm", 4096, 10240, 8192, 8, block_n=64, grid=20)
    assert 686 < time_us("hgx-b200", shape, Policy("fused")) < 830
    assert time_us("hgx-b200", TensorParallel("ag_gemm", 4096, 10240, 8192, 8), Policy("fused")) < 200
