"""A measured trace beside the simulation of the same kernel: which op takes how long there and here.

There are two ways of knowing which op is which:

- Ops with task numbers, as the validator's backends record them: every op of the Program is joined to itself, by lane, task,
  op and occurrence (hw_validate/compare.py). Several repeats, numbered by the column `repeat`, count as one measurement.
- Ops with names, as profilers record them: `match` says which part of the simulation a name is (matching.py). A part is
  a phase ('l1'), a role ('mma'), both ('mma:l1'), the whole run of a GPU ('all') or of a phase on it ('all:l1'). The n-th op
  of that name on a GPU is joined to the n-th task of that part on the same GPU, by start; where there are not equally many,
  only medians are compared. To a whole every op is joined: a kernel that ran many times is many measurements of one run.
  A kernel completes when its stores have been performed, so a whole ends when the last of them has arrived.

error_pct = 100 * (simulated - measured) / measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ..answers.api import run
from ..sim.errors import InputError
from ..table_rows import one_decimal, records, signed
from ..terminal.output import Printed, counted, table
from .matching import chosen_parts, is_whole, on_one_line, parts_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..answers.reruns import Given
    from ..sim.trace import Trace

COLUMNS = (
    "gpu",
    "what",
    "occurrence",
    "measured_start_us",
    "simulated_start_us",
    "measured_issue_us",
    "simulated_issue_us",
)


@dataclass(frozen=True)
class Span:
    """The time from the first op to the last: of the measured trace, the median of its repeats, and of the simulation.

    Beside measured kernels, which complete when their stores have been performed, the simulation ends with the last arrival.
    `ran_once` is False where the trace holds more runs than the one that is simulated: there is no error then.
    """

    measured_us: float
    simulated_us: float
    measured_ops: int
    simulated_ops: int
    ran_once: bool

    @property
    def error_pct(self) -> float | None:
        known = self.ran_once and self.measured_us > 0
        return 100 * (self.simulated_us / self.measured_us - 1) if known else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"error_pct": self.error_pct}


@dataclass(frozen=True, repr=False, eq=False)
class Beside(Printed):
    """What was simulated (a scenario, or the name of a schedule) on which machine, and how a measured trace differs from it.

    `ops`: one row per op that is on both sides, with measured_issue_us, simulated_issue_us, error_pct and `what` it is.

    `parts`: one row per part of the kernel, with its number of ops, medians, totals and errors, including parts whose
    numbers of ops differ. `unmatched`: names of the measured trace that nothing was joined to, with how long they took in
    all. `span`: from the first op to the last, whatever was joined.
    """

    scenario: str
    machine: str
    ops: pd.DataFrame
    parts: pd.DataFrame
    unmatched: dict[str, float]
    span: Span

    @property
    def median_abs_error_pct(self) -> float | None:
        """Over the ops that were joined; None if there are none."""
        return float(self.ops["error_pct"].abs().median()) if len(self.ops) else None

    def as_dict(self) -> dict[str, Any]:
        """What `xstage import --beside --json` adds to its answer."""
        return {
            "scenario": self.scenario,
            "machine": self.machine,
            "joined_ops": len(self.ops),
            "median_abs_error_pct": self.median_abs_error_pct,
            "span": self.span.as_dict(),
            "parts": records(self.parts),
            "unmatched": self.unmatched,
        }

    def plot(self) -> Figure:
        """Each op: simulated against measured time."""
        from ..plots.beside_figures import beside_figure

        return beside_figure(self.ops)

    def write_ops(self, file: str | Path) -> None:
        """`ops` as Parquet, whole or not at all; `xstage report` makes a page of it."""
        from ..sim.files import write_whole

        with write_whole(file) as temporary:
            self.ops.to_parquet(temporary)

    def __repr__(self) -> str:
        return f"<Beside: {len(self.ops)} ops joined with {self.scenario}>"

    def printed(self) -> list[Any]:
        """Measured beside simulated, for a person."""
        rows = [
            (_shown(row["what"]), f"{row['measured_ops']} / {row['simulated_ops']}", f"{row['measured_median_us']:.3f}",
             f"{row['simulated_median_us']:.3f}", signed(row["median_error_pct"]),
             one_decimal(row["op_median_abs_error_pct"]), one_decimal(row["op_p90_abs_error_pct"]))
            for row in self.parts.to_dict("records")
        ]  # fmt: skip
        rows.append(
            ("from the first op to the last", f"{self.span.measured_ops} / {self.span.simulated_ops}",
             f"{self.span.measured_us:.3f}", f"{self.span.simulated_us:.3f}", signed(self.span.error_pct), "", "")
        )  # fmt: skip
        columns = (
            "",
            "ops: measured / simulated",
            "measured, median us",
            "simulated",
            "error %",
            "op by op: median",
            "90 %",
        )
        parts: list[Any] = [
            f"beside {self.scenario} on {self.machine}, simulated",
            "",
            table("", columns, rows),
            "",
            f"{counted(len(self.ops), 'op')} {'is' if len(self.ops) == 1 else 'are'} on both sides"
            + (
                "."
                if self.median_abs_error_pct is None
                else f"; the median error of one is {self.median_abs_error_pct:.1f} %."
            ),
        ]
        if self.unmatched:
            longest = sorted(self.unmatched, key=lambda name: -self.unmatched[name])[:5]
            named = ", ".join(f"{on_one_line(name)} ({self.unmatched[name]:.1f} us)" for name in longest)
            parts.append(f"Not joined to anything: {named}" + (" and others." if len(self.unmatched) > 5 else "."))
        return parts


def beside(
    measured: str | Path | pd.DataFrame,
    simulated: Given | pd.DataFrame,
    match: Mapping[str, str] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
) -> Beside:
    """Compare a measured trace, a file of `read_trace` or a table with the same columns, with a simulated one.

    `simulated` is a scenario, which is run here, or the op table of a run you have made; that does not say when its stores
    arrived, so it ends with its last op.

    `match` maps measured names to parts of the simulation; a name may have a `*`, and one that is a part's own needs no
    entry. Raises `InputError` for a part that the simulation does not have, a name that was not measured, or if nothing can
    be joined.
    """
    import pandas as pd

    from ..hw_validate.readers.read import read_trace

    if match is not None and not isinstance(match, Mapping):
        raise InputError("must be a mapping", field="match", value=match, allowed="parts by measured name")
    ops = measured if isinstance(measured, pd.DataFrame) else read_trace(measured)
    theirs, scenario, machine = _op_table(simulated, overrides)
    if len(ops) and (ops["task"] >= 0).all():
        if match:
            raise InputError("is for traces whose ops have names", field="match", value=", ".join(match))
        joined, parts, unmatched = _op_by_op(ops, theirs)
        ran_once = not bool((parts["measured_ops"] > parts["simulated_ops"]).any())
    else:
        joined, parts, unmatched, ran_once = _by_name(ops, theirs, match or {})
    return Beside(
        scenario,
        machine,
        joined,
        parts,
        unmatched,
        _span(ops, theirs, ran_once),
    )


def _op_table(simulated: Given | pd.DataFrame, overrides: Mapping[str, Any] | None) -> tuple[pd.DataFrame, str, str]:
    """The op table of what is simulated, with the names of the scenario and the machine."""
    import pandas as pd

    if isinstance(simulated, pd.DataFrame):
        return simulated, "a schedule", "its own machine"
    done = run(simulated, overrides=overrides, trace="full")
    scenario, ops = done.resolved.scenario, _with_arrivals(done.trace)
    if scenario.workload.is_mirrored:  # GPU 1 mirrors GPU 0: both hold parts of one rank
        ops = ops.assign(gpu=0)
    return ops, scenario.name, done.resolved.machine.name


def _with_arrivals(trace: Trace) -> pd.DataFrame:
    """Its op table with `arrived_us`: when an op has ended and all that it sent to other GPUs is there."""
    import numpy as np

    from ..plots.traces.flows import arrivals
    from ..sim.units import PS_PER_US

    ops, found = trace.ops(), arrivals(trace)
    arrived = ops["end_us"].to_numpy(copy=True)
    np.maximum.at(arrived, found.op_row, found.visible_ps / PS_PER_US)
    return ops.assign(arrived_us=arrived)


def _span(measured: pd.DataFrame, simulated: pd.DataFrame, ran_once: bool) -> Span:
    repeats = [mine for _, mine in measured.groupby("repeat")] if "repeat" in measured else [measured]
    spans = [float(ops["end_us"].max() - ops["start_us"].min()) for ops in repeats if len(ops)]
    kernels = "arrived_us" in simulated and "kind" in measured and bool((measured["kind"] == "kernel").any())
    last = simulated["arrived_us" if kernels else "end_us"].max()
    took = float(last - simulated["start_us"].min())
    return Span(median(spans) if spans else 0.0, took, len(measured), len(simulated), ran_once)


def _op_by_op(measured: pd.DataFrame, simulated: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, float]]:
    from ..hw_validate.compare import compare

    ops = compare(simulated, measured).ops
    phase = ops["phase"].astype(object).where(ops["phase"].notna(), "").astype(str)
    what = ops["kind"].astype(str).where(phase == "", ops["kind"].astype(str) + ":" + phase)
    ops = _with_error(ops.assign(what=what))
    rows = [
        _part(name, mine["measured_issue_us"], mine["simulated_issue_us"], mine)
        for name, mine in ops.groupby("what", sort=False)
    ]
    return ops, _frame(rows), {}


def _by_name(
    measured: pd.DataFrame, simulated: pd.DataFrame, match: Mapping[str, str]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, float], bool]:
    """What `_op_by_op` gives, and whether no GPU has an op more often than one run of the simulation."""
    import pandas as pd

    there = parts_of(simulated)
    called = measured["name" if "name" in measured else "kind"].astype(str)
    names = list(dict.fromkeys(called))
    chosen = chosen_parts(names, match, there)
    rows, joined, ran_once = [], [], True
    for name, part in chosen.items():
        mine = measured[called == name].sort_values("start_us", kind="stable")
        took, theirs = mine["end_us"] - mine["start_us"], there[part]
        label = name if name == part else f"{name} = {part}"
        pairs = _pairs(mine, theirs, label, whole=is_whole(part))
        rows.append(_part(label, took, theirs["took_us"], pairs))
        joined += [pairs] if len(pairs) else []
        ran_once = ran_once and _most_of_a_gpu(mine) <= _most_of_a_gpu(theirs)
    took = measured["end_us"] - measured["start_us"]
    left = {name: float(took[called == name].sum()) for name in names if name not in chosen}
    ops = pd.concat(joined, ignore_index=True) if joined else pd.DataFrame(columns=[*COLUMNS, "error_pct"])
    return ops, _frame(rows), left, ran_once


def _most_of_a_gpu(ops: pd.DataFrame) -> int:
    return int(ops["gpu"].value_counts().max()) if len(ops) else 0


def _pairs(mine: pd.DataFrame, theirs: pd.DataFrame, what: str, whole: bool) -> pd.DataFrame:
    """The ops of a part that are on both sides, GPU by GPU in order of start; none where there are not equally many.

    GPUs are taken in the order of their numbers: those of a profile need not begin at 0.
    """
    import numpy as np
    import pandas as pd

    measured_gpus, simulated_gpus = np.unique(mine["gpu"]), np.unique(theirs["gpu"])
    found = []
    for place, gpu in enumerate(measured_gpus.tolist()):
        if place >= len(simulated_gpus):
            break
        here, there = mine[mine["gpu"] == gpu], theirs[theirs["gpu"] == simulated_gpus[place]]
        if whole:
            there = pd.concat([there] * len(here))
        if len(here) != len(there):
            continue
        columns = (gpu, what, np.arange(len(here)), here["start_us"].to_numpy(), there["start_us"].to_numpy(),
                   (here["end_us"] - here["start_us"]).to_numpy(), there["took_us"].to_numpy())  # fmt: skip
        found.append(pd.DataFrame(dict(zip(COLUMNS, columns, strict=True))))
    return _with_error(pd.concat(found, ignore_index=True)) if found else pd.DataFrame(columns=[*COLUMNS, "error_pct"])


def _with_error(ops: pd.DataFrame) -> pd.DataFrame:
    known = ops["measured_issue_us"].where(ops["measured_issue_us"] > 0)
    return ops.assign(error_pct=100 * (ops["simulated_issue_us"] / known - 1))


def _part(what: Any, measured: pd.Series[float], simulated: pd.Series[float], joined: pd.DataFrame) -> dict[str, Any]:
    error = joined["error_pct"].abs() if len(joined) else None
    there, here = float(simulated.median()), float(measured.median())
    return {
        "what": str(what),
        "measured_ops": len(measured),
        "simulated_ops": len(simulated),
        "measured_median_us": here,
        "simulated_median_us": there,
        "median_error_pct": 100 * (there / here - 1) if here else None,
        "op_median_abs_error_pct": None if error is None else float(error.median()),
        "op_p90_abs_error_pct": None if error is None else float(error.quantile(0.9)),
    }


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows)


def _shown(what: str) -> str:
    """'NAME = PART' with a short name."""
    name, equals, part = what.rpartition(" = ")
    return f"{on_one_line(name)}{equals}{part}" if equals else on_one_line(part)
