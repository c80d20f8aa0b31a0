"""Interleaved against expert-wave MegaMoE over 84 kinds of calls, beside what the X-Stage paper reports (arXiv 2607.23264).

The calls are those of the study megamoe-84: seven models, W4A8 and W8A8, balanced and skewed routing, three token counts.
Tile costs come from the machine file, or from the paper's tiles; nothing is fitted to its speedups. Balanced calls simulate
one rank against its mirror, skewed ones all eight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..sim.units import PS_PER_US
from ..table_rows import records
from ..terminal.output import Printed, table
from ..terminal.progress import Progress, silent
from .l2_tiles import BLOCK_M, BLOCK_N, MACHINE, fit, machine_overrides

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

STUDY = "megamoe-84"
OUTPUTS = {"machine": "out/megamoe-84", "paper": "out/megamoe-84-paper-tiles"}
"""Folders by where tile costs come from."""
CALL = ("model", "numbers", "tokens", "routing")
LOSING_CASE = "megamoe-large-experts"
"""The scenario of the catalogue whose call interleaving slows down."""
TAKEN_IN = BLOCK_N + BLOCK_M // 2
"""Bytes that a CTA takes in for each element of the depth of a W8A8 tile: its weights, and half of the activations."""
LEAST_STALL_US_PER_SM = 1.0
"""A reduction counts only where an SM stalls at least this long under expert-wave; below there is nothing to reduce."""

_PAPER_TILES = (
    "Tiles cost what the paper measured (W8A8; W4A8 by the bytes that an SM takes in). Its notes give neither token counts "
    "nor skew of its calls.",
)
_BALANCED = (
    "Balanced calls gain little. With small experts (Qwen3.5, DiT-MoE, Hy3) the egress, which answers pulls too, is busy in "
    "both orders; with larger ones a wave has few L2 tiles an SM (H/I to 2 H/I), and the stage and the second accumulator "
    "take up what they store too fast.",
)


@dataclass(frozen=True, repr=False, eq=False)
class Speedups(Printed):
    """`calls`: one row a call, with times and stalls under both orders. `tiles`: where tile costs come from.

    `losing_case`: where no call loses, one of the catalogue that does. The function of this name says what it holds.
    """

    calls: pd.DataFrame
    tiles: str = "machine"
    losing_case: dict[str, float] | None = None

    def statistics(self, routing: str | None = None) -> dict[str, float]:
        """geometric_mean, median, maximum, minimum of the speedup; largest_stall_reduction (%). Of a routing, or of all."""
        import numpy as np

        calls = self.calls if routing is None else self.calls[self.calls["routing"] == routing]
        speedup = calls["speedup"]
        counted = calls[calls["stall_wave_us_per_sm"] >= LEAST_STALL_US_PER_SM]
        return {
            "geometric_mean": float(np.exp(np.log(speedup).mean())),
            "median": float(speedup.median()),
            "maximum": float(speedup.max()),
            "minimum": float(speedup.min()),
            "largest_stall_reduction": float(counted["stall_reduction_pct"].max()) if len(counted) else 0.0,
        }

    @property
    def frame(self) -> pd.DataFrame:
        """The same as `calls`."""
        return self.calls

    def plot(self) -> Figure:
        """Speedups of all calls in order, beside the paper's statistics."""
        from ..plots.paper_figures import speedups_figure
        from ..scenarios.x_stage import speedups

        return speedups_figure(self.calls, speedups())

    def __repr__(self) -> str:
        return f"<Speedups of {len(self.calls)} calls: geometric mean {self.statistics()['geometric_mean']:.3f}>"

    def printed(self) -> list[Any]:
        """The 84 calls for a person."""
        from ..scenarios.x_stage import speedups, tiles

        paper = speedups()
        routings = list(dict.fromkeys(self.calls["routing"]))
        found = {routing: self.statistics(routing) for routing in routings} | {"all": self.statistics()}
        names = ("geometric_mean", "median", "maximum", "minimum")
        statistics = [
            (name.replace("_", " "), f"{paper[name]:.2f}", *(round(found[of][name], 3) for of in ("all", *routings)))
            for name in names
        ]
        calls = [
            (call.model, call.numbers, call.tokens, call.routing, f"{call.wave_us:.1f}", f"{call.interleaved_us:.1f}",
             round(call.speedup, 3), f"{call.stall_wave_us_per_sm:.1f}", f"{call.stall_interleaved_us_per_sm:.1f}")
            for call in _rows_of(self.calls)
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
            *(_machine_tiles() if self.tiles == "machine" else _PAPER_TILES),
            *(_BALANCED if "balanced" in routings else ()),
            f"Stalls beyond T_iss0 fall by up to {found['all']['largest_stall_reduction']:.0f} %. The paper's "
            f"{paper['largest_stall_reduction']:g} % is how much DiT-MoE's span falls ({wave:g} to {interleaved:g} us), see "
            "`xstage paper tiles`.",
        ]
        if lose := int((self.calls["speedup"] < 1).sum()):
            most = records(self.calls.sort_values("speedup"))[0]
            parts.append(
                f"{lose} of {len(self.calls)} calls lose (paper: down to {paper['minimum']:g}), most {most['model']} "
                f"{most['numbers']} with {most['tokens']} {most['routing']} tokens: {most['speedup']:.3f}."
            )
        if lost := self.losing_case:
            parts.append(
                f"No call loses here (paper: down to {paper['minimum']:g}): their experts share the L2 cache in both "
                f"orders. With larger ones ({LOSING_CASE} of the catalogue) crossing experts lowers weight hits from "
                f"{lost['weight_hits_wave_pct']:.0f} to {lost['weight_hits_interleaved_pct']:.0f} %, and the speedup is "
                f"{lost['speedup']:.2f}: see `xstage explain {LOSING_CASE}`."
            )
        return parts

    def as_dict(self) -> dict[str, Any]:
        from ..scenarios.x_stage import speedups

        routings = list(dict.fromkeys(self.calls["routing"]))
        return {
            "study": STUDY,
            "tiles": self.tiles,
            "paper": speedups(),
            "all": self.statistics(),
            **{routing: self.statistics(routing) for routing in routings},
            "losing_case": self.losing_case,
            "calls": self.calls.to_dict("records"),
        }


def paper_speedups(
    output: str | Path | None = None,
    routings: Sequence[str] = ("balanced", "skewed"),
    *,
    tiles: str = "machine",
    workers: int = 2,
    progress: Progress = silent,
) -> Speedups:
    """Run the study, writing to the folder `output`, and compare the two orders. An interrupted run resumes from there.

    It takes a minute. `output` is a folder below out/ if not given. `routings` leaves half of the study out. `tiles` says
    where tile costs come from: the machine file, or what the paper measured of tiles (`paper_machine`). Raises `InputError`
    for another routing or kind of tiles, `XstageError` if a call could not be run.
    """
    from ..sim.arguments import names
    from ..sim.errors import InputError, XstageError
    from ..sweeps.run import sweep

    ranks = {"balanced": "symmetric", "skewed": "all"}
    asked = names(routings, "routings")
    for routing in asked:
        if routing not in ranks:
            raise InputError("is unknown", field="routings", value=routing, allowed=ranks)
    if not asked:
        raise InputError("names no routing", field="routings", allowed=ranks)
    if tiles not in OUTPUTS:
        raise InputError("is unknown", field="tiles", value=tiles, allowed=OUTPUTS)
    study = _study(tiles)
    study["include"] = [{"workload.ranks": ranks[routing]} for routing in asked]
    done = sweep(study, output or OUTPUTS[tiles], workers=workers, progress=progress)
    points = done.frame
    if done.failed:
        raise XstageError(f"{done.failed} of {done.points} calls failed, the first: {points['error'].dropna().iloc[0]}")
    calls = by_call(points)
    return Speedups(calls, tiles, losing_case() if calls["speedup"].min() >= 1 else None)


def paper_machine() -> dict[str, Any]:
    """Numbers of the machine by what the paper measured of tiles, none of them by speedups: overrides of hgx-b200.

    Fan-out efficiency and epilogue are the two constants of `l2_tiles.fit`. Main loops of W8A8 tiles follow a line
    over the bytes that an SM takes in, whose slope is `sm_feed` and whose foot is `tile_fixed`: the Theil-Sen line through
    the eight that the paper gives, which one that stands apart (7.40 us for DSv4-Flash's L1) does not move much.
    """
    from scipy.stats import theilslopes

    depths, us = zip(*_paper_main_loops(), strict=True)
    line = theilslopes(us, [depth * TAKEN_IN / 1e3 for depth in depths])
    source = "main loops of arXiv 2607.23264"
    overrides = {
        "compute.sm_feed": {"value": f"{1 / line.slope:.2f} GB/s", "source": source},
        "compute.tile_fixed": {"value": f"{line.intercept:.3f} us", "source": source},
    }
    return overrides | {path.removeprefix("machine."): n for path, n in machine_overrides(fit()).items()}


def main_loop_ratios() -> list[float]:
    """Main loops of the paper's W8A8 tiles by the tile costs of the machine file, over what the paper measured."""
    import numpy as np

    from ..scenarios.machine_files import load_machine
    from ..sim.tile_cost import TileCosts, main_loop_ps

    depths, us = (np.array(column) for column in zip(*_paper_main_loops(), strict=True))
    costs = TileCosts.of(load_machine(MACHINE), "fp8")
    flops = 2.0 * BLOCK_M * BLOCK_N * depths
    simulated = main_loop_ps(costs, flops, TAKEN_IN * depths, np.zeros(len(depths)))
    return [float(ratio) for ratio in simulated / PS_PER_US / us]


def _paper_main_loops() -> list[tuple[int, float]]:
    """Depth K and main loop (us) of the L1 and the L2 tile of each model."""
    from ..scenarios.expert_models import expert_model
    from ..scenarios.x_stage import tiles

    found = []
    for name, tile in tiles().items():
        sizes = expert_model(name)
        found += [(sizes.hidden, tile.l1_main_loop_us), (sizes.intermediate, tile.l2_main_loop_us)]
    return found


def _study(tiles: str) -> dict[str, Any]:
    """The study as data, on the machine as it is or with the paper's tiles."""
    from ..scenarios import catalogue
    from ..scenarios.document import read

    study = dict(read(catalogue.find(STUDY, "study")).data) | {"name": STUDY}
    if tiles == "paper":
        study["scenario"] = {**study["scenario"], "machine": {"base": MACHINE, "overrides": paper_machine()}}
    return study


def losing_case() -> dict[str, float]:
    """The call of `LOSING_CASE` under both orders: speedup, and weight_hits_wave_pct and weight_hits_interleaved_pct, the
    share of tiles that find their weights in the L2 cache.
    """
    from ..answers.comparison import compare

    wave, interleaved = compare(LOSING_CASE, ["expert_wave", "interleaved"]).rows()
    return {
        "speedup": interleaved["speedup"],
        "weight_hits_wave_pct": wave["memory"]["weight_hits_pct"],
        "weight_hits_interleaved_pct": interleaved["memory"]["weight_hits_pct"],
    }


def by_call(points: pd.DataFrame) -> pd.DataFrame:
    """One row a call from one row a call and order."""
    named = points.rename(columns=lambda name: name.removeprefix("workload."))
    named["routing"] = named["ranks"].map({"symmetric": "balanced", "all": "skewed"})
    named["stall_us_per_sm"] = named["stall_total_us"] / named["roles.mma.lanes"] / 2  # a cluster has one MMA lane
    wide = named.pivot(index=list(CALL), columns="policy", values=["makespan_us", "stall_us_per_sm"])
    wave, interleaved = (wide.xs(policy, axis=1, level="policy") for policy in ("expert_wave", "interleaved"))
    calls = wide.index.to_frame(index=False)
    calls["wave_us"] = wave["makespan_us"].to_numpy()
    calls["interleaved_us"] = interleaved["makespan_us"].to_numpy()
    calls["speedup"] = calls["wave_us"] / calls["interleaved_us"]
    calls["stall_wave_us_per_sm"] = wave["stall_us_per_sm"].to_numpy()
    calls["stall_interleaved_us_per_sm"] = interleaved["stall_us_per_sm"].to_numpy()
    left = calls["stall_interleaved_us_per_sm"] / calls["stall_wave_us_per_sm"].where(calls["stall_wave_us_per_sm"] > 0)
    calls["stall_reduction_pct"] = (100 * (1 - left)).fillna(0.0)
    return calls


def _machine_tiles() -> tuple[str, ...]:
    """How the machine's main loops compare with the paper's, and what follows."""
    ratios = sorted(main_loop_ratios())
    return (
        f"W8A8 main loops by the machine file are {ratios[0]:.2f} to {ratios[-1]:.2f} times the paper's (median "
        f"{median(ratios):.2f}). Longer ones hide stores, so that gains are smaller; `--tiles paper` takes the "
        "costs from the paper's tiles.",
    )


def _rows_of(calls: pd.DataFrame) -> Iterator[SimpleNamespace]:
    """The rows of a table with its columns as fields."""
    return (SimpleNamespace(**{str(name): value for name, value in row.items()}) for row in calls.to_dict("records"))
