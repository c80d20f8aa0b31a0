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


def disagreements(name: str, overrides: Mapping[str, Any]) -> list[str]:
    program, fabric = loader.build_program(loader.load(name, overrides))
    reference, compiled = (simulate(program, fabric, engine=engine, trace="full") for engine in ("simpy", "compiled"))
    return reference.outcome.same_as(compiled.outcome)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SMALLER])
def test_small_scenarios(name: str) -> None:
    assert disagreements(name, {}) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLER)
def test_large_scenarios_made_smaller(name: str) -> None:
    assert disagreements(name, SMALLER[name]) == []


@pytest.mark.long
@pytest.mark.parametrize("name", SMALLER)
def test_large_scenarios(name: str) -> None:
    assert disagreements(name, {}) == []
