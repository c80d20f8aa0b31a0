"""The JSON schemas of scenario, study and machine files, with a description of every key, for editors and checkers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from ..sim.checked import Checked
from ..sim.machine import Machine
from .document import read
from .schema import Scenario
from .study import Study

MODELS: dict[str, type[Checked]] = {"scenario": Scenario, "study": Study, "machine": Machine}
DESCRIPTIONS = "descriptions.yaml"


def schemas() -> dict[str, Any]:
    """A schema for each kind of file, by its name."""
    known = descriptions()
    found = {kind: model.model_json_schema() for kind, model in MODELS.items()}
    for schema in found.values():
        for model, key, value in properties(schema):
            text = known.get(f"{model}.{key}", known.get(key))
            if text is not None:
                value["description"] = text
    return found


def descriptions() -> dict[str, str]:
    """What is written about keys: 'Model.key' or 'key' to text."""
    found: dict[str, str] = read(files(__package__) / DESCRIPTIONS).data
    return found


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every property of a schema and of what it is made of: its model's name, its key, and its own schema."""
    for definition in (schema, *schema.get("$defs", {}).values()):
        model = definition.get("title", "").partition("[")[0]
        for key, value in definition.get("properties", {}).items():
            yield model, key, value
