"""Nsight Systems, exported with `nsys export --type sqlite`: kernels and copies, and the NVTX range that launched each.

Tables and columns: https://docs.nvidia.com/nsight-systems/UserGuide, "SQLite Export Schema Reference". A thread's globalTid
is its process's globalPid with the thread in the lowest 24 bits.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim.errors import InputError
from .table import Ints, Rows, innermost, op_table

if TYPE_CHECKING:
    import pandas as pd

MAJOR_VERSIONS = (2, 3)
"""Of the export's schema, that this reader knows."""

_KERNEL, _COPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
_RUNTIME, _NVTX, _STRINGS, _META = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds", "META_DATA_EXPORT"
_COLUMNS = {
    _KERNEL: ("start", "end", "deviceId", "streamId", "correlationId", "shortName"),
    _COPY: ("start", "end", "deviceId", "streamId", "correlationId", "bytes", "copyKind"),
    _RUNTIME: ("start", "globalTid", "correlationId"),
    _NVTX: ("start", "end", "eventType", "text", "globalTid"),
    _STRINGS: ("id", "value"),
}
_PUSH_POP = 59  # eventType of an NvtxPushPopRange
_COPY_NAMES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
               10: "PtoP"}  # fmt: skip
"""CUpti_ActivityMemcpyKind"""


def read_nsys(file: str | Path) -> pd.DataFrame:
    """An op table: one lane a stream, kinds `kernel` and `copy`, `phase` = innermost NVTX range around the launch.

    Raises `InputError` for a file that is no such export, a schema version or a column that is not known, or no kernels.
    """
    shown = str(file)
    connection = sqlite3.connect(f"{Path(file).resolve().as_uri()}?mode=ro", uri=True)
    try:
        columns = _known_columns(connection, shown)
        if not {_KERNEL, _COPY} & columns.keys():
            raise InputError(
                "holds no kernels and no copies: was CUDA traced?", file=shown, allowed=f"{_KERNEL}, {_COPY}"
            )
        strings = dict(_select(connection, _STRINGS, "id", "value")) if _STRINGS in columns else {}
        parts = [part(connection, columns, strings) for name, part in ((_KERNEL, _kernels), (_COPY, _copies))
                 if name in columns]  # fmt: skip
        launched = np.concatenate([part[0] for part in parts]).reshape(-1, 7)
        phase = _phases(connection, columns, strings, launched[:, 4], launched[:, 5])
    except sqlite3.Error as error:
        raise InputError(f"cannot be read as an export of Nsight Systems: {error}", file=shown) from error
    except (TypeError, ValueError) as error:
        raise InputError(f"has a row without a number where one is needed ({error})", file=shown) from error
    finally:
        connection.close()
    start, end, gpu, stream, _, _, size = launched.T
    rows = Rows(
        gpu=gpu,
        sm=np.full(len(gpu), -1, dtype=np.int64),
        track=stream,
        role=[f"stream {number}" for number in stream.tolist()],
        name=[name for part in parts for name in part[1]],
        phase=phase,
        kind=[kind for part in parts for kind in part[2]],
        bytes=size,
        start_ns=start,
        end_ns=end,
    )
    return op_table(rows, shown)


def _known_columns(connection: sqlite3.Connection, file: str) -> dict[str, set[str]]:
    """Columns by table; only tables that are there. Refuses what this reader cannot understand."""
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    if _META in there:
        found = dict(connection.execute(f"SELECT name, value FROM {_META}")).get("EXPORT_SCHEMA_VERSION")
        if found is not None and str(found).split(".")[0] not in map(str, MAJOR_VERSIONS):
            raise InputError(
                "is not known to this reader", field="EXPORT_SCHEMA_VERSION", value=found, file=file,
                allowed=[f"{major}.x" for major in MAJOR_VERSIONS],
            )  # fmt: skip
    columns: dict[str, set[str]] = {}
    for table, needed in _COLUMNS.items():
        if table in there:
            columns[table] = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            missing = [name for name in needed if name not in columns[table]]
            if missing:
                raise InputError("has no such column: another version of the schema?", field=table, value=missing[0],
                                 file=file, allowed=needed)  # fmt: skip
    return columns


def _select(connection: sqlite3.Connection, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()


def _kernels(
    connection: sqlite3.Connection, columns: dict[str, set[str]], strings: dict[int, str]
) -> tuple[Ints, list[str], list[str]]:
    """start, end, device, stream, correlation, process and bytes; names; kinds."""
    full = "demangledName" if "demangledName" in columns[_KERNEL] else "shortName"
    rows = _select(connection, _KERNEL, *_who(columns[_KERNEL]), "0", full, "shortName")
    names = [strings.get(name) or strings.get(short) or "kernel" for *_, name, short in rows]
    return _numbers([row[:7] for row in rows]), names, ["kernel"] * len(rows)


def _copies(
    connection: sqlite3.Connection, columns: dict[str, set[str]], strings: dict[int, str]
) -> tuple[Ints, list[str], list[str]]:
    rows = _select(connection, _COPY, *_who(columns[_COPY]), "bytes", "copyKind")
    names = [f"Memcpy {_COPY_NAMES.get(row[7], row[7])}" for row in rows]
    return _numbers([row[:7] for row in rows]), names, ["copy"] * len(rows)


def _who(columns: set[str]) -> tuple[str, ...]:
    process = "globalPid" if "globalPid" in columns else "-1"
    return "start", '"end"', "deviceId", "streamId", "correlationId", process


def _numbers(rows: list[tuple[Any, ...]]) -> Ints:
    found = np.array(rows or np.zeros(0, dtype=np.int64)).reshape(-1, 7)
    if found.dtype.kind != "i":
        raise ValueError("start, end, deviceId, streamId, correlationId, globalPid and bytes are whole numbers")
    return found


def _phases(
    connection: sqlite3.Connection,
    columns: dict[str, set[str]],
    strings: dict[int, str],
    correlation: Ints,
    process: Ints,
) -> list[str]:
    """The NVTX range that was open on the launching thread; empty where there is none."""
    phase = [""] * len(correlation)
    if not {_RUNTIME, _NVTX} <= columns.keys():
        return phase
    text_id = "textId" if "textId" in columns[_NVTX] else "NULL"
    query = f'SELECT start, "end", globalTid, text, {text_id} FROM {_NVTX} WHERE eventType = ? AND "end" IS NOT NULL'
    ranges = connection.execute(query, (_PUSH_POP,)).fetchall()
    launches = {(number, thread >> 24): (start, thread) for start, thread, number in
                _select(connection, _RUNTIME, "start", "globalTid", "correlationId")}  # fmt: skip
    by_number = {number: launch for (number, _), launch in launches.items()} if (process < 0).any() else {}
    found = [by_number.get(number) if owner < 0 else launches.get((number, owner >> 24))
             for number, owner in zip(correlation.tolist(), process.tolist(), strict=True)]  # fmt: skip
    for thread in sorted({row[2] for row in ranges}):
        mine = [row for row in ranges if row[2] == thread]
        rows = [row for row, launch in enumerate(found) if launch and launch[1] == thread]
        start, end = (np.array([row[i] for row in mine], dtype=np.int64) for i in (0, 1))
        moments = np.array([launch[0] for launch in (found[row] for row in rows) if launch], dtype=np.int64)
        for row, which in zip(rows, innermost(moments, start, end).tolist(), strict=True):
            if which >= 0:
                phase[row] = mine[which][3] or strings.get(mine[which][4], "")
    return phase
