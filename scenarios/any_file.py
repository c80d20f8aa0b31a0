"""What a name or a file means when it may be a scenario, a study or a machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..sim.checked import Place
from ..sim.errors import InputError
from .catalogue import NAME_OR_FILE, Entry, Kind, check_name, find_any, is_file, is_other_kind
from .document import Document, read

KEY_OF_KIND: dict[str, Kind] = {"axes": "study", "workload": "scenario"}
"""The key that only a file of that kind has; a machine has neither."""


def find_entry(name: str | Path, allowed: str = NAME_OR_FILE) -> Entry:
    """An entry of the catalogue, or a file of one's own (a path that ends in .yaml or .yml, or has a folder in it).

    Raises `InputError` with the closest name, and what is `allowed`, if there is no such entry, for what is neither text nor
    a path, and for a file that is no YAML mapping.
    """
    check_name(name, "name", Place())
    if not is_file(name):
        return find_any(str(name), allowed)
    file = Path(name)
    data = read(file).data
    if not isinstance(data, dict):
        raise InputError("must be a mapping", file=str(name), allowed="the keys of a scenario, a study or a machine")
    return Entry(file.stem, _kind(data), str(file.parent), file)


def check_kind(document: Document, wanted: Kind) -> None:
    """Raises `InputError` for a file that has the key of another kind, and not that of the one `wanted`."""
    kind = _kind(document.data)
    if kind not in (wanted, "machine"):
        raise document.place(()).error(is_other_kind(kind, wanted), ())


def _kind(data: Mapping[str, Any]) -> Kind:
    return next((kind for key, kind in KEY_OF_KIND.items() if key in data), "machine")
