"""What an instrumented fused kernel measures, out of the op table of a run: the same for a measured and a simulated one.

    MegaMoE, an L2 tile
    mma       | inputs: WAIT | stall: ACQUIRE a free accumulator | main loop: COMPUTE ... |
    epilogue                                        ACQUIRE full | COMPUTE, STORE, ...     |
                                                                 |<-------- span -------->|
    dispatch  | LOAD | WAIT until the row is there, and hand it on |
              |<------------------- pull ------------------------->|

    attention, a tile
    mma       | main loop: COMPUTE | stall: ACQUIRE the buffer |
    store                                                      | STORE |
                                                               |<span >|
    comm      STORE of a finished tile to its owners: copy

The span of a tile holds conversion, T_iss0 and the stall of its stores, as in arXiv 2607.23264; the stall of a tile is that
of its MMA lane before a buffer is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def l2_tile_times(ops: pd.DataFrame) -> pd.DataFrame:
    """One row for each L2 task of MegaMoE, see `_tile_times`."""
    return _tile_times(ops, "l2", "epilogue")


def attention_tile_times(ops: pd.DataFrame) -> pd.DataFrame:
    """One row for each tile of attention, see `_tile_times`; its inputs are there from the start."""
    return _tile_times(ops, "attention", "store")


def _tile_times(ops: pd.DataFrame, phase: str, storing: str) -> pd.DataFrame:
    """One row for each task of a phase, by task: gpu, sm, begin_us (of its main loop), inputs_us, stall_us, main_loop_us,
    span_us (of the lane with the role `storing`), stores_us (of it in STOREs).

    `ops` is `Trace.ops()` of a simulated run or `measured_ops` of one of the fused kernel, with every op of the tasks.
    """
    import pandas as pd

    mine = ops[ops["phase"] == phase].assign(took=lambda rows: rows["end_us"] - rows["start_us"])
    mma, after = mine[mine["role"] == "mma"], mine[mine["role"] == storing]
    work = after[after["kind"].isin(["compute", "store"])]

    def total(rows: pd.DataFrame, kind: str) -> pd.Series:
        return rows[rows["kind"] == kind].groupby("task")["took"].sum()

    first = mma[mma["kind"] == "compute"].groupby("task")
    times = pd.DataFrame(
        {
            "gpu": mma.groupby("task")["gpu"].first(),
            "sm": mma.groupby("task")["sm"].first(),
            "begin_us": first["start_us"].min(),
            "inputs_us": total(mma, "wait"),
            "stall_us": total(mma, "acquire"),
            "main_loop_us": total(mma, "compute"),
            "span_us": work.groupby("task")["end_us"].max() - work.groupby("task")["start_us"].min(),
            "stores_us": total(work, "store"),
        }
    )
    return times.fillna(0.0)


def pull_times(ops: pd.DataFrame) -> pd.DataFrame:
    """One row for each pulled row, in order of its lane and time: gpu, sm, lane, begin_us, pull_us."""
    mine = ops[(ops["phase"] == "dispatch") & ops["kind"].isin(["load", "wait"])]
    mine = mine.sort_values(["lane", "start_us", "end_us"], kind="stable")
    is_load = (mine["kind"] == "load").to_numpy()
    # The WAIT for a row is the next one of its lane; one for a ring slot stands before the LOAD.
    pull = np.cumsum(is_load)
    end = mine["end_us"].groupby([mine["lane"].to_numpy(), pull]).nth(1).to_numpy()
    loads = mine[is_load]
    return loads[["gpu", "sm", "lane"]].assign(begin_us=loads["start_us"], pull_us=end - loads["start_us"].to_numpy())


def summary(ops: pd.DataFrame) -> dict[str, float]:
    """Of MegaMoE: makespan without the combine and what comes after, what `_of_stores` tells of the L2 tiles, and medians of
    these and of pulls, in us."""
    tiles, pulls = l2_tile_times(ops), pull_times(ops)
    return {
        "makespan_us": _until(ops, "dispatch", "l1", "l2"),
        **_of_stores(tiles),
        "mma_stall_us": float(tiles["stall_us"].sum()),
        "mma_inputs_us": float(tiles["inputs_us"].sum()),
        "main_loop_us": float(tiles["main_loop_us"].median()),
        "pull_us": float(pulls["pull_us"].median()),
    }


def attention_summary(ops: pd.DataFrame) -> dict[str, float]:
    """Of attention, in us: makespan as the senders see it, without what waits for arrivals; when the last tile was stored;
    what `_of_stores` tells of the tiles; medians of these and of the copies by `comm` lanes (0 if there are none)."""
    tiles = attention_tile_times(ops)
    copies = ops[(ops["role"] == "comm") & (ops["kind"] == "store")]
    return {
        "makespan_us": _until(ops, "attention", "copy"),
        "attention_us": _until(ops[ops["role"] != "comm"], "attention"),
        **_of_stores(tiles),
        "mma_stall_us": float(tiles["stall_us"].sum()),
        "main_loop_us": float(tiles["main_loop_us"].median()),
        "copy_us": float((copies["end_us"] - copies["start_us"]).median()) if len(copies) else 0.0,
    }


def _of_stores(tiles: pd.DataFrame) -> dict[str, float]:
    """Median and 95 % span, median and sum of stores. Where the stage takes most tiles in, the medians are those of a run
    without stalls: the stalls are in the slowest tiles, and in the sum."""
    return {
        "span_us": float(tiles["span_us"].median()),
        "span_p95_us": float(tiles["span_us"].quantile(0.95)),
        "stores_us": float(tiles["stores_us"].median()),
        "stores_total_us": float(tiles["stores_us"].sum()),
    }


def _until(ops: pd.DataFrame, *phases: str) -> float:
    """From the first op of all to the end of the last one of these phases."""
    return float(ops["end_us"][ops["phase"].isin(phases)].max() - ops["start_us"].min())
