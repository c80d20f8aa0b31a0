"""Write a trace as the kind of file that its suffix asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...sim.errors import InputError
from ...sim.files import check_output, write_whole

if TYPE_CHECKING:
    import pandas as pd

    from ...sim.trace import Trace

SUFFIXES = (".parquet", ".pftrace", ".json")
LARGE_BYTES = 100_000_000
"""From here on, say the size before writing."""

# What an op, an arrival of a store and a step of a counter take, measured on the scenarios of the catalogue.
_OP_BYTES = {".parquet": 20, ".pftrace": 55, ".json": 250}
_ARRIVAL_BYTES, _STEP_BYTES = 60, 28


def check_file(file: str | Path, field: str = "file") -> None:
    """Raises `InputError` if no trace can be written to a file of this name; called before a long run, not after it."""
    check_output(file, field, SUFFIXES)


def write_trace(trace: Trace | pd.DataFrame, file: str | Path, progress: Callable[[float], None] | None = None) -> None:
    """Write a full trace, or an op table with its columns, to `file`; it appears whole or not at all.

    `.parquet` is the op table, `.pftrace` opens in https://ui.perfetto.dev (counters, arrivals and flows need a `Trace`),
    `.json` in Holistic Trace Analysis and Chrome. The same trace gives the same bytes. `progress` is called now and then
    with the share that is written. Raises `InputError` for another suffix, a trace that is not full, or an op table that
    lacks a column, or in which two ops of a lane overlap.
    """
    from .slices import check_columns

    check_file(file)
    ops, whole = _parts(trace)
    check_columns(ops)
    suffix = Path(file).suffix
    with write_whole(file) as temporary:
        if suffix == ".parquet":
            ops.to_parquet(temporary)
        elif suffix == ".pftrace":
            from .perfetto import perfetto_pieces

            with open(temporary, "wb") as stream:
                stream.writelines(perfetto_pieces(ops, whole, progress))
        else:
            from .kineto import kineto_pieces

            with open(temporary, "w", encoding="utf-8", newline="\n") as text:
                text.writelines(kineto_pieces(ops, progress))


def estimated_bytes(trace: Trace | pd.DataFrame, file: str | Path) -> int:
    """About how large the file will be, from the number of rows alone."""
    from ...sim.trace import Trace

    check_file(file)
    suffix = Path(file).suffix
    if not isinstance(trace, Trace):
        return len(trace) * _OP_BYTES[suffix]
    size = len(trace.outcome.op_records) * _OP_BYTES[suffix]
    if suffix == ".pftrace":
        size += _arrivals(trace) * _ARRIVAL_BYTES + _steps(trace) * _STEP_BYTES
    return size


def _arrivals(trace: Trace) -> int:
    """About how often a store or a signal arrives at another GPU."""
    import numpy as np

    from ...sim import program as p

    program, op = trace.program, trace.outcome.op_records["op"]
    kind = program.ops["kind"]
    reached = (kind == p.SIGNAL).astype(np.int64)
    stores = kind == p.STORE
    reached[stores] = program.destinations["n_shares"][program.ops["target"][stores]]
    return int(reached[op[op >= 0]].sum())


def _steps(trace: Trace) -> int:
    """About how often the stages change."""
    from .counters import MOST_STEPS

    granules = trace.outcome.granule_records
    return min(2 * int((granules["ticket"] == granules["parcel"]).sum()), MOST_STEPS * trace.program.n_gpus)


def _parts(trace: Trace | pd.DataFrame) -> tuple[pd.DataFrame, Trace | None]:
    import pandas as pd

    from ...sim.trace import Trace

    if isinstance(trace, Trace):
        return trace.ops(), trace
    if not isinstance(trace, pd.DataFrame):
        raise InputError("is no trace", field="type", value=type(trace).__name__, allowed="a Trace, or an op table")
    return trace, None
