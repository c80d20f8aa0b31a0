"""Facts about routing: loads that made-up routings promise and keep, masks, reproducibility, what is refused."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xstage.sim.errors import InputError
from xstage.sim.routing import (
    Routing,
    balanced,
    even,
    expected_max_over_mean,
    from_histogram,
    hot_expert,
    hot_weight,
    occurrence,
    stable_order,
    zipf,
    zipf_exponent,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def sampling_noise(rows):
    """Four standard deviations of a count of `rows`, relative."""
    return 4 / math.sqrt(rows)


def successive_draw_probability(weights, k, item):
    """P(item is among k draws without replacement in proportion to weight), by listing every ordered draw."""
    total = 0.0
    for draw in permutations(range(len(weights)), k):
        p, left = 1.0, sum(weights)
        for expert in draw:
            p *= weights[expert] / left
            left -= weights[expert]
        total += p * (item in draw)
    return total


class TestBalanced:
    def test_every_token_has_k_distinct_experts(self):
        routing = balanced(8, 64, 6, 256, rng())
        assert routing.topk.shape == (8, 64, 6)
        assert routing.topk.dtype == np.int32
        assert all(len(set(token)) == 6 for token in routing.topk.reshape(-1, 6).tolist())

    def test_experts_get_equal_shares_within_sampling_noise(self):
        load = balanced(4, 8192, 8, 64, rng()).expert_rows
        share = 8 / 64
        noise = math.sqrt(4 * 8192 * share * (1 - share))
        assert np.abs(load - 4 * 8192 * share).max() < 4.5 * noise

    def test_a_seed_fixes_the_routing(self):
        assert np.array_equal(balanced(2, 9, 2, 8, rng(3)).topk, balanced(2, 9, 2, 8, rng(3)).topk)
        assert not np.array_equal(balanced(2, 9, 2, 8, rng(3)).topk, balanced(2, 9, 2, 8, rng(4)).topk)

    @pytest.mark.parametrize(("ranks", "tokens", "k", "experts"), [(1, 1, 1, 1), (3, 0, 2, 4), (2, 5, 4, 4)])
    def test_smallest_shapes(self, ranks, tokens, k, experts):
        assert balanced(ranks, tokens, k, experts, rng()).expert_rows.sum() == ranks * tokens * k

    def test_one_expert_takes_every_row(self):
        assert balanced(4, 10, 1, 1, rng()).expert_rows.tolist() == [40]


class TestEven:
    @pytest.mark.parametrize(
        ("ranks", "tokens", "k", "experts"), [(8, 64, 6, 256), (3, 7, 4, 10), (1, 1, 3, 3), (2, 0, 1, 5)]
    )
    def test_experts_get_as_many_rows_overall_and_nearly_from_each_rank(self, ranks, tokens, k, experts):
        routing = even(ranks, tokens, k, experts, rng())
        assert np.ptp(routing.expert_rows) <= 1 and routing.expert_rows.sum() == ranks * tokens * k
        assert all(np.ptp(np.bincount(rows.ravel(), minlength=experts)) <= 2 for rows in routing.topk)

    def test_which_token_goes_where_is_drawn(self):
        assert len({tuple(sorted(token)) for token in even(1, 600, 6, 36, rng()).topk[0].tolist()}) > 500

    def test_too_few_experts_are_refused(self):
        with pytest.raises(InputError, match=r"k = 4: .*allowed: 1 to 3"):
            even(1, 1, 4, 3, rng())


class TestHistogram:
    def test_draws_follow_the_law_of_successive_draws(self):
        weights = [8.0, 4.0, 2.0, 1.0]
        share = from_histogram(weights, 1, 200_000, 2, rng()).expert_rows / 200_000
        expected = [successive_draw_probability(weights, 2, item) for item in range(4)]
        assert share == pytest.approx(expected, abs=0.005)

    def test_the_first_slot_is_drawn_in_proportion_to_the_load(self):
        first = from_histogram([5, 3, 2], 1, 200_000, 2, rng()).topk[..., 0]
        assert np.bincount(first.ravel()) / 200_000 == pytest.approx([0.5, 0.3, 0.2], abs=0.005)

    def test_an_expert_without_load_is_never_drawn(self):
        assert from_histogram([1, 0, 1, 1], 2, 500, 3, rng()).expert_rows.tolist() == [1000, 0, 1000, 1000]

    def test_loads_may_differ_by_more_than_single_precision(self):
        assert from_histogram([1e300, 1.0, 1e-300], 1, 50, 2, rng()).expert_rows.tolist() == [50, 50, 0]

    def test_too_few_experts_with_a_load_are_refused(self):
        with pytest.raises(InputError, match=r"k = 3: .*allowed: 1 to 2"):
            from_histogram([1, 0, 1, 0], 1, 1, 3, rng())

    @pytest.mark.parametrize("load", [[], [[1.0]], [1.0, -2.0], [np.nan, 1.0]])
    def test_loads_that_are_no_loads_are_refused(self, load):
        with pytest.raises(InputError, match="load"):
            from_histogram(load, 1, 1, 1, rng())

    @pytest.mark.parametrize(("ranks", "tokens", "k"), [(0, 1, 1), (1, -1, 1), (1, 1, 0), (1, 1, 9)])
    def test_shapes_that_are_no_shapes_are_refused(self, ranks, tokens, k):
        with pytest.raises(InputError):
            from_histogram(np.ones(8), ranks, tokens, k, rng())


@pytest.mark.parametrize("tokens", [10**12, 10**30])
def test_more_tokens_than_fit_into_memory_are_refused_before_they_are_drawn(tokens):
    said = f"tokens = {tokens}: needs .* for the routing of 8 ranks .allowed: what fits into .* of this computer"
    with pytest.raises(InputError, match=said):
        balanced(8, tokens, 6, 256, np.random.default_rng(0))


class TestStatedSkew:
    @settings(deadline=None)  # the first call prepares the quadrature
    @given(
        weights=st.lists(st.floats(0.01, 10), min_size=2, max_size=6),
        k=st.integers(1, 3),
    )
    def test_expected_max_over_mean_is_exact(self, weights, k):
        k = min(k, len(weights))
        heaviest = int(np.argmax(weights))
        exact = successive_draw_probability(weights, k, heaviest) * len(weights) / k
        assert expected_max_over_mean(np.array(weights), k) == pytest.approx(exact, rel=1e-5)

    @pytest.mark.parametrize(("experts", "k"), [(256, 8), (384, 6), (16, 2), (8, 8), (1, 1)])
    def test_even_weights_are_balanced(self, experts, k):
        assert expected_max_over_mean(np.ones(experts), k) == pytest.approx(1, abs=1e-9)

    @pytest.mark.parametrize("target", [1.5, 4.0, 12.0, 31.0])
    def test_zipf_meets_the_stated_max_over_mean(self, target):
        exponent = zipf_exponent(target, 256, 8)
        weights = 1 / np.arange(1, 257) ** exponent
        assert expected_max_over_mean(weights, 8) == pytest.approx(target)
        drawn = zipf(8, 4096, 8, 256, rng(), max_over_mean=target)
        assert drawn.max_over_mean == pytest.approx(target, rel=sampling_noise(target * 8 * 4096 * 8 / 256))

    @pytest.mark.parametrize("target", [1.5, 4.0, 12.0, 31.0])
    def test_a_hot_expert_meets_the_stated_max_over_mean(self, target):
        routing = hot_expert(8, 4096, 8, 256, rng(), max_over_mean=target)
        assert routing.max_over_mean == pytest.approx(target, rel=sampling_noise(target * 8 * 4096 * 8 / 256))
        assert routing.expert_rows.argmax() == 0

    @pytest.mark.parametrize("target", [1.5, 4.0, 7.0])
    def test_a_hot_rank_meets_the_stated_max_over_mean(self, target):
        rows = hot_expert(8, 4096, 8, 256, rng(), max_over_mean=target, n_hot=32).expert_rows.reshape(8, 32).sum(axis=1)
        assert rows[0] / rows.mean() == pytest.approx(target, rel=0.02)

    def test_max_over_mean_of_one_is_balance(self):
        assert zipf_exponent(1, 64, 4) == 0
        assert hot_weight(1, 64, 4) == 1

    def test_shuffled_popularity_keeps_its_histogram(self):
        plain = zipf(1, 20_000, 4, 32, rng(), exponent=1.0, shuffle=False).expert_rows
        shuffled = zipf(1, 20_000, 4, 32, rng(), exponent=1.0).expert_rows
        assert np.all(np.diff(plain[:8]) < 0)
        assert shuffled.argmax() != 0
        assert np.sort(shuffled) == pytest.approx(np.sort(plain), rel=0.1)

    @pytest.mark.parametrize(
        ("target", "n_hot", "allowed"), [(32.0, 1, 32), (0.5, 1, 32), (8.0, 32, 8), (math.nan, 1, 32)]
    )
    def test_more_than_one_row_a_token_is_out_of_reach(self, target, n_hot, allowed):
        with pytest.raises(InputError, match=rf"cannot be reached \(allowed: 1 to below {allowed}\)"):
            hot_weight(target, 256, 8, n_hot)

    def test_zipf_takes_an_exponent_or_a_target(self):
        for arguments in ({}, {"exponent": 1.0, "max_over_mean": 2.0}, {"exponent": -1.0}, {"exponent": math.inf}):
            with pytest.raises(InputError):
                zipf(1, 1, 1, 4, rng(), **arguments)

    @pytest.mark.parametrize(("k", "n_hot"), [(0, 1), (9, 1), (1, 0), (1, 9)])
    def test_more_draws_or_hot_experts_than_experts_are_refused(self, k, n_hot):
        with pytest.raises(InputError, match="does not fit the experts"):
            hot_weight(1.5, 8, k, n_hot)


class TestMasks:
    def test_masked_rows_are_no_load(self):
        routing = Routing(np.array([[[0, -1], [-1, -1]]]), n_experts=4)
        assert routing.expert_rows.tolist() == [1, 0, 0, 0]
        assert routing.max_over_mean == 4

    def test_rows_are_masked_one_by_one_or_token_by_token(self):
        full = balanced(2, 2000, 4, 16, rng())
        rows = full.masked(0.3, rng(1)).topk < 0
        tokens = full.masked(0.3, rng(1), whole_tokens=True).topk < 0
        assert rows.mean() == pytest.approx(0.3, abs=0.02)
        assert tokens.mean() == pytest.approx(0.3, abs=0.03)
        assert set(tokens.sum(axis=2).ravel().tolist()) == {0, 4}

    def test_the_extremes(self):
        full = balanced(2, 10, 4, 16, rng())
        assert np.array_equal(full.masked(0, rng()).topk, full.topk)
        assert full.masked(1, rng()).max_over_mean == 1
        with pytest.raises(InputError, match="0 to 1"):
            full.masked(1.5, rng())


class TestRefusals:
    @pytest.mark.parametrize(
        ("topk", "message"),
        [
            ([[[0, 1], [2, 8]]], r"topk\[0, 1, 1\] = 8: is no expert"),
            ([[[0, -2]]], r"topk\[0, 0, 1\] = -2"),
            ([[[0, 1], [3, 3]]], r"topk\[0, 1\] = \[3, 3\]: names an expert twice"),
            ([[0, 1]], "wrong shape"),
            ([[[0.0, 1.0]]], "wrong shape or type"),
            ([[[]]], "wrong shape"),
        ],
    )
    def test_what_is_no_topk(self, topk, message):
        with pytest.raises(InputError, match=message):
            Routing(np.array(topk), n_experts=8)

    def test_a_token_may_mask_several_slots(self):
        assert Routing(np.array([[[-1, -1, 5]]]), n_experts=8).expert_rows.sum() == 1

    def test_the_array_is_a_copy_that_cannot_be_changed(self):
        topk = np.array([[[0, 1]]])
        routing = Routing(topk, n_experts=2)
        topk[:] = 7
        assert routing.topk.tolist() == [[[0, 1]]]
        with pytest.raises(ValueError, match="read-only"):
            routing.topk[0, 0, 0] = 1


@given(group=st.lists(st.integers(0, 4), max_size=30))
def test_occurrence_counts_earlier_entries_of_the_same_group(group):
    expected = [group[:i].count(g) for i, g in enumerate(group)]
    assert occurrence(np.array(group, dtype=np.int64), 5).tolist() == expected


@given(st.lists(st.integers(0, 70_000), max_size=200), st.sampled_from([65_536, 70_001]))
def test_a_stable_order_sorts_and_keeps_equals_as_they_come(keys, n_keys):
    keys = np.minimum(np.array(keys, dtype=np.int64), n_keys - 1)
    assert stable_order(keys, n_keys).tolist() == sorted(range(len(keys)), key=lambda i: keys[i])
