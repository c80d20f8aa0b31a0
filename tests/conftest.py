"""Shared by all tests: a hypothesis profile that never fails for slowness, Ctrl-C, and the paper's machine."""

from __future__ import annotations

import signal

import hypothesis
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.machine import Machine

hypothesis.settings.register_profile("xstage", deadline=None, derandomize=True)
hypothesis.settings.load_profile("xstage")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so do its children


@pytest.fixture(scope="session")
def b200() -> Machine:
    """hgx-b200: the machine with the paper's figures."""
    return load_machine("hgx-b200")
