"""Rows of a profiler, in whole nanoseconds of its clock, as an op table.

The table has the columns of `Trace.ops()` and a `name`. Times start at 0 with the first row. What a profiler does not know
is -1 (task, tags, perhaps the SM) or NaN (stall, wait). A lane does one thing at a time, as everywhere: rows that
overlap on one track of the profiler are put on as many lanes of the same role as they need.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...sim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]

LONGEST_NS = 86_400 * 10**9
"""A trace that spans more than a day mixes two clocks: one part of it counts from 1970, the other from some start."""

_MOST = int(np.iinfo(np.int32).max)
"""GPU or SM."""


@dataclass(frozen=True, eq=False)
class Rows:
    """One row a thing that ran. `track` tells apart what can run at the same time on one GPU; `role` names it."""

    gpu: Ints
    sm: Ints
    track: Ints
    role: list[str]
    name: list[str]
    phase: list[str]  # empty if none
    kind: list[str]
    bytes: Ints
    start_ns: Ints
    end_ns: Ints


def op_table(rows: Rows, file: str) -> pd.DataFrame:
    """Rows by start.

    Raises `InputError` if there are none, one ends before it starts, or two clocks are mixed, and for a GPU or SM that is no
    number of one, or a name that is no text.
    """
    import pandas as pd

    if not len(rows.start_ns):
        raise InputError("holds nothing that ran on a GPU", file=file)
    refuse_mixed_clocks(rows.start_ns, file)
    if (rows.end_ns < rows.start_ns).any():
        bad = int(np.argmax(rows.end_ns < rows.start_ns))
        raise InputError(f"{rows.name[bad]!r} at {rows.start_ns[bad]} ns ends before it starts", file=file)
    _refuse_no_number("gpu", rows.gpu, 0, file)
    _refuse_no_number("sm", rows.sm, -1, file)
    for column in (rows.role, rows.name, rows.phase, rows.kind):
        try:
            "".join(set(column)).encode()
        except (TypeError, UnicodeEncodeError) as error:
            raise InputError(f"has a name that is no text: {error}", file=file) from error
    lane = _lanes(rows)
    order = np.lexsort((lane, rows.end_ns, rows.start_ns))
    began = int(rows.start_ns.min())
    none = np.full(len(order), -1, dtype=np.int32)
    unknown = np.full(len(order), np.nan)

    def words(column: list[str]) -> Any:
        return pd.Categorical([word or None for word in (column[row] for row in order)])

    table = pd.DataFrame(
        {
            "gpu": rows.gpu[order].astype(np.int32),
            "sm": rows.sm[order].astype(np.int32),
            "lane": lane[order].astype(np.int32),
            "role": words(rows.role),
            "task": none,
            "phase": words(rows.phase),
            **dict.fromkeys(("expert", "m_block", "n_block"), none),
            "op": none,
            "name": words(rows.name),
            "kind": words(rows.kind),
            "bytes": rows.bytes[order],
            "start_us": (rows.start_ns[order] - began) / 1000,
            "end_us": (rows.end_ns[order] - began) / 1000,
            "stall_us": unknown,
            "wait_us": unknown,
            "cause": pd.Categorical([None] * len(order), categories=pd.Index([], dtype=object)),
        }
    )
    return table.assign(op=table.groupby("lane").cumcount().astype(np.int32))


def _refuse_no_number(field: str, found: Ints, least: int, file: str) -> None:
    wrong = (found < least) | (found > _MOST)
    if wrong.any():
        raise InputError("is out of range", field=field, value=int(found[wrong][0]), file=file,
                         allowed=f"{least} to {_MOST}")  # fmt: skip


def refuse_mixed_clocks(times_ns: Ints, file: str) -> None:
    """Raises `InputError` if the times cannot be of one clock."""
    first, last = int(times_ns.min()), int(times_ns.max())
    if last - first > LONGEST_NS:
        raise InputError(
            f"mixes clocks: one event begins at {first} ns, another at {last} ns, {(last - first) / LONGEST_NS:.0f} days "
            "later; times since 1970 and times since the start of a recording cannot be put together",
            file=file,
            allowed="times that span a day at most",
        )


def innermost(moments: Ints, start: Ints, end: Ints) -> Ints:
    """For each moment the last of the ranges start..end to begin that is still open, -1 if none. Ranges nest."""
    order = np.lexsort((-end, start))
    first, last = start[order], end[order]
    parent = np.full(len(order), -1, dtype=np.int64)
    open_ranges: list[int] = []
    for i, begun in enumerate(first.tolist()):
        while open_ranges and last[open_ranges[-1]] <= begun:
            open_ranges.pop()
        parent[i] = open_ranges[-1] if open_ranges else -1
        open_ranges.append(i)
    found = np.searchsorted(first, moments, side="right") - 1
    while (over := (found >= 0) & (np.append(last, 0)[found] <= moments)).any():
        found[over] = parent[found[over]]
    return np.where(found >= 0, np.append(order, -1)[found], -1)


def _lanes(rows: Rows) -> Ints:
    """Lanes numbered by GPU, SM and track; a track whose rows overlap becomes several."""
    keys = np.stack([rows.gpu, rows.sm, rows.track], axis=1)
    _, place = np.unique(keys, axis=0, return_inverse=True)
    place = place.ravel()
    order = np.lexsort((rows.end_ns, rows.start_ns, place))
    overlap = (np.diff(place[order]) == 0) & (rows.start_ns[order][1:] < rows.end_ns[order][:-1])
    extra = np.zeros(len(order), dtype=np.int64)
    for track in np.unique(place[order][1:][overlap]).tolist():
        mine = order[place[order] == track]
        mine = mine[np.lexsort((-rows.end_ns[mine], rows.start_ns[mine]))]  # an outer range before those within it
        extra[mine] = _spread(rows.start_ns[mine].tolist(), rows.end_ns[mine].tolist())
    _, lane = np.unique(np.stack([place, extra], axis=1), axis=0, return_inverse=True)
    return lane.ravel().astype(np.int64)


def _spread(start: list[int], end: list[int]) -> list[int]:
    """The lowest number that is free when each begins."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    given, most = [], 0
    for begins, ends in zip(start, end, strict=True):
        while busy and busy[0][0] <= begins:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, most)
            most += 1
        given.append(heapq.heappop(free))
        heapq.heappush(busy, (ends, given[-1]))
    return given
