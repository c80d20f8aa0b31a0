"""Facts about the workload `tensor_parallel`: what is written, what it becomes, and what is refused."""

import pytest
from xstage.scenarios.loader import build_program, load_scenario
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.schedules.tensor_parallel import Policy, TensorParallel


def scenario(**workload):
    sizes = {"operation": "gemm_rs", "m": 1024, "n": 512, "k": 2048, "gpus": 4}
    return load_scenario(
        {"question": "?", "machine": "hgx-h100", "workload": {"kind": "tensor_parallel", **sizes, **workload}}
    )


@pytest.mark.parametrize(
    "written, plain",
    [
        ("fused", Policy("fused")),
        ({"name": "fused", "rotation": True}, Policy("fused", rotation=True)),
        (
            {"name": "reserved_sms", "sms": 16, "rotation": False},
            Policy("reserved_sms", reserved_sms=16, rotation=False),
        ),
        ({"name": "reshaped", "pieces": 2}, Policy("reshaped", pieces=2)),
        ({"name": "reserved_sms", "sms": 16}, Policy("reserved_sms", reserved_sms=16)),
        ({"name": "serial", "rate": "300 GB/s"}, Policy("serial", rate_kbs=300_000_000)),
    ],
)
def test_policies_are_written_as_text_or_with_their_terms(written, plain):
    assert scenario(policy=written).scenario.workload.plain_policy() == plain


def test_a_scenario_becomes_a_shape_and_runs():
    resolved = scenario(operation="gemm_ar", algorithm="multicast")
    assert resolved.scenario.workload.shape() == TensorParallel("gemm_ar", 1024, 512, 2048, 4, "multicast")
    program, fabric = build_program(resolved)
    assert simulate(program, fabric).outcome.arrived_ps > 0


def test_rotation_is_a_setting_where_rows_are_scattered():
    def settings(**workload):
        choices = scenario(**workload).policies()
        return {name: [setting.key for setting in choice.settings] for name, choice in choices.items()}

    assert settings() == {
        "serial": [],
        "fused": ["rotation"],
        "reserved_sms": ["sms", "rotation"],
        "reshaped": ["pieces"],
    }
    assert settings(operation="gemm_ar") == {"serial": [], "fused": [], "reserved_sms": ["sms"], "reshaped": ["pieces"]}


@pytest.mark.parametrize(
    "workload, said",
    [
        ({"operation": "gemm_sr"}, r"workload\.operation = 'gemm_sr'.*did you mean 'gemm_rs'\?"),
        ({"policy": "reserved_sms"}, r"policy\.sms: is missing"),
        ({"m": 1023}, "m = 1023: cannot be shared out evenly"),
        (
            {"operation": "ag_gemm", "policy": {"name": "fused", "rotation": True}},
            r"policy\.rotation.*: is for rows that are scattered, by operation gemm_rs",
        ),
        ({"policy": {"name": "reshaped", "rotation": False}}, r"policy\.rotation = False: is not a known key"),
    ],
)
def test_what_makes_no_sense_is_refused(workload, said):
    with pytest.raises(InputError, match=said):
        scenario(**workload).program()


@pytest.mark.parametrize("policy", ["fused", "serial", {"name": "reserved_sms", "sms": 16}])
def test_one_degraded_link_slows_a_sum_in_the_switch_like_all(policy):
    """The switch needs the copies of all ranks. Each rank sends n bytes and an eighth of the sums."""
    sizes = {
        "operation": "gemm_ar",
        "algorithm": "in_switch",
        "m": 2048,
        "n": 8192,
        "k": 2048,
        "gpus": 8,
        "policy": policy,
    }
    given = {
        "question": "?",
        "machine": "hgx-h100",
        "granule": "4 KiB",
        "workload": {"kind": "tensor_parallel", **sizes},
    }
    one = load_scenario({**given, "disturb": {"degraded_link": {"gpu": 3, "factor": 0.25}}})
    every = load_scenario(given, {"machine.interconnect.drain_rate": f"{one.machine.drain_kbs('peer', 8) * 0.25} kB/s"})
    times = [simulate(*build_program(resolved)).makespan_ps for resolved in (one, every)]
    assert times[0] == pytest.approx(times[1], rel=0.02)
    assert times[0] > 9 / 8 * 2048 * 8192 * 2 * 1e9 / (0.25 * one.machine.drain_kbs("peer", 8))


@pytest.mark.parametrize("operation", ["gemm_rs", "ag_gemm", "gemm_ar"])
@pytest.mark.parametrize("policy", ["fused", "serial", {"name": "reserved_sms", "sms": 16}, "reshaped", "compute_only"])
def test_a_scenario_that_was_read_can_be_written_and_read_again(operation, policy):
    read = scenario(operation=operation, policy=policy)
    for written in (read.scenario, read.scenario.model_dump(mode="json")):
        assert load_scenario(written).scenario == read.scenario


def test_a_degraded_link_that_nothing_passes_slows_nothing():
    """Eight GPUs of one node: their network interfaces, and the GPUs of the other node, take no part."""
    sizes = {
        "operation": "gemm_ar",
        "algorithm": "in_switch",
        "m": 2048,
        "n": 2048,
        "k": 2048,
        "gpus": 8,
        "policy": "serial",
    }
    given = {"question": "?", "machine": "hgx-h100-rails", "workload": {"kind": "tensor_parallel", **sizes}}
    plain = simulate(*build_program(load_scenario(given))).makespan_ps
    for gpu in (0, 12):
        disturb = {"degraded_link": {"between": [gpu, "network"], "factor": 0.05}}
        assert simulate(*build_program(load_scenario({**given, "disturb": disturb}))).makespan_ps == plain
