"""What makes two points the same: a resolved scenario, and the sources of the model that runs it."""

from __future__ import annotations

import ast
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
    """SHA-256 over everything that a point's result depends on beside its scenario: see `model_sources`."""
    digest = hashlib.sha256()
    for name, file in model_sources():
        content = file.read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def model_sources() -> list[tuple[str, Traversable]]:
    """Name and file of every module of sim/, of the modules and tables of scenarios/, which turn a workload into a schedule,
    and of the task itself with what it imports from here.
    """
    packages = [*_sources("sim", True, (".py",)), *_sources("scenarios", False, (".py", ".csv"))]
    return sorted([*packages, *_with_imports("task")], key=lambda source: source[0])


def _with_imports(module: str) -> list[tuple[str, Traversable]]:
    """A module beside this one, and those that it imports, at its top or in a function."""
    here = files(__package__)
    found: dict[str, Traversable] = {}
    waiting = [module]
    while waiting:
        if (name := waiting.pop()) in found:
            continue
        found[name] = here / f"{name}.py"
        tree = ast.parse(found[name].read_bytes())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
        waiting += [node.module for node in imports if node.module]
    return [(f"sweeps/{name}.py", file) for name, file in found.items()]


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
