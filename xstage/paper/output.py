"""How the comparisons with the X-Stage paper are printed: tables, and in a sentence each why something differs."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..terminal.output import table

QUEUES = 1.02
"""An interleaved span this many times the paper's is explained by stores that queue."""

_PAPER_TILES = (
    "Tiles cost what the paper measured (W8A8; W4A8 by the bytes that an SM takes in). Its notes give neither token counts "
    "nor skew of its calls.",
)
_BALANCED = (
    "Balanced calls gain little. With small experts (Qwen3.5, DiT-MoE, Hy3) the egress, which answers pulls too, is busy in "
    "both orders; with larger ones a wave has few L2 tiles an SM (H/I to 2 H/I), and the stage and the second accumulator "
    "take up what they store too fast.",
)

if TYPE_CHECKING:
    import pandas as pd

    from .calls import Speedups
    from .l2_tiles import TileComparison
    from .leads import LeadCurve


def tile_parts(done: TileComparison) -> list[Any]:
    """Spans and stalls of tiles for a person."""
    from .l2_tiles import REFERENCE, SPAN_TOLERANCE_PCT, STALL_TOLERANCE_US

    spans = [
        (_named(row), f"{row['span_wave_measured_us']:.2f}", f"{row['span_wave_us']:.2f}",
         _signed(row["span_wave_error_pct"]), f"{row['span_interleaved_measured_us']:.2f}",
         f"{row['span_interleaved_us']:.2f}", _signed(row["span_interleaved_error_pct"]),
         f"{row['span_reduction_measured_pct']:.1f}", f"{row['span_reduction_pct']:.1f}")
        for row in done.rows
    ]  # fmt: skip
    stalls = [
        (_named(row), f"{row['stall_measured_us']:.2f}", f"{row['stall_us']:.2f}", f"{row['stall_predicted_us']:.2f}",
         _signed(row["stall_us"] - row["stall_measured_us"], 2), round(row["speedup"], 3))
        for row in done.rows
    ]  # fmt: skip
    beyond = [
        f"{row['model']} {order}"
        for row in done.judged
        for order in ("wave", "interleaved")
        if abs(row[f"span_{order}_error_pct"]) > SPAN_TOLERANCE_PCT
    ]
    parts: list[Any] = [
        f"L2 tiles (192 x 128 BF16, 48 KiB of one CTA) of MegaMoE, W8A8, {done.tokens} tokens a rank, EP 8, experts by Zipf "
        f"{done.exponent:g}; the paper's main loops are input. Medians over the busiest rank.",
        f"Fitted to {REFERENCE} (*) alone: fan-out efficiency {done.fitted['fan_out_efficiency']:.3f}, epilogue "
        f"{done.fitted['epilogue_scatter']:.2f} x 10^9 elements a second.",
        "The paper's notes give neither tokens nor skew, which decide how long L2 phases are: see --tokens and --exponent. "
        "With less skew than Zipf 1 half of the tiles find room in the stage, and medians fall far below the paper's.",
        "",
        table("span of an L2 tile's stores, us", ("model", "wave: paper", "here", "%", "interleaved: paper", "here", "%",
              "falls by %: paper", "here"), spans), "",
        table("wait of Tensor Core lanes for a free buffer, expert-wave, us a tile", ("model", "paper", "here",
              "paper's model", "error", "speedup here"), stalls), "",
        f"Spans of the other models: {'all within' if not beyond else ', '.join(beyond) + ' not within'} "
        f"{SPAN_TOLERANCE_PCT:g} %.",
        f"Stall of the other models: mean error {done.stall_mean_error_us:.2f} us "
        f"({'under' if done.stall_mean_error_us < STALL_TOLERANCE_US else 'not under'} {STALL_TOLERANCE_US:g}; "
        f"the paper's own model {done.paper_stall_mean_error_us:.2f}).",
    ]  # fmt: skip
    return parts + [
        f"{row['model']}: by the paper's main loops stores and pulls would need {row['egress_needed_gbs']:.0f} GB/s, and an "
        f"egress drains {done.fitted['scatter_drain_gbs']:.0f}, so that interleaved stores queue for part of the time."
        for row in done.rows
        if row["span_interleaved_us"] > QUEUES * row["span_interleaved_measured_us"]
    ]


def speedup_parts(done: Speedups) -> list[Any]:
    """The 84 calls for a person."""
    from ..scenarios.x_stage import speedups, tiles
    from .calls import LOSING_CASE, hbm_of_slowest, losing_case

    paper = speedups()
    routings = list(dict.fromkeys(done.calls["routing"]))
    found = {routing: done.statistics(routing) for routing in routings} | {"all": done.statistics()}
    names = ("geometric_mean", "median", "maximum", "minimum")
    statistics = [
        (name.replace("_", " "), f"{paper[name]:.2f}", *(round(found[of][name], 3) for of in ("all", *routings)))
        for name in names
    ]
    calls = [
        (call.model, call.numbers, call.tokens, call.routing, f"{call.wave_us:.1f}", f"{call.interleaved_us:.1f}",
         round(call.speedup, 3), f"{call.stall_wave_us_per_sm:.1f}", f"{call.stall_interleaved_us_per_sm:.1f}")
        for call in rows_of(done.calls)
    ]  # fmt: skip
    parts: list[Any] = [
        table("calls, us; stall of stores per SM", ("model", "numbers", "tokens", "routing", "wave", "interleaved",
              "speedup", "stall wave", "interleaved"), calls), "",
        table("speedup of interleaved over expert-wave", ("", "paper", "here: all", *routings), statistics), "",
    ]  # fmt: skip
    if len(routings) > 1:
        gains = [found[routing]["geometric_mean"] for routing in ("skewed", "balanced")]
        parts.append(
            f"Skewed calls gain {'more' if gains[0] > gains[1] else 'less'} than balanced ones ({gains[0]:.3f} against "
            f"{gains[1]:.3f}), in the paper more: a popular expert makes long L2 phases, and only these fill the stage."
        )
    wave, interleaved = tiles()["dit-moe"].span_wave_us, tiles()["dit-moe"].span_interleaved_us
    parts += [
        *(_machine_tiles() if done.tiles == "machine" else _PAPER_TILES),
        *(_BALANCED if "balanced" in routings else ()),
        f"Stalls beyond T_iss0 fall by up to {found['all']['largest_stall_reduction']:.0f} %. The paper's "
        f"{paper['largest_stall_reduction']:g} % is how much DiT-MoE's span falls ({wave:g} to {interleaved:g} us), see "
        "`xstage paper tiles`.",
    ]
    if "balanced" in found and found["balanced"]["minimum"] < 1:
        slowest, wave_hbm, interleaved_hbm = hbm_of_slowest(done)
        parts.append(
            f"{sum(done.calls['speedup'] < 1)} calls lose (paper: down to {paper['minimum']:g}), {slowest['model']} "
            f"{slowest['numbers']} with {slowest['tokens']} balanced tokens most: {slowest['speedup']:.3f}. "
            f"The bandwidth of HBM costs it {interleaved_hbm:.0f} us, and {wave_hbm:.0f} us in waves: "
            "crossing experts reads L1 weights of one and L2 weights of another at the same time."
        )
    if found["all"]["minimum"] < 1:
        return parts
    lost = losing_case()
    return [
        *parts,
        f"No call loses here (paper: down to {paper['minimum']:g}): their experts share the L2 cache in both orders. With "
        f"larger ones ({LOSING_CASE} of the catalogue) crossing experts lowers weight hits from "
        f"{lost['weight_hits_wave_pct']:.0f} to {lost['weight_hits_interleaved_pct']:.0f} %, and the speedup is "
        f"{lost['speedup']:.2f}: see `xstage explain {LOSING_CASE}`.",
    ]


def _machine_tiles() -> tuple[str, ...]:
    """How the machine's main loops compare with the paper's, and what follows."""
    from .calls import main_loop_ratios

    ratios = sorted(main_loop_ratios())
    return (
        f"W8A8 main loops by the machine file are {ratios[0]:.2f} to {ratios[-1]:.2f} times the paper's (median "
        f"{median(ratios):.2f}). Longer ones hide stores, so that gains are smaller; `--tiles paper` takes the "
        "costs from the paper's tiles.",
    )


def lead_parts(done: LeadCurve) -> list[Any]:
    """The curve of leads for a person."""
    rows = [
        (row["lead_rows"], f"{row['makespan_us']:.1f}", f"{row['l2_input_wait_us']:.2f}",
         f"{row['stall_total_us']:.1f}", row["ring_m_blocks"], f"{row['ring_mib']:.1f}")
        for row in done.rows
    ]  # fmt: skip
    return [
        f"{done.model}, W8A8, {done.tokens} tokens a rank, balanced; interleaved, each lead in the smallest ring it needs.",
        "",
        table("", ("lead D, rows", "makespan, us", "L2 waits for inputs, us a task", "stall, us", "ring, m-blocks",
              "ring, MiB"), rows), "",
        f"D_knee: {done.knee_rows} rows. Below it L2 tasks wait for inputs; above it only the ring grows.",
    ]  # fmt: skip


def rows_of(calls: pd.DataFrame) -> Iterator[SimpleNamespace]:
    """The rows of a table with its columns as fields."""
    return (SimpleNamespace(**{str(name): value for name, value in row.items()}) for row in calls.to_dict("records"))


def _named(row: dict[str, Any]) -> str:
    return str(row["model"]) + ("" if row["judged"] else " *")


def _signed(value: float, digits: int = 1) -> str:
    return f"{value:+.{digits}f}"
