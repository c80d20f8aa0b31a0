"""What `xstage run` answers: a simulated scenario, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..scenarios.loader import Resolved
from ..sim.units import format_size
from ..terminal.heading import asked, scenario_fields, what_runs_where
from ..terminal.output import Printed, table, warning_parts, with_warnings
from .figure_setting import setting_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..scenarios.workload import Workload
    from ..sim.program import Program
    from ..sim.topology import Fabric
    from ..sim.trace import Trace


@dataclass(frozen=True, repr=False, eq=False)
class Run(Printed):
    """One simulated scenario."""

    resolved: Resolved
    """The scenario and its machine."""
    engine: str
    metrics: dict[str, Any]
    """The numbers of `xstage run --json`: makespan_us, stall_total_us, occupancy_peak_bytes, roles, spans and more."""
    timing: dict[str, float]
    """What building and simulating took on this computer, in seconds."""
    program: Program
    """The schedule."""
    fabric: Fabric
    trace: Trace
    """What happened, as tables."""

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Overrides that change nothing, and assumptions that can decide the answer, a sentence each.

        They are found when they are first asked for, some by building and running the schedule without an override.
        """
        from ..scenarios.cautions import cautions
        from .no_effect import without_effect

        given = self.resolved.given
        idle = [] if given is None else without_effect(*given, self.program, self.fabric, self.trace)
        return (*idle, *cautions(self.resolved, self.program, self.trace))

    @property
    def makespan_us(self) -> float:
        """From time 0 until the last lane is free and the last byte is visible."""
        return float(self.metrics["makespan_us"])

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage run --json`, without the fields that all answers share."""
        answer = {**scenario_fields(self.resolved), "machine": self.resolved.machine.name, "engine": self.engine,
                  **self.metrics}  # fmt: skip
        return with_warnings(answer, self.warnings)

    def plot(self) -> Figure:
        """Busy, stalled and waiting time of a lane, the mean of each role."""
        from ..plots.run_figures import roles_figure, roles_table

        return roles_figure(roles_table(self.metrics["roles"]), self.makespan_us, setting_of(self.resolved))

    def __repr__(self) -> str:
        scenario, machine = self.resolved.scenario.name, self.resolved.machine.name
        return f"<Run of {scenario} on {machine}, {self.engine} engine: {self.makespan_us:.3f} us>"

    def printed(self) -> list[Any]:
        """What was simulated, then the numbers, for a person."""
        return [*run_parts(self), *warning_parts(self.warnings)]


def run_parts(run: Run) -> list[Any]:
    """A simulated scenario for a person: what was simulated, then the numbers."""
    metrics = run.metrics
    parts: list[Any] = [
        *asked(run.resolved),
        f"{what_runs_where(run.resolved)}, {run.engine} engine",
        *_one_of_many(run.resolved.scenario.workload),
        "",
        table("", ("", ""), totals(metrics, run.timing["simulate_s"])),
        "",
    ]
    if roofs := metrics["roofs"]:
        parts += [table(*roof_table(roofs)), ""]
    roles, spans = metrics["roles"], metrics["spans"]
    causes = sorted({cause for role in roles.values() for cause in role["wait_mean_us"]})
    by_role = [
        (name, role["lanes"], role["busy_mean_us"], role["stall_mean_us"],
         *(role["wait_mean_us"].get(cause, 0.0) for cause in causes), role["not_running_mean_us"])
        for name, role in roles.items()
    ]  # fmt: skip
    by_phase = [(name, span["tasks"], span["median_us"], span["p95_us"]) for name, span in spans.items()]
    if by_role:
        columns = ("role", "lanes", "busy", "stall", *(f"wait: {cause}" for cause in causes), "not running")
        parts.append(table("where a lane's time goes, us, mean by role", columns, by_role))
    if by_phase:
        parts += [
            "",
            table(
                "from a task's first op to its last, waits included, us, by phase",
                ("phase", "tasks", "median", "95 %"),
                by_phase,
            ),
        ]
    return parts


def totals(metrics: Mapping[str, Any], simulated_s: float | None) -> list[tuple[str, str]]:
    """What a run comes to, with units: name and value of each total. `metrics` are those of `Run`."""
    took = "" if simulated_s is None else f" in {simulated_s:.2f} s"
    found = [
        ("makespan", f"{metrics['makespan_us']:.3f} us"),
        *_ends(metrics),
        ("stalled for room in the stage", _stalled(metrics)),
        ("stored", _stored(metrics)),
        ("most that a GPU's stage held", format_size(metrics["occupancy_peak_bytes"])),
        ("simulated", f"{metrics['ops']} ops, {metrics['events']} events{took}"),
    ]
    if tile := metrics.get("tile"):
        found.append(("tile of a CTA, rows x columns", tile))
    if fill := metrics.get("m_block_fill"):
        found.append(("rows of an m-block that hold a token", f"{fill['mean_rows']:.1f} of {fill['block_m']}, mean"))
    if routed := metrics.get("routed"):
        found.append(("rows of the busiest expert", f"{routed['expert_max_over_mean']:.3f} times the mean"))
        found.append(("rows of the busiest rank", _busiest_rank(metrics)))
    return found


def roof_table(roofs: Sequence[Mapping[str, Any]]) -> tuple[str, Sequence[str], list[list[str]]]:
    """Title, columns and rows of the roofs of a run."""
    title = "what the busiest rank or port of each kind did, against the most that it could do"
    columns = ("part", "busiest", "did", "rate", "at most", "at least, us", "of the time")
    rows = []
    for roof in roofs:
        is_work = roof["unit"] == "FLOP"
        amount = f"{roof['amount'] / 1e12:.3g} TFLOP" if is_work else f"{roof['amount'] / 1e9:.3g} GB"
        rate, suffix = ("tflops", "TFLOPS") if is_work else ("gbs", "GB/s")
        rates = [f"{roof[f'{what}_{rate}']:.1f} {suffix}" for what in ("achieved", "most")]
        rows.append(
            [roof["part"], roof["where"], amount, *rates, f"{roof['least_us']:.3f}", f"{roof['use_pct']:.1f} %"]
        )
    return title, columns, rows


def tile_of(program: Program) -> str | None:
    """The tile of a CTA, and the CTAs of a cluster where they are several; None where the schedule does not say."""
    kernel = program.meta.get("kernel")
    if kernel is None:
        return None
    rows, columns, l1_columns, ctas = (kernel.get(key, 0) for key in ("block_m", "block_n", "l1_block_n", "cluster"))
    tile = f"{rows} x {columns}" + (f", L1 {rows} x {l1_columns}" if l1_columns else "")
    return tile + (f", cluster of {ctas}" if ctas > 1 else "")


def _stalled(metrics: Mapping[str, Any]) -> str:
    total, mean = f"{metrics['stall_total_us']:.3f} us, summed over lanes", stall_mean_us(metrics)
    return f"{total}; {mean:.3f} us per lane, in roles that stall" if mean else total


def stall_mean_us(metrics: Mapping[str, Any]) -> float:
    """Stall of a lane, mean over the roles that stall: that of all lanes is larger than the makespan where many do."""
    lanes = sum(role["lanes"] for role in metrics["roles"].values() if role["stall_mean_us"])
    return float(metrics["stall_total_us"] / max(1, lanes))


def _busiest_rank(metrics: Mapping[str, Any]) -> str:
    """Its rows over the mean; beside it, where experts are placed otherwise, what it would have with them in order."""
    said = f"{metrics['routed']['rank_max_over_mean']:.3f} times the mean"
    load = metrics.get("rank_load")
    return said + (f"; {load['max_over_mean_before']:.3f} with experts in order" if load else "")


def _stored(metrics: Mapping[str, Any]) -> str:
    """Bytes of all stores, and how many of them left their GPU if not all did."""
    stored, left = metrics["bytes_stored"], metrics["bytes_stored_to_others"]
    return format_size(stored) + (f", {format_size(left)} of it to other GPUs" if left < stored else "")


def _one_of_many(workload: Workload) -> list[str]:
    """What a person must know to read totals: whether they are those of all ranks."""
    if not workload.is_mirrored:
        return []
    return [
        f"the busiest of the {workload.gpus} ranks is simulated, against peers that mirror it: totals are those of one rank"
    ]


def _ends(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The two ends of a run, of which the makespan is the later; none where nothing is sent."""
    if not metrics["remote_visible_us"]:
        return []
    return [
        ("sender-visible", f"{metrics['sender_visible_us']:.3f} us, when the last lane is free"),
        ("remote-visible", f"{metrics['remote_visible_us']:.3f} us, when the last byte has arrived"),
    ]
