"""Measured against simulated: two op tables with the same columns, joined by lane, task, op and occurrence.

    stall            of a store: its time beyond T_iss0; of a Program: issue time beyond the sum of all T_iss0
    issue time       of a store: its time less what it waited for the issue port; of a Program: the sum over its SMs of
                     the time in which any of their lanes is in a store, which is the sum over stores where one lane of an
                     SM stores. Stores of several lanes share the port in turn, so their own times say little
    wait             of a Program: the sum over all of its ops
    noise            how far one repeat of a Program is from the median of all: median |repeat / median - 1|
    error            100 * (simulated - measured) / measured, where measured is the centre of the repeats

Ops that happen more than once in a task are told apart by their occurrence, counted in order of start. Where groups draw
tasks from a shared queue, another lane may have run a task than in the simulation; then the lane is left out of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..sim.errors import InputError
from .centre import centre, noise_pct

if TYPE_CHECKING:
    import pandas as pd

Verdict = Literal["agrees", "disagrees", "no verdict"]

AGREES_PCT = 10.0
"""Largest median error of issue time with which simulation and hardware are said to agree."""
MOST_NOISE_PCT = 15.0
"""Noise above which there is no verdict."""
STALLED_SHARE = 0.2
"""A Program counts as one with stall if this share of its simulated issue time is stall."""
LEAST_FOR_INTERVAL, BOOTSTRAP_DRAWS = 5, 2000

KEY = ["lane", "task", "op", "occurrence"]
TOTALS = ("simulated_issue", "measured_issue", "simulated_stall", "measured_stall")


@dataclass(frozen=True, eq=False)
class Comparison:
    """One Program. `ops` has a row an op: both times (`issue_us` is end less start, of a store less its wait), stalls, waits
    and noise. Waits of a Program are sums over its ops."""

    ops: pd.DataFrame
    simulated_issue_us: float
    measured_issue_us: float
    simulated_stall_us: float
    measured_stall_us: float
    simulated_makespan_us: float
    measured_makespan_us: float
    noise_pct: float
    repeats: int
    simulated_wait_us: float = 0.0
    measured_wait_us: float = 0.0
    port_is_shared: bool = False

    @property
    def error_pct(self) -> float:
        """Of issue time."""
        return 100 * (self.simulated_issue_us / self.measured_issue_us - 1)

    @property
    def makespan_error_pct(self) -> float:
        return 100 * (self.simulated_makespan_us / self.measured_makespan_us - 1)

    @property
    def stall_error_ns(self) -> float:
        """Mean over stores of |simulated - measured stall|."""
        stores = self.ops[self.ops["kind"] == "store"]
        return float(1000 * (stores["simulated_stall_us"] - stores["measured_stall_us"]).abs().mean())

    @property
    def stalled_share(self) -> float:
        """Share of the simulated issue time that is stall."""
        return self.simulated_stall_us / self.simulated_issue_us

    def worst(self, count: int = 5) -> pd.DataFrame:
        """The ops whose times differ most, in microseconds."""
        off = (self.ops["simulated_issue_us"] - self.ops["measured_issue_us"]).abs()
        return self.ops.loc[off.sort_values(ascending=False).index[:count]]


def compare(simulated: pd.DataFrame, measured: pd.DataFrame) -> Comparison:
    """Join two op tables of one Program; `measured` may hold several repeats, numbered by its column `repeat`.

    Raises `InputError` if they do not hold the same ops, or no store.
    """
    theirs = measured if "repeat" in measured else measured.assign(repeat=0)
    simulated = _with_key(simulated[simulated["kind"] != "task"].assign(repeat=0))
    theirs = _with_key(theirs[theirs["kind"] != "task"])
    repeats = theirs["repeat"].nunique()
    if repeats == 0 or len(theirs) != repeats * len(simulated):
        raise InputError(
            "do not hold the same ops", field="op tables", value=f"{len(simulated)} simulated, {len(theirs)} measured",
            allowed="the same number of ops in every repeat",
        )  # fmt: skip
    key = KEY
    if not _same_ops(simulated, theirs, KEY) and theirs["lane"].isin(simulated["lane"].unique()).all():
        simulated, theirs = _with_key(simulated, KEY[1:]), _with_key(theirs, KEY[1:])
        key = KEY[1:]
    if not _same_ops(simulated, theirs, key):
        raise InputError("do not hold the same ops", field="op tables", allowed="the same lanes, tasks and ops")
    is_store = (simulated["kind"] == "store").to_numpy()
    if not is_store.any():
        raise InputError("holds no store", field="op tables", allowed="a Program with at least one STORE")

    def by_repeat(name: str) -> Any:
        return theirs[name].to_numpy(dtype=float).reshape(repeats, -1)

    start, end, wait = by_repeat("start_us"), by_repeat("end_us"), by_repeat("wait_us")
    issue = end - start - np.where(is_store, wait, 0.0)
    simulated_wait = simulated["wait_us"].to_numpy()
    ops = simulated[[*KEY, "kind", "bytes", *(c for c in ("gpu", "sm", "role", "phase") if c in simulated)]].assign(
        simulated_issue_us=(simulated["end_us"] - simulated["start_us"]).to_numpy()
        - np.where(is_store, simulated_wait, 0),
        measured_issue_us=centre(issue, axis=0),
        simulated_stall_us=simulated["stall_us"].to_numpy(),
        measured_stall_us=centre(by_repeat("stall_us"), axis=0),
        simulated_wait_us=simulated_wait,
        measured_wait_us=centre(wait, axis=0),
        simulated_start_us=simulated["start_us"].to_numpy() - simulated["start_us"].min(),
        measured_start_us=centre(start - start.min(axis=1, keepdims=True), axis=0),
        noise_us=np.quantile(issue, 0.75, axis=0) - np.quantile(issue, 0.25, axis=0),
    )
    stores = ops[is_store]
    totals = {name: float(stores[f"{name}_us"].sum()) for name in TOTALS}
    issue_of_repeat = issue[:, is_store].sum(axis=1)
    port_is_shared = _port_is_shared(simulated[is_store])
    if port_is_shared:
        unhindered = totals["simulated_issue"] - totals["simulated_stall"]
        issue_of_repeat = np.array([time_in_stores_us(one) for _, one in theirs.groupby("repeat")])
        simulated_issue = time_in_stores_us(simulated if "begun_us" in simulated else simulated.assign(wait_us=0.0))
        totals["simulated_issue"], totals["measured_issue"] = simulated_issue, float(centre(issue_of_repeat))
        for who in ("simulated", "measured"):
            totals[f"{who}_stall"] = totals[f"{who}_issue"] - unhindered
    return Comparison(
        ops=ops,
        simulated_issue_us=totals["simulated_issue"],
        measured_issue_us=totals["measured_issue"],
        simulated_stall_us=totals["simulated_stall"],
        measured_stall_us=totals["measured_stall"],
        simulated_makespan_us=float(simulated["end_us"].max() - simulated["start_us"].min()),
        measured_makespan_us=float(centre(end.max(axis=1) - start.min(axis=1))),
        noise_pct=noise_pct(issue_of_repeat),
        repeats=repeats,
        simulated_wait_us=float(simulated_wait.sum()),
        measured_wait_us=float(centre(wait.sum(axis=1))),
        port_is_shared=port_is_shared,
    )


def time_in_stores_us(ops: pd.DataFrame) -> float:
    """Time in which any lane of an SM is in a store (from `begun_us`, or else the end of its wait, to its own end), summed
    over SMs."""
    stores = ops[ops["kind"] == "store"]
    begun = stores["begun_us"] if "begun_us" in stores else stores["start_us"] + stores["wait_us"]
    total = 0.0
    for _, one in stores.assign(begin=begun).groupby(["gpu", "sm"]):
        ordered = one.sort_values("begin")
        begin, end = ordered["begin"].to_numpy(), ordered["end_us"].to_numpy()
        reached = np.maximum.accumulate(np.concatenate([begin[:1], end[:-1]]))
        total += float(np.maximum(0.0, end - np.maximum(begin, reached)).sum())
    return total


def _port_is_shared(stores: pd.DataFrame) -> bool:
    """Whether several lanes of one SM store, one after the other or in turn."""
    if not {"gpu", "sm"} <= set(stores):
        return False
    return bool((stores.groupby(["gpu", "sm"])["lane"].nunique() > 1).any())


@dataclass(frozen=True)
class Summary:
    """Many Programs: errors of issue time in percent, of stall in ns a store, and the verdict.

    `programs_without_stall` are those with no stall simulated at all; `without_stall_excess_pct` is by how much more time
    their stores measured took, in the median, in percent, with its 95 % interval (None for fewer than 5 of them), and
    `without_stall_noise_pct` their own noise. `without_stall_within_noise` tells whether the excess is no more than that
    either way: no stall simulated, and none measured that could be told from noise.
    """

    programs: int
    programs_with_stall: int
    programs_without_stall: int
    median_abs_error_pct: float
    p90_abs_error_pct: float
    worst_error_pct: float
    stalled_median_abs_error_pct: float | None
    without_stall_excess_pct: float | None
    without_stall_interval_pct: list[float] | None
    without_stall_noise_pct: float | None
    without_stall_within_noise: bool | None
    makespan_median_abs_error_pct: float
    stall_mean_abs_error_ns: float
    op_median_abs_error_pct: float
    noise_pct: float
    verdict: Verdict


def summarise(comparisons: Sequence[Comparison]) -> Summary:
    """Errors over Programs. Raises `InputError` if there are none."""
    if not comparisons:
        raise InputError("is empty", field="comparisons", allowed="one Program or more")
    errors = np.array([c.error_pct for c in comparisons])
    stalled = np.array([c.stalled_share > STALLED_SHARE for c in comparisons])
    noise = float(np.median([c.noise_pct for c in comparisons]))
    by_op = np.concatenate([_op_errors_pct(c) for c in comparisons if not c.port_is_shared] or [np.zeros(1)])
    median = float(np.median(np.abs(errors)))
    return Summary(
        programs=len(comparisons),
        programs_with_stall=int(stalled.sum()),
        **_without_stall([c for c in comparisons if c.simulated_stall_us <= 0]),
        median_abs_error_pct=median,
        p90_abs_error_pct=float(np.quantile(np.abs(errors), 0.9)),
        worst_error_pct=float(errors[np.argmax(np.abs(errors))]),
        stalled_median_abs_error_pct=float(np.median(np.abs(errors[stalled]))) if stalled.any() else None,
        makespan_median_abs_error_pct=float(np.median([abs(c.makespan_error_pct) for c in comparisons])),
        stall_mean_abs_error_ns=float(np.mean([c.stall_error_ns for c in comparisons])),
        op_median_abs_error_pct=float(np.median(np.abs(by_op))),
        noise_pct=noise,
        verdict=verdict(median, noise),
    )


def _without_stall(calm: Sequence[Comparison]) -> dict[str, Any]:
    """Fields of `Summary` about Programs with no stall simulated; the interval is a bootstrap over Programs."""
    excess = np.array([100 * (c.measured_issue_us / c.simulated_issue_us - 1) for c in calm])
    if not calm:
        names = ("excess_pct", "interval_pct", "noise_pct", "within_noise")
        return {"programs_without_stall": 0} | {f"without_stall_{name}": None for name in names}
    middle, noise = float(np.median(excess)), float(np.median([c.noise_pct for c in calm]))
    interval = None
    if len(calm) >= LEAST_FOR_INTERVAL:
        drawn = np.random.default_rng(0).choice(excess, size=(BOOTSTRAP_DRAWS, len(excess)))
        interval = np.quantile(np.median(drawn, axis=1), [0.025, 0.975]).tolist()
    return {
        "programs_without_stall": len(calm),
        "without_stall_excess_pct": middle,
        "without_stall_interval_pct": interval,
        "without_stall_noise_pct": noise,
        "without_stall_within_noise": abs(middle) <= noise,
    }


def verdict(median_abs_error_pct: float, noise_pct: float) -> Verdict:
    if noise_pct > MOST_NOISE_PCT:
        return "no verdict"
    return "agrees" if median_abs_error_pct <= AGREES_PCT else "disagrees"


def _op_errors_pct(comparison: Comparison) -> Any:
    stores = comparison.ops[comparison.ops["kind"] == "store"]
    measured = stores["measured_issue_us"].to_numpy()
    good = measured > 0
    return 100 * (stores["simulated_issue_us"].to_numpy()[good] / measured[good] - 1)


def _with_key(table: pd.DataFrame, key: Sequence[str] = KEY) -> pd.DataFrame:
    """Sorted by repeat and key, with the occurrence of each op in its task."""
    ordered = table.sort_values(["repeat", "start_us"], kind="stable")
    occurrence = ordered.groupby(["repeat", *key[:-1]], observed=True).cumcount()
    return ordered.assign(occurrence=occurrence).sort_values(["repeat", *key]).reset_index(drop=True)


def _same_ops(simulated: pd.DataFrame, measured: pd.DataFrame, key: Sequence[str]) -> bool:
    columns = list(key)
    mine, theirs = simulated[columns].to_numpy(), measured[columns].to_numpy()
    return bool((theirs.reshape(-1, *mine.shape) == mine).all())
