"""The nominal order of tiles under each policy, on blocks that are made by hand."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import DeadlockError, InputError
from xstage.sim.execute import simulate
from xstage.sim.routing import balanced
from xstage.sim.schedules.megamoe import Alternating, ExpertWave, Interleaved, Lag, MegaMoe, Policy, Split, build
from xstage.sim.schedules.megamoe import order as order_module
from xstage.sim.schedules.megamoe.blocks import Blocks
from xstage.sim.schedules.megamoe.kernel import Kernel
from xstage.sim.schedules.megamoe.order import Order, check_rings, least_ring, least_warm_up, order_of

SHAPE = MegaMoe(hidden=512, intermediate=256, experts=4, topk=2, tokens=1024, ranks=1, numbers="w8a8")


def kernel(cluster: int = 1, n_blocks: tuple[int, int] = (2, 2)) -> Kernel:
    return Kernel("sm90", 128, 256, cluster, 128, 2, 4, *n_blocks)


def blocks(*per_expert: int) -> Blocks:
    """`per_expert[e]` full blocks for each expert."""
    expert = np.repeat(np.arange(len(per_expert)), per_expert)
    none = np.zeros(0, dtype=np.int64)
    returned = np.zeros((len(expert), 1, 1), dtype=np.int64)
    return Blocks(0, 0, expert, np.full(len(expert), 128), np.zeros(len(expert), dtype=bool), none, none, returned, 1)


def order(policy: Policy, made: Blocks, cluster: int = 1, n_blocks: tuple[int, int] = (2, 2)) -> Order:
    return order_of(kernel(cluster, n_blocks), SHAPE, policy, "june", made)


def runs(made: Order) -> list[str]:
    """The order in short: phase and block, neighbours of the same tile row merged."""
    names = [f"L{1 + int(l2)}:{block}" for l2, block in zip(made.l2, made.block, strict=True)]
    return [name for name, _ in groupby(names)]


def test_a_wave_has_all_its_l1_tiles_before_its_l2_tiles() -> None:
    made = order(ExpertWave(experts_per_wave=2), blocks(1, 2, 1))
    assert runs(made) == ["L1:0", "L1:1", "L1:2", "L2:0", "L2:1", "L2:2", "L1:3", "L2:3"]
    assert made.n.tolist()[:4] == [0, 1, 0, 1]


def test_l2_units_follow_l1_units_at_the_lag_and_the_rest_is_the_tail() -> None:
    made = order(Lag(lag=2, group=1, unit=1, ring_m_blocks=0), blocks(1, 1, 1, 1))
    assert runs(made) == ["L1:0", "L1:1", "L1:2", "L2:0", "L1:3", "L2:1", "L2:2", "L2:3"]
    assert made.n_static == 2 * 6


def test_inside_a_unit_neighbours_share_the_weights() -> None:
    """Up to `unit` blocks of one expert; m runs first, so that the two CTAs of a cluster have the same n-block."""
    made = order(Lag(lag=0, group=9, unit=2, ring_m_blocks=0), blocks(3), cluster=2)
    pairs = list(zip(made.block[:6].tolist(), made.n[:6].tolist(), strict=True))
    assert pairs == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def test_the_public_ring_is_just_large_enough_for_its_own_order() -> None:
    """8 (lag + group) + 4 blocks hold lag + group full units, and a smaller ring does not."""
    made = order(Lag(lag=2, group=1, unit=8), blocks(8, 8, 8, 8, 8))
    assert made.ring == 8 * 3 + 4
    assert least_ring(kernel(), made, blocks(8, 8, 8, 8, 8)) == 24
    small = order(Lag(lag=2, group=1, unit=8, ring_m_blocks=23), blocks(8, 8, 8, 8, 8))
    with pytest.raises(InputError, match="allowed: 24 or more"):
        check_rings(kernel(), [(small, blocks(8, 8, 8, 8, 8))])


@pytest.mark.parametrize(
    ("n_major", "tiles"),
    [
        (False, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]),
        (True, [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]),  # blocks 0 and 1 are of one expert
    ],
)
def test_two_launches_walk_all_l1_tiles_and_then_all_l2_tiles(n_major: bool, tiles: list[tuple[int, int]]) -> None:
    made = order(Split(l1_n_major=n_major, l2_n_major=n_major), blocks(2, 1))
    assert made.l2.tolist() == [False] * 6 + [True] * 6
    for phase in (slice(0, 6), slice(6, 12)):
        assert list(zip(made.block[phase].tolist(), made.n[phase].tolist(), strict=True)) == tiles
    assert made.n_static == 12


def test_the_wave_kernel_of_sm90_has_one_wave_where_experts_have_many_rows() -> None:
    """1024 tokens of 2 rows over 4 experts: a load of 512."""
    made = order(ExpertWave(), blocks(1, 2, 1))
    assert runs(made) == ["L1:0", "L1:1", "L1:2", "L1:3", "L2:0", "L2:1", "L2:2", "L2:3"]


def test_a_small_call_of_the_lag_kernel_is_one_wave() -> None:
    small = MegaMoe(hidden=512, intermediate=256, experts=4, topk=2, tokens=64, ranks=1, numbers="w8a8")
    made = order_of(kernel(), small, Lag(), "june", blocks(1, 1, 1))
    assert runs(made) == ["L1:0", "L1:1", "L1:2", "L2:0", "L2:1", "L2:2"]


def test_alternating_warms_up_and_then_takes_turns() -> None:
    """Nominally: with 4 groups and one warm-up wave, four L1 tiles, then L2, L1, L2, L1."""
    made = order(Alternating(warm_up=1), blocks(1, 1, 1, 1))
    assert made.dynamic and made.warm_up == 1
    assert made.l2.astype(int).tolist() == [0] * 4 + [1, 0] * 4 + [1] * 4


@pytest.mark.parametrize("n_blocks", [(2, 2), (4, 2), (8, 2), (3, 5), (16, 4)])
def test_a_warm_up_too_short_to_end_is_refused(n_blocks: tuple[int, int]) -> None:
    """Six m-blocks on 4 groups. With 4 L1 and 2 L2 tiles each, 14 L1 tiles must be done before the last m-block's L2."""
    l1, l2 = n_blocks
    least = max(1, -(-(l1 + 5 * max(0, l1 - l2)) // 4))
    assert order(Alternating(warm_up=least), blocks(6), n_blocks=n_blocks).warm_up == least
    with pytest.raises(InputError, match=rf"warm_up = {least - 1}: is too small.*allowed: {least} or more"):
        order(Alternating(warm_up=least - 1), blocks(6), n_blocks=n_blocks)


@pytest.mark.parametrize(("hidden", "intermediate"), [(512, 512), (256, 1024), (512, 1024)])
def test_the_least_warm_up_is_the_least_with_which_a_program_ends(
    hidden: int, intermediate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = load_machine("hgx-h100", {"compute.kernels": "portable", "compute.sms": 8})
    sizes = {"experts": 4, "topk": 2, "tokens": 256, "ranks": 2}
    shape = MegaMoe(hidden=hidden, intermediate=intermediate, numbers="bf16", **sizes)
    rows = balanced(2, 256, 2, 4, np.random.default_rng(0))
    wanted: list[int] = []
    monkeypatch.setattr(order_module, "least_warm_up", lambda *given: wanted.append(least_warm_up(*given)) or 0)
    build(machine, shape, Alternating(), rows)
    ended = build(machine, shape, Alternating(warm_up=max(wanted)), rows)
    stuck = build(machine, shape, Alternating(warm_up=max(wanted) - 1), rows)
    assert simulate(ended, machine.fabric(2)).makespan_ps > 0
    with pytest.raises(DeadlockError):
        simulate(stuck, machine.fabric(2))


def test_interleaved_takes_l2_as_soon_as_l1_leads_by_d() -> None:
    made = order(Interleaved(lead_rows=256), blocks(1, 1, 1, 1))
    assert made.lead_blocks == 2
    assert runs(made) == ["L1:0", "L1:1", "L2:0", "L1:2", "L2:1", "L1:3", "L2:2", "L2:3"]
