"""torch.profiler (Kineto) and other Chrome trace JSON.

On NVIDIA GPUs an event's arguments name its device and stream. On AMD GPUs (ROCm) they may not: there the process is the
device and the thread the stream.
"""

from __future__ import annotations

import gzip
import json
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim.errors import InputError
from .table import Rows, innermost, op_table

if TYPE_CHECKING:
    import pandas as pd

_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy", "memcpy": "copy", "memset": "copy"}
"""Kind of op by category, which older versions capitalise."""
_RANGE = "gpu_user_annotation"


def read_kineto(file: str | Path) -> pd.DataFrame:
    """An op table: one lane a stream, kinds `kernel` and `copy`, `phase` = innermost `gpu_user_annotation` of the stream.

    `.gz` is unpacked. Raises `InputError` for a file that is no such JSON, or has no GPU events, or mixes clocks.
    """
    shown = str(file)
    events = [event for event in _events(file, shown) if isinstance(event, dict) and event.get("ph") == "X"]
    ran = [event for event in events if str(event.get("cat", "")).lower() in _KINDS]
    ranges = [event for event in events if event.get("cat") == _RANGE]
    try:
        start, end = _times(ran)
        arguments = [event.get("args", {}) for event in ran]
        gpu = [int(said.get("device", event.get("pid"))) for event, said in zip(ran, arguments, strict=True)]
        stream = [int(said.get("stream", event.get("tid"))) for event, said in zip(ran, arguments, strict=True)]
        size = [int(said.get("bytes", 0)) for said in arguments]
        phase = _phases(start, gpu, stream, ranges)
    except (KeyError, TypeError, ValueError, InvalidOperation) as error:
        raise InputError(f"has a GPU event without a number where one is needed ({error})", file=shown) from error
    rows = Rows(
        gpu=np.array(gpu, dtype=np.int64),
        sm=np.full(len(ran), -1, dtype=np.int64),
        track=np.array(stream, dtype=np.int64),
        role=[f"stream {number}" for number in stream],
        name=[str(event.get("name", "")) for event in ran],
        phase=phase,
        kind=[_KINDS[event["cat"].lower()] for event in ran],
        bytes=np.array(size, dtype=np.int64),
        start_ns=start,
        end_ns=end,
    )
    return op_table(rows, shown)


def _events(file: str | Path, shown: str) -> list[Any]:
    opened = gzip.open if Path(file).suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as stream:
            # Microseconds since 1970 with a fraction do not fit into a float.
            found = json.load(stream, parse_float=Decimal)
    except (json.JSONDecodeError, UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise InputError(f"is no whole JSON file: {error}", file=shown) from error
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        raise InputError("has no list of events", file=shown, allowed="a list, or an object with `traceEvents`")
    return events


def _times(events: list[Any]) -> tuple[Any, Any]:
    """Start and end in ns. Times in the file are microseconds."""
    start = [int(Decimal(event["ts"]) * 1000) for event in events]
    end = [int((Decimal(event["ts"]) + Decimal(event.get("dur", 0))) * 1000) for event in events]
    return np.array(start, dtype=np.int64), np.array(end, dtype=np.int64)


def _phases(moments: Any, gpu: list[int], stream: list[int], ranges: list[Any]) -> list[str]:
    phase = [""] * len(gpu)
    start, end = _times(ranges)
    tracks = [(int(event["pid"]), int(event["tid"])) for event in ranges]
    for track in sorted(set(tracks)):
        chosen = np.array([i for i, each in enumerate(tracks) if each == track], dtype=np.int64)
        rows = [i for i, each in enumerate(zip(gpu, stream, strict=True)) if each == track]
        found = innermost(moments[np.array(rows, dtype=np.int64)], start[chosen], end[chosen])
        for row, which in zip(rows, found.tolist(), strict=True):
            if which >= 0:
                phase[row] = str(ranges[int(chosen[which])].get("name", ""))
    return phase
