"""What makes two points the same: a resolved scenario, and the sources of the model that runs it."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

PACKAGE = __package__.rpartition(".")[0]


@lru_cache(maxsize=1)
def model_digest() -> str:
    """SHA-256 over everything that a point's result depends on beside its scenario.

    That is every module of sim/, and the modules and tables of scenarios/, which turn a workload into a schedule.
    """
    digest = hashlib.sha256()
    for name, file in sorted([*_sources("sim", True, (".py",)), *_sources("scenarios", False, (".py", ".csv"))]):
        content = file.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def point_key(scenario: dict[str, Any], machine: dict[str, Any], model: str) -> str:
    """SHA-256 of a scenario and its machine (as plain data) under a model's digest.

    What only people read is left out: names, the question, and the sources of the machine's numbers. Of a file that the
    scenario names under a key `file`, such as recorded routing, it is the content that counts.
    """
    written = {key: value for key, value in scenario.items() if key not in ("name", "question", "machine")}
    numbers = {
        part: {name: number["value"] for name, number in machine[part].items() if number is not None}
        for part in machine
        if part not in ("name", "description")
    }
    contents = [_content(name) for name in sorted(_files(scenario))]
    return text_key(json.dumps([model, written, numbers, contents], sort_keys=True, default=str))


def text_key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _files(data: Any) -> set[str]:
    """Texts under keys named `file`, however deep."""
    if isinstance(data, list):
        return set().union(*map(_files, data))
    if not isinstance(data, dict):
        return set()
    here = {value for key, value in data.items() if key == "file" and isinstance(value, str)}
    return here.union(*map(_files, data.values()))


def _content(name: str) -> str | None:
    """Digest of a file; None if there is none, which the point itself will find out."""
    file = Path(name)
    try:
        found = file.stat()
    except OSError:
        return None
    return _digest_of(file, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=64)
def _digest_of(file: Path, changed_ns: int, size: int) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _sources(package: str, deep: bool, suffixes: tuple[str, ...]) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    folders: list[tuple[str, Traversable]] = [(package, files(f"{PACKAGE}.{package}"))]
    while folders:
        name, folder = folders.pop()
        for entry in folder.iterdir():
            if entry.is_dir() and deep:
                folders.append((f"{name}/{entry.name}", entry))
            elif entry.name.endswith(suffixes):
                found.append((f"{name}/{entry.name}", entry))
    return found
