"""What stands on the tracks of a Perfetto trace, as one table: begins and ends of slices, instants, values of counters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...sim.trace import Trace
from ...sim.units import PS_PER_NS
from .counters import Steps, egress_steps, stage_steps
from .flows import Arrivals, arrivals
from .slices import WAITING_KINDS, Slices, task_starts
from .tracks import Tracks

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""TrackEvent.Type"""

NUMBERS = ("task", "expert", "m_block", "n_block", "op", "bytes", "from_gpu")
"""Annotations that are whole numbers; -1 means none."""
SHARES = ("stall_us", "wait_us")
"""Annotations that are times, as in the op table; 0 means none."""

EVENT = np.dtype(
    [
        ("time_ns", "i8"),
        ("type", "i4"),
        ("track", "i4"),
        ("name", "i4"),  # number in `Names`, 0 for none
        ("category", "i4"),
        ("cause", "i4"),
        *((number, "i8") for number in NUMBERS),
        *((share, "f8") for share in SHARES),
        ("value", "f8"),
        ("first_flow", "i8"),
        ("n_flows", "i4"),
        ("ends_flow", "i8"),  # 0 for none
        ("place", "i8"),  # order of events of one moment
    ]
)
Table = NDArray[np.void]
Ints = NDArray[np.int64]

_PLACES = 8  # an op has this many events at most, those of its task included


class Names:
    """Every name once, numbered from 1."""

    def __init__(self) -> None:
        self.number_of: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self.number_of.setdefault(name, len(self.number_of) + 1)

    def numbers(self, codes: Ints, names: list[str]) -> Ints:
        """Numbers for a column of codes; 0 for code -1 and for an empty name."""
        known = [self.number(name) if name else 0 for name in names]
        return np.array([*known, 0], dtype=np.int64)[codes]


def events_of(ops: Slices, tracks: Tracks, names: Names, trace: Trace | None = None) -> Table:
    """All events by time; those of one moment and one track in the order in which they nest.

    With `trace`, the full trace that the ops are of, also arrivals, flows to them, and counters.
    """
    begins = _op_begins(ops, tracks, names)
    parts = [begins, _ends(begins, ops.end_ns, 6), *_tasks(ops, tracks, names), *_inner(ops, begins, names)]
    if trace is not None:
        sent = arrivals(trace)
        _begin_flows(begins, ops, sent)
        parts += [_arrivals(sent, tracks, names), *_counters(trace, tracks)]
    table = np.concatenate(parts)
    return table[np.lexsort((table["place"], table["time_ns"]))]


def _blank(count: int, kind: int) -> Table:
    table = np.zeros(count, EVENT)
    table["type"] = kind
    for number in NUMBERS:
        table[number] = -1
    return table


def _op_begins(ops: Slices, tracks: Tracks, names: Names) -> Table:
    table = _blank(len(ops), BEGIN)
    table["time_ns"], table["track"] = ops.start_ns, tracks.of_lane
    table["place"] = np.arange(len(ops)) * _PLACES + 1
    kind, kinds = ops.text("kind")
    cause, causes = ops.text("cause")
    if "name" in ops.table:
        table["name"] = names.numbers(*ops.text("name"))
    unnamed = table["name"] == 0
    table["name"][unnamed] = names.numbers(kind, kinds)[unnamed]
    waits = np.isin(kind, [code for code, name in enumerate(kinds) if name in WAITING_KINDS]) & (cause >= 0)
    table["name"][waits] = names.numbers(cause, [f"wait: {name}" for name in causes])[waits]
    table["category"] = names.numbers(kind, kinds)
    table["cause"] = names.numbers(cause, causes)
    table["op"] = ops.table["op"]
    size = ops.table["bytes"].to_numpy()
    table["bytes"] = np.where(size > 0, size, -1)
    for share in SHARES:
        table[share] = np.nan_to_num(ops.table[share].to_numpy(dtype=np.float64))
    return table


def _ends(begins: Table, end_ns: Ints, place: int) -> Table:
    table = _blank(len(begins), END)
    table["time_ns"], table["track"] = end_ns, begins["track"]
    table["place"] = begins["place"] // _PLACES * _PLACES + place
    return table


def _tasks(ops: Slices, tracks: Tracks, names: Names) -> list[Table]:
    """From the first to the last op of a lane's part of a task; waiting to take it is not part of it."""
    first = np.flatnonzero(task_starts(ops))
    last = np.append(first[1:], len(ops))[: len(first)] - 1
    real = (ops.table["task"].to_numpy()[first] >= 0) & (ops.table["kind"].to_numpy()[first] != "task")
    first, last = first[real], last[real]
    begins = _blank(len(first), BEGIN)
    begins["time_ns"], begins["track"] = ops.start_ns[first], tracks.of_lane[first]
    begins["place"] = first * _PLACES
    begins["name"] = names.numbers(*ops.text("phase"))[first]
    begins["name"][begins["name"] == 0] = names.number("task")
    begins["category"] = names.number("span")
    for tag in ("task", "expert", "m_block", "n_block"):
        begins[tag] = ops.table[tag].to_numpy()[first]
    ends = _ends(begins, ops.end_ns[last], 7)
    ends["place"] = last * _PLACES + 7
    return [begins, ends]


def _inner(ops: Slices, begins: Table, names: Names) -> list[Table]:
    """Waits and stalls of ops that also do something."""
    doing = ~ops.table["kind"].isin(WAITING_KINDS).to_numpy()
    waited = np.flatnonzero(doing & (begins["wait_us"] > 0))
    stalled = np.flatnonzero(doing & (begins["stall_us"] > 0))
    cause, causes = ops.text("cause")
    wait_name = names.numbers(cause, [f"wait: {name}" for name in causes])
    wait_name[wait_name == 0] = names.number("wait")
    made = []
    for rows, start, end, name, place in (
        (waited, ops.start_ns, ops.wait_until_ns, wait_name, 2),
        (stalled, ops.stall_from_ns, ops.end_ns, np.full(len(ops), names.number("stall")), 4),
    ):
        table = _blank(len(rows), BEGIN)
        table["time_ns"], table["track"], table["name"] = start[rows], begins["track"][rows], name[rows]
        table["place"] = rows * _PLACES + place
        made += [table, _ends(table, end[rows], place + 1)]
    return made


def _begin_flows(begins: Table, ops: Slices, sent: Arrivals) -> None:
    """Flow n+1 leads from its op to arrival n."""
    begins["first_flow"] = np.searchsorted(sent.op_row, ops.row, side="left") + 1
    begins["n_flows"] = np.searchsorted(sent.op_row, ops.row, side="right") + 1 - begins["first_flow"]


def _arrivals(sent: Arrivals, tracks: Tracks, names: Names) -> Table:
    table = _blank(len(sent.op_row), INSTANT)
    table["time_ns"] = sent.visible_ps // PS_PER_NS
    table["track"] = np.array([0, *tracks.arrivals.values()])[sent.destination + 1]
    table["name"] = names.number("arrival")
    table["from_gpu"], table["bytes"] = sent.source, sent.bytes
    table["ends_flow"] = np.arange(len(table)) + 1
    table["place"] = 2**62 + np.arange(len(table))
    return table


def _counters(trace: Trace, tracks: Tracks) -> list[Table]:
    made = []
    for gpu in range(trace.program.n_gpus):
        for track, steps in (
            (tracks.stage[gpu], stage_steps(trace, gpu)),
            (tracks.egress[gpu], egress_steps(trace, gpu)),
        ):
            made.append(_values(track, steps))
    return made


def _values(track: int, steps: Steps) -> Table:
    table = _blank(len(steps.time_ns), COUNTER)
    table["time_ns"], table["value"], table["track"], table["place"] = steps.time_ns, steps.value, track, 2**62
    return table
