"""Facts about what the public SM90 kernels choose, for V4-Flash and V4-Pro on 8 ranks unless stated."""

from __future__ import annotations

from typing import Any

import pytest
from xstage.sim.errors import InputError
from xstage.sim.schedules.megamoe.rules import experts_per_wave
from xstage.sim.schedules.megamoe.rules_sm90 import (
    SplitSchedule,
    combines_early,
    fits_ring,
    lag_stages,
    publish_limit,
    publish_rows,
    shape_family,
    sm90_experts_per_wave,
    sm90_wave_tile,
    split_schedule,
)

FLASH = {"hidden": 4096, "intermediate": 2048, "k": 6, "local_experts": 32}
PRO = {"hidden": 7168, "intermediate": 3072, "k": 6, "local_experts": 48}
H200, H20 = 132, 78


def wave(shape: dict[str, int], tokens: int, sms: int = H200) -> int:
    sizes = {name: size for name, size in shape.items() if name != "hidden"}
    return sm90_experts_per_wave(tokens=tokens, **sizes, sms=sms, block_n=256)


def split(shape: dict[str, int], tokens: int, sms: int = H200) -> SplitSchedule:
    return split_schedule(tokens=tokens, **shape, sms=sms)


class TestWave:
    @pytest.mark.parametrize("tokens", [0, 1, 5, 22, 64, 512, 8192])
    def test_a_load_below_1_or_above_4_is_one_wave(self, tokens: int) -> None:
        """Loads of Flash: 6 T / 32, so 5 tokens are 0.94 and 22 are 4.1."""
        assert wave(FLASH, tokens) == 32

    @pytest.mark.parametrize("tokens", [6, 8, 16, 21])
    def test_between_them_it_is_the_rule_of_the_sm100_waves(self, tokens: int) -> None:
        """2 * 132 / (1 block * 16 n-blocks) = 17 experts at least; the fullest last wave is that of 32."""
        assert wave(FLASH, tokens) == 32
        assert wave(FLASH, tokens, H20) == 10 + 6  # 2 * 78 / 16 = 10 at least, and 16 divides 32
        sizes = {name: FLASH[name] for name in ("k", "local_experts", "intermediate")}
        assert wave(FLASH, tokens, H20) == experts_per_wave("june", 64, tokens=tokens, **sizes, sms=H20, block_n=256)

    def test_wide_shapes_with_four_rounds_of_tiles_are_one_wave(self) -> None:
        assert 4 * H200 <= 48 * 2 * 3072 // 256
        assert wave(PRO, 16) == wave(PRO, 16, H20) == 48

    def test_tiles_have_128_rows_once_an_expert_has_64(self) -> None:
        """Four warpgroups of 64 x 128; below, two share 64 rows, which are twice as wide where I is large."""
        assert sm90_wave_tile(64, 2048) == sm90_wave_tile(1000, 3072) == (128, 256, 4)
        assert sm90_wave_tile(63.9, 2048) == (64, 128, 2)
        assert sm90_wave_tile(63.9, 3072) == (64, 256, 2)
        assert sm90_wave_tile(0.2, 3072) == (64, 128, 2)

    def test_a_size_that_makes_no_kernel_is_refused(self) -> None:
        with pytest.raises(InputError, match="local_experts"):
            sm90_experts_per_wave(tokens=1, k=1, local_experts=0, intermediate=2048, sms=H20, block_n=256)


class TestSplit:
    @pytest.mark.parametrize(
        ("shape", "tokens", "n_major"),
        [
            (FLASH, 64, (False, False)),  # load 12
            (FLASH, 65, (False, True)),
            (FLASH, 170, (False, True)),  # load 31.9
            (FLASH, 512, (False, False)),  # load 96
            (FLASH, 1024, (False, True)),  # load 192
            (FLASH, 2048, (False, False)),  # load 384
            (FLASH, 8192, (False, True)),  # load 1536
            (PRO, 64, (False, False)),  # load 8
            (PRO, 128, (False, True)),
            (PRO, 256, (False, True)),  # load 32
            (PRO, 512, (True, True)),  # load 64
            (PRO, 1536, (True, True)),  # load 192
            (PRO, 8192, (False, True)),
            (FLASH | {"hidden": 2048}, 1024, (False, False)),  # a generic shape
        ],
    )
    def test_table_of_h200(self, shape: dict[str, int], tokens: int, n_major: tuple[bool, bool]) -> None:
        made = split(shape, tokens)
        assert (made.l1_n_major, made.l2_n_major) == n_major

    @pytest.mark.parametrize(
        ("shape", "tokens", "sms", "l1_block_n"),
        [
            (PRO, 64, H200, 256),  # load 8
            (PRO, 128, H200, 512),
            (PRO, 256, H200, 256),  # load 32
            (PRO, 8192, H200, 512),
            (PRO, 8192, H20, 256),
            (FLASH, 8192, H200, 256),
            (PRO | {"intermediate": 3200}, 8192, H200, 256),  # 6400 columns are no multiple of 512
        ],
    )
    def test_wide_l1_tiles(self, shape: dict[str, int], tokens: int, sms: int, l1_block_n: int) -> None:
        assert split(shape, tokens, sms).l1_block_n == l1_block_n

    @pytest.mark.parametrize(
        ("shape", "tokens", "l2_n_major"),
        [
            (FLASH, 1024, False),  # load 192
            (FLASH, 1366, True),  # load 256.1
            (FLASH, 4096, True),
            (PRO, 8192, False),
        ],
    )
    def test_table_of_h20(self, shape: dict[str, int], tokens: int, l2_n_major: bool) -> None:
        assert split(shape, tokens, H20) == SplitSchedule(False, l2_n_major)

    @pytest.mark.parametrize(
        ("hidden", "intermediate", "family"),
        [
            (4096, 2048, "compact"),
            (7168, 3072, "wide"),
            (7168, 2048, "generic"),
            (4096, 1024, "generic"),
            (5120, 2560, "wide"),
            (8448, 3072, "generic"),
        ],
    )
    def test_shape_families(self, hidden: int, intermediate: int, family: str) -> None:
        assert shape_family(hidden, intermediate) == family


class TestEarlyCombine:
    def test_stages_of_the_main_loop(self) -> None:
        """128 x 256: (232,448 - 8192 - 16,384) / (384 * 128 + 512 + 16) = 4.18; 64 x 256 has 32 KiB of staging: 4.65."""
        assert lag_stages(128, 256, hidden=4096) == 4
        assert lag_stages(64, 256, hidden=4096) == (232_448 - 8192 - 32_768) // (320 * 128 + 256 + 16) == 4

    @pytest.mark.parametrize(
        ("changes", "early"),
        [
            ({}, True),
            ({"k": 8}, True),  # 4096 = 512 * 8
            ({"k": 9}, False),
            ({"intermediate": 512}, False),  # as many k-blocks as stages
            ({"intermediate": 640}, True),
        ],
    )
    def test_it_needs_a_wide_token_and_more_k_blocks_than_stages(self, changes: dict[str, int], early: bool) -> None:
        sizes = {"hidden": 4096, "intermediate": 2048, "k": 6} | changes
        assert combines_early(128, 256, **sizes) == early


class TestBatches:
    def test_sixteen_rows_from_8192_tokens_on(self) -> None:
        assert [publish_rows(tokens) for tokens in (0, 8191, 8192, 32768)] == [1, 1, 16, 16]

    def test_a_warp_begins_with_small_batches(self) -> None:
        assert [publish_limit(turn, 16) for turn in (0, 7, 8, 16, 24, 31, 32, 1000)] == [1, 1, 2, 4, 8, 8, 16, 16]
        assert publish_limit(1000, 3) == 3

    @pytest.mark.parametrize(("ring", "fits"), [(292, True), (100, True), (70, False), (37, False)])
    def test_rows_kept_back_must_fit_into_the_ring(self, ring: int, fits: bool) -> None:
        """16 rows of 264 warps are 33 blocks of 128, beside one partial block for each of 36 experts, and one more."""
        sizes: dict[str, Any] = {"lanes": 264, "local_experts": 36, "block_m": 128}
        assert fits_ring(16, ring_m_blocks=ring, **sizes) == fits
