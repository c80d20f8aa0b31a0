"""Mixture-of-experts models by name, from models.csv: what a MegaMoE workload needs to know about one layer."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

from ..sim.checked import closest
from ..sim.errors import InputError

Known = TypeVar("Known")


@dataclass(frozen=True)
class Model:
    """One MoE layer; `intermediate` is the width of the gate or the up half. `assumed` if the source does not settle it."""

    name: str
    hidden: int
    intermediate: int
    experts: int
    topk: int
    assumed: bool
    source: str


@cache
def models() -> dict[str, Model]:
    """All models by name."""
    sizes = ("hidden", "intermediate", "experts", "topk")
    return {
        row["name"]: Model(
            name=row["name"],
            assumed=row["assumed"] == "yes",
            source=row["source"],
            **{size: int(row[size]) for size in sizes},
        )
        for row in model_rows("models.csv")
    }


def model(name: str) -> Model:
    """A model by name. Raises `InputError` with the closest name if there is none."""
    return named(name, models(), "workload.model")


def model_rows(file: str) -> list[dict[str, str]]:
    """The rows of a table of models in this package."""
    with files(__package__).joinpath(file).open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def named(name: str, known: Mapping[str, Known], field: str) -> Known:
    """One of the `known` models. Raises `InputError` for `field` with the closest name if there is none."""
    if name not in known:
        raise InputError(f"is no known model{closest(name, known)}", field=field, value=name, allowed=known)
    return known[name]
