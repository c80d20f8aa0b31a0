"""Mixture-of-experts models by name, from models.csv: what a MegaMoE workload needs to know about one layer."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ..sim.checked import closest
from ..sim.errors import InputError


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
    with files(__package__).joinpath("models.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    sizes = ("hidden", "intermediate", "experts", "topk")
    return {
        row["name"]: Model(
            name=row["name"],
            assumed=row["assumed"] == "yes",
            source=row["source"],
            **{size: int(row[size]) for size in sizes},
        )
        for row in rows
    }


def model(name: str) -> Model:
    """A model by name. Raises `InputError` with the closest name if there is none."""
    if name not in models():
        raise InputError(
            f"is no known model{closest(name, models())}", field="workload.model", value=name, allowed=models()
        )
    return models()[name]
