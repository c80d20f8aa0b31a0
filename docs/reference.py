"""Writes docs/reference.md: every command with its options, every name of the Python interface with its docstring.

    python docs/reference.py [--check]

With `--check` nothing is written; the exit code is 1 if the page is not what would be written.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xstage as xs

PAGE = Path(__file__).resolve().with_name("reference.md")
HEAD = """# Reference

Made by `python docs/reference.py` from the program itself: [commands](#commands), [Python](#python). The keys of scenario
and machine files are in `xstage scenarios schema`, and by example in [scenarios](scenarios.md).

## Commands

Every command takes `-h`, and prints one JSON object with `--json`. Exit codes: 0 done, 2 bad input, 1 failure, 143 ended by
SIGTERM.
"""
PYTHON = """## Python

`import xstage as xs`. What a scenario, a machine or a study is given as: a name of the catalogue, a YAML file, or a mapping.
Answers of commands have `.as_dict()`, what `--json` prints; most have a DataFrame and `.plot()`, and show themselves in a
notebook.
"""


def main() -> int:
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    known = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if known != text:
        print("docs/reference.md is out of date: run `python docs/reference.py`", file=sys.stderr)
    return int(known != text)


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *commands(), PYTHON, *names()])


def commands() -> Iterator[str]:
    """A part for each command, in the order of their names."""
    from typer.main import get_command

    from xstage.cli import app

    yield from _commands(get_command(app), "xstage")


def _commands(command: Any, words: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner:
        for name in sorted(inner):
            yield from _commands(inner[name], f"{words} {name}")
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "as_json"]
    called = [one.metavar or one.name.upper() for one in arguments]
    usage = [name if one.required else f"[{name}]" for one, name in zip(arguments, called, strict=True)]
    yield f"### `{' '.join([words, *usage])}`\n\n{_one_line(command.help or '')}\n"
    rows = [(f"`{name}`", _help(one), "") for one, name in zip(arguments, called, strict=True)]
    for one in options:
        flags = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
        value = "" if one.is_flag else f" {_value(one)}"
        default = "" if one.is_flag or one.default is None or not one.show_default else f"`{_shown(one.default)}`"
        rows.append((flags + value.replace("|", "\\|"), _help(one), default))
    if rows:
        yield "| | | default |\n|---|---|---|"
        yield "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _help(one: Any) -> str:
    return _one_line(getattr(one, "help", None) or "")


def _value(option: Any) -> str:
    """What stands behind an option. Newer versions of typer keep the type as an annotation."""
    described = getattr(option, "type_descriptor", None)
    kind = getattr(described.annotation, "__name__", "text") if described else option.type.name
    known = {"int": "N", "integer": "N", "float": "X", "path": "PATH"}
    return str(option.metavar or known.get(kind.lower(), "TEXT"))


def names() -> Iterator[str]:
    """A part for each public name, functions before classes."""
    known = [(name, getattr(xs, name)) for name in xs.__all__]
    for name, value in known:
        if not inspect.isclass(value):
            yield f"### `xs.{name}`\n\n```text\n{_signature(name, value)}\n```\n\n{_doc(value)}\n"
    for name, value in known:
        if inspect.isclass(value):
            yield f"### `xs.{name}`\n\n{_doc(value)}\n"
            yield from _members(value)


def _members(owner: type) -> Iterator[str]:
    """Public methods and properties that the class itself defines and describes."""
    if issubclass(owner, Exception):
        return
    rows = []
    for name, value in vars(owner).items():
        plain = value.fget if isinstance(value, property) else getattr(value, "func", value)
        plain = getattr(plain, "__func__", plain)
        if name.startswith("_") or not inspect.isfunction(plain) or not plain.__doc__:
            continue
        shown = f".{name}" if isinstance(value, property) or plain is not value else f".{name}()"
        rows.append(f"| `{shown}` | {_first_sentence(plain.__doc__)} |")
    if rows:
        yield "| | |\n|---|---|\n" + "\n".join(rows) + "\n"


def _signature(name: str, value: Any) -> str:
    parts = []
    signature = inspect.signature(value)
    for one in signature.parameters.values():
        default = "" if one.default is inspect.Parameter.empty else f" = {_shown(one.default)}"
        star = "*" if one.kind is inspect.Parameter.VAR_POSITIONAL else ""
        annotation = "" if one.annotation is inspect.Parameter.empty else f": {one.annotation}"
        if one.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(f"{star}{one.name}{annotation}{default}")
    result = "" if signature.return_annotation is inspect.Signature.empty else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(parts)}){result}"
    return line if len(line) <= 110 else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){result}"


def _shown(value: Any) -> str:
    if inspect.isfunction(value):
        return str(value.__name__)
    return str(value) if isinstance(value, (str, Path)) and value != "" else repr(value)


def _doc(value: Any) -> str:
    """The docstring as the page's text; that of a dataclass without one is its fields."""
    text = inspect.getdoc(value) or ""
    if dataclasses.is_dataclass(value) and text.startswith(f"{getattr(value, '__name__', '')}("):
        text = ""
    text = re.sub(r"^( {4}.*)$", r"\1", text, flags=re.MULTILINE)
    return re.sub(r"^>>>.*?(?=\n\n|\Z)", "", text, flags=re.MULTILINE | re.DOTALL).strip()


def _first_sentence(text: str) -> str:
    return _one_line(text.strip().split("\n\n")[0])


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
