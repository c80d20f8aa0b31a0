"""Shared by all tests: a hypothesis profile that never fails for slowness, and the paper's machine."""

from __future__ import annotations

import hypothesis
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.machine import Machine

hypothesis.settings.register_profile("xstage", deadline=None, derandomize=True)
hypothesis.settings.load_profile("xstage")


@pytest.fixture(scope="session")
def b200() -> Machine:
    """hgx-b200: the machine with the paper's figures."""
    return load_machine("hgx-b200")
