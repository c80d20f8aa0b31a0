"""Facts about pools: every row exactly once, at its owner, in the order in which the kernel pulls it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xstage.sim.errors import InputError
from xstage.sim.placement import Placement, contiguous, eplb
from xstage.sim.pools import pools
from xstage.sim.routing import Routing, balanced, from_histogram


def rng(seed=0):
    return np.random.default_rng(seed)


def peel(queues):
    """Pool order of one replica from a list of rows per source rank: one row from each that still has rows, in turn."""
    queues, order = [list(queue) for queue in queues], []
    while any(queues):
        order += [queue.pop(0) for queue in queues if queue]
    return order


@st.composite
def routed(draw):
    ranks, experts_per_rank = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    experts = ranks * experts_per_rank
    k = draw(st.integers(1, min(3, experts)))
    seed, tokens = draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 9))
    load = rng(seed).random(experts) ** 3 + 0.01
    routing = from_histogram(load, ranks, tokens, k, rng(seed)).masked(draw(st.sampled_from([0, 0.3, 1])), rng(seed))
    extra = draw(st.integers(0, 2)) * ranks
    return routing, eplb(load, n_replicas=experts + extra, n_ranks=ranks)


class TestOrder:
    def test_source_ranks_take_turns_until_they_run_out(self):
        # Expert 0 gets three rows from rank 0 and two from rank 1, expert 1 the rest.
        topk = np.array([[[1, 0], [0, -1], [0, 1]], [[0, -1], [1, 0], [-1, -1]]])
        pool = pools(Routing(topk, n_experts=2), contiguous(2, 2))
        rows = list(zip(pool.source_rank.tolist(), pool.source_token.tolist(), pool.slot.tolist(), strict=True))
        assert rows[:5] == [(0, 0, 1), (1, 0, 0), (0, 1, 0), (1, 1, 1), (0, 2, 0)]
        assert rows[5:] == [(0, 0, 0), (1, 1, 0), (0, 2, 1)]
        assert pool.replica.tolist() == [0] * 5 + [1] * 3

    @given(routed())
    def test_it_is_that_of_min_peeling(self, case):
        routing, placement = case
        chosen = placement.choose_replica(routing.topk)
        expected = []
        for replica in range(placement.n_replicas):
            expected += peel(
                [
                    [(source, token, slot) for token, slot in np.argwhere(chosen[source] == replica).tolist()]
                    for source in range(routing.n_ranks)
                ]
            )
        pool = pools(routing, placement)
        assert list(zip(pool.source_rank, pool.source_token, pool.slot, strict=True)) == expected


class TestConservation:
    @given(routed())
    def test_every_row_appears_exactly_once_at_a_replica_of_its_expert(self, case):
        routing, placement = case
        pool = pools(routing, placement)
        where = (pool.source_rank, pool.source_token, pool.slot)
        assert len(set(zip(*where, strict=True))) == pool.slot.size == np.count_nonzero(routing.topk >= 0)
        assert np.array_equal(placement.phy2log[pool.replica], routing.topk[where])

    @given(routed(), st.sampled_from([1, 16, 192]))
    def test_counts_agree(self, case, block_m):
        routing, placement = case
        pool = pools(routing, placement)
        rows = pool.rows_per_replica
        assert np.array_equal(np.bincount(placement.phy2log, rows, routing.n_experts), routing.expert_rows)
        assert np.array_equal(np.bincount(placement.rank_of_replica, rows), pool.rows_per_rank)
        assert np.array_equal(pool.rows_between.sum(axis=1), pool.rows_per_rank)
        assert pool.rows_between.sum(axis=0).tolist() == [int((part >= 0).sum()) for part in routing.topk]
        padded = pool.m_blocks(block_m) * block_m
        assert np.all((padded >= rows) & (padded < rows + block_m))

    def test_copies_of_a_busy_expert_share_its_rows(self):
        routing = balanced(4, 500, 2, 8, rng())
        placement = Placement(np.array([0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 1, 1]), n_experts=8, n_ranks=4)
        rows = pools(routing, placement).rows_per_replica
        assert rows[[0, 8, 9]] == pytest.approx(routing.expert_rows[0] / 3, rel=0.15)


class TestExtremes:
    def test_all_tokens_to_one_rank(self):
        load = np.where(np.arange(16) < 4, 1.0, 0.0)
        pool = pools(from_histogram(load, 4, 100, 2, rng()), contiguous(16, 4))
        assert pool.rows_per_rank.tolist() == [800, 0, 0, 0]
        assert pool.rank_start.tolist() == [0, 800, 800, 800, 800]
        assert pool.rows_between.tolist() == [[200] * 4, [0] * 4, [0] * 4, [0] * 4]

    def test_no_tokens(self):
        pool = pools(balanced(4, 0, 2, 8, rng()), contiguous(8, 4))
        assert pool.rows_per_rank.tolist() == [0] * 4
        assert pool.m_blocks(128).tolist() == [0] * 8

    def test_one_token_one_expert_one_rank(self):
        pool = pools(balanced(1, 1, 1, 1, rng()), contiguous(1, 1))
        assert (pool.source_rank.tolist(), pool.source_token.tolist(), pool.slot.tolist()) == ([0], [0], [0])
        assert pool.m_blocks(16).tolist() == [1]

    def test_a_block_is_padded_only_past_its_end(self):
        routing = Routing(np.zeros((1, 192, 1), dtype=np.int32), n_experts=1)
        assert pools(routing, contiguous(1, 1)).m_blocks(192).tolist() == [1]
        assert pools(routing, contiguous(1, 1)).m_blocks(191).tolist() == [2]


class TestRefusals:
    @pytest.mark.parametrize(("placement", "field"), [(contiguous(8, 2), "n_ranks"), (contiguous(16, 4), "n_experts")])
    def test_a_placement_of_another_shape(self, placement, field):
        with pytest.raises(InputError, match=field):
            pools(balanced(4, 1, 1, 8, rng()), placement)

    def test_blocks_of_no_rows(self):
        with pytest.raises(InputError, match="block_m = 0"):
            pools(balanced(1, 1, 1, 1, rng()), contiguous(1, 1)).m_blocks(0)
