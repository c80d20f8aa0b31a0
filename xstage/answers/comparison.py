"""`xstage compare`: the policies of one scenario side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..scenarios.cautions import cautions, other_kernels
from ..scenarios.loader import Resolved
from ..sim.errors import InputError, XstageError
from ..sim.run_options import check_options
from ..sim.units import PS_PER_US
from ..terminal.heading import asked, scenario_fields
from ..terminal.output import Printed, folded, table, warning_parts, with_warnings
from ..terminal.progress import Progress, silent
from .api import resolved_scenario
from .figure_setting import setting_of
from .reruns import Given, Parameters, choices_of, chosen_policies, comparable, own_policy, simulated, under_policy
from .run import stall_mean_us, tile_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..sim.machine import Machine
    from ..sim.run_options import TraceLevel
    from ..sim.trace import Trace


SPEEDUP_OF = "makespan_us"
"""The time that speedups are of: the later of the sender-visible and the remote-visible end."""


OTHER_ORDER_PCT = 10.0
"""From this difference of hits on, in percent of the tiles, the costs of tiles are not those of the order that ran."""


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """One policy: what was found, or the error that kept it from running. `trace` is there if it was to be kept."""

    policy: str
    parameters: Parameters
    found: dict[str, Any] | None
    error: str | None = None
    trace: Trace | None = None

    def as_dict(self, baseline_us: float | None) -> dict[str, Any]:
        found = self.found or dict.fromkeys(_FOUND)
        makespan = found["makespan_us"]
        speedup = baseline_us / makespan if baseline_us and makespan else None
        return {"policy": self.policy, "parameters": self.parameters, "makespan_us": makespan, "speedup": speedup,
                **found, "error": self.error}  # fmt: skip


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(Printed):
    """The same scenario under several policies. The first is the baseline of the speedups."""

    resolved: Resolved
    runs: tuple[PolicyRun, ...]
    warnings: tuple[str, ...] = ()

    @property
    def baseline(self) -> str:
        return self.runs[0].policy

    def rows(self) -> list[dict[str, Any]]:
        first = self.runs[0].found
        return [run.as_dict(first["makespan_us"] if first else None) for run in self.runs]

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage compare --json`, without the fields that all answers share."""
        answer = {**scenario_fields(self.resolved), "machine": self.resolved.machine.name,
                  "baseline": self.baseline, "speedup_of": SPEEDUP_OF, "policies": self.rows()}  # fmt: skip
        return with_warnings(answer, self.warnings)

    @property
    def frame(self) -> pd.DataFrame:
        """One row a policy, with waits by cause, spans by phase, memory traffic and use of roofs in columns of their own."""
        import pandas as pd

        flat = []
        for row in self.rows():
            waits, spans, memory = (row.pop(name) or {} for name in ("wait_us", "spans", "memory"))
            roofs = row.pop("roofs") or ()
            del row["breakdown"], row["phases"]
            row |= {f"wait_{cause}_us": time for cause, time in waits.items()}
            row |= {f"span_{phase}_{name}": value for phase, span in spans.items() for name, value in span.items()}
            row |= {f"memory_{name}": value for name, value in memory.items()}
            row |= {f"roof_{roof['part']}_use_pct": roof["use_pct"] for roof in roofs}
            flat.append(row)
        return pd.DataFrame(flat)

    def breakdown(self) -> pd.DataFrame:
        """One row a policy, role and stretch of time: policy, makespan_us, role, lanes, what, cause, mean_us."""
        import pandas as pd

        return pd.DataFrame(
            {"policy": run.policy, "makespan_us": run.found["makespan_us"]} | row
            for run in self.runs
            if run.found
            for row in run.found["breakdown"]
        )

    def timelines(self, bins: int = 160) -> pd.DataFrame:
        """Use of Tensor Cores and egress over time, for the policies whose trace was kept: policy, makespan_us, and the
        columns of `timeline` in sim/activity.py. Raises `InputError` if no trace was kept.
        """
        import pandas as pd

        from ..sim.activity import timeline

        kept = [(run.policy, run.trace, run.trace.makespan_ps / PS_PER_US) for run in self.runs if run.trace]
        if not kept:
            raise InputError("is needed for timelines", field="trace", value="summary", allowed=["full"])
        until = max(makespan for *_, makespan in kept)
        parts = [timeline(trace, bins, until).assign(policy=name, makespan_us=us) for name, trace, us in kept]
        return pd.concat(parts, ignore_index=True)

    def plot(self) -> Figure:
        """Stall and waits of each policy, by role, with its makespan."""
        from ..plots.schedule_figures import breakdown_figure

        return breakdown_figure(self.breakdown(), setting_of(self.resolved, ("policy",)))

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(run.policy for run in self.runs)} on {self.resolved.scenario.name}>"

    def printed(self) -> list[Any]:
        """The comparison for a person: tables of at most 80 columns."""
        resolved, rows = self.resolved, self.rows()
        ran = [row for row in rows if row["error"] is None]
        parts: list[Any] = [
            *asked(resolved),
            f"{resolved.scenario.workload.title}, on {resolved.scenario.workload.gpus} GPUs of {resolved.machine.name}; "
            f"speedups of the makespan over {self.baseline}",
        ]
        for one in comparison_tables(ran):
            for part in folded(*one):
                parts += ["", part]
        failed = [(row["policy"], row["error"]) for row in rows if row["error"] is not None]
        if failed:
            parts += ["", table("cannot run", ("policy", "why"), failed)]
        return [*parts, *warning_parts(self.warnings)]


def compare(
    scenario: Given,
    policies: Sequence[str] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    trace: TraceLevel = "summary",
    progress: Progress = silent,
) -> Comparison:
    """Run a scenario under each of `policies`, by default all of its workload but `compute_only`, its own first.

    The scenario's own policy runs as it is written, another with its own choices. One that cannot run this shape or machine
    becomes a row with its error. `trace="full"` keeps the traces, for timelines. Raises `InputError` for an unknown policy
    or a workload that has none.
    """
    resolved = resolved_scenario(scenario, overrides)
    check_options(resolved.scenario.engine, trace)
    choices, runs = comparable(resolved), []
    usual = list(dict.fromkeys([own_policy(resolved), *choices_of(resolved)]))
    names = chosen_policies(choices, usual if policies is None else policies)
    warnings: dict[str, None] = {}
    for done, name in enumerate(names):
        progress(done, len(names))
        try:
            changed, parameters = under_policy(resolved, name, choices[name])
            ran = simulated(changed, trace)
            found = _found(ran, changed.machine)
            runs.append(PolicyRun(name, parameters, found, trace=ran if trace == "full" else None))
            warned = [*cautions(changed, ran.program, ran), *_other_order(name, found)]
            warnings |= dict.fromkeys([*warned, *other_kernels(name, parameters, choices[name])])
        except XstageError as error:
            runs.append(PolicyRun(name, {}, None, str(error)))
    progress(len(names), len(names))
    return Comparison(resolved, tuple(runs), tuple(warnings))


_FOUND = (
    "makespan_us", "sender_visible_us", "remote_visible_us", "stall_total_us", "stall_mean_us", "wait_us",
    "tensor_core_use_pct", "main_loops_pct", "egress_use_pct", "occupancy_peak_bytes", "roofs", "memory", "spans", "phases",
    "breakdown", "tile",
)  # fmt: skip


def _found(trace: Trace, machine: Machine) -> dict[str, Any]:
    from ..sim import activity
    from ..sim.metrics import summarise
    from ..sim.roofs import roofs

    metrics = summarise(trace)
    metrics |= {
        "stall_mean_us": stall_mean_us(metrics),
        "wait_us": activity.waits_us(trace),
        "tensor_core_use_pct": activity.tensor_core_use_pct(trace),
        "main_loops_pct": activity.main_loops_pct(trace),
        "roofs": [roof.as_dict() for roof in roofs(trace, machine)],
        "memory": _memory(trace, machine),
        "phases": activity.phase_windows(trace),
        "breakdown": activity.breakdown(trace),
        "tile": tile_of(trace.program),
    }
    return {name: metrics[name] for name in _FOUND}


def _memory(trace: Trace, machine: Machine) -> dict[str, float] | None:
    """What a rank moves through its memory, mean over those that were simulated; None where the schedule does not say.

    `hbm_bytes` is what the model charges HBM with: weights, of which `hbm_weights_again_bytes` not for the first time, and
    the combine. `l2_to_sm_bytes` are operands. Hits are in the nominal order of tiles, and in the order that ran.
    """
    meta = trace.program.meta
    if not meta.get("memory_bytes"):
        return None
    from ..sim.schedules.megamoe import hits_as_run_pct

    moved = {name: _mean([rank[name] for rank in meta["memory_bytes"]]) for name in meta["memory_bytes"][0]}
    return {
        "hbm_bytes": moved["hbm_weights"] + moved["hbm_combine"],
        **{f"{name}_bytes": value for name, value in moved.items()},
        "weight_hits_pct": _mean(meta["weight_hits_pct"]),
        "weight_hits_as_run_pct": _mean(hits_as_run_pct(trace, machine)),
    }


def _other_order(policy: str, found: Mapping[str, Any]) -> list[str]:
    """That tiles found their weights elsewhere than was assumed when their costs were computed."""
    memory = found["memory"]
    if memory is None:
        return []
    assumed, ran = memory["weight_hits_pct"], memory["weight_hits_as_run_pct"]
    if abs(ran - assumed) <= OTHER_ORDER_PCT:
        return []
    return [
        f"{policy} is less certain: the costs of its tiles are those with {assumed:.0f} % of the weights found in the L2 "
        f"cache, and in the order that ran {ran:.0f} % are"
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


Rows = list[dict[str, Any]]
Lines = tuple[str, list[str], list[list[str]]]
"""Title, columns and rows of a table."""


def comparison_tables(ran: Rows) -> list[Lines]:
    """What there is to tell of the policies that ran; a table without rows has nothing to tell."""
    return [_times(ran), _ends(ran), _waits(ran), _traffic(ran), _roofs(ran), _spans(ran)]


def _times(ran: Rows) -> Lines:
    tiles = [row["tile"] or "" for row in ran]
    columns = ["policy", "makespan", "speedup", "stall", "per lane", "main loops", "egress", "tile", "settings"]
    lines = [
        [
            row["policy"],
            f"{row['makespan_us']:.3f}",
            "" if row["speedup"] is None else f"{row['speedup']:.3f}",
            f"{row['stall_total_us']:.3f}",
            f"{row['stall_mean_us']:.3f}",
            "" if row.get("main_loops_pct") is None else f"{row['main_loops_pct']:.1f}",
            f"{row['egress_use_pct']:.1f}",
            tile,
            parameters_text(row["parameters"]),
        ]
        for row, tile in zip(ran, tiles, strict=True)
    ]
    told = [*columns[:-2], *["tile"] * (len({*tiles}) > 1), *["settings"] * any(line[-1] for line in lines)]
    lines = [[value for column, value in zip(columns, line, strict=True) if column in told] for line in lines]
    return "policies; times in us, stall summed and per lane; main loops, egress in %", told, lines


def _roofs(ran: Rows) -> Lines:
    """How much of the makespan the busiest rank or port of each kind needs for what it did."""
    parts = dict.fromkeys(roof["part"] for row in ran for roof in row["roofs"])
    lines = []
    for row in ran:
        use = {roof["part"]: f"{roof['use_pct']:.1f} %" for roof in row["roofs"]}
        lines.append([row["policy"], *(use.get(part, "") for part in parts)])
    title = "what the busiest rank or port did (FLOPs: had to), of the most it could do"
    return title, ["policy", *parts], lines if parts else []


def _ends(ran: Rows) -> Lines:
    """The two ends of a run, where there are two."""
    lines = [
        [row["policy"], *(f"{row[name]:.3f}" for name in ("sender_visible_us", "remote_visible_us", SPEEDUP_OF))]
        for row in ran
        if row["remote_visible_us"]
    ]
    title = "ends, us: the last lane is free, the last byte has arrived, the later of both"
    return title, ["policy", "sender-visible", "remote-visible", "makespan"], lines


def _waits(ran: Rows) -> Lines:
    causes = sorted({cause for row in ran for cause in row["wait_us"]})
    lines = [[row["policy"], *(f"{row['wait_us'].get(cause, 0.0):.3f}" for cause in causes)] for row in ran]
    return "what a Tensor Core lane waits for, us, mean", ["policy", *causes], lines if causes else []


def _traffic(ran: Rows) -> Lines:
    columns = ["policy", "HBM", "weights", "read again", "L2 cache to SMs", "hits", "as run"]
    lines = [
        [
            row["policy"],
            *(f"{memory[name] / 1e9:.3f}" for name in _MOVED),
            f"{memory['weight_hits_pct']:.1f} %",
            f"{memory['weight_hits_as_run_pct']:.1f} %",
        ]
        for row in ran
        if (memory := row["memory"])
    ]
    title = "memory traffic of a rank, GB; hits: tiles whose weights are in the L2 cache"
    return title, columns, lines


_MOVED = ("hbm_bytes", "hbm_weights_bytes", "hbm_weights_again_bytes", "l2_to_sm_bytes")


def _spans(ran: Rows) -> Lines:
    phases = dict.fromkeys(phase for row in ran for phase in row["spans"])
    lines = [[phase, *(_span_text(row["spans"].get(phase)) for row in ran)] for phase in phases]
    return (
        "from a task's first op to its last, waits included, us: median / 95 %",
        ["phase", *(row["policy"] for row in ran)],
        lines,
    )


def _span_text(span: Mapping[str, float] | None) -> str:
    return "" if span is None else f"{span['median_us']:.3f} / {span['p95_us']:.3f}"


def parameters_text(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters.items())
