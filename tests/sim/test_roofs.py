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
    assert roof(made, "Tensor Cores")["least_us"] == pytest.approx(flops / compute.fp8_tflops.value / 1e6)


def test_the_egress_is_as_busy_as_the_ports_were():
    made = xs.run("gemm-rs-llama-fused")
    assert roof(made, "egress")["use_pct"] == pytest.approx(made.metrics["egress_use_pct"])
    shape = made.resolved.scenario.workload
    sent = (1 - 1 / shape.gpus) * shape.m * shape.n * 2
    assert roof(made, "egress")["amount"] == pytest.approx(sent)


def test_what_l2_gives_is_the_less_of_its_throughput_and_what_sms_take_in():
    changed = {"machine.compute.l2_throughput": "1000 GB/s"}
    made, narrow = (xs.run("megamoe-lag-h100", overrides=given) for given in (None, changed))
    assert roof(narrow, "L2")["most_gbs"] == pytest.approx(1000)
    assert roof(narrow, "L2")["amount"] == roof(made, "L2")["amount"]
    assert roof(narrow, "L2")["use_pct"] <= 100


def test_bursts_have_no_roof_but_the_egress():
    assert [one["part"] for one in xs.run("isolated-burst").metrics["roofs"]] == ["egress"]
