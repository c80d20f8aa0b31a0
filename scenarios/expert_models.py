"""Mixture-of-experts models by name, from expert_models.csv: what a MegaMoE workload needs to know about one layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .models import model_rows, named


@dataclass(frozen=True)
class ExpertModel:
    """One MoE layer; `intermediate` is the width of the gate or the up half. `assumed` if the source does not settle it.

    `shared_experts` are those that every token passes beside its `topk`. `numbers` are the types of its weights and
    activations, as a MegaMoE workload names them. Both are None if the source does not say.
    """

    name: str
    hidden: int
    intermediate: int
    experts: int
    topk: int
    shared_experts: int | None
    numbers: str | None
    assumed: bool
    source: str


@cache
def expert_models() -> dict[str, ExpertModel]:
    """All models by name."""
    sizes = ("hidden", "intermediate", "experts", "topk")
    return {
        row["name"]: ExpertModel(
            name=row["name"],
            shared_experts=int(row["shared_experts"]) if row["shared_experts"] else None,
            numbers=row["numbers"] or None,
            assumed=row["assumed"] == "yes",
            source=row["source"],
            **{size: int(row[size]) for size in sizes},
        )
        for row in model_rows("expert_models.csv")
    }


def expert_model(name: str) -> ExpertModel:
    """A model by name. Raises `InputError` with the closest name if there is none."""
    return named(name, expert_models())
