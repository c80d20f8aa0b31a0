"""Facts about MegaMoE FLOPs and bytes: published TFLOPS follow from published times, and rows have their published sizes."""

import pytest
from xstage.sim.schedules.megamoe import MegaMoe

# https://github.com/deepseek-ai/DeepGEMM/pull/316: V4-Flash (H 4096, I 2048, 256 experts, k 6) on 8 SM100 GPUs, average
# over the ranks: tokens a rank, time in us, TFLOPS.
PR316 = [(1, 56.5, 5), (512, 146.5, 1056), (8192, 1283.1, 1928), (32768, 4855.5, 2038)]

# Values, and one scale byte for 32 FP8 or 16 FP4 values; with the 4 B top-k weight.
PULLED = {"w4a8": 7168 + 224 + 4, "w8a8": 7168 + 224 + 4, "bf16": 14336 + 4, "fp4": 3584 + 448 + 4}
# FP8 with one scale byte for 128 values (sgl-project/DeepGEMM), FP4 with one for 16 (NVFP4).
RETURNED = {"bf16": 14336, "fp8": 7168 + 56, "fp4": 3584 + 448}


@pytest.mark.parametrize(("tokens", "time_us", "tflops"), PR316)
def test_a_time_that_rounds_to_the_published_one_gives_a_rate_that_rounds_to_the_published_one(tokens, time_us, tflops):
    shape = MegaMoe(hidden=4096, intermediate=2048, experts=256, topk=6, tokens=tokens, ranks=8)
    slow, fast = (shape.flops(tokens * 6) / (time_us + d) / 1e6 for d in (0.05, -0.05))
    assert slow - 0.5 <= tflops <= fast + 0.5


@pytest.mark.parametrize("numbers", PULLED)
@pytest.mark.parametrize("combine", RETURNED)
def test_a_call_moves_rows_of_these_sizes(numbers, combine):
    shape = MegaMoe(7168, 3072, 384, 6, 1, numbers=numbers, combine=combine)
    assert shape.pull_bytes == PULLED[numbers]
    assert shape.return_bytes(7168) == RETURNED[combine]
