"""Read a profiler's file, whichever it is: it is recognised by how it begins."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...sim.arguments import check_path, check_whole, names
from ...sim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

FORMATS = {
    "nsys": "Nsight Systems, by `nsys export --type sqlite`",
    "kineto": "torch.profiler JSON, also .gz",
    "flashinfer": "FlashInfer's profiler buffer as .npy",
    "xstage": "op table as .parquet",
}
_BEGINNINGS = {b"SQLite format 3\0": "nsys", b"\x93NUMPY": "flashinfer", b"PAR1": "xstage", b"\x1f\x8b": "kineto"}


def format_of(file: str | Path) -> str:
    """Key of `FORMATS`. Raises `InputError` if the file is not there or begins as none of them does."""
    try:
        with open(file, "rb") as stream:
            begins = stream.read(64)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=str(file)) from error
    for beginning, name in _BEGINNINGS.items():
        if begins.startswith(beginning):
            return name
    if begins.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"{", b"[")):
        return "kineto"
    raise InputError("is no trace that can be read", file=str(file), allowed="; ".join(FORMATS.values()))


def read_trace(file: str | Path, event_names: Sequence[str] = (), gpu: int | None = None) -> pd.DataFrame:
    """The op table of a profiler's file: columns of `Trace.ops()` and, unless xstage wrote it, `name`. Times start at 0.

    `event_names` and `gpu` are what a FlashInfer buffer does not say; `gpu` keeps one GPU of any other file.
    Raises `InputError` for a file that is none of `FORMATS`, or damaged, or of an unknown version, or that mixes clocks.
    """
    check_path(file, "file")
    event_names = names(event_names, "event names")
    if gpu is not None:
        check_whole(gpu, "gpu", 0)
    kind = format_of(file)
    if event_names and kind != "flashinfer":
        raise InputError(
            "are for a FlashInfer buffer", field="event names", value=", ".join(event_names), file=str(file)
        )
    if kind == "flashinfer":
        from .flashinfer import read_flashinfer

        return read_flashinfer(file, event_names, gpu or 0)
    table = _read(file, kind)
    if gpu is None:
        return table
    if gpu not in set(table["gpu"]):
        raise InputError("is no GPU of this trace", field="gpu", value=gpu, file=str(file),
                         allowed=sorted({int(each) for each in table["gpu"]}))  # fmt: skip
    return table[table["gpu"] == gpu].reset_index(drop=True)


def _read(file: str | Path, kind: str) -> pd.DataFrame:
    if kind == "nsys":
        from .nsys import read_nsys

        return read_nsys(file)
    if kind == "kineto":
        from .kineto import read_kineto

        return read_kineto(file)
    table = read_parquet(file)
    check_ops(table, str(file))
    return table


def read_parquet(file: str | Path) -> pd.DataFrame:
    """Any table of a Parquet file. Raises `InputError` for a damaged one."""
    import pandas as pd

    try:
        return pd.read_parquet(file)
    except (KeyError, NotImplementedError, OSError, TypeError, ValueError) as error:
        raise InputError(f"is no whole Parquet file: {error}", file=str(file)) from error


def check_ops(ops: pd.DataFrame, file: str) -> None:
    """Raises `InputError` for a column that is missing or of another kind, a time that is none, an end before its start."""
    import numpy as np

    from ...plots.traces.slices import check_columns

    check_columns(ops, file)
    for name in ("gpu", "sm", "lane", "task", "op"):
        if ops[name].dtype.kind not in "iu" or ops[name].isna().any():
            raise InputError("is a column of something else", field=name, file=file, allowed="whole numbers")
    for name in ("start_us", "end_us", "stall_us", "wait_us"):
        if ops[name].dtype.kind not in "iuf":
            raise InputError("is a column of something else", field=name, file=file, allowed="numbers")
    times = ops[["start_us", "end_us"]].to_numpy(dtype=np.float64)
    if not np.isfinite(times).all():
        raise InputError("holds a time that is no number", field="start_us, end_us", file=file)
    early = times[:, 1] < times[:, 0]
    if early.any():
        bad = ops.iloc[int(np.argmax(early))]
        raise InputError(f"the op of lane {bad['lane']} at {bad['start_us']} us ends before it starts", file=file)
