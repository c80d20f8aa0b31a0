"""Two engines, identical integers, also where routes share links and pass other GPUs."""

from __future__ import annotations

import pytest
from xstage.sim import engine_compiled, engine_simpy
from xstage.sim.layout import Layout

from .random_topologies import KINDS, random_case


def disagreements(kind: str, seed: int) -> list[str]:
    program, fabric = random_case(kind, seed)
    layout = Layout.of(program, fabric)
    reference, stuck_reference = engine_simpy.run(program, fabric, layout, full=True)
    outcome, stuck = engine_compiled.run(program, fabric, layout, full=True)
    found = [f"{kind} {seed}: {name}" for name in reference.same_as(outcome)]
    return found + [f"{kind} {seed}: stuck"] * (stuck != stuck_reference)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dozen_random_programs_of_each_kind(kind: str) -> None:
    assert [line for seed in range(12) for line in disagreements(kind, seed)] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_more_of_each_kind(kind: str) -> None:
    assert [line for seed in range(12, 112) for line in disagreements(kind, seed)] == []


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_five_hundred_more_of_each_kind(kind: str) -> None:
    assert [line for seed in range(1000, 1500) for line in disagreements(kind, seed)] == []
