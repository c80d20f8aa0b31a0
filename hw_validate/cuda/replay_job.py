"""The job that replays a lowered Program: its tables in memory, the buffers that ranks write to each other, the grids.

Transports, as everywhere: `peer` (rank r is GPU r, and stores go to its memory), `host` (all ranks are CTAs of GPU 0, what
would go to another rank goes to pinned host memory) and `local` (the same, but into GPU 0's own memory: the control).
Flags always lie in GPU memory. Needs NumPy alone, besides the tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...sim.errors import InputError
from .job import HOST, Array, Buffer, Grid, Job, Pointer
from .lower import Lowered
from .transport import TRANSPORTS

PATIENCE_S, DEADLINE_S = 5.0, 20.0
"""After which a waiting lane gives up, and after which a run without an end is given up."""
COUNTER_WORDS = 8
"""A counter has a sector of 32 bytes to itself."""

RECORD = np.dtype([(name, "u4") for name in ("lane", "task", "op", "start", "end")])
TIMES = np.dtype(
    [(name, "u8") for name in ("global_start", "clock_start", "global_end", "clock_end")]
    + [(name, "u4") for name in ("sm", "status", "spilled", "post_ticks")]
)
_CONSTANTS = ("ops", "shares", "entries", "runs", "queues", "steps", "groups", "lanes", "ctas")
_BUFFERS = ("landing", "own_landing", "source", "own_source")
_BY_RANK = ("counters", *_BUFFERS)
_WORKING = ("cursors", "taken", "group_words", "records", "n_records", "times", "start_edge", "abort")
CHANGED = ("counters", *(name for name in _WORKING if name != "records"), "barrier")
"""Buffers, by their names without the GPU, that have to be put back between two runs of a job."""
_LARGE = ("ops", "shares", "entries", "runs")
_TABLE_POINTERS = (*_CONSTANTS, "counters", *_WORKING[:6], "barrier", *_WORKING[6:])
TABLES = [(name, "u8") for name in (*_TABLE_POINTERS, "patience", "lead_ns")] + [("first_cta", "u4"), ("n_ctas", "u4")]
"""The struct LaneTables of lane_tables.cuh, with which the parameters of every kernel that runs lanes begin."""
_NUMBERS = ("granule_bytes", "data_seed", "compute_overhead", "store_width", *(f"{name}_bytes" for name in _LARGE))
PARAMETERS = np.dtype(
    TABLES + [(name, "u8") for name in (*_BUFFERS, "store_slice", "load_slice")] + [(name, "u4") for name in _NUMBERS],
    align=True,
)
"""The struct Parameters of replay.cu."""


def sm_ticks_per_ns(times: Array) -> float:
    """The SM clock of a run by the `TIMES` of its CTAs, the median over them; nan if none ran."""
    ns = (times["global_end"] - times["global_start"]).astype(float)
    ran = (ns > 0) & (times["global_start"] > 0)
    if not ran.any():
        return float("nan")
    return float(np.median((times["clock_end"] - times["clock_start"])[ran] / ns[ran]))


@dataclass(frozen=True)
class Settings:
    """What a run may choose without lowering again.

    patience_ticks: how long any wait may last before the run is given up.
    lead_ns: from the meeting of all CTAs to the start edge; long enough for the news to reach them.
    data_seed: stored bytes are noise made from it, or zeros if it is 0.
    compute_overhead_ticks: how much later than asked a spin ends.
    """

    patience_ticks: int = 4_000_000_000
    lead_ns: int = 20_000
    data_seed: int = 1
    compute_overhead_ticks: int = 0


USUAL = Settings()


def replay_job(lowered: Lowered, transport: str, settings: Settings = Settings()) -> Job:
    """The job for `lowered` (at a clock already) on one GPU or, for `peer`, on as many as it has ranks.

    Outputs: `records@G` (RECORD, the first `n_records@G`), `times@G` (TIMES by CTA), `abort@G` for each GPU G in use, and
    `counters@R` and the buffers written, for each rank R.
    """
    if transport not in TRANSPORTS:
        raise InputError("is unknown", field="transport", value=transport, allowed=TRANSPORTS)
    if (transport != "peer") != lowered.target.is_one_gpu:
        raise InputError(
            "does not fit the lowered Program",
            field="transport",
            value=transport,
            allowed="host, local" if lowered.target.is_one_gpu else "peer",
        )
    ranks = range(lowered.n_gpus)
    ctas = [lowered.ctas_of(rank) for rank in ranks]
    grids_of = {0: range(len(lowered.tables["ctas"]))} if transport != "peer" else dict(enumerate(ctas))
    grids_of = {gpu: rows for gpu, rows in grids_of.items() if len(rows)}
    buffers: dict[str, Buffer] = {"barrier": Buffer(np.zeros(1, np.uint32), min(grids_of, default=0))}
    for rank in ranks:
        buffers |= _rank_memory(lowered, rank, rank if transport == "peer" else 0, transport)
    grids = []
    for gpu, rows in grids_of.items():
        buffers |= _gpu_memory(lowered, gpu)
        grids.append(_grid(lowered, gpu, rows, settings))
    return Job(buffers, tuple(grids))


def _rank_memory(lowered: Lowered, rank: int, gpu: int, transport: str) -> dict[str, Buffer]:
    far = HOST if transport == "host" else gpu
    words = np.zeros(max(1, len(lowered.counters)) * COUNTER_WORDS, np.uint32)
    words[: len(lowered.counters) * COUNTER_WORDS : COUNTER_WORDS] = lowered.counters.astype(np.uint32)
    n_storing = _parts(lowered, "store_first", lowered.store_slice) * lowered.store_slice
    n_loading = _parts(lowered, "load_first", lowered.load_slice) * lowered.load_slice

    def empty(size: int) -> Array:
        return np.zeros(max(16, size), np.uint8)

    return {
        f"counters@{rank}": Buffer(words, gpu, output=True),
        f"landing@{rank}": Buffer(empty(n_storing), far, output=True),
        f"own_landing@{rank}": Buffer(empty(n_storing), gpu, output=True),
        f"source@{rank}": Buffer(empty(n_loading), far),
        f"own_source@{rank}": Buffer(empty(n_loading), gpu),
    }


def _parts(lowered: Lowered, column: str, size: int) -> int:
    """How many lanes have a part of a buffer."""
    last = int(lowered.tables["lanes"][column].max(initial=0))
    return last // size + 1 if size else 0


def _gpu_memory(lowered: Lowered, gpu: int) -> dict[str, Buffer]:
    def at_least_one(table: Array) -> Array:
        return table if len(table) else np.zeros(1, table.dtype)

    def words(n: int, dtype: str = "u4") -> Array:
        return np.zeros(max(1, n), dtype)

    buffers = {f"{name}@{gpu}": Buffer(at_least_one(lowered.tables[name]), gpu) for name in _CONSTANTS}
    for name in _BY_RANK:
        pointers = {8 * rank: Pointer(f"{name}@{rank}") for rank in range(lowered.n_gpus)}
        buffers[f"{name}_by_rank@{gpu}"] = Buffer(words(lowered.n_gpus, "u8"), gpu, pointers=pointers)
    working = {
        "cursors": words(int(lowered.tables["queues"]["is_shared"].sum())),
        "taken": words(lowered.n_taken),
        "group_words": at_least_one(lowered.group_words),
        "records": np.zeros(max(1, lowered.n_records), RECORD),
        "n_records": words(1),
        "times": np.zeros(max(1, len(lowered.tables["ctas"])), TIMES),
        "start_edge": words(1, "u8"),
        "abort": words(1),
    }
    wanted = ("records", "n_records", "times", "abort")
    return buffers | {f"{name}@{gpu}": Buffer(values, gpu, name in wanted) for name, values in working.items()}


def _grid(lowered: Lowered, gpu: int, rows: range, settings: Settings) -> Grid:
    parameters = np.zeros(1, PARAMETERS)
    parameters["patience"], parameters["lead_ns"] = settings.patience_ticks, settings.lead_ns
    parameters["store_slice"], parameters["load_slice"] = lowered.store_slice, lowered.load_slice
    parameters["first_cta"], parameters["n_ctas"] = rows.start, len(lowered.tables["ctas"])
    parameters["granule_bytes"], parameters["data_seed"] = lowered.target.granule_bytes, settings.data_seed
    parameters["store_width"] = lowered.target.store_width
    for name in _LARGE:
        parameters[f"{name}_bytes"] = lowered.tables[name].nbytes
    parameters["compute_overhead"] = settings.compute_overhead_ticks
    pointers = {name: Pointer(f"{name}@{gpu}") for name in (*_CONSTANTS, *_WORKING)}
    pointers |= {name: Pointer(f"{name}_by_rank@{gpu}") for name in _BY_RANK} | {"barrier": Pointer("barrier")}
    return Grid("replay", gpu, len(rows), lowered.n_threads, lowered.shared_bytes, parameters, pointers)
