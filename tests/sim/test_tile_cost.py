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


def test_the_slowest_of_mma_feed_and_hbm_binds() -> None:
    flops, feed = np.array([4000.0, 100.0, 100.0]), np.array([100.0, 300.0, 100.0])
    assert main_loop_ps(COSTS, flops, feed, np.array([0.0, 50.0, 300.0])).tolist() == [4_500_000, 3_500_000, 6_500_000]


def test_fills_from_hbm_share_the_throughput_of_l2_with_what_sms_read() -> None:
    """Four SMs read 100 bytes each, at 80 a us together: 5 us. HBM writes 100: 1.25 us more. It gives 50 a us."""
    costs = replace(COSTS, l2_bytes_per_us=80.0)
    flops, feed = np.zeros(3), np.full(3, 100.0)
    assert main_loop_ps(costs, flops, feed, np.array([0.0, 100.0, 1000.0])).tolist() == [
        5_500_000,
        6_750_000,
        20_500_000,
    ]


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
    read = bytes_from_hbm(COSTS, none + 100, l2_hits(COSTS, order, none + 100, none, none))
    assert read.sum() / COSTS.sms == pytest.approx(100 * 40)
    assert (
        main_loop_ps(COSTS, none, none, read) == (100 * COSTS.sms / COSTS.hbm_bytes_per_us + COSTS.fixed_us) * 1e6
    ).all()


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
    machine: Machine = load_machine("hgx-h100", {"interconnect.collective_rate": None})
    with pytest.raises(InputError, match=r"interconnect\.collective_rate: is not given for hgx-h100 with .* = None \("):
        exchange_ps(machine, 10**6, ranks=8)
    said = r"interconnect\.collective_rate: is not given for hgx-h100 .*, nor by a2a_kbs of the policy"
    with pytest.raises(InputError, match=said):
        attention_a2a.build(machine, attention_a2a.Attention(256, 8, ranks=2), attention_a2a.Policy("serial"))
