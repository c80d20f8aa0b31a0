"""Facts about blocks: how kernels are laid out in time, what counts as exposed communication, and what is refused."""

from dataclasses import replace

import pytest
from xstage.scenarios.attention_models import attention_model, latent_projections
from xstage.scenarios.layers import BLOCKS, block, block_policies, expert_numbers
from xstage.scenarios.loader import load_scenario
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.layers import Elementwise, Exchange, Kernel, kernel_length, simulate_block

H100, B200 = load_machine("hgx-h100"), load_machine("hgx-b200")
GRANULE = 16384
COPY = Elementwise(100_000_000)


def test_kernels_of_one_stream_run_one_after_the_other():
    one = kernel_length(H100, COPY).time_ps
    result = simulate_block(H100, [Kernel("a", COPY), Kernel("b", COPY, after=())])
    assert [kernel.start_ps for kernel in result.kernels] == [0, one]
    assert (result.total_ps, result.exposed_ps) == (2 * one, 0)
    assert one == pytest.approx(2e6 + 1e8 / (3350e9 * 0.81) * 1e12, rel=1e-6)


def test_a_collective_on_its_own_stream_is_exposed_as_far_as_nothing_hides_it():
    """An exchange of 8.76 MB takes 16.6 + 100 us at 87.6 GB/s."""
    copy = kernel_length(H100, COPY).time_ps
    exchange = Exchange(8_760_000, ranks=8)
    assert kernel_length(H100, exchange)[:2] == (116_600_000, 0)
    hidden = simulate_block(
        H100,
        [
            Kernel("a", COPY),
            Kernel("send a", exchange, stream="comm"),
            Kernel("b", COPY, after=()),
            Kernel("c", COPY, ("send a",)),
        ],
    )
    assert [kernel.start_ps for kernel in hidden.kernels] == [0, copy, copy, copy + 116_600_000]
    assert hidden.exposed_ps == 116_600_000 - copy
    in_turn = simulate_block(
        H100, [Kernel("a", COPY), Kernel("send a", exchange), Kernel("b", COPY), Kernel("c", COPY)]
    )
    assert in_turn.exposed_ps == 116_600_000


def test_a_collective_takes_the_links_that_there_are():
    """Of 16 ranks on 2 nodes, 8 of 15 parts of 9.95 MB leave by an interface of 5 GB/s, which duplex leaves as it is."""
    rails = load_machine("hgx-h100-rails", {"interconnect.nic_rate": "5 GB/s"})
    time_ps, alone_ps, _ = kernel_length(rails, Exchange(9_953_280, ranks=16))
    assert time_ps == pytest.approx(16.6e6 + 9_953_280 * 8 / 15 / 5e9 * 1e12, rel=1e-6)
    assert alone_ps == 0
    within_a_node = kernel_length(rails, Exchange(9_953_280, ranks=8))[0]
    assert within_a_node == pytest.approx(16.6e6 + 9_953_280 / 87.6e9 * 1e12, rel=1e-6)


def test_shares_add_up_where_nothing_overlaps():
    table = simulate_block(B200, block("flux-1", "piggyback"), GRANULE).table()
    assert table.share_pct.sum() == pytest.approx(100)
    assert table.exposed_us.sum() == pytest.approx(table.time_us.sum() - table.alone_us.sum())


@pytest.mark.parametrize(
    "model, tokens, serial, better",
    [
        ("wan-14b", 32760, "serial", "piggyback"),
        ("llama-3-70b", 4096, "serial", "reshaped"),
        ("deepseek-v3", 1024, "unfused", "expert_wave"),
    ],
)
def test_fused_kernels_shorten_a_block_by_what_they_hide(model, tokens, serial, better):
    slow, fast = (simulate_block(B200, block(model, how, tokens=tokens), GRANULE) for how in (serial, better))
    assert fast.total_ps < slow.total_ps
    assert 0 <= fast.exposed_ps < slow.exposed_ps
    assert all(kernel.time_ps > 0 for kernel in fast.kernels)


def test_one_gpu_communicates_nothing():
    assert simulate_block(B200, block("llama-3-8b", gpus=1, tokens=1024), GRANULE).exposed_ps == 0
    assert simulate_block(B200, block("flux-1", gpus=1), GRANULE).exposed_ps == 0


@pytest.mark.parametrize("policy", ["unfused", "interleaved"])
def test_one_gpu_does_not_exchange_the_rows_of_its_experts(policy):
    kernels = block("dit-moe", policy, gpus=1, tokens=1024)
    assert simulate_block(B200, kernels, GRANULE).exposed_ps == 0


@pytest.mark.parametrize("gpus, kv_heads", [(4, 8), (8, 8), (16, 16), (32, 32)])
def test_k_and_v_heads_are_computed_by_several_ranks_where_there_are_fewer_of_them(gpus, kv_heads):
    projection = next(k.work for k in block("llama-3-8b", gpus=gpus, tokens=4096) if k.name == "qkv projection")
    assert projection.shape.n == (32 + 2 * kv_heads) * 128
    assert projection.shape.local_n == (32 // gpus + 2 * max(1, 8 // gpus)) * 128


def test_deepseek_v3_has_a_shared_expert_that_every_token_passes():
    kernels = block("deepseek-v3", tokens=512)
    work = kernels[-1].work
    assert (work.shape.experts, work.shape.topk, work.shape.shared_experts) == (256, 8, 1)
    without = replace(work, shape=replace(work.shape, shared_experts=0))
    with_it, less = (kernel_length(B200, one, GRANULE)[0] for one in (work, without))
    assert with_it - less > 15e6
    assert block("dit-moe", tokens=512)[-1].work.shape.shared_experts == 0


def test_latent_projections_fit_the_attention_that_they_are_for():
    known = attention_model("deepseek-v3")
    widths = {name: (n, k) for name, n, k in latent_projections("deepseek-v3")}
    assert widths["q up"] == (known.heads * known.head_dim, widths["q down"][0])
    assert widths["kv up"][0] == known.heads * (128 + known.value_dim)
    assert widths["kv down"] == (widths["kv up"][1] + 64, known.hidden)
    assert latent_projections("llama-3-8b") == ()


@pytest.mark.parametrize(("model", "numbers"), [("deepseek-v3", "w8a8"), ("dit-moe", "w4a8")])
def test_experts_have_the_numbers_that_their_model_is_released_in(model, numbers):
    assert block(model, tokens=512)[-1].work.shape.numbers == numbers == expert_numbers(model)


@pytest.mark.parametrize("model", BLOCKS)
def test_every_model_that_is_named_has_a_block_under_each_of_its_policies(model):
    for policy in block_policies(model):
        assert block(model, policy, gpus=4, tokens=512)


def test_experts_run_under_the_policies_that_a_megamoe_workload_has():
    mine = load_scenario(
        {"question": "?", "machine": "hgx-b200", "workload": {"kind": "megamoe", "model": "dit-moe", "tokens": 64}}
    )
    assert set(block_policies("dit-moe")) == set(mine.policies())


def test_an_empty_block_takes_no_time():
    assert simulate_block(H100, []).total_ps == 0


def test_blocks_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="name = 'a': stands twice"):
        simulate_block(H100, [Kernel("a", COPY), Kernel("a", COPY)])
    with pytest.raises(InputError, match="after = 'b': of a does not come before it"):
        simulate_block(H100, [Kernel("a", COPY, after=("b",)), Kernel("b", COPY)])
    with pytest.raises(InputError, match=r"model = 'wan-41b': is no model with a block; did you mean 'wan-14b'\?"):
        block("wan-41b")
    with pytest.raises(InputError, match="model = 'minimax-h3': is no model with a block") as refused:
        block_policies("minimax-h3")  # a model of attention workloads
    assert "minimax-h3" not in refused.value.allowed
    with pytest.raises(InputError, match="policy = 'fast': is unknown"):
        block("deepseek-v3", "fast")
