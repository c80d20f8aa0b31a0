"""The tracks of a Perfetto trace: GPUs, their SMs and lanes, arrivals and counters. Events name them by uuid."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import protobuf as pb
from .slices import Slices

Ints = NDArray[np.int64]

_PACKET, _SEQUENCE_ID, _DESCRIPTOR = 1, 10, 60
_UUID, _NAME, _PARENT, _COUNTER, _ORDERING, _RANK, _MERGING = 1, 2, 5, 8, 11, 12, 15
_EXPLICIT, _NO_MERGING = 3, 2  # siblings in the order of their rank; two of the same name stay two
_UNIT, _UNIT_NAME, _BYTES = 3, 6, 3
SEQUENCE = 1
"""All packets are one sequence: one table of names."""


@dataclass(frozen=True)
class Track:
    """`unit`: 'bytes' or a unit's name for a counter, else empty. `parent` is a uuid, 0 for none."""

    uuid: int
    parent: int
    name: str
    rank: int
    unit: str = ""


@dataclass(frozen=True, eq=False)
class Tracks:
    """All tracks, parents first. `of_lane` is by row of `Slices`; the others by GPU, 0 where there is none."""

    listed: tuple[Track, ...]
    of_lane: Ints
    stage: dict[int, int]
    egress: dict[int, int]
    arrivals: dict[int, int]

    def packets(self) -> bytes:
        """A descriptor of every track, as packets of the file."""
        return b"".join(pb.blob(_PACKET, _packet(track)) for track in self.listed)


def tracks_of(ops: Slices, traced_gpus: int) -> Tracks:
    """Tracks for the lanes of an op table, and for counters and arrivals of the first `traced_gpus` GPUs."""
    made: list[Track] = []

    def add(parent: int, name: str, rank: int, unit: str = "") -> int:
        made.append(Track(len(made) + 1, parent, name, rank, unit))
        return len(made)

    _, first, place = np.unique(ops.lane, return_index=True, return_inverse=True)
    columns = (ops.table[name].iloc[first] for name in ("gpu", "sm", "lane", "role"))
    lanes = sorted((int(gpu), int(sm), int(lane), str(role)) for gpu, sm, lane, role in zip(*columns, strict=True))
    gpus = sorted({gpu for gpu, *_ in lanes} | set(range(traced_gpus)))
    of_gpu = {gpu: add(0, f"GPU {gpu}", gpu) for gpu in gpus}
    stage, egress, arrived = {}, {}, {}
    for gpu in range(traced_gpus):
        stage[gpu] = add(of_gpu[gpu], "stage", 0, "bytes")
        egress[gpu] = add(of_gpu[gpu], "egress", 1, "GB/s")
        arrived[gpu] = add(of_gpu[gpu], "arrivals", 2)
    sms = sorted({(gpu, sm) for gpu, sm, *_ in lanes if sm >= 0})
    of_sm = {(gpu, sm): add(of_gpu[gpu], f"SM {sm}", 3 + sm) for gpu, sm in sms}
    seats = Counter((gpu, sm, role) for gpu, sm, _, role in lanes)
    of_lane = {
        lane: add(of_sm.get((gpu, sm), of_gpu[gpu]), f"{role} {lane}" if seats[gpu, sm, role] > 1 else role, 3 + lane)
        for gpu, sm, lane, role in lanes
    }
    numbers = np.array([of_lane[lane] for lane in np.unique(ops.lane).tolist()], dtype=np.int64)
    return Tracks(tuple(made), numbers[place], stage, egress, arrived)


def _packet(track: Track) -> bytes:
    described = pb.whole(_UUID, track.uuid) + pb.text(_NAME, track.name) + pb.whole(_RANK, track.rank)
    described += pb.whole(_ORDERING, _EXPLICIT) + pb.whole(_MERGING, _NO_MERGING)
    if track.parent:
        described += pb.whole(_PARENT, track.parent)
    if track.unit:
        unit = pb.whole(_UNIT, _BYTES) if track.unit == "bytes" else pb.text(_UNIT_NAME, track.unit)
        described += pb.blob(_COUNTER, unit)
    return pb.whole(_SEQUENCE_ID, SEQUENCE) + pb.blob(_DESCRIPTOR, described)
