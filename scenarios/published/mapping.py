"""The mapping tables of this folder: variants, GPUs, rules for notes, and the rows that machine files were fitted to."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from .csv_lines import Line, read_lines
from .schema import Kind

Row = Mapping[str, str]


@dataclass(frozen=True)
class Rule:
    """What a text in one column says about other columns of the row."""

    column: str
    pattern: re.Pattern[str]
    sets: Mapping[str, str]
    infers: Mapping[str, str]


@dataclass(frozen=True)
class FitRows:
    """Rows that gave a machine file a number."""

    lines: tuple[Line, ...]

    def names(self, kind: Kind, cells: Row) -> bool:
        """Whether a row is one of them."""
        return any(_is_meant(line.cells, kind, cells) for line in self.lines)


def variant_named(kind: Kind, operation: str, name: str) -> tuple[Row, str]:
    """The line of a variant, and '' if it is known or else the name of the known variant that is most like it."""
    known = {
        row["variant"]: row for row in _table("variants.csv") if (row["table"], row["operation"]) == (kind, operation)
    }
    if name in known:
        return known[name], ""
    nearest = max(known, key=lambda other: _likeness(name, other))
    return known[nearest], nearest


def gpu_named(name: str) -> tuple[Row, bool]:
    """The line of a GPU, and whether it is inferred. An unknown name stands for the longest known one in it, if any."""
    table = {row["as_written"]: row for row in _table("gpus.csv")}
    if name in table:
        return table[name], table[name]["assumed"] == "yes"
    words = _words(name)
    inside = [row for row in table.values() if _words(row["as_written"]) <= words and row["as_written"] == row["gpu"]]
    if inside:
        return max(inside, key=lambda row: len(row["gpu"])), True
    return {"gpu": name, "machine": ""}, False


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in order."""
    text = files(__package__).joinpath("rules.yaml").read_text(encoding="utf-8")
    return tuple(
        Rule(
            column=rule.get("in", "note"),
            pattern=re.compile(rule["match"]),
            sets={name: str(value) for name, value in rule.get("set", {}).items()},
            infers={name: "" if value is None else str(value) for name, value in rule.get("infer", {}).items()},
        )
        for rule in yaml.safe_load(text)
    )


@cache
def fit_rows() -> FitRows:
    return FitRows(tuple(read_lines(files(__package__).joinpath("fit.csv"))[1]))


@cache
def _table(name: str) -> tuple[Row, ...]:
    return tuple(line.cells for line in read_lines(files(__package__).joinpath(name))[1])


def _is_meant(fit: Row, kind: Kind, cells: Row) -> bool:
    where = dict(pair.split("=") for pair in fit["where"].split(";") if pair)
    return (
        (fit["table"], fit["source_url"]) == (kind, cells["source_url"])
        and fit["variant"] in ("", cells["variant"])
        and all(cells.get(name, "") == value for name, value in where.items())
    )


def _likeness(one: str, other: str) -> float:
    """Shared words count most; spelling decides between equals."""
    a, b = _words(one), _words(other)
    return len(a & b) / max(1, len(a | b)) + 0.1 * difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+\d*|\d+", text.lower()))
