"""Chrome trace JSON in the shape of torch.profiler (Kineto), which Holistic Trace Analysis loads.

One complete event an op: pid = GPU, tid = lane, times in microseconds with whole nanoseconds. Holistic Trace Analysis counts
an event with a `stream` as busy, takes names such as `ncclDevKernel` for communication, and any other for computation: so
stores and loads are named that way, and waits and signals have no stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .slices import WAITING_KINDS, Slices, slices

if TYPE_CHECKING:
    import pandas as pd

_COMMUNICATION = {"store": "ncclDevKernel_store", "load": "ncclDevKernel_load"}
_NO_KERNELS = (*WAITING_KINDS, "signal", "release")
_TAGS = ("task", "expert", "m_block", "n_block", "op")
_CHUNK = 1 << 15


def kineto_pieces(ops: pd.DataFrame, progress: Callable[[float], None] | None = None) -> Iterator[str]:
    """The file, piece by piece. `progress` is called with the share of the ops that is written.

    Raises `InputError` for an op table that cannot be drawn.
    """
    rows = slices(ops)
    yield '{\n"schemaVersion": 1,\n"displayTimeUnit": "ns",\n'
    gpus = sorted({int(gpu) for gpu in rows.table["gpu"]} or {0})
    rank = gpus[0] if len(gpus) == 1 else 0  # one file a GPU makes a folder of ranks
    yield f'"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {gpus[-1] + 1}}},\n"traceEvents": [\n'
    yield ",\n".join(_tracks(rows, gpus))
    lines = _Lines(rows)
    for first in range(0, len(rows), _CHUNK):
        yield "".join(",\n" + line for line in lines.of(range(first, min(first + _CHUNK, len(rows)))))
        if progress is not None:
            progress(min(1.0, (first + _CHUNK) / len(rows)))
    yield "\n]\n}\n"


def _tracks(ops: Slices, gpus: list[int]) -> Iterator[str]:
    """Names of GPUs and lanes, and their order."""
    lanes = ops.table[["gpu", "lane", "sm", "role"]].drop_duplicates("lane").sort_values(["gpu", "lane"])
    for gpu in gpus:
        yield _named("process_name", gpu, 0, f"GPU {gpu}")
    for gpu, lane, sm, role in lanes.itertuples(index=False):
        yield _named("thread_name", int(gpu), int(lane), f"SM {sm} {role}" if sm >= 0 else str(role))


def _named(what: str, pid: int, tid: int, name: str) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}})


class _Lines:
    """One line of JSON an op. What repeats is written once and looked up."""

    def __init__(self, ops: Slices):
        self.ops = ops
        kind, kinds = ops.text("kind")
        cause, causes = ops.text("cause")
        phase, phases = ops.text("phase")
        role, roles = ops.text("role")
        name, named = ops.text("name") if "name" in ops.table else (np.full(len(ops), -1), [])
        self.codes = np.stack([kind, cause, phase, role, name], axis=1)
        self.words = (kinds, causes, phases, roles, named)
        self.head_of: dict[tuple[int, ...], tuple[str, str, bool]] = {}

    def of(self, rows: range) -> Iterator[str]:
        """Lines of some rows."""
        part = slice(rows.start, rows.stop)
        table = self.ops.table.iloc[part]
        columns: list[list[Any]] = [
            list(map(tuple, self.codes[part].tolist())),
            *(table[name].tolist() for name in ("gpu", "lane", *_TAGS, "bytes", "stall_us", "wait_us")),
            self.ops.start_ns[part].tolist(),
            (self.ops.end_ns - self.ops.start_ns)[part].tolist(),
        ]
        for key, gpu, lane, task, expert, m_block, n_block, op, size, stall, wait, start, took in zip(
            *columns, strict=True
        ):
            head, words, busy = self.head_of.get(key) or self._head(key)
            tags = "".join(
                f', "{tag}": {value}'
                for tag, value in zip(_TAGS, (task, expert, m_block, n_block, op), strict=True)
                if value >= 0
            )
            more = f', "bytes": {size}' if size > 0 else ""
            more += f', "stall_us": {stall!r}' if stall == stall and stall else ""
            more += f', "wait_us": {wait!r}' if wait == wait and wait else ""
            more += f', "device": {gpu}, "stream": {lane}' if busy else ""
            yield (
                f'{head}, "pid": {gpu}, "tid": {lane}, "ts": {start // 1000}.{start % 1000:03d}, '
                f'"dur": {took // 1000}.{took % 1000:03d}, "args": {{{words}{tags}{more}}}}}'
            )

    def _head(self, key: tuple[int, ...]) -> tuple[str, str, bool]:
        """Beginning of an event, beginning of its args, and whether it keeps a stream busy."""
        kind, cause, phase, role, name = (
            words[code] if code >= 0 else "" for words, code in zip(self.words, key, strict=True)
        )
        busy = kind not in _NO_KERNELS
        called = name or _COMMUNICATION.get(kind) or " ".join(part for part in (phase, kind) if part)
        if kind in WAITING_KINDS and cause:
            called = f"wait: {cause}"
        category = ("gpu_memcpy" if kind == "copy" else "kernel") if busy else "wait" if kind in WAITING_KINDS else kind
        words = {"kind": kind, "role": role} | {k: v for k, v in (("phase", phase), ("cause", cause)) if v}
        head = f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(called)}'
        self.head_of[key] = head, json.dumps(words)[1:-1], busy
        return self.head_of[key]
