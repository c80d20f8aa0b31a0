"""How many granules each op sends, counted before a run: what a run takes, and how much of it is done, follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import program as p
from .program_index import expand, op_gpus, op_repeats

if TYPE_CHECKING:
    from .program import Program
    from .topology import Fabric

Array = np.ndarray[Any, np.dtype[Any]]


def total_granules(program: Program, fabric: Fabric) -> int:
    """Tickets that a run will give, if no op is run by several GPUs."""
    return int((op_granules(program, fabric, op_gpus(program)) * op_repeats(program)).sum())


def op_granules(program: Program, fabric: Fabric, gpu: Array) -> Array:
    """Granules that each op sends when it runs on its `gpu`, as tickets are given: int64 [n_ops].

    A store sends none to its own GPU, nor does a signal; a load is a request and its replies, one reply from its own GPU.
    """
    ops, rows = program.ops, program.destinations
    granules = np.zeros(len(ops), dtype=np.int64)
    row, share = expand(rows["first"], rows["n_shares"])
    pieces = -(-program.shares["bytes"][share] // fabric.granule_bytes)
    of_row = np.zeros(len(rows), dtype=np.int64)
    np.add.at(of_row, row, pieces)
    key = row * program.n_gpus + program.shares["gpu"][share]  # a row has one share for each of its GPUs
    order = np.argsort(key, kind="stable")
    store, load, signal = (np.flatnonzero(ops["kind"] == kind) for kind in (p.STORE, p.LOAD, p.SIGNAL))
    if len(key):
        target = ops["target"][store].astype(np.int64)
        wanted = target * program.n_gpus + gpu[store]
        place = order[np.minimum(np.searchsorted(key, wanted, sorter=order), len(key) - 1)]
        granules[store] = of_row[target] - np.where(key[place] == wanted, pieces[place], 0)
    own = ops["target"][load] == gpu[load]
    granules[load] = 1 + np.where(own, 1, -(-ops["bytes"][load].astype(np.int64) // fabric.granule_bytes))
    granules[signal] = program.counters["home"][ops["counter"][signal]] != gpu[signal]
    return granules
