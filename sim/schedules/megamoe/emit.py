"""Rectangular pieces of the op table: the same ops for many rows, each with its own counters, counts and durations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...program_builder import ProgramBuilder

Op = Mapping[str, Any]
"""Keywords of `ProgramBuilder.ops`; each a scalar, or an array with a value for each row."""

COLUMNS = {"kind": 0, "counter": -1, "count": 0, "target": 0, "stride": 0, "bytes": 0, "duration_ps": 0, "flags": 0}


def op_rows(builder: ProgramBuilder, ops: Sequence[Op], n_rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """First op of each of `n_rows` rows, which all have the ops listed. [n_rows]"""
    columns: dict[str, Any] = {}
    for name, default in COLUMNS.items():
        given = [op.get(name, default) for op in ops]
        if all(np.ndim(value) == 0 for value in given):
            columns[name] = np.array(given)
        else:
            columns[name] = np.stack([np.broadcast_to(value, n_rows) for value in given], axis=1)
    columns["kind"] = np.broadcast_to(columns["kind"], (n_rows, len(ops)))
    first = builder.ops(**columns) if n_rows else 0
    return first + np.arange(n_rows) * len(ops)
