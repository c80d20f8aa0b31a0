"""What the math warps of Hopper's MegaMoE kernels do beside the MMA: unpack FP4 weights, promote FP8 accumulators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.predict import MegaMoeCase, predict_us
from xstage.sim.schedules.megamoe import ExpertWave, Lag, MegaMoe
from xstage.sim.schedules.megamoe.kernel import choose

H200, H20, B200 = (load_machine(name) for name in ("hgx-h200", "hgx-h20", "hgx-b200"))
SHAPE = MegaMoe(4096, 2048, 16, 2, 1024, ranks=4, numbers="w8a8")
FP4_WEIGHTS = replace(SHAPE, numbers="w4a8")


def test_weights_are_unpacked_where_there_are_no_fp4_tensor_cores() -> None:
    for machine, shape, unpacks in ((H200, FP4_WEIGHTS, True), (H200, SHAPE, False), (B200, FP4_WEIGHTS, False)):
        assert choose(machine, shape, ExpertWave(), "june").unpacks(shape) == unpacks


def test_fp4_weights_are_fewer_bytes_and_still_slower_where_they_are_unpacked() -> None:
    """On Hopper FP4 saves memory, not time, once a call is bound by computing (AichenF, MXFP4_SM90_OPTIMIZATION.md, 7)."""
    one = np.array([False])
    fp4, fp8 = (choose(H200, shape, ExpertWave(), "june").weight_bytes(shape, one) for shape in (FP4_WEIGHTS, SHAPE))
    assert fp4 * 128 == fp8 * 80
    times = [predict_us(H200, MegaMoeCase(shape, ExpertWave())) for shape in (FP4_WEIGHTS, SHAPE)]
    assert times[0] > 1.2 * times[1]


def test_without_a_rate_of_unpacking_fp4_weights_are_refused() -> None:
    machine = load_machine("hgx-h200", {"compute.fp4_unpack": None})
    with pytest.raises(InputError, match=r"compute.fp4_unpack: is not given for hgx-h200"):
        choose(machine, FP4_WEIGHTS, ExpertWave(), "june")


def test_a_lone_warpgroup_has_half_the_columns_and_takes_as_long_for_their_epilogue() -> None:
    wide, narrow = (choose(H200, SHAPE, ExpertWave(), "june", tile=tile) for tile in ("wide", "narrow"))
    assert (narrow.block_m, narrow.block_n, narrow.math_warpgroups) == (wide.block_m, wide.block_n // 2, 1)
    rows = np.array([wide.block_m])
    assert wide.epilogue_elements(rows, l2=True) == narrow.epilogue_elements(rows, l2=True)


def test_a_lone_warpgroup_is_slower_by_its_epilogues_and_promotions() -> None:
    wide, narrow = (predict_us(H20, MegaMoeCase(SHAPE, ExpertWave(), tile=tile)) for tile in ("wide", "narrow"))
    free = load_machine("hgx-h20", {"compute.promotion": {"value": "0.001 us", "source": "a test"}})
    assert wide < predict_us(free, MegaMoeCase(SHAPE, ExpertWave(), tile="narrow")) < narrow


def test_tall_tiles_pad_experts_to_128_rows() -> None:
    """64 rows of one expert fill a tile of 64 rows and half of one of 128: where the MMA is slow, a call takes longer."""
    experts = MegaMoe(4096, 2048, 64, 4, 256, ranks=4, numbers="w8a8")  # 64 rows an expert
    wide, tall = (predict_us(H20, MegaMoeCase(experts, ExpertWave(), tile=tile)) for tile in ("wide", "by_rows"))
    assert 1.1 * wide < tall < 1.5 * wide


def test_a_kernel_of_four_warpgroups_turns_over_twice_the_rows_in_its_epilogue() -> None:
    tall = choose(H20, replace(SHAPE, tokens=4096), ExpertWave(), "june", tile="by_rows")
    wide = choose(H20, SHAPE, ExpertWave(), "june")
    assert (tall.block_m, tall.math_warpgroups) == (128, 4)
    rows = np.array([64])
    assert tall.epilogue_elements(2 * rows, l2=True) == wide.epilogue_elements(rows, l2=True)


@pytest.mark.parametrize(
    ("machine", "policy", "swap_ab"), [(B200, ExpertWave(), False), (H200, Lag(), False), (H200, ExpertWave(), True)]
)
def test_only_the_wave_kernel_of_sm90_has_other_tiles(machine, policy, swap_ab) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="is a form of the SM90 wave kernel"):
        choose(machine, SHAPE, policy, "june", swap_ab, tile="narrow")
