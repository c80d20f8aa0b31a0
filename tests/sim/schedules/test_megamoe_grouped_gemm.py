"""Facts about the GEMMs of separate kernels on Hopper, and the buffers between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.placement import eplb
from xstage.sim.pools import pools
from xstage.sim.predict import MegaMoeCase, PartCase, predict_us
from xstage.sim.routing import balanced
from xstage.sim.schedules.megamoe import MegaMoe, Unfused
from xstage.sim.schedules.megamoe.blocks import blocks_of
from xstage.sim.schedules.megamoe.grouped_gemm import activated_rows, expanded_bytes, multiplied_rows, tile_of
from xstage.sim.schedules.megamoe.kernel import choose

H20, H200, B200 = (load_machine(name) for name in ("hgx-h20", "hgx-h200", "hgx-b200"))
FLASH = MegaMoe(4096, 2048, 256, 6, 64, ranks=8, numbers="w8a8")


def time_us(gemm: str | None, shape: MegaMoe = FLASH) -> float:
    return predict_us(H20, MegaMoeCase(shape, Unfused(gemm)))  # type: ignore[arg-type]


def test_filled_rows_are_multiplied_only_where_the_gemm_does_not_know_them() -> None:
    rows = np.array([1, 64, 65, 128])
    assert multiplied_rows("contiguous", rows, 128).tolist() == [128] * 4
    for gemm in ("psum", "masked"):
        assert multiplied_rows(gemm, rows, 128).tolist() == [64, 64, 128, 128]  # type: ignore[arg-type]


def test_without_a_count_on_the_cpu_swiglu_goes_through_the_worst_case() -> None:
    """8 ranks of 512 tokens may all send 6 rows here, and each of 32 experts may leave 127 rows unused: 28640 rows."""
    shape = replace(FLASH, tokens=512)
    received = 512 * 6
    assert activated_rows("psum", shape, received, 32) == 224 * 128 == 28672
    for gemm in ("contiguous", "masked", None):
        assert activated_rows(gemm, shape, received, 32) == received  # type: ignore[arg-type]
    # 2 experts a rank take at most 2 rows of a token
    assert activated_rows("psum", shape, received, 2) == (8 * 512 * 2 + 127 * 2 + 127) // 128 * 128


def test_copies_of_experts_and_shared_experts_have_rows_in_the_worst_case_too() -> None:
    """EPLB gives each of 4 ranks 3 of 12 copies, so that a token may send 3 rows there instead of 1."""
    shape = MegaMoe(4096, 2048, 4, 4, 1000, ranks=4, numbers="w8a8")
    rows = pools(balanced(4, 1000, 4, 4, np.random.default_rng(0)), eplb(np.ones(4), n_replicas=12, n_ranks=4))
    kernel = choose(H20, shape, Unfused("psum"), "june")
    held = blocks_of(rows, kernel, shape, 0, 0, np.arange(4), 4).routed_experts
    assert activated_rows("psum", shape, 1000, held) == (4 * 1000 * 3 + 127 * 3 + 127) // 128 * 128


def test_rows_of_shared_experts_are_activated_and_not_copied() -> None:
    def swiglu_us(shared: int) -> float:
        call = MegaMoeCase(replace(FLASH, shared_experts=shared), Unfused("psum"))
        return predict_us(H20, PartCase(call, "swiglu"))

    moved = 2 * 64 * (2 * 2 * 2048 + 2048 + 2048 // 32)
    assert swiglu_us(2) - swiglu_us(0) == pytest.approx(moved / (4e6 * H20.compute.hbm_efficiency.value), rel=1e-3)  # type: ignore[union-attr]


def test_received_rows_are_copied_once_to_their_experts() -> None:
    assert expanded_bytes("psum", FLASH, 10) == 2 * 10 * (4096 + 128)
    assert expanded_bytes("contiguous", FLASH, 10) == expanded_bytes(None, FLASH, 10) == 0


def test_few_rows_take_a_tile_of_one_warpgroup_where_counts_are_masked() -> None:
    assert tile_of("masked", 64) == (64, 128, 1, 1)
    assert tile_of("masked", 65) == tile_of("psum", 1) == tile_of("contiguous", 1) == (128, 128, 2, 2)


def test_a_warpgroup_is_idle_behind_the_last_valid_row() -> None:
    rows = np.array([1, 64, 65, 128])
    psum, contiguous, masked = (choose(H20, FLASH, Unfused(gemm), "june") for gemm in ("psum", "contiguous", "masked"))  # type: ignore[arg-type]
    assert psum.warpgroups(rows).tolist() == [1, 1, 2, 2]
    assert contiguous.warpgroups(rows).tolist() == [2] * 4
    assert masked.warpgroups(rows[:2]).tolist() == [1, 1]


def test_two_ctas_bring_in_the_rows_of_an_m_block_together() -> None:
    """128 x 128 weights and half of 128 rows, for each 128 of K: 24 KiB instead of 32."""
    kernel = choose(H20, FLASH, Unfused("psum"), "june")
    l1, alone = np.array([False]), np.array([False])
    assert kernel.feed_bytes(FLASH, l1, np.array([8]), alone) == 4096 // 128 * 24 * 1024


def test_small_batches_pay_for_multiplied_padding() -> None:
    """12 rows an expert: 128 are multiplied where the GEMM gets rounded counts, 64 where it gets those of valid rows."""
    assert time_us("masked") < time_us("psum") < 0.75 * time_us("contiguous")
    assert time_us(None) < time_us("contiguous")


def test_a_larger_buffer_takes_swiglu_longer() -> None:
    """448 tokens more that 8 ranks might have sent, 6 rows each, of 2 I elements of 2 bytes in, and I with scales out."""
    longer = time_us("psum", replace(FLASH, capacity=512)) - time_us("psum")
    moved = 8 * 448 * 6 * (2 * 2 * 2048 + 2048 + 2048 // 32)
    assert longer == pytest.approx(moved / (4e6 * H20.compute.hbm_efficiency.value), rel=1e-3)  # type: ignore[union-attr]
    assert time_us("contiguous", replace(FLASH, capacity=512)) == time_us("contiguous")


def test_promotion_is_for_fp8() -> None:
    without = load_machine("hgx-h20", {"compute.promotion": None})
    with pytest.raises(InputError, match=r"compute.promotion: is not given for hgx-h20"):
        choose(without, FLASH, Unfused("psum"), "june")
    assert predict_us(without, MegaMoeCase(replace(FLASH, numbers="bf16"), Unfused("psum"))) > 0


def test_other_machines_and_layouts_are_refused() -> None:
    with pytest.raises(InputError, match="is a kernel of SM90"):
        choose(B200, replace(FLASH, numbers="w4a8"), Unfused("psum"), "june")
    with pytest.raises(InputError, match="allowed: contiguous, psum, masked"):
        choose(H200, FLASH, Unfused("dense"), "june")  # type: ignore[arg-type]


def test_forms_of_fused_kernels_are_refused() -> None:
    with pytest.raises(InputError, match=r"gemm = 'psum': has no FP4 weights .allowed: none, or numbers w8a8 or bf16"):
        choose(H20, replace(FLASH, numbers="w4a8"), Unfused("psum"), "june")
    with pytest.raises(InputError, match="is a variant of fused kernels"):
        choose(H20, FLASH, Unfused("psum"), "june", swap_ab=True)
