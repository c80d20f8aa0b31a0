"""What the X-Stage paper (arXiv 2607.23264) measured, from published/x_stage_*.csv.

`bursts()` has its microbenchmarks with 148 producers, `tiles()` the tiles of four models under skewed routing (W8A8, EP 8),
`speedups()` the statistics of interleaved over expert-wave over 84 configurations.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class PaperTiles:
    """One model, us: main loops of a tile, span of the stores of an L2 tile (median) under expert-wave and interleaved, and
    the wait of the MMA warps for a free buffer under expert-wave, as the paper's model predicts it and as measured.
    """

    model: str
    l1_main_loop_us: float
    l2_main_loop_us: float
    span_wave_us: float
    span_interleaved_us: float
    stall_predicted_us: float
    stall_us: float
    source: str


@cache
def tiles() -> dict[str, PaperTiles]:
    """By model, in the order of the paper."""
    found = {}
    for row in _rows("x_stage_tiles.csv"):
        model, source = row.pop("model"), row.pop("source")
        found[model] = PaperTiles(model=model, source=source, **{name: float(value) for name, value in row.items()})
    return found


@cache
def bursts() -> dict[str, float]:
    """t_iss0_us, drain_gbs, capacity_mib, knee_kib (a producer), knee_mib (all), recovery_gap_us; 148 producers, 32 KiB."""
    return {row["quantity"]: float(row["value"]) for row in _rows("x_stage_bursts.csv")}


@cache
def speedups() -> dict[str, float]:
    """geometric_mean, median, maximum, minimum of the speedup; largest_stall_reduction in percent."""
    return {row["statistic"]: float(row["value"]) for row in _rows("x_stage_speedups.csv")}


def _rows(name: str) -> list[dict[str, str]]:
    with files(__package__).joinpath("published", name).open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))
