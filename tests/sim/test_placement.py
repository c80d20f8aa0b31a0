"""Facts about expert placement: the published EPLB example, what replication and packing guarantee, what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xstage.sim.errors import InputError
from xstage.sim.placement import Placement, compare_load, contiguous, eplb, max_over_mean, pack_evenly, replicate

# The example of https://github.com/deepseek-ai/EPLB: 12 experts, 16 replicas, 4 groups, 2 nodes, 8 GPUs, two layers.
README = {
    "layer 0": (
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
        [121.5, 86.5, 125, 113, 147.5, 131.5, 156, 152],
        (446, 587),
        1.208,
    ),
    "layer 1": (
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
        [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
        [173, 179.5, 120.5, 172, 123, 152, 118.5, 117.5],
        (645, 511),
        1.242,
    ),
}


def zipf_load(n_experts, exponent, seed):
    return np.random.default_rng(seed).permutation(1000 / np.arange(1, n_experts + 1) ** exponent)


class TestPublishedExample:
    @pytest.fixture(params=README, ids=list(README))
    def example(self, request):
        load, phy2log, gpu_load, node_load, ratio = README[request.param]
        return eplb(load, n_replicas=16, n_groups=4, n_nodes=2, n_ranks=8), load, phy2log, gpu_load, node_load, ratio

    def test_replicas_hold_the_published_experts(self, example):
        placement, _, phy2log, *_ = example
        assert placement.phy2log.tolist() == phy2log

    def test_loads_of_gpus_and_nodes(self, example):
        placement, load, _, gpu_load, node_load, ratio = example
        after = placement.rank_load(load)
        assert after.tolist() == gpu_load
        assert after.reshape(2, 4).sum(axis=1).tolist() == list(node_load)
        assert max_over_mean(after) == pytest.approx(ratio, abs=5e-4)

    def test_the_busiest_gpu_sheds_load_against_a_contiguous_placement_of_four_gpus(self, example):
        _, load, *_ = example
        report = compare_load(load, contiguous(12, 4), eplb(load, n_replicas=16, n_ranks=4))
        assert report.max_over_mean_after < report.max_over_mean_before
        assert report.saving_pct == pytest.approx(100 * (1 - max(report.after) / max(report.before)))


class TestContiguous:
    def test_neighbouring_experts_share_a_rank(self):
        placement = contiguous(8, 4)
        assert placement.rank_of_replica.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert placement.phy2log.tolist() == list(range(8))
        assert placement.replicas_per_rank == 2

    def test_one_expert_on_one_rank(self):
        assert contiguous(1, 1).rank_load([5.0]).tolist() == [5.0]

    def test_experts_that_ranks_do_not_divide_are_refused(self):
        with pytest.raises(InputError, match=r"n_experts = 10: .*allowed: a multiple of 8"):
            contiguous(10, 8)

    def test_redundant_experts_fill_the_gap(self):
        assert eplb(np.ones(10), n_replicas=16, n_ranks=8).copies.tolist() == [2] * 6 + [1] * 4


class TestReplicas:
    def test_log2phy_lists_the_replicas_of_each_expert(self):
        placement = Placement(np.array([2, 0, 2, 1]), n_experts=3, n_ranks=2)
        assert placement.log2phy.tolist() == [[1, -1], [3, -1], [0, 2]]
        assert placement.copies.tolist() == [1, 1, 2]

    def test_copies_take_turns_by_token_and_start_at_another_copy_on_every_rank(self):
        placement = Placement(np.array([0, 1, 0, 2]), n_experts=3, n_ranks=2)
        topk = np.array([[[0], [0], [0], [-1]], [[0], [1], [0], [2]]])
        assert placement.choose_replica(topk)[..., 0].tolist() == [[0, 2, 0, -1], [2, 1, 2, 3]]

    def test_the_arrays_cannot_be_changed(self):
        with pytest.raises(ValueError, match="read-only"):
            contiguous(4, 2).phy2log[0] = 3


class TestEplb:
    @given(
        load=st.lists(st.floats(0, 1000), min_size=1, max_size=24),
        ranks=st.integers(1, 6),
        extra=st.integers(0, 3),
    )
    def test_every_expert_has_a_replica_and_every_rank_equally_many(self, load, ranks, extra):
        replicas = (-(-len(load) // ranks) + extra) * ranks
        placement = eplb(load, n_replicas=replicas, n_ranks=ranks)
        assert placement.n_replicas == replicas
        assert placement.copies.min() >= 1
        assert np.bincount(placement.rank_of_replica).tolist() == [replicas // ranks] * ranks
        assert placement.rank_load(load).sum() == pytest.approx(sum(load))

    @given(load=st.lists(st.floats(0, 1000), min_size=1, max_size=12), extra=st.integers(0, 12), data=st.data())
    def test_replication_minimises_the_largest_load_of_a_copy(self, load, extra, data):
        load = np.array(load)
        chosen = np.bincount(replicate(load, load.size + extra), minlength=load.size)
        others = 1 + np.bincount(
            data.draw(st.lists(st.integers(0, load.size - 1), min_size=extra, max_size=extra)), minlength=load.size
        )
        assert chosen.sum() == others.sum()
        assert (load / chosen).max() <= (load / others).max()

    @given(load=st.lists(st.floats(0, 100), min_size=1, max_size=8), packs=st.integers(1, 5))
    def test_packing_uses_every_item_once(self, load, packs):
        packed = pack_evenly(np.array(load * packs), packs)
        assert packed.shape == (packs, len(load))
        assert sorted(packed.ravel().tolist()) == list(range(len(load) * packs))

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize(("experts", "replicas", "ranks"), [(256, 288, 8), (256, 320, 32), (384, 432, 72)])
    def test_skewed_load_is_nearly_balanced_with_redundant_experts(self, experts, replicas, ranks, seed):
        load = zipf_load(experts, 0.6, seed)
        before = Placement(np.arange(replicas) % experts, experts, ranks)
        report = compare_load(load, before, eplb(load, n_replicas=replicas, n_ranks=ranks))
        assert report.max_over_mean_after < report.max_over_mean_before
        assert report.max_over_mean_after < 1.05

    def test_greedy_packing_can_lose_to_a_lucky_contiguous_placement(self):
        load = [1, 11, 9, 11, 6, 6, 0, 19]
        report = compare_load(load, contiguous(8, 2), eplb(load, n_replicas=12, n_ranks=2))
        assert max(report.before) == 32
        assert max(report.after) == pytest.approx(32 + 1 / 3)

    def test_groups_stay_within_a_node_when_nodes_divide_groups(self):
        placement = eplb(zipf_load(16, 1.0, 0), n_replicas=24, n_groups=8, n_nodes=4, n_ranks=8)
        group = placement.phy2log // 2
        node = placement.rank_of_replica // 2
        assert [len(np.unique(node[group == g])) for g in range(8)] == [1] * 8

    def test_groups_that_nodes_do_not_divide_are_placed_globally(self):
        load = zipf_load(12, 1.0, 1)
        split = eplb(load, n_replicas=16, n_groups=3, n_nodes=2, n_ranks=8)
        assert split.phy2log.tolist() == eplb(load, n_replicas=16, n_ranks=8).phy2log.tolist()

    @pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
    def test_only_ratios_of_load_matter(self, scale):
        load = zipf_load(12, 1.0, 2)
        scaled = eplb(load * scale, n_replicas=16, n_ranks=8)
        assert np.array_equal(scaled.phy2log, eplb(load, n_replicas=16, n_ranks=8).phy2log)

    def test_no_load_at_all_is_balanced(self):
        placement = eplb(np.zeros(8), n_replicas=8, n_ranks=4)
        report = compare_load(np.zeros(8), placement, placement)
        assert (report.max_over_mean_before, report.max_over_mean_after, report.saving_pct) == (1, 1, 0)


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"n_replicas": 11, "n_ranks": 1}, "n_replicas = 11: must cover every expert"),
            ({"n_replicas": 14, "n_ranks": 4}, "n_replicas = 14: must be a multiple of n_ranks"),
            ({"n_replicas": 18, "n_ranks": 9, "n_nodes": 2}, "n_ranks = 9: must be a multiple of n_nodes"),
            ({"n_replicas": 16, "n_ranks": 8, "n_groups": 5}, "experts = 12: must be a multiple of n_groups"),
            ({"n_replicas": 16, "n_ranks": 0}, "n_ranks = 0: must be at least 1"),
        ],
    )
    def test_counts_that_do_not_divide(self, arguments, message):
        with pytest.raises(InputError, match=message):
            eplb(np.ones(12), **arguments)

    @pytest.mark.parametrize("load", [[], [[1.0]], [1.0, -1.0], [1.0, np.nan], [np.inf]])
    def test_loads_that_are_no_loads(self, load):
        with pytest.raises(InputError, match="expert_load"):
            eplb(load, n_replicas=8, n_ranks=1)

    @pytest.mark.parametrize(
        ("phy2log", "message"),
        [
            ([0, 1, 1], "replicas = 3"),
            ([0, 3], "out of range"),
            ([0, 0], "phy2log = 1: leaves an expert without a replica"),
            ([0.5, 1.0], "list of expert ids"),
        ],
    )
    def test_placements_that_are_no_placements(self, phy2log, message):
        with pytest.raises(InputError, match=message):
            Placement(np.array(phy2log), n_experts=2, n_ranks=2)

    def test_a_load_for_another_number_of_experts(self):
        with pytest.raises(InputError, match="8 numbers, one per expert"):
            contiguous(8, 4).rank_load(np.ones(7))
