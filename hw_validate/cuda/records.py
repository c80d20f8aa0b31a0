"""What the replay kernel noted, as the op table of a measured trace: the columns of `Trace.ops()`.

Ticks of an SM become time by two edges of the global timer, at the start and the end of its CTA, which give rate and origin.
Across GPUs the origins differ by offsets that the collector measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim import program as p
from ...sim.errors import XstageError
from ...sim.program import Program
from ...sim.trace import TAGS
from .job import Array
from .lower import Lowered

if TYPE_CHECKING:
    import pandas as pd

_WAITS = (p.WAIT, p.ACQUIRE, p.LOAD)


class UnfinishedError(XstageError):
    """A replay was given up; what it noted until then is in `table`."""

    def __init__(self, message: str, table: pd.DataFrame) -> None:
        super().__init__(message)
        self.table = table


def measured_ops(
    program: Program,
    lowered: Lowered,
    outputs: Mapping[str, Array],
    offsets_ns: Mapping[int, float] | None = None,
    control: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """The op table of one run of `replay_job`, in order of completion; time 0 is when the first lane may start.

    `outputs` are the buffers of the job by name. `offsets_ns` is what is to be added to the global timer of each GPU;
    without it all GPUs are taken to have started at the same moment.
    `stall_us` of a store is its span less the span of the same op in `control`, the table of a `local` run of the same
    Program, or without one less its issue time T_iss0 in the Program; it may lie a little below 0. `wait_us` of a WAIT or
    ACQUIRE is its span.

    Raises `UnfinishedError`, which keeps the table, if the kernel gave up or not every op ran.
    """
    import pandas as pd

    gpus = [int(name.partition("@")[2]) for name in outputs if name.startswith("n_records@")]
    edges = {gpu: _start_edge(outputs[f"times@{gpu}"]) for gpu in gpus}
    first = min(edges.values(), default=0)
    records = np.zeros(0, _TIMED)
    for gpu in gpus:
        timed = _of_gpu(lowered, outputs, gpu, edges[gpu])
        if offsets_ns is not None:
            late = edges[gpu] - first + offsets_ns[gpu]
            timed["start"] += late
            timed["end"] += late
        records = np.concatenate([records, timed])
    records = records[np.argsort(records["end"], kind="stable")]
    lane, op, task = (records[name].astype(np.int64) for name in ("lane", "op", "task"))
    rows, ops, tags = program.lanes[lane], program.ops[op], program.tasks[task]
    kind, took = ops["kind"], records["end"] - records["start"]
    counter = np.where(kind == p.WAIT, ops["counter"], 0)
    cause = np.where(kind == p.ACQUIRE, p.CAUSES.index("slot"), -1)
    if len(program.counters):
        cause = np.where(kind == p.WAIT, program.counters["cause"][counter], cause)
    cause = np.where(kind == p.LOAD, p.CAUSES.index("window"), cause)
    unhindered = ops["duration_ps"] / 1000.0
    if control is not None:
        spans = (control["end_us"] - control["start_us"]).groupby(control["op"]).median() * 1000
        unhindered = spans.reindex(op).to_numpy()
    base = records["start"].min(initial=np.inf) if len(records) else 0.0
    table = pd.DataFrame(
        {"gpu": rows["gpu"], "sm": rows["sm"], "lane": lane, "role": _names(rows["role"], program.roles), "task": task}
        | {tag: tags[tag] for tag in TAGS}
        | {"op": op, "kind": _names(kind, (*p.KIND_NAMES, "task"))}
        | {"bytes": np.where(np.isin(kind, (p.STORE, p.LOAD)), ops["bytes"], 0)}
        | {"start_us": (records["start"] - base) / 1000, "end_us": (records["end"] - base) / 1000}
        | {"stall_us": np.where(kind == p.STORE, took - unhindered, 0.0) / 1000}
        | {"wait_us": np.where(np.isin(kind, _WAITS), took, 0.0) / 1000, "cause": _names(cause, p.CAUSES)}
    )
    table["phase"] = _names(tags["phase"], program.phases)
    given_up = [name.partition("@")[2] for name, word in outputs.items() if name.startswith("abort@") and word[0]]
    if given_up or len(table) != lowered.n_records:
        why = f"GPU {', '.join(given_up)} gave up waiting" if given_up else "the kernel ended early"
        raise UnfinishedError(f"the replay noted {len(table)} of {lowered.n_records} ops: {why}", table)
    return table


_TIMED = np.dtype([("lane", "i4"), ("task", "i4"), ("op", "i4"), ("start", "f8"), ("end", "f8")])


def _start_edge(times: Array) -> int:
    """The earliest start edge of the CTAs of a GPU; those that never started are 0."""
    started = times["global_start"][times["global_start"] > 0]
    return int(started.min()) if len(started) else 0


def _of_gpu(lowered: Lowered, outputs: Mapping[str, Array], gpu: int, edge: int) -> Array:
    """Records of one GPU with times in nanoseconds since its start edge."""
    records = outputs[f"records@{gpu}"][: int(outputs[f"n_records@{gpu}"][0])]
    times, ctas, lanes = outputs[f"times@{gpu}"], lowered.tables["ctas"], lowered.tables["lanes"]
    cta_of_lane = np.zeros(len(lanes), dtype=np.int64)
    cta_of_lane[lanes["number"]] = np.repeat(np.arange(len(ctas)), ctas["n_lanes"])
    cta = cta_of_lane[records["lane"]]
    ticks = (times["clock_end"] - times["clock_start"]).astype(float)
    ns = (times["global_end"] - times["global_start"]).astype(float)
    rate = np.divide(ns, ticks, out=np.ones_like(ns), where=ticks > 0)
    late = times["global_start"].astype(np.int64) - edge
    timed = np.zeros(len(records), _TIMED)
    for name in ("lane", "task", "op"):
        timed[name] = records[name]
    for name in ("start", "end"):
        timed[name] = late[cta] + records[name] * rate[cta]
    return timed


def _names(index: Any, names: Any) -> Any:
    import pandas as pd

    return pd.Categorical.from_codes(np.asarray(index, dtype=np.int64), categories=pd.Index(list(names), dtype=object))
