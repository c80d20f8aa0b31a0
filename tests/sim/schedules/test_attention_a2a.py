"""Facts about attention and the All-to-All behind it: who gets which bytes, what each policy costs, what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.schedules.attention_a2a import (
    Attention,
    AttentionCosts,
    Policy,
    build,
    crossover_tokens,
    tile_of,
    tile_times,
)
from xstage.sim.schedules.attention_a2a.order import owner_bytes, tile_order

SMS = 6
POLICIES = {
    "compute_only": Policy("compute_only"),
    "serial": Policy("serial", permute_kbs=200_000_000),
    "comm_warp": Policy("comm_warp"),
    "reserved_sms": Policy("reserved_sms", reserved_sms=2),
    "piggyback": Policy("piggyback"),
    "piggyback rotated": Policy("piggyback", rotation=True),
    "piggyback own staging": Policy("piggyback", own_staging=True),
}


def small(name="hgx-h100", sms=SMS, **changes):
    """A machine with few SMs, each of them as fast as in the whole machine."""
    whole = load_machine(name)
    part = sms / whole.sms
    rates = {"bf16_tflops": whole.compute.bf16_tflops.value * part}
    rates |= {rate: f"{getattr(whole.compute, rate).value * part:.0f} kB/s" for rate in ("l2_rate", "hbm_rate")}
    return load_machine(name, {f"compute.{key}": value for key, value in {"sms": sms, **rates}.items()} | changes)


H100, B200 = small(), small("hgx-b200")
MACHINE = {"fa3": H100, "fa4": B200}


def run(machine, shape, policy, engine="compiled", trace="full", granule=4096):
    return simulate(build(machine, shape, policy), machine.fabric(shape.ranks, granule), engine, trace)


def sent(trace):
    """Bytes by source and destination."""
    records, n = trace.outcome.granule_records, trace.program.n_gpus
    matrix = np.zeros((n, n), dtype=np.int64)
    np.add.at(matrix, (records["source"], records["destination"]), records["bytes"])
    return matrix


# --- bytes


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.sampled_from([1, 2, 3, 4]),
    local_tokens=st.integers(1, 400),
    local_heads=st.integers(1, 3),
    batch=st.integers(1, 2),
    head_dim=st.sampled_from([64, 128, 192, 256]),
    causal=st.booleans(),
    family=st.sampled_from(["fa3", "fa4"]),
    policy=st.sampled_from(sorted(POLICIES)),
)
def test_every_part_of_the_output_reaches_its_owner_exactly_once(
    ranks, local_tokens, local_heads, batch, head_dim, causal, family, policy
):
    shape = Attention(
        ranks * local_tokens, ranks * local_heads, head_dim, ranks, batch=batch, causal=causal, family=family
    )
    trace = run(MACHINE[family], shape, POLICIES[policy], granule=16384)
    if POLICIES[policy].name == "compute_only" or ranks == 1:
        assert not len(trace.outcome.granule_records)
        return
    each = batch * local_heads * local_tokens * head_dim * 2
    assert sent(trace).tolist() == [[0 if a == b else each for b in range(ranks)] for a in range(ranks)]
    assert sent(trace).sum(axis=1).tolist() == [shape.output_bytes_sent] * ranks
    parts = (owner_bytes(shape, shape.tile(family)) > 0).sum(axis=(0, 1)) * batch * local_heads * ranks
    arrived = trace.outcome.counters[:ranks]
    assert arrived.tolist() == ([(ranks - 1) * batch * local_heads] * ranks if policy == "serial" else parts.tolist())


def test_volumes_are_those_of_the_published_shapes():
    """O per rank at P = 8 (MB): Wan 14B 84.7, HunyuanVideo 79.8, Wan TI2V-5B 18.3, FLUX.1 3.1; Q, K and V are three times
    that without GQA."""
    for tokens, heads, megabytes in ((75600, 40, 84.7), (118800, 24, 79.8), (27280, 24, 18.3), (4608, 24, 3.1)):
        shape = Attention(tokens, heads, ranks=8)
        assert shape.output_bytes_sent / 1e6 == pytest.approx(megabytes, abs=0.05)
        assert shape.qkv_bytes_sent == 3 * shape.output_bytes_sent


def test_kv_heads_shrink_what_goes_before_attention_until_they_are_replicated():
    """Llama-3-70B: 64 query heads, 8 K and V heads, so Q, K and V are 1.25 times O; 4 heads on 8 ranks cost as much as 8."""
    shape = Attention(8192, 64, ranks=8, kv_heads=8)
    assert shape.qkv_bytes_sent == 1.25 * shape.output_bytes_sent
    assert Attention(8192, 64, ranks=8, kv_heads=4).qkv_bytes_sent == shape.qkv_bytes_sent


def test_a_tile_over_a_border_between_owners_goes_to_two():
    """S / P = 200 rows: of the 128-row tiles of FA3 the second has 72 rows of rank 0 and 56 of rank 1."""
    shape = Attention(400, 2, 128, 2, family="fa3")
    rows = owner_bytes(shape, shape.tile("fa3")) // 256
    assert rows[:, 0, :].tolist() == [[128, 0], [72, 56], [0, 128], [0, 16]]


def test_pairs_of_ctas_fill_an_odd_m_block_up_with_one_that_sends_nothing():
    """FA4 without a mask: three tiles of 256 rows are two pairs. Under a mask, and with head dim 64, CTAs are single."""
    shape = Attention(768, 2, 128, 2, family="fa4")
    assert owner_bytes(shape, shape.tile("fa4")).sum(axis=(1, 2)).tolist() == [65536, 65536, 65536, 0]
    for single in (Attention(768, 2, 128, 2, causal=True), Attention(768, 2, 64, 2)):
        assert len(owner_bytes(single, single.tile("fa4"))) == 3


def test_an_sm_without_a_neighbour_takes_no_tile_of_a_pair():
    """Of 5 SMs beside a reserved one, pairs of CTAs take 4; with head dim 64 CTAs take all 5."""
    reserved = Policy("reserved_sms", reserved_sms=1)
    for head_dim, busy in ((128, 4), (64, 5)):
        trace = run(B200, Attention(8192, 8, head_dim, 2), reserved)
        assert (trace.program.lanes["role"] == trace.program.roles.index("mma")).sum() == 2 * busy


# --- order


def test_non_causal_tiles_run_m_fastest_and_causal_ones_longest_first():
    head, block = tile_order(Attention(512, 2), tile_of("fa3", 128, 128, causal=False, tokens=512), 0, False)
    assert (head.tolist(), block.tolist()) == ([0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3, 0, 1, 2, 3])
    causal = tile_of("fa3", 128, 128, causal=True, tokens=512)
    head, block = tile_order(Attention(512, 2, causal=True), causal, 0, False)
    assert (head.tolist(), block.tolist()) == ([0, 1, 0, 1, 0, 1, 0, 1], [3, 3, 2, 2, 1, 1, 0, 0])


def test_a_section_holds_the_heads_whose_keys_and_values_fit_into_l2():
    """K and V of 32768 tokens are 16.8 MB: two heads fit into FA3's 32 MiB, so heads 0 and 1 come before 2 and 3."""
    shape = Attention(32768, 4, causal=True)
    head, _ = tile_order(shape, tile_of("fa3", 128, 128, causal=True, tokens=32768), 0, False)
    assert head[:4].tolist() == [0, 1, 0, 1]
    assert set(head[: len(head) // 2]) == {0, 1}


def first_section(shape, family):
    """Query heads of rank 0 that are worked through before any other."""
    tile = shape.tile(family)
    _, block = tile_order(shape, tile, 0, False)
    again = np.flatnonzero(block == tile.blocks(shape.tokens) - 1)
    return int((again < np.flatnonzero(block == 0)[0]).sum())


@pytest.mark.parametrize(
    ("family", "tokens", "heads"),
    [
        ("fa4", 8192, 8),  # 12 would fit
        ("fa4", 16384, 4),  # 6 would fit
        ("fa4", 32768, 2),  # 3 would fit
        ("fa4", 12800, 8),  # just 8 fit
        ("fa4", 65536, 1),
        ("fa4", 262144, 1),  # none fits
        ("fa3", 10240, 4),  # 6 would fit
        ("fa3", 20480, 2),  # 3 would fit
        ("fa3", 32768, 2),
    ],
)
def test_a_section_holds_a_power_of_two_of_heads(family, tokens, heads):
    """K and V of a head are 512 B a token here; `swizzle` of both schedulers (50 MiB in flash_attn/cute/tile_scheduler.py,
    32 MiB in hopper/tile_scheduler.hpp)."""
    assert first_section(Attention(tokens, 16, causal=True, family=family), family) == heads


@pytest.mark.parametrize(
    ("heads", "kv_heads", "fa3", "fa4"),
    [
        (64, 64, 2, 2),
        (64, 32, 4, 4),  # two query heads share: FA3 counts two for each of K and V, FA4 packs both into one
        (64, 8, 8, 8),  # all 8 of a rank
        (96, 32, 6, 2),  # three share: FA4 cannot pack them into 128 rows, and counts each alone
        (40, 8, 5, 2),
        (96, 4, 12, 2),  # 24 share, of which a rank has 12
        (128, 4, 16, 16),  # 32 share, of which a rank has 16
    ],
)
def test_query_heads_that_share_keys_and_values_are_in_one_section_as_the_kernel_counts_them(heads, kv_heads, fa3, fa4):
    """Two heads of K and V fit into 32 MiB with 32768 tokens, and 3 into 50 MiB."""
    for family, expected in (("fa3", fa3), ("fa4", fa4)):
        shape = Attention(32768, heads, kv_heads=kv_heads, ranks=8, causal=True, family=family)
        assert first_section(shape, family) == expected


@pytest.mark.parametrize("sharing", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("tokens, finer_pct", [(1024, 11.1), (2048, 5.9), (4096, 3.0), (8192, 1.5)])
def test_packed_heads_have_a_finer_diagonal(sharing, tokens, finer_pct):
    """A tile of 256 rows of FA4 has the rows of 256 / g tokens if g heads are packed into it: 3 heads are not."""
    shape = Attention(tokens, 8 * sharing, kv_heads=8, causal=True)
    tile, costs = shape.tile("fa4"), AttentionCosts.of(load_machine("hgx-b200"))
    packed = sharing if 128 % sharing == 0 else 1
    ends = (np.arange(tokens * packed // 256) + 1) * 256 // packed  # last token of each tile of the group
    expected = (-(-ends // 128)).sum() / packed
    steps = tile_times(costs, tile, shape).steps.sum()
    assert steps == expected
    single = Attention(tokens, 8, causal=True)
    alone = tile_times(costs, single.tile("fa4"), single).steps.sum()
    assert 100 * (alone / steps - 1) == pytest.approx(finer_pct if packed > 1 else 0, abs=0.06)


def test_a_section_may_hold_heads_of_two_sequences():
    """16384 tokens, FA3: 4 K and V heads fit. A rank has 2 in each sequence, for 4 query heads each: 16 of two sequences."""
    shape = Attention(16384, 64, kv_heads=16, ranks=8, batch=4, causal=True)
    head, _ = tile_order(shape, shape.tile("fa3"), 0, False)
    assert set(head[: len(head) // 2]) == set(range(16))


def test_a_rotated_rank_begins_with_the_rows_of_the_next_and_ends_with_its_own():
    shape = Attention(1024, 4, ranks=4)
    tile = tile_of("fa3", 128, 128, causal=False, tokens=1024)
    blocks = [tile_order(shape, tile, rank, True)[1].tolist() for rank in range(4)]
    assert blocks[0] == [2, 3, 4, 5, 6, 7, 0, 1]
    assert blocks[3] == [0, 1, 2, 3, 4, 5, 6, 7]


# --- times


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("family, causal", [("fa3", False), ("fa3", True), ("fa4", False), ("fa4", True)])
def test_both_engines_agree_on_every_policy(name, family, causal):
    shape = Attention(600, 6, 128, 3, batch=2, causal=causal, family=family)
    machine = MACHINE[family]
    reference, fast = (run(machine, shape, POLICIES[name], engine) for engine in ("simpy", "compiled"))
    assert reference.outcome.same_as(fast.outcome) == []


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_one_rank_is_attention_alone(name):
    shape = Attention(1000, 2)
    alone, other = (run(H100, shape, policy) for policy in (POLICIES["compute_only"], POLICIES[name]))
    assert other.outcome.lanes_end_ps == alone.outcome.lanes_end_ps
    assert other.outcome.arrived_ps == 0


@pytest.mark.parametrize("name", ["hgx-h100", "hgx-b200", "hgx-h20"])
@pytest.mark.parametrize("kv_heads", [64, 8])
def test_many_short_sequences_take_no_less_than_hbm_needs_for_them(name: str, kv_heads: int) -> None:
    machine, tokens, batch = load_machine(name), 128, 512
    shape = Attention(tokens, 64, 128, ranks=1, batch=batch, kv_heads=kv_heads)
    took = simulate(build(machine, shape, Policy("compute_only")), machine.fabric(1)).makespan_ps
    moved = 2 * batch * tokens * 128 * (2 * 64 + 2 * kv_heads)
    assert took >= moved * 1e9 / machine.compute.hbm_rate.value


def test_the_terms_of_the_serial_policy_add_up():
    """Serial = attention + launch + permutation + bytes / bandwidth, each of which can be set."""
    shape = Attention(4096, 8, ranks=4)
    alone = run(H100, shape, Policy("compute_only")).outcome.lanes_end_ps
    policy = Policy("serial", launch_ps=20_000_000, rate_kbs=50_000_000, permute_kbs=1_000_000_000)
    serial = run(H100, shape, policy).outcome.lanes_end_ps
    permute = 2 * 4096 * 2 * 128 * 2 / 1e12 * 1e12
    a2a = shape.output_bytes_sent / 50e9 * 1e12
    assert serial == pytest.approx(alone + 20e6 + permute + a2a, rel=2e-3)


def test_a_small_share_of_the_wire_is_hidden_by_piggyback_and_not_by_serial():
    shape = Attention(4096, 8, ranks=4)
    alone, serial, fused = (run(H100, shape, Policy(how)) for how in ("compute_only", "serial", "piggyback"))
    assert serial.outcome.lanes_end_ps > 1.05 * alone.outcome.lanes_end_ps
    assert fused.outcome.lanes_end_ps < 1.02 * alone.outcome.lanes_end_ps


def test_reserved_sms_cost_whole_waves():
    """24 tiles on 6 SMs are 4 waves; on the 4 that are left beside 2 reserved ones 6."""
    shape = Attention(1536, 8, ranks=4)
    machine = small(**{"compute.kernel_launch": "0 us"})
    alone, reserved = (run(machine, shape, POLICIES[how]) for how in ("compute_only", "reserved_sms"))
    assert reserved.outcome.lanes_end_ps / alone.outcome.lanes_end_ps == pytest.approx(6 / 4, abs=0.05)


def test_the_wire_takes_s_star_over_s_of_the_time_of_attention():
    """s* of 650 TFLOPS, 450 GB/s, P = 8: 632 tokens; in a run the egress is busy for s* / s of the time."""
    assert crossover_tokens(650e12, 450e6, 8) == pytest.approx(632, abs=1)
    assert crossover_tokens(1600e12, 900e6, 8) == pytest.approx(778, abs=1)
    assert crossover_tokens(148e12, 450e6, 8) == pytest.approx(144, abs=1)
    shape, machine = Attention(12672, 4, ranks=4), small()
    trace = run(machine, shape, Policy("piggyback", rotation=True))
    seconds = trace.outcome.lanes_end_ps / 1e12
    rate = 4 * shape.tokens**2 * 128 / seconds
    expected = crossover_tokens(rate, machine.drain_kbs("peer", 4), 4) / shape.tokens
    busy = trace.outcome.ports["busy_ps"][:4] / trace.outcome.lanes_end_ps
    assert busy == pytest.approx(expected, rel=0.01)


def narrow(rate, room):
    """Few SMs on a slow network: stores last longer than the start of the next tile."""
    stage = {"stage.capacity_sm": "32 KiB", "stage.capacity_gpu": room}
    return small(**{"interconnect.drain_rate": rate, "compute.kernel_launch": "0 us"}, **stage)


def test_all_ranks_aiming_at_one_receiver_stall_and_rotated_ones_do_not():
    """Each wave fills rows of one owner, so P - 1 remote senders share its ingress. A wave of 192 KiB fits into the stage
    and takes 33 us of wire, a tile 82 us: one sender in time, three are late, seven far more so."""
    machine = narrow("6 GB/s", "192 KiB")
    stalls = []
    for ranks in (2, 4, 8):
        shape = Attention(8 * SMS * 128, 2 * ranks, ranks=ranks)
        alone = run(machine, shape, Policy("compute_only")).outcome
        aimed, rotated = (run(machine, shape, Policy("piggyback", rotation=turn)).outcome for turn in (False, True))
        assert rotated.lanes["stall_ps"].sum() == 0
        assert rotated.lanes_end_ps == alone.lanes_end_ps
        stalls.append(int(aimed.lanes["stall_ps"].sum()) // ranks)
    assert stalls[0] == 0
    assert stalls[1] > 100e6
    assert stalls[2] > 2 * stalls[1]


@pytest.mark.parametrize("causal", [False, True])
def test_rotated_ranks_aim_at_different_owners_and_end_with_their_own_rows(causal):
    shape = Attention(8 * 512, 8, ranks=8, causal=causal)
    tile = shape.tile("fa3")
    orders = [tile_order(shape, tile, rank, rotation=True)[1] for rank in range(8)]
    owners = np.array(orders) * tile.block_m // shape.local_tokens  # [ranks, tiles]
    assert all(len(set(at_once)) == 8 for at_once in owners.T)
    assert list(owners[:, -1]) == list(range(8))


def test_fewer_kv_heads_make_all_sms_work_at_the_same_rows():
    """FA3, causal: two heads of 16 MiB of K and V fit into a section of L2, and eight query heads that share one do too.
    So the first 132 tiles are the last 66 m-blocks of two heads, rows of three owners, or the last 17 of eight, of one.
    """
    owners = []
    for kv_heads in (64, 8):
        shape = Attention(32768, 64, kv_heads=kv_heads, ranks=8, causal=True)
        tile = shape.tile("fa3")
        first = tile_order(shape, tile, 0, rotation=False)[1][:132]
        owners.append(len(set(first * tile.block_m // shape.local_tokens)))
    assert owners == [3, 1]


def test_contracts_differ_in_when_a_slow_store_is_felt():
    """A wave takes 24 us on the wire, a tile 41: FA3 meets the store 2.4 us into the next tile, and with a buffer of its
    own for the output not at all."""
    shape = Attention(4 * SMS * 128, 4, ranks=4)
    machine = narrow("8 GB/s", "64 KiB")
    policies = (Policy("compute_only"), *(Policy("piggyback", rotation=True, own_staging=own) for own in (False, True)))
    ends = []
    for policy in policies:
        trace = run(machine, shape, policy)
        mma = trace.program.lanes["role"] == trace.program.roles.index("mma")
        ends.append(int(trace.outcome.lanes["end_ps"][mma].max()))
    alone, early, late = ends
    assert late == alone
    tiles, window = 4, 2.4e6
    held_up = 192 * 1024 * 3 / 4 / 8e9 * 1e12 - 64 * 1024 / 8e9 * 1e12 - window
    assert early - alone == pytest.approx((tiles - 1) * held_up, rel=0.3)


def test_a_role_of_its_own_for_the_stores_adds_no_drain_rate():
    """Where the wire is the limit, comm warps and reserved SMs wait for it as owners do, and end no earlier."""
    shape, machine = Attention(4 * SMS * 128, 4, ranks=4), narrow("0.2 GB/s", "64 KiB")
    wire_us = shape.output_bytes_sent / 0.2e3
    ends = {
        how: run(machine, shape, POLICIES[how]).makespan_ps / 1e6 for how in ("comm_warp", "reserved_sms", "piggyback")
    }
    assert all(end > wire_us for end in ends.values())
    assert ends["piggyback"] <= min(ends.values()) * 1.001


def test_a_cta_that_is_not_persistent_stays_until_its_store_is_out():
    shape = Attention(4 * 256, 4, ranks=4, causal=True)
    trace = run(B200, shape, POLICIES["piggyback"])
    spans = trace.spans().sort_values(["lane", "start_us"])
    by_role = {role: spans[(spans.role == role) & (spans.gpu == 0) & (spans.sm == 0)] for role in ("mma", "store")}
    assert (by_role["mma"].start_us.to_numpy()[1:] >= by_role["store"].end_us.to_numpy()[:-1]).all()


def test_a_rank_that_starts_late_ends_late_and_its_peers_only_where_they_wait_for_it():
    shape, late = Attention(1024, 8, ranks=4), [0, 0, 50_000_000, 0]
    for how, wait in (("piggyback", False), ("serial", True)):
        policy = POLICIES[how]
        even = run(H100, shape, policy).outcome
        fabric = H100.fabric(4, 4096)
        delayed = simulate(build(H100, shape, policy, late), fabric, trace="off")
        ends = [int(delayed.outcome.lanes["end_ps"][delayed.program.lanes["gpu"] == rank].max()) for rank in (0, 2)]
        assert ends[1] == pytest.approx(even.lanes_end_ps + 50e6, rel=0.01)
        assert (ends[0] > even.lanes_end_ps + 40e6) == wait


def test_fp8_halves_what_goes_in_and_keeps_what_comes_out():
    wide, narrow = (Attention(4096, 8, ranks=4, inputs=inputs) for inputs in ("bf16", "fp8"))
    assert narrow.qkv_bytes_sent == wide.qkv_bytes_sent / 2
    assert narrow.output_bytes_sent == wide.output_bytes_sent
    assert (narrow.tile("fa3").block_n, wide.tile("fa3").block_n) == (224, 176)
    assert (
        run(H100, narrow, Policy("serial"), trace="off").outcome.ports["bytes"][:4].tolist()
        == [narrow.output_bytes_sent] * 4
    )


def test_a_collective_of_its_own_joins_launches_and_sends_as_tasks_of_their_own():
    """So that a span named launch is the launch alone, not the wait for attention before it."""
    spans = run(H100, Attention(1024, 8, ranks=4), POLICIES["serial"]).spans().groupby("phase").span_us.max()
    assert spans["launch"] == pytest.approx(H100.interconnect.collective_launch.value / 1e6)
    assert spans["join"] > spans["launch"]


# --- padded head dims


def alone_ps(machine, head_dim, value_dim=None):
    shape = Attention(2048, 6, head_dim, value_dim=value_dim)
    return run(machine, shape, Policy("compute_only"), trace="off").makespan_ps


def test_fa3_computes_the_padded_head_dim():
    """64, 96, 128, 192 and 256 columns (`round_up_headdim` of hopper/flash_api.cpp): within a class only Q and O differ."""
    times = {dim: alone_ps(H100, dim) for dim in (40, 64, 65, 96, 97, 128, 129, 192, 193, 256)}
    assert list(times.values()) == sorted(times.values())
    for narrow, padded in ((40, 64), (65, 96), (97, 128), (129, 192), (193, 256)):
        assert times[narrow] == pytest.approx(times[padded], rel=0.04)
    assert times[65] > 1.15 * times[64]


def test_fa3_pads_values_to_a_kernel_that_there_is_beside_the_keys():
    assert alone_ps(H100, 192, 100) == pytest.approx(alone_ps(H100, 192, 128), rel=0.01)
    beside_64 = [Attention(2048, 6, 64, value_dim=dim).tile("fa3") for dim in (40, 72, 300)]
    assert [(tile.block_m, tile.block_n, tile.value_dim) for tile in beside_64] == [
        (192, 192, 64),
        (128, 96, 256),
        (64, 64, 512),
    ]


def test_fa4_pads_head_dims_to_a_multiple_of_16():
    dims = (100, 112, 113, 128)
    tiles = [Attention(2048, 6, dim).tile("fa4") for dim in dims]
    assert [(tile.head_dim, tile.value_dim) for tile in tiles] == [(112, 112), (112, 112), (128, 128), (128, 128)]
    assert [tile.multicast for tile in tiles] == [1, 1, 2, 2]  # pairs of CTAs only with 128 columns
    times = [alone_ps(B200, dim) for dim in dims]
    assert times == sorted(times)


# --- refusals


@pytest.mark.parametrize(
    "change, said",
    [
        ({"heads": 6}, "ranks = 4.*cannot share out the heads.*a divisor of 6 heads"),
        ({"tokens": 1001}, "tokens = 1001.*a multiple of 4 ranks"),
        ({"kv_heads": 3}, "kv_heads = 3.*a divisor of 8 heads"),
        ({"batch": 0}, "batch = 0: must be at least 1"),
        ({"inputs": "fp4"}, r"inputs = 'fp4': is unknown \(allowed: bf16, fp8\)"),
    ],
)
def test_shapes_that_cannot_be_shared_out_are_refused(change, said):
    with pytest.raises(InputError, match=said):
        Attention(**({"tokens": 1024, "heads": 8, "ranks": 4} | change))


def test_machines_that_do_not_fit_are_refused():
    shape = Attention(1024, 16, ranks=16)
    with pytest.raises(InputError, match=r"ranks = 16: more than GPUs \(allowed: 1 to 8\)"):
        build(H100, shape, Policy())
    with pytest.raises(InputError, match="starts_ps = 3: needs one start a rank"):
        build(H100, Attention(1024, 8, ranks=4), Policy(), [0, 0, 0])
    with pytest.raises(InputError, match="reserved_sms = 6: leaves no SM to compute"):
        build(H100, Attention(1024, 8, ranks=4), Policy("reserved_sms", reserved_sms=6))
    with pytest.raises(InputError, match=r"compute\.attention_mma_efficiency: is not given for hgx-h100"):
        build(small(**{"compute.attention_mma_efficiency": None}), Attention(1024, 8), Policy())
    with pytest.raises(InputError, match=r"interconnect\.all_to_all_rate: is not given"):
        bare = small(**{"interconnect.all_to_all_rate": None})
        build(bare, Attention(1024, 8, ranks=4), Policy("serial"))


def test_policies_that_mean_nothing_are_refused():
    with pytest.raises(InputError, match="policy = 'parallel': is unknown"):
        Policy("parallel")
    with pytest.raises(InputError, match="reserved_sms = 0: does not fit the policy"):
        Policy("reserved_sms")
    with pytest.raises(InputError, match="family = 'fa2': is unknown"):
        tile_of("fa2", 128, 128, causal=False, tokens=1024)
    with pytest.raises(InputError, match="inputs = 'fp8': has no fa4 kernel here"):
        tile_of("fa4", 128, 128, causal=False, tokens=1024, inputs="fp8")
    with pytest.raises(InputError, match="value_dim = 128: has no fa4 kernel here"):
        tile_of("fa4", 256, 128, causal=False, tokens=1024)
    with pytest.raises(InputError, match=r"head_dim = 512.*has no fa3 kernel"):
        tile_of("fa3", 512, 512, causal=False, tokens=1024)


@pytest.mark.parametrize(
    "family, head_dim, most", [("fa3", 64, 512), ("fa3", 128, 128), ("fa4", 64, 128), ("fa4", 256, 256)]
)
@pytest.mark.parametrize("value_dim", [513, 10**12, 10**30])
def test_values_wider_than_a_kernel_are_refused(family, head_dim, most, value_dim):
    said = rf"value_dim = {value_dim}: has no {family} kernel here \(allowed: 1 to {most} for head_dim {head_dim}\)"
    with pytest.raises(InputError, match=said):
        build(MACHINE[family], Attention(1024, 6, head_dim, value_dim=value_dim), Policy())


def test_an_all_to_all_of_very_long_sequences_takes_several_stores():
    """One store is at most 2 GiB; a rank of two sends 4 GiB for each of its heads."""
    shape = Attention(2**24, 2, 256, 2)
    program = build(H100, shape, Policy("serial"))
    task = np.flatnonzero(program.tasks["phase"] == program.phases.index("a2a"))[0]
    run = program.runs[program.tasks["first_run"][task]]
    ops = program.ops[run["first_op"] : run["first_op"] + run["n_ops"]]
    assert ops["bytes"].sum() == shape.output_bytes_sent
    assert len(ops) == 4 + 1
    assert ops["count"][-1] == 4


@pytest.mark.parametrize("size", [{"tokens": 8 * 10**15}, {"batch": 10**15}, {"tokens": 8 * 10**30}])
def test_more_tiles_than_can_be_written_down_are_refused_before_any_table_is_made(size):
    shape = Attention(**{"tokens": 8192, "heads": 8, "ranks": 8} | size)
    with pytest.raises(InputError, match=r"tokens x heads x batch = .*: makes too many ops"):
        build(H100, shape, Policy("piggyback"))


def test_query_heads_of_a_rank_share_the_keys_and_values_that_it_has():
    """16 query heads and 2 K and V heads on 8 ranks: each rank reads one K and V head for two query heads, not for eight."""
    machine, tokens, batch = load_machine("hgx-h100", {"compute.hbm_rate": "300 GB/s"}), 128, 512
    shape = Attention(tokens, 16, 128, ranks=8, batch=batch, kv_heads=2)
    took = simulate(build(machine, shape, Policy("compute_only")), machine.fabric(8), trace="off").makespan_ps
    moved = 2 * batch * tokens * 128 * (2 * 2 + 2 * 1)
    assert took >= moved * 1e9 / machine.compute.hbm_rate.value


@pytest.mark.parametrize(
    ("tokens", "causal", "steps"), [(288, True, 15), (288, False, 27), (1152, True, 180), (1152, False, 324)]
)
def test_the_last_packed_tiles_are_those_that_have_tokens(tokens, causal, steps):
    """8 heads in tiles of 32 tokens: 288 tokens are 9 tiles, 1152 are 36; a step is 128 tokens."""
    shape = Attention(tokens, 64, kv_heads=8, causal=causal)
    tile = shape.tile("fa4")
    costs = AttentionCosts.of(load_machine("hgx-b200"))
    assert 8 * tile_times(costs, tile, shape).steps.sum() == steps
