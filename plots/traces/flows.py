"""Which store a granule belongs to, and when all of a store has arrived."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...sim import program as p
from ...sim.trace import Trace

Ints = NDArray[np.int64]


class Arrivals(NamedTuple):
    """One row for each op that sends to another GPU and each GPU that it reaches. `op_row` is a row of `Trace.ops`."""

    op_row: Ints
    source: Ints
    destination: Ints
    bytes: Ints
    visible_ps: Ints  # of the last byte


def arrivals(trace: Trace) -> Arrivals:
    """Stores and signals that left their GPU, by op and then destination. Needs a full trace.

    A lane that runs an op several times sends as many granules each time, in order of their tickets: that tells them apart.
    """
    ops, granules = trace.outcome.op_records, trace.outcome.granule_records
    sent = np.isin(trace.program.ops["kind"][granules["op"]], (p.STORE, p.SIGNAL))
    granules = granules[sent]
    width = len(trace.program.ops) + 1
    key = granules["lane"].astype(np.int64) * width + granules["op"]
    order = np.argsort(key, kind="stable")  # the table is sorted by ticket
    granules, key = granules[order], key[order]
    wanted, first, count = np.unique(key, return_index=True, return_counts=True)

    op_key = np.where(ops["op"] >= 0, ops["lane"].astype(np.int64) * width + ops["op"], -1)
    op_order = np.lexsort((ops["start_ps"], op_key))
    first_op = np.searchsorted(op_key[op_order], wanted, side="left")
    times = np.searchsorted(op_key[op_order], wanted, side="right") - first_op
    each = count // times
    group = np.repeat(np.arange(len(wanted)), count)
    turn = (np.arange(len(key)) - first[group]) // each[group]
    row = op_order[first_op[group] + turn]

    left = granules["source"] != granules["destination"]
    granules, row = granules[left], row[left]
    pair = row.astype(np.int64) * trace.fabric.n_gpus + granules["destination"]
    pair, first, place = np.unique(pair, return_index=True, return_inverse=True)
    visible, size = np.zeros(len(pair), dtype=np.int64), np.zeros(len(pair), dtype=np.int64)
    np.maximum.at(visible, place, granules["visible_ps"])
    np.add.at(size, place, granules["bytes"])
    destination = granules["destination"][first].astype(np.int64)
    return Arrivals(row[first].astype(np.int64), granules["source"][first].astype(np.int64), destination, size, visible)
