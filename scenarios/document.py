"""A YAML file as plain data that remembers on which line each value stands.

A `Document` is data plus places. `read` and `parse` make one, `put` and `part` make another from it, and `place` answers
where the value under a path was written, which is what `check` of sim/checked.py asks for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path as FilePath
from typing import Any

import yaml

from ..sim.checked import Path, Place
from ..sim.errors import InputError

_PLAIN_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")}


_MOST_VALUES, _DEEPEST, _MOST_SHOWN = 100_000, 100, 40


@dataclass(frozen=True, eq=False)
class Document:
    """Mappings, lists, text, numbers, booleans and None, with the place of each by its path from the top."""

    data: Any
    places: dict[Path, Place] = field(default_factory=dict)

    def place(self, path: Path) -> Place:
        """Where the value under `path` was written, or else the nearest value around it."""
        for length in range(len(path), -1, -1):
            if (known := self.places.get(path[:length])) is not None:
                return known
        return Place()

    def part(self, key: str | int) -> Document:
        """The document under one key."""
        return Document(self.data[key], {path[1:]: place for path, place in self.places.items() if path[:1] == (key,)})

    def put(self, path: Path, value: Document) -> Document:
        """This document with `value` under `path`; mappings on the way are made where nothing stands.

        Raises `InputError` if something other than a mapping stands on the way.
        """
        if not path:
            return value
        data = _with(self.data, path, value)
        kept = {known: where for known, where in self.places.items() if known[: len(path)] != path}
        return Document(data, kept | {path + inner: where for inner, where in value.places.items()})

    def without(self, key: str | int) -> Document:
        """This mapping without one key."""
        rest = {name: value for name, value in self.data.items() if name != key}
        return Document(rest, {path: place for path, place in self.places.items() if path[:1] != (key,)})


def read(file: FilePath | Traversable) -> Document:
    """The document in a file. Raises `InputError` if it cannot be read, or is no YAML."""
    name = shown_name(file)
    document = parse(read_text(file), name)
    if document.data is None:
        raise InputError("is empty", file=name)
    return document


def read_text(file: FilePath | Traversable, encoding: str = "utf-8") -> str:
    """The text in a file, in UTF-8 or, as "utf-8-sig", in UTF-8 with a mark in front. Raises `InputError` if it cannot be
    read."""
    name = shown_name(file)
    try:
        return file.read_bytes().decode(encoding)
    except FileNotFoundError:
        raise InputError("no such file", file=name) from None
    except IsADirectoryError:
        raise InputError("is a folder, not a file", file=str(file)) from None
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})", file=name) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=name) from None


@lru_cache(maxsize=64)  # a sweep reads the same few files for each of its points, and reading is most of the work
def parse(text: str, file: str) -> Document:
    """The document in `text`; `file` names it in errors. Raises `InputError` with the line for what is no YAML."""
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(f"is not YAML: {error.reason}", file=file, line=line) from None
    try:
        root = loader.get_single_node()
        places: dict[Path, Place] = {}
        data = _plain(loader, root, (), file, places, []) if root is not None else None
        return Document(data, places)
    except RecursionError:
        raise InputError("is not YAML that can be read: it is nested too deeply", file=file) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        reason += " (is the indentation right?)" if "block" in reason else ""
        raise InputError(f"is not YAML: {reason}", file=file, line=mark.line + 1 if mark else None) from None
    finally:
        loader.dispose()


def literal(value: Any, place: Place) -> Document:
    """A value that stands in no file."""
    return Document(value, {(): place})


def split_path(text: str, option: str) -> Path:
    """The path of 'machine.interconnect.latency'; `option` names where it was given. Raises `InputError`."""
    parts = tuple(text.split("."))
    if not all(part and part == part.strip() for part in parts):
        raise InputError("is no path", field=option, value=text, allowed="keys joined by dots, such as workload.burst")
    return parts


def shown_name(file: FilePath | Traversable) -> str:
    """A file as errors name it: below the working folder without it, else as it was given."""
    path = FilePath(str(file))
    try:
        here = FilePath.cwd()
    except FileNotFoundError:  # the working folder was deleted
        return str(path)
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _plain(
    loader: yaml.SafeLoader, node: yaml.Node, path: Path, file: str, places: dict[Path, Place], above: list[yaml.Node]
) -> Any:
    """The data of a node and, in `places`, of every node in it."""
    line = node.start_mark.line + 1
    places[path] = Place(file, line)
    if len(places) > _MOST_VALUES or len(path) > _DEEPEST:
        reason = f"has over {_MOST_VALUES} values (aliases count each time), or is nested over {_DEEPEST} deep"
        raise InputError(reason, file=file, line=line)
    if any(node is outer for outer in above):
        raise InputError("contains itself", field=_dotted(path), file=file, line=line)
    if node.tag not in _PLAIN_TAGS:
        raise InputError(f"is not plain data: {node.tag}", field=_dotted(path) or None, file=file, line=line)
    around = [*above, node]
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, (*path, index), file, places, around) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        try:
            return loader.construct_object(node)
        except (ValueError, LookupError):  # such as !!int abc, or a number of thousands of digits
            kind, shown = node.tag.removeprefix("tag:yaml.org,2002:"), str(node.value)[:_MOST_SHOWN]
            raise InputError(f"is no {kind}", field=_dotted(path) or None, value=shown, file=file, line=line) from None
    data: dict[str, Any] = {}
    first_line: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, key_line = key_node.value, key_node.start_mark.line + 1
        if key_node.tag != "tag:yaml.org,2002:str":
            shown = key if isinstance(key, str) else "a list or mapping"
            raise InputError("is not a key", field=_dotted((*path, shown)), file=file, line=key_line, allowed="text")
        if key in data:
            reason = f"is given twice, first on line {first_line[key]}"
            raise InputError(reason, field=_dotted((*path, key)), file=file, line=key_line)
        data[key] = _plain(loader, value_node, (*path, key), file, places, around)
        places[(*path, key)] = Place(file, key_line)
        first_line[key] = key_line
    return data


def _with(data: Any, path: Path, value: Document, position: int = 0) -> Any:
    """`data` with a value under `path`; what is not on the way is shared, which is safe as nobody changes data in place."""
    if not isinstance(data, dict):
        raise value.place(()).error(f"{_dotted(path[:position])} is not a mapping", path)
    key, is_last = path[position], position == len(path) - 1
    return {**data, key: value.data if is_last else _with(data.get(key, {}), path, value, position + 1)}


def _dotted(path: Iterable[str | int]) -> str:
    return ".".join(str(part) for part in path)
