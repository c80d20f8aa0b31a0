"""Perfetto TrackEvent (.pftrace): a track a GPU, SM and lane, with tasks, ops, waits and stalls nested in one another.

    GPU 0 > stage, egress             counters
          > arrivals                  an instant for each store that has arrived whole; a flow leads there from the store
          > SM 3 > epilogue           task (expert, m_block, n_block) > op (bytes, stall_us, wait_us) > wait, stall

Format: https://perfetto.dev/docs/reference/synthetic-track-event and, for field numbers,
https://perfetto.dev/docs/reference/trace-packet-proto
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from . import protobuf as pb
from .events import COUNTER, NUMBERS, SHARES, Names, Table, events_of
from .slices import slices
from .tracks import SEQUENCE, tracks_of

if TYPE_CHECKING:
    import pandas as pd

    from ...sim.trace import Trace

_PACKET, _TIMESTAMP, _SEQUENCE_ID, _EVENT, _INTERNED, _FLAGS = 1, 8, 10, 11, 12, 13
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _TRACK, _VALUE, _FLOW, _LAST_FLOW = 3, 4, 9, 10, 11, 44, 47, 48
_CATEGORIES, _EVENT_NAMES, _ANNOTATION_NAMES, _STRINGS = 1, 2, 3, 29
_OF_NAME, _INT, _DOUBLE, _STRING = 1, 4, 5, 17
_ANNOTATIONS = (*NUMBERS, *SHARES, "cause")
_CHUNK = 1 << 15


def perfetto_pieces(
    ops: pd.DataFrame, trace: Trace | None = None, progress: Callable[[float], None] | None = None
) -> Iterator[bytes]:
    """The file, piece by piece. With `trace`, the full trace that `ops` are of, also counters, arrivals and flows.

    `progress` is called with the share of the events that is written. Raises `InputError` for an op table that cannot be
    drawn.
    """
    rows, names = slices(ops), Names()
    tracks = tracks_of(rows, trace.program.n_gpus if trace else 0)
    events = events_of(rows, tracks, names, trace)
    yield _names_packet(names)
    yield tracks.packets()
    for first in range(0, len(events), _CHUNK):
        yield _packets(events[first : first + _CHUNK])
        if progress is not None:
            progress(min(1.0, (first + _CHUNK) / len(events)))


def _names_packet(names: Names) -> bytes:
    def entries(field: int, listed: dict[str, int]) -> bytes:
        return b"".join(pb.blob(field, pb.whole(1, number) + pb.text(2, name)) for name, number in listed.items())

    annotations = {name: number + 1 for number, name in enumerate(_ANNOTATIONS)}
    content = entries(_ANNOTATION_NAMES, annotations)
    content += b"".join(entries(field, names.number_of) for field in (_CATEGORIES, _EVENT_NAMES, _STRINGS))
    head = pb.whole(_SEQUENCE_ID, SEQUENCE) + pb.whole(_FLAGS, _STATE_CLEARED)
    return pb.blob(_PACKET, head + pb.blob(_INTERNED, content))


def _packets(events: Table) -> bytes:
    counts, count = events["type"] == COUNTER, len(events)
    event = [
        pb.integer(_CATEGORY, events["category"], events["category"] > 0),
        *_annotations(events),
        pb.integer(_TYPE, events["type"]),
        pb.integer(_NAME, events["name"], events["name"] > 0),
        pb.integer(_TRACK, events["track"]),
        pb.fixed64(_VALUE, events["value"], counts),
        *(
            pb.fixed64(_FLOW, events["first_flow"] + turn, events["n_flows"] > turn)
            for turn in range(int(events["n_flows"].max(initial=0)))
        ),
        pb.fixed64(_LAST_FLOW, events["ends_flow"], events["ends_flow"] > 0),
    ]
    packet = pb.joined(
        pb.integer(_TIMESTAMP, events["time_ns"]),
        pb.integer(_SEQUENCE_ID, np.full(count, SEQUENCE)),
        pb.message(_EVENT, pb.joined(*event)),
        pb.integer(_FLAGS, np.full(count, _NEEDS_STATE)),
    )
    return pb.to_bytes(pb.message(_PACKET, packet))


def _annotations(events: Table) -> Iterator[pb.Cells]:
    """Only slices that begin, and arrivals, say more than where and when."""
    for number, name in enumerate(_ANNOTATIONS):
        values = events[name]
        if name in NUMBERS:
            present, content = values >= 0, pb.integer(_INT, np.maximum(values, 0))
        elif name in SHARES:
            present, content = values != 0, pb.fixed64(_DOUBLE, values)
        else:
            present, content = values > 0, pb.integer(_STRING, values)
        if present.any():
            key = pb.integer(_OF_NAME, np.full(len(events), number + 1))
            yield pb.message(_ANNOTATION, pb.joined(key, content), present)
