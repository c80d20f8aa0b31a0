"""A Program as text for people: what it is made of, and where two differ."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from . import program as p
from .program_index import op_repeats
from .units import format_size, format_time

if TYPE_CHECKING:
    from .program import Program, Table


def describe(program: Program) -> str:
    """A few lines: who acts, what is to be done, how much is moved."""
    repeats = op_repeats(program)
    kinds = np.bincount(program.ops["kind"], weights=repeats, minlength=len(p.KIND_NAMES)).astype(int)
    moved = {
        kind: int((program.ops["bytes"] * repeats)[program.ops["kind"] == kind].sum()) for kind in (p.STORE, p.LOAD)
    }
    busy = int((program.ops["duration_ps"] * repeats).sum())
    roles = np.bincount(program.lanes["role"], minlength=len(program.roles))
    phases = np.bincount(program.tasks["phase"], minlength=len(program.phases))
    lines = [
        f"{program.n_gpus} GPUs, {len(program.groups)} groups, {len(program.lanes)} lanes: "
        + ", ".join(f"{count} {name}" for name, count in zip(program.roles, roles, strict=True)),
        f"{len(program.tasks)} tasks in {len(program.queues)} queues: "
        + ", ".join(f"{count} {name or 'untagged'}" for name, count in zip(program.phases, phases, strict=True)),
        f"{int(repeats.sum())} ops: "
        + ", ".join(f"{count} {name}" for name, count in zip(p.KIND_NAMES, kinds, strict=True) if count),
        f"{format_size(moved[p.STORE])} stored, {format_size(moved[p.LOAD])} loaded, "
        f"{format_time(busy)} of compute and issue over all lanes",
    ]
    if program.meta:
        lines.append(json.dumps(program.meta, sort_keys=True))
    return "\n".join(lines)


def diff(one: Program, other: Program) -> list[str]:
    """One line a table or field that differs, with the first row that does."""
    lines = [
        f"{name}: {getattr(one, name)} | {getattr(other, name)}"
        for name in ("n_gpus", "roles", "phases", "meta")
        if getattr(one, name) != getattr(other, name)
    ]
    for (name, mine), (_, theirs) in zip(one.tables(), other.tables(), strict=True):
        if len(mine) != len(theirs):
            lines.append(f"{name}: {len(mine)} rows | {len(theirs)} rows")
        elif len(rows := np.flatnonzero(mine != theirs)):
            first = int(rows[0])
            columns = _differing_columns(mine, theirs, first)
            lines.append(f"{name}: {len(rows)} of {len(mine)} rows differ, first {name}[{first}]: {columns}")
    return lines


def _differing_columns(mine: Table, theirs: Table, row: int) -> str:
    names = mine.dtype.names
    if names is None:
        return f"{mine[row]} | {theirs[row]}"
    different = [name for name in names if not np.array_equal(mine[row][name], theirs[row][name])]
    return ", ".join(f"{name} {mine[row][name]} | {theirs[row][name]}" for name in different)
