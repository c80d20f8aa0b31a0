"""An assumption that can decide an answer is named with it."""

from functools import partial

import pytest
from xstage.scenarios.cautions import block_cautions, cautions
from xstage.scenarios.loader import load_scenario
from xstage.scenarios.machine_files import load_machine
from xstage.sim.execute import simulate
from xstage.sim.layers import Kernel
from xstage.sim.predict import GemmCall
from xstage.sim.schedules.tensor_parallel import Policy, TensorParallel

SLOW = {"disturb.degraded_link": {"gpu": 1, "factor": 0.5}}


def said(name, **changes):
    resolved = load_scenario(name, changes)
    return cautions(resolved, resolved.program())


def test_a_degraded_link_beside_pulls_names_the_arbitration_that_is_assumed():
    [sentence] = said("megamoe-flash-skewed", **SLOW)
    assert "beside a degraded link" in sentence
    assert "this run has fifo; compare machine.interconnect.reply_arbitration=fair" in sentence


NETWORK = "machine.interconnect.nic_rate"


@pytest.mark.parametrize(("changes", "named"), [({}, 1), ({NETWORK: "400 GB/s"}, 0), ({"workload.gpus": 8}, 0)])
def test_so_does_a_network_that_is_slower_than_the_ports_before_it(changes, named):
    """43 GB/s of the network behind 350 GB/s; loads as well as stores cross it."""
    resolved = load_scenario(RAILS, {"workload.gpus": 16, **changes})
    found = [text for text in cautions(resolved, resolved.program()) if "share a port" in text]
    assert len(found) == named
    assert all("interfaces of 43 GB/s lie behind ports of 350 GB/s" in text for text in found)


@pytest.mark.parametrize(("name", "changes"), [("megamoe-flash-skewed", {}), ("uniform-all-to-all", SLOW)])
def test_nothing_is_said_without_one_or_without_loads(name, changes):
    assert not said(name, **changes)


LINK = "machine.interconnect.drain_rate"


@pytest.mark.parametrize(
    ("name", "rate"),
    [("gemm-rs-llama-serial", "ring_rate = 371"), ("attention-wan-serial", "all_to_all_rate = 87.6")],
)
def test_collectives_that_stay_where_the_links_become_faster_are_named(name, rate):
    sentence, *_ = said(name, **{"machine": "hgx-h100", LINK: "700 GB/s"})
    assert (
        f"drain_rate of the interconnect changed, but {rate} GB/s is still that of the links as they were" in sentence
    )


@pytest.mark.parametrize(
    "changes",
    [
        {LINK: "700 GB/s", "machine.interconnect.ring_rate": "690 GB/s"},
        {LINK: "51 GB/s"},  # slower links hold the collective up
        {LINK: "51 GB/s", "machine.interconnect.ring_rate": "51 GB/s"},  # 50.49 with both directions busy
        {LINK: "700 GB/s", "workload.policy": "fused"},  # no collective of its own
        {},
    ],
)
def test_nothing_is_said_where_collectives_follow_the_links(changes):
    assert not said("gemm-rs-llama-serial", **changes)


@pytest.mark.parametrize("policy", ["serial", "fused"])
@pytest.mark.parametrize(("drain", "named"), [("400 GB/s", 1), ("310 GB/s", 0)])
def test_an_all_reduce_in_the_switch_counts_its_data_going_and_coming(policy, drain, named):
    """Of n bytes each of 8 ranks sends n (1 + 1/8) through its port, and 2 n 7/8 count: 480 GB/s need ports of 309 GB/s, or
    312 with both directions busy. Wider ones do not hold it up, whether it is a collective of its own or the kernel's.
    """
    found = said("gemm-ar-in-switch", **{"machine": "hgx-h100", LINK: drain, "workload.policy": policy})
    assert len(found) == named
    assert all("all_reduce_rate = 480 GB/s is still that of the links as they were" in text for text in found)


@pytest.mark.parametrize(
    ("name", "policy"), [("gemm-ar-in-switch", "compute_only"), ("attention-wan-serial", "comm_warp")]
)
def test_a_rate_that_the_schedule_does_not_send_at_is_not_named(name, policy):
    assert not said(name, **{"machine": "hgx-h100", LINK: "700 GB/s", "workload.policy": policy})


RING_RATE = "machine.interconnect.ring_rate"
ALL_REDUCE = "machine.interconnect.all_reduce_rate"
A2A = "machine.interconnect.all_to_all_rate"


@pytest.mark.parametrize(
    ("name", "changes", "given", "reached"),
    [
        ("gemm-rs-llama-serial", {RING_RATE: "600 GB/s"}, 600, 346.5),
        ("gemm-rs-llama-serial", {"workload.policy": {"name": "serial", "rate": "450 GB/s"}}, 450, 346.5),
        ("attention-wan-serial", {"workload.policy": {"name": "serial", "rate": "450 GB/s"}}, 450, 346.5),
        ("attention-wan-serial", {A2A: "450 GB/s", LINK: "400 GB/s"}, 450, 396),
        ("gemm-ar-in-switch", {ALL_REDUCE: "900 GB/s", "workload.policy": "serial"}, 900, 539),
        ("gemm-ar-in-switch", {ALL_REDUCE: "900 GB/s", "workload.policy": "fused"}, 900, 539),
        ("gemm-ar-in-switch", {"workload.policy": {"name": "serial", "rate": "900 GB/s"}}, 900, 693),
    ],
)
def test_a_rate_that_somebody_asked_for_is_no_faster_than_the_ports(name, changes, given, reached):
    """350 GB/s drain, of which 0.99 is left with both directions busy. An AllReduce counts data going and coming, and in the
    switch its ports carry 9/8 of that for 14/8 counted, unless the policy says its rate: then only sums take ports.
    """
    resolved, slower = (
        load_scenario(name, {"machine": "hgx-h100", **changes, **more}) for more in ({}, _at(reached, changes))
    )
    [sentence] = cautions(resolved, resolved.program())
    assert f"rate of {given} GB/s is above the {reached:g} GB/s that ports drain" in sentence
    took, at_most = (simulate(one.program(), one.fabric(), trace="off").makespan_ps for one in (resolved, slower))
    assert took == pytest.approx(at_most, rel=0.01)
    assert not cautions(slower, slower.program())


def _at(rate, changes):
    """The same changes with another rate of the collective."""
    path = next(path for path in changes if path != LINK)
    if path != "workload.policy":
        return {path: f"{rate} GB/s"}
    return {path: {key: value if key == "name" else f"{rate} GB/s" for key, value in changes[path].items()}}


def test_a_rate_of_the_machine_that_its_ports_hold_up_is_named_with_what_they_drain():
    """Of hgx-b200 634 GB/s are assumed; on links of 300 no collective sends faster, and 73 stay as credible as they were."""
    [sentence] = said("attention-wan-serial", machine="hgx-b200", **{LINK: "300 GB/s"})
    assert (
        "sends at 300 GB/s, which is all that ports drain of all_to_all_rate = 634 GB/s, which is assumed" in sentence
    )
    assert not said("attention-wan-serial", machine="hgx-b200", **{LINK: "80 GB/s"})  # nothing to choose between


def test_a_collective_at_a_rate_that_is_assumed_tells_what_else_is_credible():
    """The speedup of the piggybacked stores of this attention is 1.19 at 87.6 GB/s, and next to nothing at 450."""
    [sentence] = said("attention-wan-serial", machine="hgx-h100")
    assert "all_to_all_rate = 87.6 GB/s, which is assumed; credible are 73 to 450 GB/s" in sentence


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("attention-wan-serial", {"workload.policy": "piggyback"}),
        ("attention-wan-serial", {"workload.policy": {"name": "serial", "rate": "300 GB/s"}}),
        (
            "attention-wan-serial",
            {"machine.interconnect.all_to_all_rate": "300 GB/s"},
        ),  # chosen, so not a guess of ours
        ("attention-wan-serial", {"machine": "xstage-hopper"}),  # fitted
        ("gemm-rs-llama-serial", {}),
    ],
)
def test_nothing_is_said_where_no_collective_sends_at_such_a_rate(name, changes):
    assert not said(name, **{"machine": "hgx-h100", **changes})


@pytest.mark.parametrize(("rate", "warned"), [("100 GB/s", False), ("20 GB/s", True)])
def test_one_rank_that_stands_for_all_is_doubted_where_its_ports_are_busy(rate, warned):
    """Of 8 ranks with 16 SMs and 20 GB/s each, one alone is a quarter faster than all together."""
    few = {"hidden": 2048, "intermediate": 512, "experts": 32, "topk": 4, "tokens": 1024, "numbers": "w8a8"}
    changes = {"machine.compute.sms": 16, LINK: rate, "machine.compute.fp8_tflops": 4500}
    scenario = {
        "question": "How long?",
        "machine": "hgx-b200",
        "workload": {"kind": "megamoe", "gpus": 8, "ranks": "symmetric", "policy": "expert_wave", **few},
    }
    resolved = load_scenario(scenario, changes)
    trace = simulate(resolved.program(), resolved.fabric(), trace="off")
    found = cautions(resolved, trace.program, trace)
    assert ["workload.ranks=all" in sentence for sentence in found] == [True] * warned


def test_sms_that_share_the_tensor_core_rates_of_more_or_fewer_are_named():
    [sentence] = said("megamoe-flash-wave", **{"machine.compute.sms": 128})
    assert "set machine.compute.bf16_tflops or fp8_tflops or fp4_tflops in proportion" in sentence
    assert not said("megamoe-flash-wave", **{"machine.compute.sms": 128, "machine.compute.fp8_tflops": 3891.9})


RAILS = {
    "question": "How long?",
    "machine": "hgx-h100-rails",
    "workload": {"kind": "megamoe", "model": "dsv4-flash", "tokens": 64, "policy": "expert_wave"},
}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, "8 of the 16 GPUs of hgx-h100-rails take part"),
        ({"workload.gpus": 16, NETWORK: "400 GB/s"}, "each row crosses on its own"),
        ({"workload.gpus": 8}, None),
    ],
)
def test_gpus_that_nobody_chose_and_rows_that_cross_nodes_are_named(changes, named):
    resolved = load_scenario(RAILS, changes)
    found = cautions(resolved, resolved.program())
    assert [named in sentence for sentence in found] == [True] * bool(named)


def test_a_number_of_gpus_that_nobody_chose_stays_so_under_another_policy():
    workload = load_scenario(RAILS).scenario.workload
    assert "gpus" not in workload.with_policy("interleaved", {}).model_fields_set


def test_a_train_has_no_tensor_cores_to_be_named():
    assert not said("periodic-train", **{"machine.compute.sms": 160})


# --- GEMMs


def gemm(machine="hgx-h100", **workload):
    sizes = {"operation": "gemm_rs", "m": 4096, "n": 8192, "k": 28672, "policy": "fused", "gpus": 8}
    resolved = load_scenario(
        {"question": "?", "machine": machine, "workload": {"kind": "tensor_parallel", **sizes, **workload}}
    )
    return cautions(resolved, resolved.program())


def test_too_few_tiles_for_the_sms_are_named():
    """64 rows and 8192 columns are 32 tiles of 128 x 256."""
    few = {"m": 64, "policy": "compute_only"}
    [sentence] = gemm(**few)
    assert sentence.startswith(
        "tiles of 128 x 256 are fewer than half of the 132 SMs; libraries take smaller tiles there"
    )
    assert not gemm(**few, block_m=64)
    assert not gemm(**few, block_n=128)
    assert "half of the 66 SMs" in gemm(**few, grid=66)[0]
    assert not gemm(**few, grid=64)
    assert not gemm(m=384)


@pytest.mark.parametrize("policy", [{"name": "fused"}, {"name": "reserved_sms", "sms": 16, "rotation": False}])
def test_rows_of_one_owner_at_a_time_are_named_where_gpus_have_links_of_their_own(policy):
    [sentence] = gemm("hgx-h100-rails", gpus=16, policy=policy)
    assert sentence.startswith(f"under {policy['name']} without rotation all ranks send to one owner of rows at a time")
    assert not [text for text in gemm("hgx-h100-rails", gpus=16, policy=policy, m=128, block_m=128) if "owner" in text]
    assert not gemm("hgx-h100-rails", policy=policy)  # 8 GPUs of one node
    assert not gemm("hgx-h100-rails", gpus=16, policy="reshaped")
    assert not gemm("hgx-h100-rails", gpus=16, policy=policy | {"rotation": True})


def test_rows_that_are_all_there_count_as_they_are_cut():
    """64 rows of 8 ranks are one block of rows for a GEMM after its AllGather, and 8 where they come rank by rank: 11 or 88
    tiles for the 11 x 256 columns of a rank.
    """
    few = {"operation": "ag_gemm", "m": 64, "n": 8 * 11 * 256, "k": 8192}
    assert [len(gemm(**few, policy=policy)) for policy in ("serial", "fused")] == [1, 0]


def test_a_collective_whose_granules_do_not_fit_beside_each_other_is_named_where_links_would_rest():
    """30 KiB of an SM hold 15 granules of 2 KiB, one for each peer of 16 ranks, and 7 of 4 KiB."""
    resolved = [
        load_scenario({
            "question": "?", "granule": granule,
            "machine": {"base": "hgx-h100", "overrides": {"interconnect.kind": "direct", "interconnect.gpus": 16,
                        "interconnect.drain_rate": None, "interconnect.link_rate": "25 GB/s"}},
            "workload": {"kind": "tensor_parallel", "operation": "ag_gemm", "m": 4096, "n": 57344, "k": 8192,
                         "policy": "serial", "gpus": gpus},
        })
        for granule, gpus in (("2 KiB", 16), ("4 KiB", 16), ("4 KiB", 8))
    ]  # fmt: skip
    said = [finer_granule(one) for one in resolved]
    assert [len(texts) for texts in said] == [0, 1, 0]
    assert "stores to 15 peers from one SM, whose room holds 7 of the granules of 4 KiB" in said[1][0]


def finer_granule(resolved):
    """Warnings about the granule that a run ends with."""
    program = resolved.program()
    found = cautions(resolved, program, simulate(program, resolved.fabric(), trace="off"))
    return [text for text in found if "finer granule" in text]


def test_no_finer_granule_is_asked_for_where_the_network_is_always_busy():
    """Granules to 15 peers do not fit beside each other, but the network interface has enough of them at any time."""
    resolved = load_scenario({
        "question": "?", "machine": "hgx-h100-rails", "granule": "4 KiB",
        "workload": {"kind": "attention_a2a", "heads": 64, "head_dim": 128, "tokens": 32768, "policy": "serial", "gpus": 16},
    })  # fmt: skip
    assert finer_granule(resolved) == []


MESH = {"interconnect.kind": "direct", "interconnect.drain_rate": None, "interconnect.link_rate": "50 GB/s"}
RING = {**MESH, "interconnect.kind": "ring", "interconnect.hop_latency": "0.2 us"}
CUBE = {**RING, "interconnect.kind": "hybrid_cube_mesh"}
PAIRS = [{"between": [a, b], "rate": "50 GB/s"} for a in range(8) for b in range(a)]
LINKS = {"interconnect.kind": "custom", "interconnect.drain_rate": None, "interconnect.links": PAIRS}
LEAF = {**LINKS, "interconnect.links": [{"between": ["0-7", "leaf"], "rate": "350 GB/s"}]}


def on(wiring, base="hgx-h100"):
    return {"base": base, "overrides": wiring}


def attention(machine, granule="1 KiB", **workload):
    sizes = {"kind": "attention_a2a", "heads": 64, "kv_heads": 8, "tokens": 2048, "gpus": 8, "causal": True}
    resolved = load_scenario(
        {"question": "?", "machine": machine, "granule": granule, "workload": {**sizes, **workload}}
    )
    program = resolved.program()
    return cautions(resolved, program, simulate(program, resolved.fabric(), trace="off"))


def test_so_is_that_of_attention():
    """30 KiB of an SM hold 1 granule of 16 KiB; on links of its own each of 7 peers could take one at a time."""
    mesh = on(MESH | {"interconnect.all_to_all_rate": "350 GB/s"})
    [sentence] = attention(mesh, "16 KiB", policy="serial")
    assert "stores to 7 peers from one SM, whose room holds 1 of the granules of 16 KiB" in sentence
    assert not attention(mesh, "4 KiB", policy="serial")
    assert not [text for text in attention("hgx-h100", "16 KiB", policy="serial") if "granule" in text]


@pytest.mark.parametrize("policy", [{"name": "piggyback"}, {"name": "comm_warp"}, {"name": "reserved_sms", "sms": 8}])
def test_output_rows_of_one_owner_at_a_time_are_named_where_gpus_have_links_of_their_own(policy):
    for machine, gpus in (("hgx-h100-rails", 16), (on(MESH), 8)):
        [sentence] = attention(machine, gpus=gpus, policy=policy)
        assert "all ranks send to one owner of rows, or to a few, at a time" in sentence
        assert "rotation: true" in sentence
        assert not attention(machine, gpus=gpus, policy=policy | {"rotation": True})
    assert not attention("hgx-h100", policy=policy)
    assert not attention(on(MESH), gpus=8, policy="compute_only")


@pytest.mark.parametrize("wiring", [MESH, RING, CUBE, LINKS])
@pytest.mark.parametrize(
    ("operation", "algorithm", "policy", "does"),
    [
        ("gemm_ar", "in_switch", "fused", "adds up"),
        ("gemm_ar", "in_switch", "serial", "adds up"),
        ("gemm_ar", "multicast", "fused", "copies"),
        ("gemm_ar", "one_shot", "reshaped", "copies"),
        ("ag_gemm", "multicast", "fused", "copies"),
    ],
)
def test_an_algorithm_that_needs_a_switch_is_named_where_there_is_none(wiring, operation, algorithm, policy, does):
    how = {"operation": operation, "algorithm": algorithm, "policy": policy, "m": 1024}
    [sentence] = [text for text in gemm(on(wiring), **how) if "switch" in text]
    assert sentence.startswith(f"{algorithm} needs a switch that {does}, and only links join GPUs here")


@pytest.mark.parametrize(
    ("wiring", "how"),
    [
        (MESH, {"algorithm": "two_shot", "policy": "fused"}),
        (MESH, {"algorithm": "multicast", "policy": "serial"}),  # sends as every collective of its own
        (MESH, {"algorithm": "in_switch", "policy": "compute_only"}),
        (LEAF, {"algorithm": "in_switch", "policy": "fused"}),
        ({}, {"algorithm": "multicast", "policy": "fused"}),
    ],
)
def test_and_not_where_there_is_one_or_none_is_needed(wiring, how):
    assert not [text for text in gemm(on(wiring), operation="gemm_ar", m=1024, **how) if "switch" in text]


def test_gemms_of_a_block_are_named():
    machine = load_machine("hgx-h100")
    few = TensorParallel("gemm_rs", 64, 8192, 28672, 8)
    kernels = [Kernel(name, GemmCall(few, Policy("serial"))) for name in ("up", "down")]
    [sentence] = [text for text in block_cautions(machine, (), 8, kernels, []) if "tiles" in text]
    assert sentence.startswith("of up, down, tiles of 128 x 256 are fewer")


def test_what_a_schedule_between_nodes_is_not():
    on_two = partial(gemm, "hgx-h100-rails", gpus=16, m=8192)
    for operation in ("gemm_rs", "ag_gemm"):
        assert not [text for text in on_two(operation=operation, policy="serial") if "nodes" in text]
    assert not [text for text in on_two(operation="gemm_ar", policy="serial") if "nodes" in text]
    [sentence] = on_two(operation="gemm_ar")
    assert "each tile crosses on its own, and its sum to each rank" in sentence
    for algorithm, does in (("in_switch", "adds up"), ("multicast", "copies"), ("one_shot", "copies")):
        [sentence] = on_two(operation="gemm_ar", algorithm=algorithm)
        assert f"no NVLink switch {does} across them, as {algorithm} does here" in sentence
    assert not [text for text in on_two(operation="ag_gemm", algorithm="multicast") if "switch" in text]
    assert not [text for text in on_two(operation="gemm_ar", algorithm="one_shot", policy="serial") if "switch" in text]
    [sentence] = gemm("hgx-h100-rails", gpus=12, m=8256, k=30720, policy="serial")
    assert "12 ranks are no whole nodes of 8" in sentence
    assert not gemm("hgx-h100-rails", gpus=8, m=8192, operation="gemm_ar")
