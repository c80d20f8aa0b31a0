"""How many granules each op sends, counted before a run: what a run takes, and how much of it is done, follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import program as p
from .program_index import expand, op_gpus, op_repeats, share_of_gpu

if TYPE_CHECKING:
    from .program import Program
    from .topology import Fabric

Array = np.ndarray[Any, np.dtype[Any]]


def total_granules(program: Program, fabric: Fabric) -> int:
    """Tickets that a run will give, if no op is run by several GPUs."""
    return int((op_granules(program, fabric, op_gpus(program)) * op_repeats(program)).sum())


def pieces_of_rows(program: Program, fabric: Fabric) -> Array:
    """Granules that a store to each row of destinations is cut into, those for the own GPU among them: int64 [n_rows]."""
    rows = program.destinations
    row, share = expand(rows["first"], rows["n_shares"])
    return np.bincount(row, weights=_pieces(program, fabric)[share], minlength=len(rows)).astype(np.int64)


def _pieces(program: Program, fabric: Fabric) -> Array:
    """Granules of each share."""
    return np.asarray(-(-program.shares["bytes"] // fabric.granule_bytes), dtype=np.int64)


def op_granules(program: Program, fabric: Fabric, gpu: Array) -> Array:
    """Granules that each op sends when it runs on its `gpu`, as tickets are given: int64 [n_ops].

    A store sends none to its own GPU, nor does a signal; a load is a request and its replies, one reply from its own GPU.
    """
    ops = program.ops
    granules = np.zeros(len(ops), dtype=np.int64)
    store, load, signal = (np.flatnonzero(ops["kind"] == kind) for kind in (p.STORE, p.LOAD, p.SIGNAL))
    if len(program.shares):
        own = share_of_gpu(program, ops["target"][store], gpu[store])
        kept = np.where(own >= 0, _pieces(program, fabric)[own], 0)
        granules[store] = pieces_of_rows(program, fabric)[ops["target"][store]] - kept
    own = ops["target"][load] == gpu[load]
    granules[load] = 1 + np.where(own, 1, -(-ops["bytes"][load].astype(np.int64) // fabric.granule_bytes))
    granules[signal] = program.counters["home"][ops["counter"][signal]] != gpu[signal]
    return granules
