"""FlashInfer's in-kernel profiler: a buffer of 64-bit entries that the warps of a kernel wrote, saved as `.npy`.

    entry 0         number of blocks (low half), number of groups in a block (high half)
    entry 1 + ...   slot t of group g of block b is entry 1 + (t * blocks + b) * groups + g; 0 if not written
    an entry        high half: `%globaltimer` in ns, its lowest 32 bits; low half, from the lowest bit: type (2 bits: begin,
                    end, instant), event (10), block and group (12), SM (8)

Layout: include/flashinfer/profiler.cuh and flashinfer/profiler/__init__.py of https://github.com/flashinfer-ai/flashinfer.
Block and group are taken from the place of an entry, as 12 bits are too few for a large grid. An instant is overwritten by
the next event of its group, so that few survive.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...sim.errors import InputError
from .table import Ints, Rows, op_table

if TYPE_CHECKING:
    import pandas as pd

BEGIN, END, INSTANT = 0, 1, 2
_WRAP = 1 << 32  # the clock's low half comes round every 4.29 s


def read_flashinfer(file: str | Path, event_names: Sequence[str] = (), gpu: int = 0) -> pd.DataFrame:
    """An op table: one lane a group of a block, kind `compute`, named by `event_names` (default: 'event 3').

    Raises `InputError` for a file that is no such buffer, an event without a name, or one that begins or ends alone.
    """
    shown = str(file)
    try:
        buffer = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError, TokenError) as error:
        raise InputError(f"is no .npy file: {error}", file=shown) from error
    if buffer.dtype.kind not in "ui" or buffer.dtype.itemsize != 8 or buffer.ndim != 1 or not len(buffer):
        found = f"{buffer.dtype} {list(buffer.shape)}"
        raise InputError("is no profiler buffer", field="array", value=found, file=shown, allowed="uint64 [n]")
    return decode(buffer.view(np.uint64), event_names, gpu, shown)


def decode(
    buffer: NDArray[np.uint64], event_names: Sequence[str] = (), gpu: int = 0, file: str = "buffer"
) -> pd.DataFrame:
    """As `read_flashinfer`, from the buffer itself."""
    blocks, groups = int(buffer[0]) & 0xFFFFFFFF, int(buffer[0]) >> 32
    tracks = blocks * groups
    if tracks < 1:
        raise InputError("has no blocks or no groups: was the kernel built with its profiler?", file=file,
                         field="entry 0", value=f"{blocks} blocks, {groups} groups")  # fmt: skip
    if tracks >= len(buffer):
        raise InputError(f"has {len(buffer) - 1} entries, fewer than one for each group of a block", file=file,
                         field="entry 0", value=f"{blocks} blocks, {groups} groups")  # fmt: skip
    place = np.flatnonzero(buffer[1:])
    entry = buffer[1:][place]
    order = np.argsort(place % tracks, kind="stable")  # by track, then by time
    place, entry = place[order], entry[order]
    tag, track = (entry & np.uint64(0xFFFFFFFF)).astype(np.int64), place % tracks
    if ((tag >> 12 & 0xFFF) != track % 4096).any():
        raise InputError(
            "has entries of other blocks than their place says: is it one buffer, of one kernel?", file=file
        )
    time = _unwrapped((entry >> np.uint64(32)).astype(np.int64), track)
    first, last = _pairs(tag & 3, tag >> 2 & 0x3FF, track, groups, file)
    event, owner, sm = tag[first] >> 2 & 0x3FF, track[first], tag >> 24
    if event_names and len(event) and event.max() >= len(event_names):
        raise InputError("has no name", field="event", value=int(event.max()), file=file,
                         allowed=f"{len(event_names)} names were given")  # fmt: skip
    named = event_names or [f"event {number}" for number in range(int(event.max(initial=-1)) + 1)]
    known = blocks == 1 or (sm != 0).any()  # older versions do not note the SM
    rows = Rows(
        gpu=np.full(len(first), gpu, dtype=np.int64),
        sm=sm[first] if known else np.full(len(first), -1, dtype=np.int64),
        track=owner,
        role=[f"block {number // groups} group {number % groups}" for number in owner.tolist()],
        name=[named[number] for number in event.tolist()],
        phase=[""] * len(first),
        kind=["compute"] * len(first),
        bytes=np.zeros(len(first), dtype=np.int64),
        start_ns=time[first],
        end_ns=time[last],
    )
    return op_table(rows, file)


def _unwrapped(low: Ints, track: Ints) -> Ints:
    """Times that go on where the clock came round. Right if no group is silent for 4.29 s, and groups start within 2.1 s."""
    if not len(low):
        return low
    begins = np.append(True, track[1:] != track[:-1])
    step = np.diff(low, prepend=low[:1]) % _WRAP
    first = low[begins]
    from_first = (first - first[0] + _WRAP // 2) % _WRAP - _WRAP // 2
    step[begins] = 0
    total = np.cumsum(step)
    group = np.cumsum(begins) - 1
    return np.asarray(total - total[begins][group] + from_first[group])


def _pairs(kind: Ints, event: Ints, track: Ints, groups: int, file: str) -> tuple[Ints, Ints]:
    """Entries at which each event begins and ends; an instant is both."""
    first, last = [], []
    waiting: dict[tuple[int, int], list[int]] = {}
    for i, (what, which, who) in enumerate(zip(kind.tolist(), event.tolist(), track.tolist(), strict=True)):
        if what == BEGIN:
            waiting.setdefault((who, which), []).append(i)
        elif what == INSTANT:
            first.append(i)
            last.append(i)
        elif what == END and waiting.get((who, which)):
            first.append(waiting[who, which].pop())
            last.append(i)
        else:
            raise _alone(who, which, groups, "ends but never begins" if what == END else f"has type {what}", file)
    for (who, which), begun in waiting.items():
        if begun:
            raise _alone(who, which, groups, "begins but never ends: is the buffer too small?", file)
    return np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)


def _alone(track: int, event: int, groups: int, reason: str, file: str) -> Any:
    return InputError(f"event {event} of block {track // groups}, group {track % groups} {reason}", file=file)
