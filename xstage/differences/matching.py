"""Which op of a measured trace is which task of a simulation, where all that a profiler knows of an op is its name.

A part of a simulation is

    l1          a phase: its tasks, each from its first op to its last
    mma         a role: its tasks on lanes of that role
    mma:l1      both
    store       a kind of op, each op on its own, unless a role has that name
    store:l2    both
    all         the whole run of a GPU
    all:l1      a phase as one, from its first op on a GPU to its last there: what a kernel is that does no more

A whole ends when what it stored has arrived, as a kernel does, if the op table has a column `arrived_us`.

A measured name stands for itself, or for all that it begins, ends or surrounds with `*`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..plots.names import shortened
from ..sim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

WHOLE = "all"


def parts_of(ops: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Each part of a simulation by its op table: gpu, start_us and took_us of its tasks, by start."""
    ops = ops.assign(
        role=ops["role"].astype(str), kind=ops["kind"].astype(str), phase=ops["phase"].astype(object).fillna("").astype(str),
        arrived_us=ops["arrived_us" if "arrived_us" in ops else "end_us"],
    )  # fmt: skip
    on_lanes = _extent(ops, ["gpu", "lane", "role", "phase", "task"])
    parts = {WHOLE: _whole(ops)}
    for phase, mine in on_lanes.groupby("phase", sort=False):
        if phase:
            parts[str(phase)] = _extent(mine, ["gpu", "task"])
            parts[f"{WHOLE}:{phase!s}"] = _whole(mine)
    for column, rows in (("role", on_lanes), ("kind", _extent(ops))):
        for one, mine in rows.groupby(column, sort=False):
            parts.setdefault(str(one), mine)
            for phase, some in mine.groupby("phase", sort=False):
                if phase:
                    parts.setdefault(f"{one!s}:{phase!s}", some)
    return {name: found[["gpu", "start_us", "took_us"]] for name, found in parts.items()}


def is_whole(part: str) -> bool:
    """Whether a part is one thing on a GPU, to which a kernel that ran many times is joined each time."""
    return part == WHOLE or part.startswith(f"{WHOLE}:")


def chosen_parts(names: Sequence[str], match: Mapping[str, str], parts: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """The part that each measured name is; names that are none are left out. A name goes before a pattern.

    Raises `InputError` for an entry of `match` that fits no name or names no part, and if nothing is chosen.
    """
    chosen = {name: name for name in names if name in parts}
    for pattern, part in sorted(match.items(), key=lambda entry: entry[0] in names):
        fitting = [pattern] if pattern in names else [name for name in names if _fits(name, pattern)]
        if not fitting:
            raise InputError("was not measured", field="match", value=pattern, allowed=[on_one_line(n) for n in names])
        if part not in parts:
            raise InputError("is no part of the simulation", field="match", value=f"{pattern}={part}", allowed=parts)
        chosen |= dict.fromkeys(fitting, part)
    if not chosen:
        raise InputError(
            "share no name: say which part of the simulation each measured name is (a name may have a *)", field="match",
            value=", ".join(on_one_line(name) for name in names[:5]), allowed=[f"NAME={part}" for part in parts],
        )  # fmt: skip
    return {name: chosen[name] for name in names if name in chosen}


def on_one_line(name: str) -> str:
    """A measured name as a table holds it: short, and without line breaks."""
    return shortened(" ".join(name.split()))


def _fits(name: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def _extent(rows: pd.DataFrame, by: list[str] | None = None) -> pd.DataFrame:
    """From the first start to the last end of each group of rows (of each row if `by` is left out), in order of start."""
    if by is not None:
        rows = rows.groupby(by).agg({"start_us": "min", "end_us": "max", "arrived_us": "max"}).reset_index()
    ordered = rows.sort_values(["gpu", "start_us"], kind="stable")
    return ordered.assign(took_us=ordered["end_us"] - ordered["start_us"])


def _whole(rows: pd.DataFrame) -> pd.DataFrame:
    """All rows of a GPU as one, until what they stored has arrived."""
    found = _extent(rows, ["gpu"])
    return found.assign(took_us=found["arrived_us"] - found["start_us"])
