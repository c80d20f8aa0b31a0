"""Roofs of a run: what the shape needs by the numbers of the machine, and never more than there was time for."""

import pytest

import xstage as xs

CASES = ("megamoe-flash-wave", "megamoe-lag-h100", "gemm-rs-llama-fused", "attention-wan-piggyback", "isolated-burst")


@pytest.fixture(scope="module", params=CASES)
def run(request):
    return xs.run(request.param)


def roof(run, part):
    [found] = [one for one in run.metrics["roofs"] if one["part"].startswith(part)]
    return found


def test_no_part_does_more_than_it_can(run):
    assert run.metrics["roofs"]
    for one in run.metrics["roofs"]:
        assert 0 < one["use_pct"] <= 100


def test_tensor_cores_need_the_flops_of_the_shape_at_the_peak():
    made = xs.run("megamoe-lag-h100")
    shape, compute = made.program.meta["shape"], made.resolved.machine.compute
    rows = shape["tokens"] * (shape["topk"] + shape["shared_experts"])
    flops = roof(made, "Tensor Cores")["amount"]
    assert flops == pytest.approx(
        6 * rows * shape["hidden"] * shape["intermediate"], rel=0.05
    )  # a rank's share is random
    reached = compute.fp8_tflops.value * compute.mma_efficiency_fp8.value
    assert roof(made, "Tensor Cores")["least_us"] == pytest.approx(flops / reached / 1e6)


def test_attention_reaches_the_efficiency_of_its_own_products():
    made = xs.run("attention-wan-piggyback")
    compute = made.resolved.machine.compute
    reached = compute.bf16_tflops.value * compute.attention_mma_efficiency.value
    assert compute.attention_mma_efficiency.value != compute.mma_efficiency_bf16.value
    assert roof(made, "Tensor Cores")["most_tflops"] == pytest.approx(reached)


def test_the_egress_is_as_busy_as_the_ports_were():
    made = xs.run("gemm-rs-llama-fused")
    busiest = made.trace.outcome.ports["busy_ps"][: made.fabric.n_gpus].max() / 1e6
    assert roof(made, "egress")["use_pct"] == pytest.approx(100 * busiest / made.makespan_us)
    shape = made.resolved.scenario.workload
    sent = (1 - 1 / shape.gpus) * shape.m * shape.n * 2
    assert roof(made, "egress")["amount"] == pytest.approx(sent)


def memory_of(run):
    return run.program.meta["memory_bytes"]


def test_what_l2_gives_is_operands_by_what_sms_take_in_or_operands_and_fills_by_its_throughput():
    made, narrow = (
        xs.run("megamoe-lag-h100", overrides={"machine.compute.l2_throughput": rate})
        for rate in ("100000 GB/s", "1000 GB/s")
    )
    feed = made.resolved.machine.compute.sm_feed.value / 1e6 * made.resolved.machine.sms
    assert roof(made, "L2")["most_gbs"] == pytest.approx(feed)
    assert roof(made, "L2")["amount"] == max(rank["l2_to_sm"] for rank in memory_of(made))
    assert roof(narrow, "L2")["most_gbs"] == pytest.approx(1000)
    assert roof(narrow, "L2")["amount"] == max(rank["l2_to_sm"] + rank["hbm_weights"] for rank in memory_of(narrow))
    assert 90 < roof(narrow, "L2")["use_pct"] <= 100


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("HBM", {"hbm_rate": "100 GB/s"}),
        ("L2", {"sm_feed": "1 GB/s"}),
        ("L2", {"l2_throughput": "300 GB/s"}),
        ("Tensor Cores", {"fp8_tflops": 2}),
    ],
    ids=str,
)
def test_a_run_that_one_part_holds_up_all_the_time_is_at_its_roof(part, changes):
    """The lag kernel computes whole tiles of 128 rows, whatever they hold."""
    changes = {f"machine.compute.{name}": value for name, value in changes.items()} | {"workload.tokens": 2048}
    made = xs.run("megamoe-lag-h100", overrides=changes)
    fill = made.program.meta["m_block_fill"]
    filled = fill["mean_rows"] / fill["block_m"] if part == "Tensor Cores" else 1
    assert 95 * filled < roof(made, part)["use_pct"] <= 100


def test_measured_main_loops_are_not_bound_by_the_efficiency_of_the_machine():
    given = {"workload.tokens": 1024, "workload.l1_main_loop": "10 us", "workload.l2_main_loop": "5 us"}
    found = xs.run("megamoe-flash-wave", overrides=given)
    assert roof(found, "Tensor Cores")["efficiency"] == roof(found, "HBM")["efficiency"] == 1
    assert not [one for one in found.metrics["roofs"] if one["part"] == "L2 cache"], (
        "its rate is fitted to other main loops"
    )


def test_bursts_have_no_roof_but_those_of_the_ports():
    found = xs.run("isolated-burst").metrics["roofs"]
    assert [(one["part"], one["where"]) for one in found] == [("egress", "egress 0"), ("ingress", "ingress 1")]


def all_to_all(gpus, size, /, **interconnect):
    """Each GPU stores `size` bytes evenly over all others; both directions of a port at once cost nothing."""
    train = {"kind": "burst_train", "gpus": gpus, "producers": 4, "burst": f"{size // 4} B", "mode": "isolated",
             "destination": "all", "senders": "all"}  # fmt: skip
    overrides = {f"interconnect.{name}": value for name, value in interconnect.items()}
    machine = {"base": "hgx-b200", "overrides": {"interconnect.duplex_efficiency": 1.0} | overrides}
    return xs.run({"question": "q", "machine": machine, "workload": train, "granule": "1 KiB"})


def test_the_core_of_an_oversubscribed_switch_carries_what_all_gpus_send():
    size = 7 * 2**18
    made = all_to_all(8, size, kind="oversubscribed_switch", oversubscription=4, drain_rate="700 GB/s")
    link = roof(made, "link")
    assert (link["where"], link["amount"]) == ("link switch>core", 8 * size)
    assert link["least_us"] == pytest.approx(8 * size / (8 * 700e3 / 4), rel=1e-3)
    assert link["use_pct"] > 3 * roof(made, "egress")["use_pct"]


def test_a_nic_carries_what_leaves_its_node():
    wiring = {"kind": "islands", "drain_rate": "700 GB/s", "gpus_per_node": 2, "nic_rate": "50 GB/s",
              "nic_latency": "3 us", "gpus": 4}  # fmt: skip
    size = 3 * 2**18
    link = roof(all_to_all(4, size, **wiring), "link")
    assert link["where"] in [f"link {way}" for gpu in range(4) for way in (f"{gpu}>network", f"network>{gpu}")]
    assert link["amount"] == size * 2 / 3
    assert link["least_us"] == pytest.approx(size * 2 / 3 / 50e3, rel=1e-3)


def test_the_busiest_link_of_a_mesh_is_the_one_that_others_pass_through():
    """0 - 1 = 2, of half the rate on the left: 0 > 1 carries what 0 sends to both, 1 > 2 as much, twice as quickly."""
    links = [{"between": [0, 1], "rate": "50 GB/s"}, {"between": [1, 2], "rate": "100 GB/s"}]
    size = 2**20
    link = roof(all_to_all(3, size, kind="custom", gpus=3, drain_rate=None, links=links), "link")
    assert link["where"] in ("link 0>1", "link 1>0")
    assert link["amount"] == size
    assert link["least_us"] == pytest.approx(size / 50e3, rel=1e-3)


def test_the_rank_that_does_most_stands_for_all():
    made = xs.run("megamoe-flash-skewed", overrides={"workload.tokens": 256})
    flops = made.program.meta["flops"]
    assert max(flops) > 1.1 * sum(flops) / len(flops)
    assert roof(made, "Tensor Cores")["amount"] == max(flops)
    assert roof(made, "Tensor Cores")["where"] == f"rank {flops.index(max(flops))}"


def test_the_port_of_a_degraded_link_stands_for_all():
    made = xs.run("uniform-all-to-all", overrides={"disturb.degraded_link": {"gpu": 3, "factor": 0.5}})
    assert roof(made, "egress")["where"] == "egress 3"


def test_hbm_moves_weights_and_what_the_combine_reads_and_writes():
    made = xs.run("megamoe-flash-skewed", overrides={"workload.tokens": 256})
    moved = max(rank["hbm_weights"] + rank["hbm_combine"] for rank in made.program.meta["memory_bytes"])
    [hbm] = [one for one in made.metrics["roofs"] if one["part"] == "HBM"]
    assert hbm["amount"] == moved
    compute = made.resolved.machine.compute
    assert hbm["least_us"] == pytest.approx(moved / (compute.hbm_rate.value / 1e3 * compute.hbm_efficiency.value))


@pytest.mark.parametrize(("ranks", "where"), [("all", "rank "), ("symmetric", "the busiest rank")])
def test_a_rank_that_stands_for_all_has_no_number(ranks, where):
    overrides = {"workload.tokens": 1024, "workload.ranks": ranks}
    found = xs.run("megamoe-flash-wave", overrides=overrides).metrics["roofs"]
    of_ranks = [one["where"] for one in found if one["part"].startswith(("Tensor Cores", "HBM", "L2"))]
    assert of_ranks and all(told.startswith(where) for told in of_ranks)
