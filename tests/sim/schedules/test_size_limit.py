"""What is asked before a schedule is built is about as large as what then runs."""

from importlib import import_module

import pytest
from xstage.scenarios.loader import load_scenario
from xstage.sim.errors import InputError
from xstage.sim.program_index import op_repeats
from xstage.sim.schedules import size_limit

MODULES = ("burst_train", "attention_a2a.build", "tensor_parallel.build", "megamoe.size")
TOLD = 3.0
"""What is run may be so many times what was asked for: sizes alone do not tell everything that a policy adds."""

SCENARIOS = [
    ("periodic-train", {}),
    ("synchronised-train", {}),
    ("uniform-all-to-all", {}),
    ("attention-wan-serial", {"workload.policy": "compute_only"}),
    ("attention-wan-serial", {}),
    ("attention-wan-piggyback", {}),
    ("attention-wan-piggyback", {"workload.policy": "comm_warp"}),
    ("gemm-rs-llama-fused", {}),
    ("gemm-rs-llama-fused", {"workload.policy": "compute_only"}),
    ("gemm-rs-llama-serial", {}),
    ("gemm-ar-lamport", {}),
    ("gemm-ar-in-switch", {}),
    ("megamoe-flash-wave", {}),
    ("megamoe-flash-skewed", {"workload.tokens": 1024}),
    ("megamoe-lag-h100", {}),
    ("megamoe-lag-h100", {"workload.policy": "split"}),
    ("megamoe-large-experts", {}),
]


@pytest.mark.parametrize(("name", "changes"), SCENARIOS, ids=str)
def test_the_ops_that_are_asked_for_are_run(name, changes, monkeypatch):
    asked = []
    for module in MODULES:
        place = import_module(f"xstage.sim.schedules.{module}")
        monkeypatch.setattr(place, "check_ops", lambda n_ops, *_: asked.append(n_ops))
    ops = int(op_repeats(load_scenario(name, changes).program()).sum())
    assert len(asked) == 1
    assert asked[0] <= ops <= TOLD * asked[0]


def test_a_small_computer_refuses_what_a_large_one_builds(monkeypatch):
    size_limit.check_ops(10**6, "tokens", 7)
    monkeypatch.setattr(size_limit, "most_bytes", lambda: 10**8)
    with pytest.raises(InputError, match=r"tokens = 7: makes too many ops \(allowed: 500,000 ops, not 1,000,000\)"):
        size_limit.check_ops(10**6, "tokens", 7)


def test_no_computer_is_asked_for_more_than_minutes_of_building(monkeypatch):
    monkeypatch.setattr(size_limit, "most_bytes", lambda: 2**50)
    with pytest.raises(InputError, match="134,217,728 ops"):
        size_limit.check_ops(2**27 + 1, "tokens", 7)
