"""Facts about MegaMoE FLOPs and bytes: published rates follow from published times; what crosses the wire."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from xstage.sim.errors import InputError
from xstage.sim.placement import contiguous
from xstage.sim.pools import pools
from xstage.sim.routing import balanced
from xstage.sim.schedules.megamoe import MegaMoe
from xstage.sim.schedules.megamoe_counts import (
    flops,
    hbm_bytes,
    l2_burst_bytes,
    nvlink_bytes,
    overlap_factor,
    pull_row_bytes,
    reduction_us,
    return_row_bytes,
    weight_bytes,
    wire_bytes,
)

# https://github.com/deepseek-ai/DeepGEMM/pull/316: V4-Flash (H 4096, I 2048, 256 experts, k 6) on 8 SM100 GPUs, average
# over the ranks: tokens a rank, time in us, TFLOPS, HBM GB/s, NVLink GB/s.
PR316 = [
    (1, 56.5, 5, 1311, 1),
    (512, 146.5, 1056, 3192, 266),
    (8192, 1283.1, 1928, 998, 499),
    (32768, 4855.5, 2038, 794, 529),
]
FLASH = {"hidden": 4096, "intermediate": 2048}


def script_rates(tokens, time_us, touched=32):
    """(TFLOPS, HBM GB/s, NVLink GB/s) as the script prints them for balanced Flash routing."""
    rows = tokens * 6
    factor = overlap_factor(time_us, reduction_us(tokens, hidden=4096, k=6))
    hbm = hbm_bytes(rows, touched, weight_bits=4, **FLASH)
    return (
        flops(rows, **FLASH) / time_us / 1e6,
        hbm / time_us / 1e3 * factor,
        nvlink_bytes(rows, hidden=4096) / time_us / 1e3 * factor,
    )


class TestPublishedRates:
    """A printed rate is right if a time that rounds to the printed time gives a rate that rounds to it."""

    @staticmethod
    def assert_prints(column, tokens, time_us, printed, **touched):
        slow = script_rates(tokens, time_us + 0.05, **touched)[column]
        fast = script_rates(tokens, time_us - 0.05, **touched)[column]
        assert slow - 0.5 <= printed <= fast + 0.5

    @pytest.mark.parametrize(("tokens", "time_us", "tflops", "hbm", "nvlink"), PR316)
    def test_tflops(self, tokens, time_us, tflops, hbm, nvlink):
        self.assert_prints(0, tokens, time_us, tflops)

    @pytest.mark.parametrize(("tokens", "time_us", "tflops", "hbm", "nvlink"), PR316)
    def test_nvlink(self, tokens, time_us, tflops, hbm, nvlink):
        self.assert_prints(2, tokens, time_us, nvlink)

    @pytest.mark.parametrize(("tokens", "time_us", "tflops", "hbm", "nvlink"), PR316[1:])
    def test_hbm_when_every_expert_has_tokens(self, tokens, time_us, tflops, hbm, nvlink):
        self.assert_prints(1, tokens, time_us, hbm)

    def test_hbm_of_one_token_a_rank_implies_47_experts_touched_by_48_rows(self):
        def rate(experts):
            weights = weight_bytes(experts, weight_bits=4, **FLASH)
            return (weights / 8 + hbm_bytes(6, 0, weight_bits=4, **FLASH)) / 56.5 / 1e3

        assert rate(46) < 1300 < rate(47) < 1311.5 < rate(48)
        assert rate(47) == pytest.approx(1311, rel=0.05 / 56.5 + 0.5 / 1311)

    def test_the_row_at_8192_tokens_to_the_digit(self):
        assert [round(rate) for rate in script_rates(8192, 1283.1)] == [1928, 998, 499]

    def test_a_time_shorter_than_the_combine_is_refused(self):
        with pytest.raises(InputError, match="not longer than the combine"):
            overlap_factor(72.0, reduction_us(8192, hidden=4096, k=6))


class TestBytes:
    def test_rows_on_the_wire(self):
        assert pull_row_bytes(7168) == 7168 + 224 + 4
        assert pull_row_bytes(7168, "bf16") == 14336 + 4
        assert return_row_bytes(7168) == 14336
        assert return_row_bytes(7168, "fp8") == 7168 + 56
        assert pull_row_bytes(7168, "fp4") == 3584 + 448 + 4
        assert return_row_bytes(7168, "fp4") == 3584 + 448

    @pytest.mark.parametrize(
        ("numbers", "pulled"), [("w4a8", "fp8"), ("w8a8", "fp8"), ("bf16", "bf16"), ("fp4", "fp4")]
    )
    @pytest.mark.parametrize("combine", ["bf16", "fp8", "fp4"])
    def test_a_call_moves_rows_of_these_sizes(self, numbers, pulled, combine):
        shape = MegaMoe(7168, 3072, 384, 6, 1, numbers=numbers, combine=combine)
        assert shape.pull_bytes == pull_row_bytes(7168, pulled)
        assert shape.return_bytes(7168) == return_row_bytes(7168, combine)

    def test_l2_store_bursts(self):
        assert l2_burst_bytes(192, 128) == 48 * 1024  # SM100
        assert l2_burst_bytes(128, 256) == 64 * 1024  # SM90

    @pytest.mark.parametrize(("bits", "expected"), [(4, 12_582_912), (8, 25_165_824), (16, 50_331_648)])
    def test_weights_of_an_expert(self, bits, expected):
        assert weight_bytes(1, weight_bits=bits, **FLASH) == expected

    def test_bf16_activations(self):
        assert hbm_bytes(1, 0, weight_bits=16, act_bytes=2, **FLASH) == 2 * 4096 + 4 * 2048 + 2 * 4096


class TestWire:
    @pytest.mark.parametrize(("hidden", "gigabytes"), [(7168, 0.93), (4096, 0.53)])
    def test_balanced_egress_at_8192_tokens(self, hidden, gigabytes):
        even = np.full((8, 8), 8192 * 6 // 8)
        wire = wire_bytes(even, pull_bytes=pull_row_bytes(hidden), return_bytes=return_row_bytes(hidden))
        assert wire.egress[0] == 49152 * 7 // 8 * (hidden + hidden // 32 + 4 + 2 * hidden)
        assert round(wire.egress[0] / 1e9, 2) == gigabytes
        assert np.array_equal(wire.egress, wire.ingress)

    def test_who_pulls_and_who_returns(self):
        # Rank 0 computes 3 rows of rank 1, and 5 of its own, which stay off the wire.
        wire = wire_bytes(np.array([[5, 3], [0, 0]]), pull_bytes=10, return_bytes=100)
        assert wire.egress.tolist() == [300, 30]
        assert wire.ingress.tolist() == [30, 300]

    @given(
        arrays(np.int64, st.integers(1, 8).map(lambda n: (n, n)), elements=st.integers(0, 10_000)),
        st.integers(1, 20_000),
        st.integers(1, 20_000),
    )
    def test_what_leaves_arrives(self, rows, pull, back):
        wire = wire_bytes(rows, pull_bytes=pull, return_bytes=back)
        assert wire.egress.sum() == wire.ingress.sum() == (rows.sum() - np.trace(rows)) * (pull + back)

    def test_routed_rows_cross_the_wire_as_in_the_balanced_case_within_noise(self):
        routing = balanced(8, 2048, 6, 256, np.random.default_rng(0))
        wire = wire_bytes(pools(routing, contiguous(256, 8)).rows_between, pull_bytes=4228, return_bytes=8192)
        assert wire.egress == pytest.approx(2048 * 6 * 7 / 8 * (4228 + 8192), rel=0.03)

    def test_a_table_that_is_not_square_is_refused(self):
        with pytest.raises(InputError, match="must be square"):
            wire_bytes(np.zeros((2, 3), dtype=np.int64), pull_bytes=1, return_bytes=1)
