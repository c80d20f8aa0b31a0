"""Shared by the tests of commands."""

from __future__ import annotations

import json

import pytest

from xstage.cli import main


@pytest.fixture
def answer(capsys):
    """Runs a command line with --json; gives its exit code and its answer, which is all of standard output."""

    def run(*words):
        code = main([*words, "--json"])
        return code, json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    return run
