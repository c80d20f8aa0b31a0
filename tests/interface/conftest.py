"""Shared by the tests of commands."""

from __future__ import annotations

import json

import pytest

from xstage.cli import main


@pytest.fixture
def answer(capsys):
    """Runs a command line with --json; gives its exit code and what it answers."""

    def run(*words):
        code = main([*words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run
