"""The figures of `xstage figures`: how the table of each is made, and how it is drawn from its table alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..answers.figure_setting import setting_of
from ..paper.calls import STUDY
from ..paper.leads import lead_setting
from ..plots.burst_figures import knee_figure, occupancy_figure, recovery_figure
from ..plots.lane_figures import lanes_figure
from ..plots.paper_figures import lead_figure
from ..plots.phase_figures import phase_figure
from ..plots.reach_figures import measured_figure, pair_rates_figure
from ..plots.schedule_figures import breakdown_figure, timeline_figure, waterfall_figure
from ..plots.shape_figures import attention_figure, best_policy_figure, calls_figure
from ..scenarios import x_stage
from ..scenarios.loader import load_scenario
from ..scenarios.machine_files import load_machine
from ..scenarios.study import load_study
from . import burst_tables, reach_tables, schedule_tables, shape_tables

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..sim.machine import Machine


@dataclass(frozen=True)
class Inputs:
    """What tables are made from. `calls` is a folder of a sweep, `published` a file; without them they are simulated."""

    workers: int = 1
    calls: Path | None = None
    published: Path | None = None


@dataclass(frozen=True)
class Drawing:
    """One figure: what it shows, how its table is made, and how a table becomes a figure. `simulates` tells whether its
    table is made by simulations."""

    name: str
    shows: str
    table: Callable[[Inputs], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure]
    simulates: bool = True


def _b200() -> Machine:
    return load_machine(burst_tables.MACHINE)


def _megamoe() -> str:
    """What the figures of one MegaMoE layer in two orders are of."""
    resolved = load_scenario(schedule_tables.SCENARIO, {"workload.tokens": schedule_tables.TOKENS})
    return setting_of(resolved, ("policy",))


def _calls() -> str:
    """What the figure of all kinds of calls is of: they differ in model, tokens and types of numbers."""
    study = load_study(STUDY)
    first = study.resolve(next(study.points()))
    workload = first.scenario.workload
    return f"{workload.kind}, on {workload.gpus} GPUs of {first.machine.name}"


DRAWINGS = (
    Drawing(
        "knee",
        "a burst beyond the knee waits to issue",
        lambda inputs: burst_tables.isolated_table(_b200(), burst_tables.isolated_points(_b200()), []),
        lambda data: knee_figure(data, burst_tables.knee_kib(data), x_stage.bursts()["knee_kib"], burst_tables.SETTING),
    ),
    Drawing(
        "recovery",
        "a gap between bursts removes the stall",
        lambda inputs: burst_tables.train_table(_b200()),
        lambda data: recovery_figure(data, burst_tables.recovery_gaps_us(data), burst_tables.SETTING),
    ),
    Drawing(
        "occupancy",
        "what the stage holds over time, in the three phases",
        lambda inputs: burst_tables.occupancy_table(_b200()),
        lambda data: occupancy_figure(data, f"SMs of {burst_tables.MACHINE} store bursts to one peer GPU, all at once"),
    ),
    Drawing(
        "phases",
        "volume and gap of a train, and which phase it is in",
        lambda inputs: burst_tables.phase_table(_b200()),
        lambda data: phase_figure(data, burst_tables.SETTING),
    ),
    Drawing(
        "lanes",
        "tiles of a MegaMoE layer on their SMs, in two orders",
        lambda inputs: schedule_tables.lane_table(),
        lambda data: lanes_figure(data, setting=_megamoe(), doing="computing"),
    ),
    Drawing(
        "tensor-cores",
        "Tensor Core lanes that compute and use of the egress over time, in two orders",
        lambda inputs: schedule_tables.activity_table(),
        lambda data: timeline_figure(data, _megamoe()),
    ),
    Drawing(
        "stall",
        "what keeps lanes from going on, in two orders",
        lambda inputs: schedule_tables.stall_table(),
        lambda data: breakdown_figure(data, _megamoe()),
    ),
    Drawing(
        "waterfall",
        "where the time of a fused GEMM + ReduceScatter goes",
        lambda inputs: schedule_tables.waterfall_table(),
        lambda data: waterfall_figure(data, setting_of(load_scenario(schedule_tables.EXPLAINED))),
    ),
    Drawing(
        "lead",
        "what the row lead costs and brings, and D_knee",
        lambda inputs: schedule_tables.lead_table(),
        lambda data: lead_figure(
            data,
            schedule_tables.knee_rows(data),
            lead_setting(schedule_tables.LEAD_MODEL, schedule_tables.LEAD_TOKENS),
        ),
    ),
    Drawing(
        "calls",
        "interleaved against expert-wave MegaMoE, one mark per call",
        lambda inputs: shape_tables.calls_table(inputs.calls, inputs.workers),
        lambda data: calls_figure(data, x_stage.speedups(), _calls()),
    ),
    Drawing(
        "attention",
        "speedup of attention + All-to-All by length and policy",
        lambda inputs: shape_tables.attention_table(inputs.workers),
        lambda data: attention_figure(
            data, setting_of(load_scenario(shape_tables.ATTENTION_SCENARIO), ("policy", "tokens"))
        ),
    ),
    Drawing(
        "tensor-parallel",
        "the fastest policy of a GEMM + ReduceScatter by its size",
        lambda inputs: shape_tables.tensor_parallel_table(inputs.workers),
        lambda data: best_policy_figure(
            data, setting_of(load_scenario(shape_tables.TP_SCENARIO), ("policy", "m", "k"))
        ),
    ),
    Drawing(
        "topologies",
        "the even share of each pair of GPUs in an All-to-All",
        lambda inputs: reach_tables.topology_table(),
        pair_rates_figure,
        simulates=False,
    ),
    Drawing(
        "published",
        "predictions beside published measurements",
        lambda inputs: reach_tables.published_table(inputs.published, inputs.workers),
        measured_figure,
    ),
)
"""In the order in which they teach."""
