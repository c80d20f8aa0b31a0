"""Both engines give the same integers on every scenario of the catalogue."""

from __future__ import annotations

import pytest
from xstage.scenarios import catalogue, loader
from xstage.sim.execute import simulate

FAST_EVENTS = 400_000
"""Above this many model events the reference engine takes more than some ten seconds."""


def check(name: str, *, slow: bool) -> None:
    program, fabric = loader.build_program(loader.load(name))
    compiled = simulate(program, fabric, trace="full")
    if (compiled.outcome.events > FAST_EVENTS) != slow:
        pytest.skip("with the slow tests" if not slow else "with the fast tests")
    reference = simulate(program, fabric, engine="simpy", trace="full")
    assert reference.outcome.same_as(compiled.outcome) == []


NAMES = [entry.name for entry in catalogue.entries("scenario")]


@pytest.mark.parametrize("name", NAMES)
def test_small_scenarios(name: str) -> None:
    check(name, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_large_scenarios(name: str) -> None:
    check(name, slow=True)
