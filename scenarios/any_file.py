"""What a name or a file means when it may be a scenario, a study or a machine."""

from __future__ import annotations

from pathlib import Path

from ..sim.errors import InputError
from .catalogue import Entry, Kind, find_any
from .document import read

KEY_OF_KIND: dict[str, Kind] = {"axes": "study", "workload": "scenario"}
"""The key that only a file of that kind has; a machine has neither."""


def find_entry(name: str) -> Entry:
    """An entry of the catalogue, or a file of one's own (a path that ends in .yaml or .yml, or has a folder in it).

    Raises `InputError` with the closest name if there is no such entry, and for a file that is no YAML mapping.
    """
    if not (name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name):
        return find_any(name)
    file = Path(name)
    data = read(file).data
    if not isinstance(data, dict):
        raise InputError("must be a mapping", file=name, allowed="the keys of a scenario, a study or a machine")
    kind: Kind = next((kind for key, kind in KEY_OF_KIND.items() if key in data), "machine")
    return Entry(file.stem, kind, str(file.parent), file)
