"""What tiles cost: each bound of the main loop where it binds, and L2 hits by reuse distance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.machine import Machine
from xstage.sim.predict import exchange_ps
from xstage.sim.schedules import attention_a2a
from xstage.sim.tile_cost import (
    Rounds,
    TileCosts,
    bytes_from_hbm,
    epilogue_ps,
    l2_hits,
    main_loop_ps,
    needed_wiring,
    previous_use,
)

COSTS = TileCosts(
    sms=4,
    mma_flops_per_us=1000.0,
    feed_bytes_per_us=100.0,
    hbm_bytes_per_us=50.0,
    l2_bytes=350.0,
    fixed_us=0.5,
    requantise_per_us=10.0,
    scatter_per_us=20.0,
    epilogue_floor_us=0.25,
)


def loop_of_equal_tiles(costs: TileCosts, flops: float, feed: float, hbm: float) -> int:
    """Main loop of the tiles of a round that are all alike, ps."""
    alike = main_loop_ps(costs, *(np.full(costs.sms, value) for value in (flops, feed, hbm)))
    assert len(set(alike.tolist())) == 1
    return int(alike[0])


def test_the_slowest_of_mma_feed_and_hbm_binds() -> None:
    assert loop_of_equal_tiles(COSTS, 4000.0, 100.0, 0.0) == 4_500_000
    assert loop_of_equal_tiles(COSTS, 100.0, 300.0, 50.0 / COSTS.sms) == 3_500_000
    assert loop_of_equal_tiles(COSTS, 100.0, 100.0, 300.0 / COSTS.sms) == 6_500_000


def test_fills_from_hbm_share_the_throughput_of_l2_with_what_sms_read() -> None:
    """Four SMs read 100 bytes each, at 80 a us together: 5 us. HBM writes 100: 1.25 us more. It gives 50 a us."""
    costs = replace(COSTS, l2_bytes_per_us=80.0)
    read = [loop_of_equal_tiles(costs, 0.0, 100.0, hbm / costs.sms) for hbm in (0.0, 100.0, 1000.0)]
    assert read == [5_500_000, 6_750_000, 20_500_000]


def test_fills_take_as_long_from_two_tiles_as_from_four() -> None:
    """L2 writes 100 bytes from HBM in 1.25 us, whoever asked for them; an SM reads its 100 bytes at 20 a us, also alone."""
    costs = replace(COSTS, l2_bytes_per_us=80.0, hbm_bytes_per_us=1e6)
    for tiles in (2, 4):
        none = np.zeros(tiles)
        assert main_loop_ps(costs, none, none + 100.0, none + 100.0 / tiles).tolist() == [6_750_000] * tiles


def test_l2_has_moved_all_reads_and_fills_by_the_time_they_are_charged() -> None:
    """Tiles of two depths in each round; HBM is fast, so that L2 alone holds them up."""
    costs = replace(COSTS, l2_bytes_per_us=80.0, hbm_bytes_per_us=1e6, fixed_us=0.0)
    feed, hbm = np.tile([100.0, 300.0, 100.0, 100.0], 5), np.tile([0.0, 60.0, 20.0, 0.0], 5)
    loops = main_loop_ps(costs, np.zeros(20), feed, hbm)
    assert loops.sum() / costs.sms / 1e6 == pytest.approx((feed.sum() + hbm.sum()) / 80.0)
    assert loops[1] / loops[0] == pytest.approx(3)


# Orders that mix tiles of two depths, as L1 and L2 of experts whose intermediate is smaller than hidden: a deep tile brings
# in 350 bytes in 3 us, a shallow one 100 bytes in 0.5 us.
DEEP, SHALLOW = (350.0, 3.0), (100.0, 0.5)
MIXED = replace(COSTS, sms=32, mma_flops_per_us=1.0, hbm_bytes_per_us=3200.0, fixed_us=0.0)
"""HBM gives each SM 100 bytes a us: 3.5 us for a deep tile, 1 us for a shallow one."""


def loops_us(costs: TileCosts, tiles: np.ndarray) -> np.ndarray:
    """Main loops of (bytes from HBM, us without HBM), [tiles, 2]."""
    return main_loop_ps(costs, tiles[:, 1] * costs.mma_flops_per_us, np.zeros(len(tiles)), tiles[:, 0]) / 1e6


def orders(deep: int, shallow: int) -> list[np.ndarray]:
    """One kind after the other, in turn, and at random."""
    waves = np.array([DEEP] * deep + [SHALLOW] * shallow)
    turns = np.array([DEEP, SHALLOW] * min(deep, shallow) + [DEEP] * (deep - shallow) + [SHALLOW] * (shallow - deep))
    return [waves, turns, *(np.random.default_rng(seed).permutation(waves) for seed in range(5))]


def test_what_hbm_costs_is_the_same_in_every_order_if_each_weight_is_read_once() -> None:
    """Tiles of either kind alone are held up by HBM, so its bytes by its rate is what all of them take."""
    spent = [loops_us(MIXED, tiles).sum() / MIXED.sms for tiles in orders(480, 480)]
    assert spent == pytest.approx([480 * (350 + 100) / 3200] * len(spent))


def fair_loops_us(costs: TileCosts, tiles: np.ndarray) -> tuple[np.ndarray, float]:
    """Main loops and the end of the last, if SMs take tiles in order and HBM is shared max-min fair at every moment."""
    took, started = np.zeros(len(tiles)), np.zeros(len(tiles))
    running: dict[int, float] = {}  # tile: what is left of it, from 1 to 0
    now, following = 0.0, 0
    while running or following < len(tiles):
        while len(running) < costs.sms and following < len(tiles):
            running[following], started[following] = 1.0, now
            following += 1
        mine = list(running)
        asked = tiles[mine, 0] / tiles[mine, 1]
        given, left, waiting = np.zeros(len(mine)), costs.hbm_bytes_per_us, len(mine)
        for index in np.argsort(asked):  # the one that asks least first
            given[index] = min(asked[index], left / waiting)
            left, waiting = left - given[index], waiting - 1
        speed = np.where(asked > 0, given / np.maximum(asked, 1e-12), 1.0) / tiles[mine, 1]
        step = min(running[tile] / fast for tile, fast in zip(mine, speed, strict=True))
        now += step
        for tile, fast in zip(mine, speed, strict=True):
            running[tile] -= step * fast
            if running[tile] < 1e-9:
                took[tile] = now - started[tile]
                del running[tile]
    return took, now


@pytest.mark.parametrize("deep_us", [1.0, 3.0, 4.0, 6.0])
@pytest.mark.parametrize("reread", [1.0, 0.5])
def test_main_loops_are_those_of_a_fair_share_of_hbm(deep_us: float, reread: float) -> None:
    """Alone a deep tile takes 1 to 6 us, from held up by HBM to never; all or half of the tiles read from it."""
    for tiles in orders(480, 480)[1:]:
        is_deep = tiles[:, 0] == DEEP[0]
        mixed = np.where(np.arange(len(tiles)) % 8 < 8 * reread, 1.0, 0.0)[:, None] * tiles
        mixed[:, 1] = np.where(is_deep, deep_us, SHALLOW[1])
        ours, (fair, end) = loops_us(MIXED, mixed), fair_loops_us(MIXED, mixed)
        assert ours.sum() / MIXED.sms == pytest.approx(end, rel=0.05)
        for kind in (is_deep, ~is_deep):
            assert ours[kind].mean() == pytest.approx(fair[kind].mean(), rel=0.1)


def test_a_tile_that_hbm_does_not_hold_up_leaves_its_share_to_others() -> None:
    """31 tiles read nothing for 2 us. The last has a part of the SMs' time, and gets what HBM gives in all of it, but for
    1200 bytes it needs what HBM takes for them.
    """
    alone = np.array([(0.0, 2.0)] * 31 + [(6400.0, 0.5)])
    assert loops_us(MIXED, alone).tolist() == pytest.approx([2.0] * 32)
    alone[-1] = (1200.0, 0.1)
    assert loops_us(MIXED, alone)[-1] == pytest.approx(1200 / 3200)


def test_what_math_warps_do_in_turn_adds_to_the_mma_and_to_nothing_else() -> None:
    flops, feed = np.array([2000.0, 2000.0]), np.array([100.0, 400.0])
    assert main_loop_ps(COSTS, flops, feed, np.zeros(2), np.array([1.5, 1.5])).tolist() == [4_000_000, 4_500_000]


def test_an_epilogue_has_a_rate_and_a_floor() -> None:
    assert epilogue_ps(COSTS, np.array([20, 1]), "requantise").tolist() == [2_000_000, 250_000]
    assert epilogue_ps(COSTS, np.array([20, 1]), "scatter").tolist() == [1_000_000, 250_000]


def test_previous_use_is_the_last_earlier_position() -> None:
    before = previous_use(np.array([7, 8, 7, 7, 9]))
    assert before[[2, 3]].tolist() == [0, 2]
    assert (before[[0, 1, 4]] < 0).all()


def sweep(weights: int, times: int) -> np.ndarray:
    """The same weights one after the other, again and again, as m-blocks of one expert use them."""
    return np.tile(np.arange(weights), times)


@pytest.mark.parametrize(("weights", "hit"), [(3, True), (4, True), (6, False), (40, False)])
def test_weights_are_hits_if_one_sweep_fits_into_l2(weights: int, hit: bool) -> None:
    """100 bytes each, 350 fit: 3 do; 4 are in flight on the 4 SMs at once; 6 and more come from HBM again each time."""
    order = sweep(weights, 3)
    none = np.zeros(len(order), dtype=np.int64)
    hits = l2_hits(COSTS, order, none + 100, np.arange(len(order)), none)
    assert not hits[:weights].any()
    assert (hits[weights:] == hit).all()


def test_crossing_two_experts_can_lose_the_hits_of_both() -> None:
    """Six weights of 50 bytes fit into 350; in turn with six others they do not."""
    costs = replace(COSTS, sms=1)
    one = sweep(6, 4)
    both = np.stack([one, one + 6], axis=1).ravel()
    fifty, none = np.full(len(both), 50), np.zeros(len(both), dtype=np.int64)
    assert l2_hits(costs, one, fifty[: len(one)], none[: len(one)], none[: len(one)])[6:].all()
    assert not l2_hits(costs, both, fifty, none, none).any()


def test_a_batch_too_small_for_reuse_streams_its_weights_at_the_rate_of_hbm() -> None:
    order = np.arange(40)
    none = np.zeros(40, dtype=np.int64)
    rounds, hits = Rounds.in_order(COSTS.sms, 40), l2_hits(COSTS, order, none + 100, none, none)
    read, users = bytes_from_hbm(rounds, order, none + 100, hits)
    assert (read.tolist(), users.tolist()) == ([100] * 40, [1] * 40)
    assert (
        main_loop_ps(COSTS, none, none, read) == (100 * COSTS.sms / COSTS.hbm_bytes_per_us + COSTS.fixed_us) * 1e6
    ).all()


def test_tiles_that_read_a_weight_together_wait_for_it_together() -> None:
    """Two weights for the four SMs, two more for the next four, then the first again, which are hits."""
    weight = np.array([0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1])
    bytes_of = np.where(weight < 2, 100, 60)
    none = np.zeros(len(weight), dtype=np.int64)
    hits = l2_hits(COSTS, weight, bytes_of, none, none)
    read, users = bytes_from_hbm(Rounds.in_order(COSTS.sms, 12), weight, bytes_of, hits)
    assert read.tolist() == [100] * 4 + [60] * 4 + [0] * 4
    assert users.tolist() == [2] * 12
    assert (read / users).sum() == bytes_of[~hits].sum()
    loops = main_loop_ps(COSTS, none, none, read, users=users)
    assert loops.tolist() == [4_500_000] * 4 + [2_900_000] * 4 + [500_000] * 4  # 200 bytes, 120, none, at 50 a us


def test_a_weight_that_several_tiles_read_comes_no_faster_than_another() -> None:
    """Three weights of 100 bytes for the four SMs: 300 bytes at 50 a us, whether one tile waits for them or two."""
    none = np.zeros(4, dtype=np.int64)
    weight, hits = np.array([0, 0, 1, 2]), np.array([False, True, False, False])
    read, users = bytes_from_hbm(Rounds.in_order(COSTS.sms, 4), weight, none + 100, hits)
    assert main_loop_ps(COSTS, none, none, read, users=users).tolist() == [6_500_000] * 4


def test_parameters_come_from_the_machine() -> None:
    costs = TileCosts.of(load_machine("hgx-h100"), "fp8")
    assert costs.mma_flops_per_us * costs.sms == pytest.approx(1979e6 * 0.65)
    assert costs.hbm_bytes_per_us == pytest.approx(3350e3 * 0.81)


def test_a_number_that_the_machine_lacks_is_named() -> None:
    machine: Machine = load_machine("hgx-h100", {"compute.sm_feed": None})
    with pytest.raises(InputError, match=r"compute.sm_feed: is not given for hgx-h100"):
        TileCosts.of(machine, "fp8")
    with pytest.raises(InputError, match="fp4_tflops"):
        TileCosts.of(machine, "fp4")


def test_a_number_of_the_interconnect_that_nobody_gives_is_named() -> None:
    assert needed_wiring(load_machine("hgx-h100"), "collective_launch") == 16_600_000
    machine: Machine = load_machine("hgx-h100", {"interconnect.all_to_all_rate": None})
    with pytest.raises(InputError, match=r"interconnect\.all_to_all_rate: is not given for hgx-h100 with .* = None \("):
        exchange_ps(machine, 10**6, ranks=8)
    said = r"interconnect\.all_to_all_rate: is not given for hgx-h100 .*, nor by rate_kbs of the policy"
    with pytest.raises(InputError, match=said):
        attention_a2a.build(machine, attention_a2a.Attention(256, 8, ranks=2), attention_a2a.Policy("serial"))


def test_a_round_with_more_tiles_than_sms_takes_what_two_rounds_take() -> None:
    """Eight tiles of 100 bytes on four SMs, held up by HBM or by L2."""
    none = np.zeros(8)
    for costs, feed in ((COSTS, none), (replace(COSTS, hbm_bytes_per_us=1e6, l2_bytes_per_us=80.0), none + 100.0)):
        times = [
            main_loop_ps(costs, none, feed, none + 100.0, rounds=rounds).tolist()
            for rounds in (Rounds(np.zeros(8, dtype=np.int64)), Rounds.in_order(costs.sms, 8))
        ]
        assert times[0] == times[1]
