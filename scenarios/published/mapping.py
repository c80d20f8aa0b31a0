"""The mapping tables of this folder: variants, GPUs, rules for notes, and the rows that machine files were fitted to.

variants.csv has those of the published tables. own_variants.csv has what else a table of one's own may hold: policies of
this project by their names, and kernels for which others may be taken.

A GPU has a generation, in the names that kernels have for it: sm90, sm100 (also for SM103), sm120. So has a variant that
runs on one only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
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


def variant_named(kind: Kind, operation: str, name: str, generation: str = "") -> tuple[Row, str]:
    """The line of a variant, and '' if it is known or else the name of the known variant that is most like it.

    The name of a policy of this project means that policy and nothing beside it. A known variant that is like another name
    is a fused kernel, or a pipeline of separate ones, if the name says so; a whole call, unless the name says which part;
    one that runs on the GPU's generation, if that is known.
    """
    known, own = (
        [row for row in _table(file) if (row["table"], row["operation"]) == (kind, operation)]
        for file in ("variants.csv", "own_variants.csv")
    )
    for row in known:
        if row["variant"] == name:
            return row, ""
    for row in own:
        if row["variant"] == name.lower().replace(" ", "_").replace("-", "_"):
            return row, ""
    known += [row for row in own if row["family"] != "policy"]
    words = _words(name)
    conditions: tuple[Callable[[Row], bool], ...] = (
        lambda row: not _says_fused(words) or row["policy"] not in ("unfused", "serial"),
        lambda row: _words(row["part"]) <= words,
        lambda row: not _says_unfused(words) or row["policy"] in ("unfused", "serial"),
        lambda row: not generation or row["generation"] in ("", generation),
    )
    for fits in conditions:
        known = [row for row in known if fits(row)] or known
    nearest = max(known, key=lambda row: _likeness(name, row))
    return nearest, nearest["variant"]


def gpu_named(name: str) -> tuple[Row, bool]:
    """The line of a GPU, and whether it is inferred. An unknown name stands for the longest known one in it, if any."""
    table = {row["as_written"]: row for row in _table("gpus.csv")}
    if name in table:
        return table[name], table[name]["assumed"] == "yes"
    words = _words(name)
    inside = [row for row in table.values() if _words(row["as_written"]) <= words and row["as_written"] == row["gpu"]]
    if inside:
        return max(inside, key=lambda row: len(row["gpu"])), True
    return {"gpu": name, "machine": "", "generation": ""}, False


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


def fit_parameters() -> tuple[Row, ...]:
    """The free numbers of machines: parameter, low, high and reason by machine."""
    return _table("fit_parameters.csv")


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


def _says_unfused(words: set[str]) -> bool:
    return "unfused" in words or (bool(words & {"deepep", "baseline"}) and not words & {"megamoe", "fused"})


def _says_fused(words: set[str]) -> bool:
    return not _says_unfused(words) and bool(words & {"megamoe", "mega", "fused"})


def _likeness(name: str, row: Row) -> float:
    """Shared words count most, those of the family too; spelling decides between equals."""
    words, known = _words(name), _words(f"{row['variant']} {row['family']}")
    spelling = difflib.SequenceMatcher(None, name.lower(), row["variant"].lower()).ratio()
    return len(words & known) / max(1, len(words | known)) + 0.1 * spelling


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+\d*|\d+", text.lower()))
