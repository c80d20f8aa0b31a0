"""Models by name, from attention_models.csv and latent_projections.csv: what attention and the dense GEMMs of one layer need
to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .models import model_rows, named


@dataclass(frozen=True)
class AttentionModel:
    """One layer: heads of all ranks, `hidden` and `intermediate` widths (None if not known), and a typical length.

    `assumed` if the source does not settle every number.
    """

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    hidden: int | None
    intermediate: int | None
    tokens: int
    causal: bool
    assumed: bool
    source: str


@cache
def attention_models() -> dict[str, AttentionModel]:
    """All models by name."""
    return {row["name"]: _model(row) for row in model_rows("attention_models.csv")}


def attention_model(name: str) -> AttentionModel:
    """A model by name. Raises `InputError` with the closest name if there is none."""
    return named(name, attention_models())


@cache
def latent_projections(name: str) -> tuple[tuple[str, int, int], ...]:
    """GEMMs that compress and expand Q, K and V of a model with latent attention: name, n and k; none for another model."""
    rows = model_rows("latent_projections.csv")
    return tuple((row["name"], int(row["n"]), int(row["k"])) for row in rows if row["model"] == name)


def _model(row: dict[str, str]) -> AttentionModel:
    def number(name: str) -> int | None:
        return int(row[name]) if row[name] else None

    return AttentionModel(
        name=row["name"],
        heads=int(row["heads"]),
        kv_heads=int(row["kv_heads"]),
        head_dim=int(row["head_dim"]),
        value_dim=int(row["value_dim"]),
        hidden=number("hidden"),
        intermediate=number("intermediate"),
        tokens=int(row["tokens"]),
        causal=row["causal"] == "yes",
        assumed=row["assumed"] == "yes",
        source=row["source"],
    )
