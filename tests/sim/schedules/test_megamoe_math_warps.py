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
    wide, narrow = (choose(H200, SHAPE, ExpertWave(), "june", narrow=form) for form in (False, True))
    assert (narrow.block_m, narrow.block_n, narrow.math_warpgroups) == (wide.block_m, wide.block_n // 2, 1)
    tiles = [np.array([kernel.block_m * kernel.block_n]) for kernel in (wide, narrow)]
    assert wide.epilogue_elements(tiles[0]) == narrow.epilogue_elements(tiles[1])


def test_a_lone_warpgroup_is_slower_by_its_epilogues_and_promotions() -> None:
    wide, narrow = (predict_us(H20, MegaMoeCase(SHAPE, ExpertWave(), narrow=form)) for form in (False, True))
    free = load_machine("hgx-h20", {"compute.promotion": {"value": "0.001 us", "source": "a test"}})
    assert wide < predict_us(free, MegaMoeCase(SHAPE, ExpertWave(), narrow=True)) < narrow


@pytest.mark.parametrize(
    ("machine", "policy", "swap_ab"), [(B200, ExpertWave(), False), (H200, Lag(), False), (H200, ExpertWave(), True)]
)
def test_only_the_wave_kernel_of_sm90_has_the_narrow_form(machine, policy, swap_ab) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="is a form of the SM90 wave kernel"):
        choose(machine, SHAPE, policy, "june", swap_ab, narrow=True)
