"""torch.profiler (Kineto) and other Chrome trace JSON.

On NVIDIA GPUs an event's arguments name its device and stream. On AMD GPUs (ROCm) they may not: there the process is the
device and the thread the stream.
"""

from __future__ import annotations

import gzip
import json
import zlib
from decimal import Decimal
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
_GZIP = b"\x1f\x8b"


def read_kineto(file: str | Path) -> pd.DataFrame:
    """An op table: one lane a stream, kinds `kernel` and `copy`, `phase` = innermost `gpu_user_annotation` of the stream.

    A gzip file is unpacked. Raises `InputError` for a file that is no such JSON, or has no GPU events, or mixes clocks.
    """
    shown = str(file)
    events = [event for event in _events(file, shown) if isinstance(event, dict) and event.get("ph") == "X"]
    ran = [event for event in events if str(event.get("cat", "")).lower() in _KINDS]
    ranges = [event for event in events if event.get("cat") == _RANGE]
    try:
        start, end = _times(ran)
        arguments = [event.get("args", {}) for event in ran]
        gpu = [_whole(said.get("device", event.get("pid"))) for event, said in zip(ran, arguments, strict=True)]
        stream = [_whole(said.get("stream", event.get("tid"))) for event, said in zip(ran, arguments, strict=True)]
        gpus, streams, size = (
            np.array(numbers, dtype=np.int64)
            for numbers in (gpu, stream, [_whole(said.get("bytes", 0)) for said in arguments])
        )
        phase = _phases(start, gpu, stream, ranges)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"has a GPU event without a number where one is needed ({error})", file=shown) from error
    rows = Rows(
        gpu=gpus,
        sm=np.full(len(ran), -1, dtype=np.int64),
        track=streams,
        role=[f"stream {number}" for number in stream],
        name=[str(event.get("name", "")) for event in ran],
        phase=phase,
        kind=[_KINDS[event["cat"].lower()] for event in ran],
        bytes=size,
        start_ns=start,
        end_ns=end,
    )
    return op_table(rows, shown)


def _events(file: str | Path, shown: str) -> list[Any]:
    try:
        content = Path(file).read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        # Microseconds since 1970 with a fraction do not fit into a float.
        found = json.loads(content, parse_float=Decimal)
    except (EOFError, OSError, RecursionError, ValueError, zlib.error) as error:
        raise InputError(f"is no whole JSON file: {error}", file=shown) from error
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        raise InputError("has no list of events", file=shown, allowed="a list, or an object with `traceEvents`")
    return events


def _whole(value: Any) -> int:
    """A whole number of 64 bits, which may be text. Raises `ValueError` for any other."""
    if isinstance(value, str):
        value = int(value)
    if not -(2**63) <= value < 2**63 or int(value) != value:  # the bounds first: int() of 1E+999999999 takes hours
        raise ValueError(f"{value} is no whole number of 64 bits")
    return int(value)


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
