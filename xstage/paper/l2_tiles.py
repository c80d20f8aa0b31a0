"""The L2 tiles of the X-Stage paper's four models, simulated beside what the paper measured (arXiv 2607.23264).

The paper's main loops (T_mma) go in; spans and stalls come out. Two numbers of the machine are fitted, both on one model,
by closed forms and once, and none for any model:

    fan-out efficiency   while all K SMs drain a tile each, it takes  K * tile bytes * (P - 1)/P / (R * efficiency);
                         set to the reference's span under expert-wave
    epilogue             what the reference's span under interleaved leaves beside T_iss0 of a tile

The reference is glm-5.2: its main loops are the longest, so that pulls take the smallest part of its egress and its
expert-wave span is the cleanest view of the drain rate. The paper's notes give neither tokens nor skew. Both are set once
for all models: `TOKENS` a rank, and experts as popular as a Zipf law of exponent 1. Times are those of the busiest rank,
which the others wait for.

Both matter: a stage takes several tiles a SM before it is full, so the median tile is drain-limited only if most L2 phases
are longer than that. Under even load a wave has three or four tiles a SM, and half of the tiles find room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..table_rows import signed
from ..terminal.output import Printed, table
from ..terminal.progress import Progress, silent
from ..workers import map_on_workers

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..sim.machine import Machine

REFERENCE = "glm-5.2"
TOKENS = 16384
EXPONENT = 1.0
SEEDS = 3
POLICIES = ("expert_wave", "interleaved")
MACHINE = "hgx-b200"
GRANULE = "2 KiB"
"""Half the events of the 1 KiB of the machine; medians change by less than 1 % (spans) and 0.06 us (stalls)."""
BLOCK_M, BLOCK_N, BF16_BYTES = 192, 128, 2
"""The tile of DeepGEMM 7f2a703, of one CTA: 48 KiB."""
SPAN_TOLERANCE_PCT = 10.0
STALL_TOLERANCE_US = 0.5
QUEUES = 1.02
"""An interleaved span this many times the paper's is explained by stores that queue."""


@dataclass(frozen=True, repr=False, eq=False)
class TileComparison(Printed):
    """`rows`: a model each, measured and simulated; `fitted`: the two constants."""

    rows: list[dict[str, Any]]
    fitted: dict[str, float]
    tokens: int
    exponent: float

    @property
    def judged(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["judged"]]

    @property
    def stall_mean_error_us(self) -> float:
        """Mean absolute error of the stall over the models that nothing was fitted to."""
        return _mean([abs(row["stall_us"] - row["stall_measured_us"]) for row in self.judged])

    @property
    def paper_stall_mean_error_us(self) -> float:
        """The same of the paper's own prediction."""
        return _mean([abs(row["stall_predicted_us"] - row["stall_measured_us"]) for row in self.judged])

    def as_dict(self) -> dict[str, Any]:
        return {
            "machine": MACHINE, "tokens": self.tokens, "zipf_exponent": self.exponent, "reference": REFERENCE,
            "fitted": self.fitted, "rows": self.rows,
            "stall_mean_error_us": self.stall_mean_error_us, "paper_stall_mean_error_us": self.paper_stall_mean_error_us,
        }  # fmt: skip

    @property
    def frame(self) -> pd.DataFrame:
        """One row a model."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def plot(self) -> Figure:
        """Spans and stalls, measured and simulated."""
        from ..plots.paper_figures import tiles_figure

        return tiles_figure(self.frame)

    def __repr__(self) -> str:
        return f"<TileComparison of {', '.join(row['model'] for row in self.rows)}>"

    def printed(self) -> list[Any]:
        """Spans and stalls of tiles for a person."""
        spans = [
            (_named(row), f"{row['span_wave_measured_us']:.2f}", f"{row['span_wave_us']:.2f}",
             signed(row["span_wave_error_pct"]), f"{row['span_interleaved_measured_us']:.2f}",
             f"{row['span_interleaved_us']:.2f}", signed(row["span_interleaved_error_pct"]),
             f"{row['span_reduction_measured_pct']:.1f}", f"{row['span_reduction_pct']:.1f}")
            for row in self.rows
        ]  # fmt: skip
        stalls = [
            (_named(row), f"{row['stall_measured_us']:.2f}", f"{row['stall_us']:.2f}", f"{row['stall_predicted_us']:.2f}",
             f"{row['stall_us'] - row['stall_measured_us']:+.2f}", round(row["speedup"], 3))
            for row in self.rows
        ]  # fmt: skip
        beyond = [
            f"{row['model']} {order}"
            for row in self.judged
            for order in ("wave", "interleaved")
            if abs(row[f"span_{order}_error_pct"]) > SPAN_TOLERANCE_PCT
        ]
        parts: list[Any] = [
            f"L2 tiles (192 x 128 BF16, 48 KiB of one CTA) of MegaMoE, W8A8, {self.tokens} tokens a rank, EP 8, experts by "
            f"Zipf {self.exponent:g}; the paper's main loops are input. Medians over the busiest rank.",
            f"Fitted to {REFERENCE} (*) alone: fan-out efficiency {self.fitted['fan_out_efficiency']:.3f}, epilogue "
            f"{self.fitted['epilogue_scatter']:.2f} x 10^9 elements a second.",
            "The paper's notes give neither tokens nor skew, which decide how long L2 phases are: see --tokens and "
            "--exponent. With less skew than Zipf 1 half of the tiles find room in the stage, and medians fall far below "
            "the paper's.",
            "",
            table("span of an L2 tile's stores, us", ("model", "wave: paper", "here", "%", "interleaved: paper", "here", "%",
                  "falls by %: paper", "here"), spans), "",
            table("wait of Tensor Core lanes for a free buffer, expert-wave, us a tile", ("model", "paper", "here",
                  "paper's model", "error", "speedup here"), stalls), "",
            f"Spans of the other models: {'all within' if not beyond else ', '.join(beyond) + ' not within'} "
            f"{SPAN_TOLERANCE_PCT:g} %.",
            f"Stall of the other models: mean error {self.stall_mean_error_us:.2f} us "
            f"({'under' if self.stall_mean_error_us < STALL_TOLERANCE_US else 'not under'} {STALL_TOLERANCE_US:g}; "
            f"the paper's own model {self.paper_stall_mean_error_us:.2f}).",
        ]  # fmt: skip
        return parts + [
            f"{row['model']}: by the paper's main loops stores and pulls would need {row['egress_needed_gbs']:.0f} GB/s, "
            f"and an egress drains {self.fitted['scatter_drain_gbs']:.0f}, so that interleaved stores queue for part of "
            "the time."
            for row in self.rows
            if row["span_interleaved_us"] > QUEUES * row["span_interleaved_measured_us"]
        ]


def paper_tiles(
    models: Sequence[str] | None = None,
    *,
    tokens: int = TOKENS,
    exponent: float = EXPONENT,
    seeds: int = SEEDS,
    workers: int = 2,
    progress: Progress = silent,
) -> TileComparison:
    """Simulate all 8 ranks of each model under both policies, once for each seed, and compare with the paper.

    Numbers are medians over the L2 tiles of the busiest rank, averaged over `seeds` routings (which experts are popular, and
    on which rank they are). Raises `InputError` for a model that the paper has no tiles of, or that is given twice.
    """
    from ..scenarios.x_stage import tiles
    from ..sim.arguments import check_number, check_whole, names
    from ..sim.errors import InputError

    known = tiles()
    chosen = list(known) if models is None else names(models, "model")
    if not chosen:
        raise InputError("names no model", field="model", allowed=known)
    check_number(exponent, "exponent")
    for field, value in (("tokens", tokens), ("seeds", seeds), ("workers", workers)):
        check_whole(value, field)
    for model in chosen:
        if model not in known:
            raise InputError("is not among the paper's tiles", field="model", value=model, allowed=known)
        if chosen.count(model) > 1:
            raise InputError("is given twice", field="model", value=model)
    fitted = fit()
    overrides = machine_overrides(fitted)
    points = [
        (tile_scenario(model, policy, tokens, exponent, seed), overrides)
        for model in chosen
        for policy in POLICIES
        for seed in range(seeds)
    ]
    found = map_on_workers(simulate_tiles, points, workers, progress)
    by_point = {
        (scenario["workload"]["model"], scenario["workload"]["policy"], scenario["seed"]): medians
        for (scenario, _), medians in zip(points, found, strict=True)
    }
    rows = [
        _row(model, {policy: [by_point[model, policy, seed] for seed in range(seeds)] for policy in POLICIES})
        for model in chosen
    ]
    return TileComparison(rows, fitted, tokens, exponent)


def fit(machine: Machine | None = None) -> dict[str, float]:
    """The two constants, from the reference alone: `fan_out_efficiency` and `epilogue_scatter` (10^9 elements a second).

    `scatter_drain_gbs` is R times the first.
    """
    from ..scenarios.machine_files import load_machine
    from ..scenarios.x_stage import tiles

    known, reference = machine or load_machine(MACHINE), tiles()[REFERENCE]
    tile = BLOCK_M * BLOCK_N * BF16_BYTES
    remote = known.sms * tile * (known.gpus - 1) / known.gpus
    drained_us = remote / (known.drain_kbs() * 1e3) * 1e6
    epilogue_us = reference.span_interleaved_us - known.issue_time_ps(tile) / 1e6
    efficiency = drained_us / reference.span_wave_us
    return {
        "fan_out_efficiency": efficiency,
        "epilogue_scatter": BLOCK_M * BLOCK_N / epilogue_us / 1e3,
        "scatter_drain_gbs": known.drain_kbs() / 1e6 * efficiency,
    }


def machine_overrides(fitted: dict[str, float]) -> dict[str, Any]:
    """The fitted numbers as overrides of the machine."""
    source = f"fitted to {REFERENCE} of arXiv 2607.23264"
    return {
        "machine.interconnect.fan_out_efficiency": {"value": fitted["fan_out_efficiency"], "source": source},
        "machine.compute.epilogue_scatter": {"value": fitted["epilogue_scatter"], "source": source},
    }


def tile_scenario(model: str, policy: str, tokens: int, exponent: float, seed: int) -> dict[str, Any]:
    """One run of a model of the paper, with its main loops, as a scenario."""
    from ..scenarios.x_stage import tiles

    known = tiles()[model]
    return {
        "name": f"{model}-{policy}",
        "question": "How long do L2 tiles store, and what do the MMA warps wait?",
        "machine": MACHINE,
        "seed": seed,
        "granule": GRANULE,
        "workload": {
            "kind": "megamoe", "model": model, "tokens": tokens, "numbers": "w8a8", "release": "pr304",
            "policy": policy, "routing": {"kind": "zipf", "exponent": exponent},
            "l1_main_loop": f"{known.l1_main_loop_us} us", "l2_main_loop": f"{known.l2_main_loop_us} us",
        },
    }  # fmt: skip


def egress_needed_gbs(model: str) -> float:
    """Rate at which an egress would have to send, GB/s, if nothing but the paper's main loops took time, under balance.

    Of an m-block of BM rows (P - 1) / P are pulled from others, H bytes a row with scales, and as many go back in BF16.
    """
    from ..scenarios.expert_models import expert_model
    from ..scenarios.machine_files import load_machine
    from ..scenarios.x_stage import tiles

    machine, sizes, paper = load_machine(MACHINE), expert_model(model), tiles()[model]
    sm_us = (2 * sizes.intermediate * paper.l1_main_loop_us + sizes.hidden * paper.l2_main_loop_us) / BLOCK_N
    remote_rows = BLOCK_M * (machine.gpus - 1) / machine.gpus
    row_bytes = sizes.hidden * (1 + 1 / 32 + BF16_BYTES)
    return remote_rows * row_bytes / (sm_us / machine.sms) / 1e3


def simulate_tiles(point: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, float]:
    """Medians over the L2 tiles of the busiest rank, us, of a (scenario, overrides)."""
    import numpy as np

    from ..answers.api import run
    from ..scenarios.loader import load_scenario
    from ..sim.schedules.megamoe import l2_tiles

    done = run(load_scenario(point[0], point[1]), engine="compiled", trace="summary")
    tiles = l2_tiles(done.trace)
    mine = tiles.of(int(np.bincount(tiles.gpu).argmax()))
    return {
        "span_us": float(np.median(mine.span_us)),
        "stall_us": float(np.median(mine.stall_us)),
        "makespan_us": done.makespan_us,
    }


def _row(model: str, found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    from ..scenarios.x_stage import tiles

    paper, wave, interleaved = tiles()[model], found["expert_wave"], found["interleaved"]
    row: dict[str, Any] = {"model": model, "judged": model != REFERENCE}
    for name, runs, measured in (
        ("span_wave", wave, paper.span_wave_us),
        ("span_interleaved", interleaved, paper.span_interleaved_us),
    ):
        simulated = _mean([run["span_us"] for run in runs])
        error = 100 * (simulated - measured) / measured
        row |= {f"{name}_measured_us": measured, f"{name}_us": simulated, f"{name}_error_pct": error}
    return row | {
        "stall_measured_us": paper.stall_us,
        "stall_us": _mean([run["stall_us"] for run in wave]),
        "stall_predicted_us": paper.stall_predicted_us,
        "span_reduction_measured_pct": 100 * (1 - paper.span_interleaved_us / paper.span_wave_us),
        "span_reduction_pct": 100 * (1 - row["span_interleaved_us"] / row["span_wave_us"]),
        "egress_needed_gbs": egress_needed_gbs(model),
        "speedup": _mean([w["makespan_us"] / i["makespan_us"] for w, i in zip(wave, interleaved, strict=True)]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _named(row: dict[str, Any]) -> str:
    return str(row["model"]) + ("" if row["judged"] else " *")
