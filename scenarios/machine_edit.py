"""New numbers in the text of a machine file, which keeps its comments, its order and all its other lines."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ..sim.errors import InputError

WIDTH = 120


def with_numbers(text: str, numbers: Mapping[str, Mapping[str, Any]]) -> str:
    """The text with numbers given by dotted path, such as {'compute.sm_feed': {'value': '56 GB/s', 'source': ...}}.

    A number that is there is replaced where it stands; another is added at the end of its part. Raises `InputError` if a
    part is no mapping of the file.
    """
    for path, number in numbers.items():
        part_name, _, name = path.partition(".")
        lines = text.splitlines()
        part = _child(yaml.compose(text), part_name)
        if not isinstance(part, yaml.MappingNode):
            raise InputError("is no mapping of the machine file", field=path, allowed="a part that the file spells out")
        indent = " " * part.start_mark.column
        key = next((key for key, _ in part.value if key.value == name), None)
        if key is None:
            first = last = max(_last_line(value) for _, value in part.value) + 1
        else:
            first, last = key.start_mark.line, _last_line(_child(part, name)) + 1
        lines[first:last] = [indent + line for line in _block(name, number)]
        text = "\n".join(lines) + "\n"
    return text


def _child(node: Any, name: str) -> Any:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for key, value in pairs if key.value == name), None)


def _last_line(node: Any) -> int:
    """The last line that a node stands on. A block's end mark lies behind the blank lines and comments after it."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        return max(_last_line(value) for _, value in node.value)
    end: int = node.end_mark.line
    return end - 1 if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">") else end


def _block(name: str, number: Mapping[str, Any]) -> Sequence[str]:
    lines = [f"{name}:", f"  value: {number['value']}"]
    if number.get("assumed"):
        lines.append("  assumed: true")
    lines += ["  source: >-", *textwrap.wrap(str(number["source"]), WIDTH - 8, initial_indent="    ",
                                             subsequent_indent="    ", break_long_words=False)]  # fmt: skip
    if number.get("interval"):
        low, high = number["interval"]
        lines.append(f"  interval: [{low}, {high}]")
    return lines
