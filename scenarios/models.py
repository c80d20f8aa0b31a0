"""Tables of models in this package, read by attention_models.py and expert_models.py."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib.resources import files
from typing import TypeVar

from ..sim.checked import closest
from ..sim.errors import InputError

Known = TypeVar("Known")


def model_rows(file: str) -> list[dict[str, str]]:
    """The rows of a table of models in this package."""
    with files(__package__).joinpath(file).open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def named(name: str, known: Mapping[str, Known]) -> Known:
    """The one of the `known` models that a workload names. Raises `InputError` with the closest name if there is none."""
    if name not in known:
        raise InputError(f"is no known model{closest(name, known)}", field="workload.model", value=name, allowed=known)
    return known[name]
