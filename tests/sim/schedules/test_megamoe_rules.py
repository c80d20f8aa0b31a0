"""Facts about the public MegaMoE kernels' choices, for V4-Flash and V4-Pro on 8 ranks of 148 SMs unless stated."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xstage.sim.errors import InputError
from xstage.sim.schedules.megamoe.rules import (
    expected_rows_per_expert,
    experts_per_wave,
    lag_schedule,
    most_live_m_blocks,
    sm90_lag_tile,
    sm90_runs_lag_order,
    sm100_tile,
    warm_up_waves,
    worst_case_rows,
)

RANKS, SMS, CLUSTERS = 8, 148, 74
FLASH = {"hidden": 4096, "intermediate": 2048, "experts": 256, "k": 6}
PRO = {"hidden": 7168, "intermediate": 3072, "experts": 384, "k": 6}

# (tokens a rank): (BLOCK_M, m-blocks an expert, experts per wave), of the June heuristics.
FLASH_WAVES = {
    1: (16, 1, 32),
    8: (16, 1, 16),
    64: (32, 1, 16),
    512: (128, 1, 16),
    1024: (192, 1, 16),
    2048: (192, 2, 8),
    4096: (192, 4, 4),
    8192: (192, 8, 2),
    32768: (192, 32, 1),
}
PRO_WAVES = {
    1: (16, 1, 48),
    128: (32, 1, 8),
    512: (96, 1, 8),
    2048: (192, 2, 4),
    4096: (192, 3, 3),
    8192: (192, 6, 2),
    32768: (192, 22, 1),
}


def june_wave(shape, tokens):
    """(BLOCK_M, m-blocks an expert, experts per wave) as a June call chooses them."""
    local, k = shape["experts"] // RANKS, shape["k"]
    rows = expected_rows_per_expert(tokens, RANKS, k, shape["experts"])
    block_m = sm100_tile("june", rows, local).block_m
    wave = experts_per_wave(
        "june", block_m, tokens=tokens, k=k, local_experts=local, intermediate=shape["intermediate"], sms=SMS
    )
    return block_m, max(1, math.ceil(rows / block_m)), wave


class TestWaves:
    @pytest.mark.parametrize("tokens", FLASH_WAVES)
    def test_flash(self, tokens):
        assert june_wave(FLASH, tokens) == FLASH_WAVES[tokens]

    @pytest.mark.parametrize("tokens", PRO_WAVES)
    def test_pro(self, tokens):
        assert june_wave(PRO, tokens) == PRO_WAVES[tokens]

    def test_pr316_rounds_up_to_a_divisor_of_the_local_experts(self):
        # Pro at 2048 tokens: 2 m-blocks of 48 n-blocks, W0 = ceil(296 / 96) = 4; the next divisor of 45 is 5.
        arguments = {"tokens": 2048, "k": 6, "intermediate": 3072, "sms": SMS}
        assert experts_per_wave("pr316", 192, local_experts=48, **arguments) == 4
        assert experts_per_wave("pr316", 192, local_experts=45, **arguments) == 5

    @given(
        tokens=st.integers(0, 40_000),
        local=st.integers(1, 64),
        k=st.integers(1, 10),
        block_m=st.sampled_from([16, 32, 64, 96, 128, 192]),
        release=st.sampled_from(["pr304", "pr316", "june"]),
    )
    def test_a_wave_has_one_to_all_local_experts(self, tokens, local, k, block_m, release):
        wave = experts_per_wave(release, block_m, tokens=tokens, k=k, local_experts=local, intermediate=2048, sms=SMS)
        assert 1 <= wave <= local
        if release != "june":
            assert local % wave == 0

    def test_the_sept_kernel_has_no_waves(self):
        with pytest.raises(InputError, match="release = 'sept': has no waves"):
            experts_per_wave("sept", 192, tokens=1, k=1, local_experts=1, intermediate=2048, sms=SMS)


class TestTile:
    @pytest.mark.parametrize(
        ("rows", "block_m"),
        [(0, 16), (8.5, 16), (8.6, 32), (16.5, 32), (32.5, 64), (64.5, 96), (96.5, 128), (96.6, 192), (1e6, 192)],
    )
    def test_june_by_expected_rows(self, rows, block_m):
        assert sm100_tile("june", rows, 32).block_m == block_m

    @pytest.mark.parametrize(
        ("rows", "local", "block_m"),
        [
            (10, 32, 16),
            (10.1, 32, 32),
            (24, 32, 32),
            (25, 32, 64),  # covers 30 rows
            (57, 32, 128),  # 64.5 rows
            (170, 32, 192),  # 183 rows
            (190, 32, 240),  # 203.8 rows, one block with many local experts
            (190, 13, 128),  # two blocks with few
            (1536, 32, 240),  # Flash at 8192 tokens: 1575 rows in 7 blocks
            (1024, 48, 240),  # Pro at 8192 tokens: 1056 rows in 5 blocks
        ],
    )
    def test_sept_covers_one_sigma_more_than_expected(self, rows, local, block_m):
        assert sm100_tile("sept", rows, local).block_m == block_m

    @given(rows=st.floats(0, 1e5), local=st.integers(1, 64))
    def test_sept_never_uses_more_than_the_fewest_blocks(self, rows, local):
        block_m = sm100_tile("sept", rows, local).block_m
        covered = rows + math.sqrt(rows)
        fewest = math.ceil(covered / 240)
        if rows > 24 and not (192 < covered <= 240 and local < 14):
            assert math.ceil(covered / block_m) == fewest

    @pytest.mark.parametrize("rows", [0, 50, 1e4])
    def test_pr304_is_always_192(self, rows):
        assert sm100_tile("pr304", rows, 32).block_m == 192


class TestRing:
    def test_the_worst_case_is_every_row_with_padding_for_every_expert(self):
        # 8 ranks x 8448 tokens x 6 rows, and 383 rows of padding for each of 48 experts, in units of 384 rows.
        worst = -(-(8 * 8448 * 6 + 48 * 383) // 384) * 384
        assert worst_case_rows(48, 384, capacity=8448, ranks=8, k=6) == worst

    def test_one_expert_is_never_sent_a_token_twice(self):
        assert worst_case_rows(1, 192, capacity=384, ranks=8, k=6) == 384 * 8
        assert worst_case_rows(2, 192, capacity=384, ranks=8, k=6) == 2 * 384 * 8


class TestInterleaved:
    @pytest.mark.parametrize(("shape", "tasks", "waves"), [(FLASH, (16, 16), 49), (PRO, (24, 28), 78)])
    def test_two_warm_up_waves_of_many_at_8192_tokens(self, shape, tasks, waves):
        local = shape["experts"] // RANKS
        rows = expected_rows_per_expert(8192, RANKS, shape["k"], shape["experts"])
        m_blocks = local * math.ceil(rows / sm100_tile("sept", rows, local).block_m)
        n1, n2 = tasks  # 2I / 256 and H / 256: a task is the two n-blocks of a cluster
        assert math.ceil(m_blocks * n1 / CLUSTERS) == waves
        assert warm_up_waves(m_blocks, CLUSTERS, n1, n2) == 2

    def test_warm_up_grows_with_every_m_block_when_l1_has_more_tasks(self):
        # The last of 10 m-blocks needs its own 20 tasks and the 4 that each of the 9 before it left behind.
        assert warm_up_waves(10, 10, 20, 16) == math.ceil((20 + 9 * 4) / 10) + 1

    def test_warm_up_ends_with_the_tasks(self):
        assert warm_up_waves(0, CLUSTERS, 16, 16) == 0
        assert warm_up_waves(1, CLUSTERS, 16, 16) == 1

    @given(m=st.integers(0, 300), clusters=st.integers(1, 80), n1=st.integers(1, 40), n2=st.integers(1, 40))
    def test_alternating_after_the_warm_up_never_takes_an_l2_task_before_its_l1_tasks(self, m, clusters, n1, n2):
        taken = warm_up_waves(m, clusters, n1, n2) * clusters
        l2_wave = range(0, m * n2, clusters)  # every wave takes up to `clusters` L2 tasks, then as many L1 tasks
        for turn, first in enumerate(l2_wave):
            last_block = (min(first + clusters, m * n2) - 1) // n2
            assert min(taken + turn * clusters, m * n1) >= (last_block + 1) * n1

    @given(m=st.integers(0, 300), clusters=st.integers(1, 80), n1=st.integers(1, 40), n2=st.integers(1, 40))
    def test_live_m_blocks_bound_what_alternating_needs(self, m, clusters, n1, n2):
        bound = most_live_m_blocks(m, clusters, n1, n2)
        taken = warm_up_waves(m, clusters, n1, n2) * clusters
        turns = -(-m * n2 // clusters)
        live = [
            -(-min(taken + turn * clusters, m * n1) // n1) - min(turn * clusters, m * n2) // n2 for turn in range(turns)
        ]
        assert bound <= m
        assert max(live, default=0) <= bound


class TestLag:
    @pytest.mark.parametrize(
        ("local", "k", "capacity", "units", "lag", "ring"),
        [
            (32, 6, 1024, 32, 14, 148),
            (32, 6, 2048, 32, 14, 148),
            (32, 6, 4096, 32, 14, 148),
            (32, 6, 8192, 64, 29, 268),
            (48, 6, 1024, 48, 22, 212),
            (48, 6, 8192, 48, 22, 212),
            (36, 8, 8192, 72, 32, 292),
        ],
    )
    def test_published_shapes(self, local, k, capacity, units, lag, ring):
        schedule = lag_schedule(capacity=capacity, k=k, local_experts=local)
        assert (schedule.units, schedule.lag, schedule.group, schedule.ring_slots) == (units, lag, 4, ring)
        assert schedule.ring_rows == 128 * ring

    def test_lag_has_a_floor_and_a_ceiling(self):
        assert lag_schedule(capacity=1024, k=1, local_experts=1).lag == 8
        assert lag_schedule(capacity=65_536, k=8, local_experts=64).lag == 64

    @given(local=st.integers(1, 64), factor=st.integers(1, 20))
    def test_half_a_unit_is_rounded_up(self, local, factor):
        schedule = lag_schedule(capacity=factor * local * 1024, k=1, local_experts=local)
        assert schedule.units == local * factor
        assert schedule.lag == min(max(math.floor(0.45 * schedule.units + 0.5), 8), 64)

    def test_when_a_call_is_lag_ordered(self):
        arguments = {"ranks": 8, "local_experts": 32, "k": 6, "block_m": 64}
        assert sm90_runs_lag_order(8192, capacity=8192, **arguments)
        assert sm90_runs_lag_order(257, capacity=1024, **arguments)
        assert not sm90_runs_lag_order(128, capacity=1024, **arguments)  # 8 * 128 * 6 + 32 * 63 rows fit 18,944
        assert not sm90_runs_lag_order(512, capacity=512, **arguments)

    @pytest.mark.parametrize(
        ("rows", "hidden", "intermediate", "tile"),
        [
            (64, 4096, 2048, (128, 256, 2)),
            (63.9, 4096, 2048, (64, 256, 1)),
            (64, 4096 + 256, 2048, (128, 256, 1)),
            (64, 4096, 2048 + 128, (128, 256, 1)),
        ],
    )
    def test_tile(self, rows, hidden, intermediate, tile):
        assert sm90_lag_tile(rows, hidden=hidden, intermediate=intermediate) == tile


class TestRefusals:
    @pytest.mark.parametrize(
        "call",
        [
            lambda: expected_rows_per_expert(-1, 8, 6, 256),
            lambda: expected_rows_per_expert(1, 0, 6, 256),
            lambda: sm100_tile("july", 1, 32),
            lambda: sm100_tile("june", -1, 32),
            lambda: sm100_tile("june", math.nan, 32),
            lambda: warm_up_waves(1, 0, 16, 16),
            lambda: lag_schedule(capacity=0, k=6, local_experts=32),
        ],
    )
    def test_numbers_that_make_no_kernel(self, call):
        with pytest.raises(InputError):
            call()
