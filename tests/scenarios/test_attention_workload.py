"""Facts about the workload `attention_a2a`: models by name, what replaces them, and what is refused."""

import pytest
from xstage.scenarios.attention_models import attention_models
from xstage.scenarios.loader import build_program, load_scenario
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.schedules.attention_a2a import Attention, Policy


def scenario(machine="hgx-h100", **workload):
    return load_scenario({"question": "?", "machine": machine, "workload": {"kind": "attention_a2a", **workload}})


def test_a_model_gives_heads_tokens_and_mask_and_keys_beside_it_replace_them():
    shape = scenario(model="llama-3-70b", tokens=4096, gpus=4).scenario.workload.shape()
    assert shape == Attention(4096, 64, 128, 4, kv_heads=8, value_dim=128, causal=True)
    assert scenario(heads=8, tokens=1024, batch=2).scenario.workload.shape() == Attention(1024, 8, 128, 8, batch=2)


@pytest.mark.parametrize(
    "written, plain",
    [
        ("serial", Policy("serial")),
        (
            {"name": "serial", "launch": "20 us", "rate": "400 GB/s"},
            Policy("serial", launch_ps=20_000_000, rate_kbs=400_000_000),
        ),
        ({"name": "reserved_sms", "sms": 8}, Policy("reserved_sms", reserved_sms=8)),
        ({"name": "piggyback", "rotation": True}, Policy("piggyback", rotation=True)),
        ("comm_warp", Policy("comm_warp")),
    ],
)
def test_policies_are_written_as_text_or_with_their_terms(written, plain):
    assert scenario(heads=8, tokens=1024, policy=written).scenario.workload.plain_policy() == plain


def test_every_model_fits_eight_ranks_and_has_a_source():
    for name, known in attention_models().items():
        gpus = 8 if known.heads % 8 == 0 else 4
        assert scenario(model=name, gpus=gpus).scenario.workload.shape().ranks == gpus
        assert known.source


def test_a_scenario_runs_and_says_both_times():
    program, fabric = build_program(scenario(heads=8, tokens=2048, gpus=4))
    outcome = simulate(program, fabric).outcome
    assert outcome.arrived_ps > outcome.lanes_end_ps > 0


@pytest.mark.parametrize(
    "workload, said",
    [
        ({"model": "wan-41b"}, r"workload\.model = 'wan-41b': is no known model; did you mean 'wan-14b'\?"),
        ({"tokens": 1024}, r"workload\.heads: is missing \(allowed: a model, or both of heads, tokens\)"),
        ({"heads": 8, "tokens": 1024, "policy": "reserved_sms"}, r"policy\.sms: is missing"),
        ({"heads": 8, "tokens": 1024, "policy": "piggybag"}, r"'piggybag'.*did you mean 'piggyback'\?"),
        ({"heads": 9, "tokens": 1024}, r"workload.gpus = 8: cannot share out the heads evenly"),
    ],
)
def test_what_makes_no_sense_is_refused(workload, said):
    with pytest.raises(InputError, match=said):
        scenario(**workload).program()
