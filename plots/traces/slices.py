"""An op table as arrays in the order in which each lane did its ops: what every writer starts from.

Times are whole nanoseconds, the unit of the viewers. Start and end are rounded down by the same rule, so that ops that
follow one another still do, and an op inside a task is still inside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...sim.errors import InputError
from ...sim.units import PS_PER_NS, PS_PER_US

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]

NEEDED = ("gpu", "sm", "lane", "role", "task", "phase", "expert", "m_block", "n_block", "op", "kind", "bytes",
          "start_us", "end_us", "stall_us", "wait_us", "cause")  # fmt: skip
"""Columns of an op table, as `Trace.ops` makes it. A column `name` may say what an op is called."""

ROUNDING_PS = PS_PER_NS
"""How much longer waits and stalls may be than the op that they are part of: times are floating-point microseconds."""

WAITING_KINDS = ("wait", "acquire", "task")
"""Kinds of ops that do nothing but wait."""


@dataclass(frozen=True, eq=False)
class Slices:
    """One row an op, by lane and then by time. `row` is the op's place in the table it comes from."""

    row: Ints
    lane: Ints
    start_ns: Ints
    end_ns: Ints
    wait_until_ns: Ints  # a wait is drawn from the start on,
    stall_from_ns: Ints  # a stall up to the end: the table has their sums, not their places
    table: pd.DataFrame  # in the order of the other fields

    def __len__(self) -> int:
        return len(self.row)

    def text(self, column: str) -> tuple[Ints, list[str]]:
        """Codes of a column of names and the names; -1 where there is none."""
        import pandas as pd

        coded = pd.Categorical(self.table[column])
        return coded.codes.astype(np.int64), [str(name) for name in coded.categories]


def slices(ops: pd.DataFrame) -> Slices:
    """Sort an op table and check it. Raises `InputError` for missing columns, several repeats, times that are no numbers, an
    op that starts before time 0, ends before it starts, or waits and stalls for longer than it lasts, or a lane that does
    two ops at once.
    """
    check_columns(ops)
    if "repeat" in ops and ops["repeat"].nunique() > 1:
        raise InputError("holds several repeats; give one of them", field="op table", value=ops["repeat"].nunique())
    start, end = _ps(ops, "start_us"), _ps(ops, "end_us")
    lane = ops["lane"].to_numpy().astype(np.int64)
    row = np.lexsort((start, lane))
    start, end, lane = start[row], end[row], lane[row]
    table = ops.iloc[row].reset_index(drop=True)
    _refuse(start < 0, table, "starts before time 0")
    _refuse(end < start, table, "ends before it starts")
    again = np.concatenate([[False], (lane[1:] == lane[:-1]) & (start[1:] < end[:-1])])[: len(lane)]
    _refuse(again, table, "starts before the lane's op before it ends")
    took, wait, stall = end - start, _ps(table, "wait_us", missing=0), _ps(table, "stall_us", missing=0)
    _refuse(wait < -ROUNDING_PS, table, "waits for less than no time")
    _refuse(wait + np.maximum(stall, 0) > took + ROUNDING_PS, table, "waits and stalls for longer than it lasts")
    wait = np.clip(wait, 0, took)
    stall = np.clip(stall, 0, took - wait)  # a measured one, time less issue time, may lie a little below 0
    return Slices(
        row=row,
        lane=lane,
        start_ns=start // PS_PER_NS,
        end_ns=end // PS_PER_NS,
        wait_until_ns=(start + wait) // PS_PER_NS,
        stall_from_ns=(end - stall) // PS_PER_NS,
        table=table,
    )


def check_columns(ops: pd.DataFrame, file: str | None = None) -> None:
    """Raises `InputError`, which names `file`, if a table lacks a column that an op table has."""
    missing = [name for name in NEEDED if name not in ops]
    if missing:
        raise InputError("is no column of it", field="op table", value=missing[0], file=file, allowed=NEEDED)


def task_starts(ops: Slices) -> NDArray[np.bool_]:
    """Where a lane begins its part of a task: another task than before, or the same one from its beginning."""
    task, op = ops.table["task"].to_numpy(), ops.table["op"].to_numpy()
    waited = (ops.table["kind"] == "task").to_numpy()
    begins = np.ones(len(ops), dtype=bool)
    begins[1:] = (np.diff(ops.lane) != 0) | (np.diff(task) != 0) | (np.diff(op) <= 0) | (waited[1:] != waited[:-1])
    return begins


def _ps(table: pd.DataFrame, column: str, missing: float | None = None) -> Ints:
    times = table[column].to_numpy(dtype=np.float64)
    if missing is not None:
        times = np.where(np.isnan(times), missing, times)
    if not np.isfinite(times).all() or np.abs(times).max(initial=0) * PS_PER_US >= 2**62:
        raise InputError("holds a time that is no number of microseconds below 2^62 ps", field=column)
    ps: Ints = np.rint(times * PS_PER_US).astype(np.int64)
    return ps


def _refuse(wrong: Any, table: pd.DataFrame, reason: str) -> None:
    if wrong.any():
        bad = table.iloc[int(np.argmax(wrong))]
        raise InputError(f"the op of lane {bad['lane']} at {bad['start_us']} us {reason}", field="op table")
