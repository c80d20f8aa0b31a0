"""Tables of whole schedules behind figures: a MegaMoE layer in two orders, a waterfall, and the curve of the row lead.

All of them are small enough to be simulated when a figure is drawn.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..answers.comparison import Comparison, compare
from ..answers.explanation import explain
from ..paper.leads import knee_of, paper_lead
from ..sim.activity import TENSOR_ROLES
from ..sim.units import PS_PER_US

if TYPE_CHECKING:
    from ..sim.trace import Trace

SCENARIO, TOKENS = "megamoe-flash-wave", 4096
POLICIES = ("expert_wave", "interleaved")
EXPLAINED = "gemm-rs-llama-fused"
LANES_SHOWN = 8
BINS = 160
LEAD_MODEL, LEAD_TOKENS = "dsv4-flash", 4096
LEADS = (0, 192, 384, 576, 768, 960, 1152, 1920, 3072)


@cache
def _compared() -> Comparison:
    return compare(SCENARIO, POLICIES, overrides={"workload.tokens": TOKENS}, trace="full")


def activity_table() -> pd.DataFrame:
    """Use of Tensor Cores and egress over time: policy, makespan_us, and the columns of `timeline` in sim/activity.py."""
    return _compared().timelines(BINS)


def stall_table() -> pd.DataFrame:
    """Where the time of a lane of each role goes: policy, role, lanes, what, cause, mean_us."""
    return _compared().breakdown()


def lane_table() -> pd.DataFrame:
    """What the Tensor Core lanes of `LANES_SHOWN` groups of SMs compute when, a row a task: policy, makespan_us, row, phase,
    start_us, end_us.
    """
    parts = [
        computing(run.trace, LANES_SHOWN).assign(policy=run.policy, makespan_us=run.trace.makespan_ps / PS_PER_US)
        for run in _compared().runs
        if run.trace is not None
    ]
    table = pd.concat(parts, ignore_index=True)
    return table[["policy", "makespan_us", "row", "phase", "start_us", "end_us"]]


def computing(trace: Trace, lanes: int) -> pd.DataFrame:
    """When evenly chosen Tensor Core lanes of GPU 0 compute: row (from 0), phase, start_us, end_us, one row a task and lane.

    Needs a full trace. Of a task that waits in between, the time from its first computation to its last is given.
    """
    ops = trace.ops()
    mine = ops[(ops["gpu"] == 0) & ops["role"].isin(TENSOR_ROLES) & (ops["kind"] == "compute")]
    known = np.unique(mine["lane"])
    chosen = known[np.linspace(0, len(known) - 1, min(lanes, len(known))).round().astype(int)] if len(known) else known
    mine = mine[mine["lane"].isin(chosen)]
    tasks = mine.groupby(["lane", "task", "phase"], observed=True).agg(
        start_us=("start_us", "min"), end_us=("end_us", "max")
    )
    found = tasks.reset_index().sort_values(["lane", "start_us"], kind="stable", ignore_index=True)
    return found.assign(row=np.searchsorted(chosen, found["lane"])).drop(columns=["lane", "task"])


def waterfall_table() -> pd.DataFrame:
    """Where the makespan of a fused GEMM + ReduceScatter goes: the bars of `xstage explain`."""
    return explain(EXPLAINED).frame


def lead_table() -> pd.DataFrame:
    """What a row lead costs and brings: the rows of `xstage paper lead`."""
    rows: list[dict[str, Any]] = paper_lead(LEAD_MODEL, LEAD_TOKENS, LEADS, workers=1).rows
    return pd.DataFrame(rows)


def knee_rows(leads: pd.DataFrame) -> int:
    """D_knee of a table of `lead_table`."""
    return knee_of(leads.to_dict("records"))
