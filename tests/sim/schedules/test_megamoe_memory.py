"""What tiles move through memory: weights are read at least once, operands as often as tiles need them."""

from dataclasses import replace

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.routing import balanced
from xstage.sim.schedules.megamoe import Alternating, ExpertWave, Interleaved, MegaMoe, Unfused, build

SHAPE = MegaMoe(hidden=1024, intermediate=512, experts=8, topk=2, tokens=768, ranks=2, numbers="w8a8")
WEIGHTS = 4 * 3 * 1024 * 512
"""Of a rank's four experts, a byte each."""
POLICIES = [Unfused(), ExpertWave(), Alternating(), Interleaved(lead_rows=384)]


def memory(policy, l2, shape=SHAPE):
    cache = {"compute.l2": {"value": l2, "assumed": True, "source": "made up"}}
    rows = balanced(shape.ranks, shape.tokens, shape.topk, shape.experts, np.random.default_rng(0))
    program = build(load_machine("hgx-b200", cache), shape, policy, rows, release="pr304")
    return program.meta["memory_bytes"], program.meta["m_blocks"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_large_cache_reads_every_weight_once(policy):
    for rank in memory(policy, "100 GB")[0]:
        assert (rank["hbm_weights"], rank["hbm_weights_again"]) == (WEIGHTS, 0)


def test_weights_are_read_again_where_more_tiles_lie_between_two_uses_than_run_at_once():
    """An m-block has 128 L1 and 40 L2 tiles for 148 SMs: waves use a weight again within a round, interleaving does not."""
    large = replace(SHAPE, hidden=5120, intermediate=8192, experts=4)
    wave, interleaved = (memory(policy, "1 KiB", large)[0][0] for policy in (ExpertWave(1), Interleaved(lead_rows=384)))
    assert wave["hbm_weights_again"] == 0
    assert interleaved["hbm_weights"] == interleaved["hbm_weights_again"] + 2 * 3 * 5120 * 8192
    assert interleaved["hbm_weights_again"] > 3 * 5120 * 8192


def test_operands_do_not_depend_on_the_order():
    """Each CTA takes in its weights and half of the activations of its rows, rounded up to 16."""
    for rank in range(2):
        moved = {memory(policy, "1 KiB")[0][rank]["l2_to_sm"] for policy in POLICIES}
        assert len(moved) == 1
        blocks = memory(ExpertWave(), "1 KiB")[1][rank]
        of_weights = blocks * 3 * 1024 * 512
        full = blocks * 192 / 2 * (1024 * 8 + 512 * 8)
        assert of_weights < moved.pop() <= of_weights + full


def test_the_combine_reads_k_rows_and_writes_one():
    assert memory(ExpertWave(), "1 KiB")[0][0]["hbm_combine"] == 768 * (2 + 1) * 2 * 1024


def test_weights_of_a_shared_expert_are_fp8_beside_fp4_ones():
    for shared in (0, 1, 2):
        shape = replace(SHAPE, numbers="w4a8", shared_experts=shared)
        for rank in memory(ExpertWave(), "100 GB", shape)[0]:
            assert rank["hbm_weights"] == WEIGHTS / 2 + shared * WEIGHTS / 4
