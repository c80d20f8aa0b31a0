"""Both engines give the same integers on every scenario of the catalogue, large ones also cut down in size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from xstage.scenarios import catalogue, loader
from xstage.sim.execute import simulate

SMALLER: dict[str, dict[str, Any]] = {
    "attention-wan-piggyback": {"workload.tokens": 4096},
    "attention-wan-serial": {"workload.tokens": 8192},
    "gemm-rs-llama-fused": {"workload.m": 1024},
    "gemm-rs-llama-serial": {"workload.m": 1024},
    "megamoe-flash-skewed": {"workload.tokens": 128, "workload.gpus": 4},
    "megamoe-flash-wave": {"workload.tokens": 1024},
    "megamoe-lag-h100": {"workload.tokens": 1024},
    "megamoe-large-experts": {"workload.tokens": 4096},
    "periodic-train": {"workload.bursts": 6},
    "synchronised-train": {"workload.bursts": 4},
    "uniform-all-to-all": {"workload.bursts": 1},
}
"""Large scenarios at a size which the reference engine replays in some ten seconds."""

NAMES = [entry.name for entry in catalogue.entries("scenario")]


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        *(pytest.param(name, {}, id=name, marks=[pytest.mark.long] * (name in SMALLER)) for name in NAMES),
        *(pytest.param(name, less, id=f"{name}, smaller", marks=pytest.mark.slow) for name, less in SMALLER.items()),
    ],
)
def test_the_engines_agree(name: str, overrides: Mapping[str, Any]) -> None:
    program, fabric = loader.build_program(loader.load_scenario(name, overrides))
    reference, compiled = (simulate(program, fabric, engine=engine, trace="full") for engine in ("simpy", "compiled"))
    assert reference.outcome.same_as(compiled.outcome) == []
