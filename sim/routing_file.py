"""Reads the routing that a run recorded: the top-k experts of every token, in a .npy, .parquet or .csv file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .routing import Routing, checked_topk, occurrence

if TYPE_CHECKING:
    import pandas as pd


def recorded(path: str | Path, n_experts: int, *, n_ranks: int | None = None) -> Routing:
    """The routing that was recorded in a .npy, .parquet or .csv file.

    .npy holds whole numbers [ranks, tokens, k], or [tokens, k] to be cut into `n_ranks` equal parts. A table has one
    row per token, in token order, with columns expert_0, ..., expert_(k-1), and a column rank unless it is to be cut
    into `n_ranks` equal parts; ranks with fewer tokens than the longest are filled up with masked tokens. -1 is a
    masked slot.

    Raises `InputError`, naming the file, for anything else.
    """
    path = Path(path)
    readers = {".npy": _read_npy, ".parquet": _read_parquet, ".csv": _read_csv}
    if n_ranks is not None and n_ranks < 1:
        raise InputError("must be at least 1", field="n_ranks", value=n_ranks)
    if path.suffix not in readers:
        raise InputError("is no routing file", field="path", value=str(path), allowed=readers)
    try:
        ids, rank = readers[path.suffix](path)
    except (OSError, ValueError, EOFError) as error:  # pandas and Arrow raise subclasses of ValueError
        raise InputError(f"cannot be read: {error}", file=str(path)) from error
    if ids.dtype.kind not in "iu":
        raise InputError("must hold whole numbers", field="topk", value=str(ids.dtype), file=str(path))
    if ids.ndim == 3 and n_ranks not in (None, len(ids)):
        raise InputError(
            "differs from the file's ranks", field="n_ranks", value=n_ranks, allowed=[len(ids)], file=str(path)
        )
    if ids.ndim == 2:
        ids = _deal_by_rank(ids, rank, n_ranks, str(path))
    return Routing(checked_topk(ids, n_experts, file=str(path)), n_experts)


def _read_npy(path: Path) -> tuple[NDArray[np.integer], None]:
    return np.load(path, allow_pickle=False), None


def _read_csv(path: Path) -> tuple[NDArray[np.integer], NDArray[np.integer] | None]:
    import pandas as pd  # pandas loads slowly

    return _split_table(pd.read_csv(path))


def _read_parquet(path: Path) -> tuple[NDArray[np.integer], NDArray[np.integer] | None]:
    import pandas as pd

    return _split_table(pd.read_parquet(path))


def _split_table(table: pd.DataFrame) -> tuple[NDArray[np.integer], NDArray[np.integer] | None]:
    import pandas as pd

    slots = [f"expert_{slot}" for slot in range(table.shape[1] - ("rank" in table))]
    if not slots or set(table.columns) != {*slots, *(["rank"] if "rank" in table else [])}:
        raise ValueError(
            f"its columns are {', '.join(map(str, table.columns))}, not [rank,] expert_0, ..., expert_(k-1)"
        )
    for name in table.columns:
        if table[name].dtype.kind not in "iu":
            row = np.flatnonzero(pd.to_numeric(table[name], errors="coerce").to_numpy() % 1 != 0)[:1]
            where = f", first in data row {row[0] + 1}" if row.size else ""
            raise ValueError(f"column {name} holds other things than whole numbers{where}")
    return table[slots].to_numpy(), table["rank"].to_numpy() if "rank" in table else None


def _deal_by_rank(
    ids: NDArray[np.integer], rank: NDArray[np.integer] | None, n_ranks: int | None, file: str
) -> NDArray[np.integer]:
    """Cuts [tokens, k] into [ranks, tokens a rank, k]."""
    if rank is None:
        if n_ranks is None or len(ids) % n_ranks:
            raise InputError(
                "tokens must divide evenly over ranks when the file does not name them",
                field="n_ranks",
                value=n_ranks,
                allowed=f"a divisor of {len(ids)}",
                file=file,
            )
        return ids.reshape(n_ranks, len(ids) // n_ranks, ids.shape[1])
    if n_ranks is None:
        n_ranks = len(np.unique(rank))
    bad = rank[(rank < 0) | (rank >= n_ranks)]
    if bad.size:
        allowed = f"0 to {n_ranks - 1}; give n_ranks if some ranks have no tokens"
        raise InputError("is out of range", field="rank", value=int(bad[0]), allowed=allowed, file=file)
    token = occurrence(rank.astype(np.int64), n_ranks)
    dealt = np.full((n_ranks, int(token.max(initial=-1)) + 1, ids.shape[1]), -1, dtype=np.int64)
    dealt[rank, token] = ids
    return dealt
