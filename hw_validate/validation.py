"""What a validation gives: the calibration, how each unseen Program compares, and whether more runs agree."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sim.files import write_whole
from .calibrated import Calibrated
from .compare import Comparison, Summary, summarise
from .near_knee import excess_by_size

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Again:
    """One more run. `refused` is why it gave no numbers, `moved` has a sentence for each number outside of the intervals."""

    what: str
    verdict: str | None
    numbers: dict[str, list[float]]  # value, low, high
    median_abs_error_pct: float | None
    moved: list[str]
    refused: str | None = None
    same_verdict: bool | None = None

    @property
    def agrees(self) -> bool:
        return self.refused is None and not self.moved

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": self.what,
            "agrees": self.agrees,
            "verdict": self.verdict,
            "same_verdict": self.same_verdict,
            "median_abs_error_pct": self.median_abs_error_pct,
            "numbers": self.numbers,
            "why_not": [self.refused] if self.refused is not None else self.moved,
        }


@dataclass(frozen=True, eq=False)
class Validation:
    """A calibration, and how Programs that it never saw ran on the hardware and in the simulator.

    `drift_pct` is how far the bursts of the calibration had moved when the Programs had run (None: could not be told): the
    hardware that was calibrated and the one that was judged differ by as much. `schedules` names what each Program is,
    `not_measured` counts those that were disturbed too often or do not fit this hardware, `again` has the runs that were
    made again, and `details` is what only this backend tells of the replays.
    """

    calibrated: Calibrated
    comparisons: list[Comparison]
    summary: Summary
    drift_pct: float | None
    seed: int
    wall_s: float
    schedules: list[str] = field(default_factory=list)
    not_measured: int = 0
    again: list[Again] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        replay = asdict(self.summary) | {
            "without_stall_within_t_iss0": self.without_stall_within_t_iss0,
            "t_iss0_known_to_pct": self.t_iss0_known_to_pct,
            "drift_pct": self.drift_pct,
            "not_measured": self.not_measured,
        }
        return {
            "calibration": self.calibrated.as_dict(),
            "replay": replay
            | {"by_schedule": self.by_schedule(), "without_stall_by_size": self.by_size()}
            | self.details,
        } | ({"again": [run.as_dict() for run in self.again]} if self.again else {})

    @property
    def t_iss0_known_to_pct(self) -> float:
        """How well the calibration knows the time of a store without stall: an excess below it need be no stall."""
        return self.calibrated.calibration.t_iss0_ns.known_to_pct

    @property
    def without_stall_within_t_iss0(self) -> bool | None:
        """Whether the excess of programs without stall is one that T_iss0 is not known well enough to exclude."""
        excess = self.summary.without_stall_excess_pct
        return None if excess is None else abs(excess) <= self.t_iss0_known_to_pct

    def by_schedule(self) -> list[dict[str, Any]]:
        """Errors of each kind of Program."""
        found = []
        for name in dict.fromkeys(self.schedules):
            mine = [c for c, kind in zip(self.comparisons, self.schedules, strict=True) if kind == name]
            summary, waits = summarise(mine), [c for c in mine if c.simulated_wait_us > 0 and c.measured_wait_us > 0]
            wait = [abs(100 * (c.simulated_wait_us / c.measured_wait_us - 1)) for c in waits]
            names = ("programs", "programs_with_stall", "median_abs_error_pct", "p90_abs_error_pct",
                     "makespan_median_abs_error_pct", "stall_mean_abs_error_ns", "noise_pct", "programs_without_stall",
                     "without_stall_excess_pct", "without_stall_interval_pct", "without_stall_noise_pct",
                     "without_stall_within_noise")  # fmt: skip
            found.append(
                {"schedule": name}
                | {key: getattr(summary, key) for key in names}
                | {"wait_median_abs_error_pct": float(np.median(wait)) if wait else None}
            )
        return found

    def by_size(self) -> list[dict[str, Any]]:
        """How much longer than T_iss0 stores with no stall simulated took, by their size in knees."""
        return excess_by_size(self.comparisons, self.calibrated)

    def ops(self) -> pd.DataFrame:
        """The joined op tables of all Programs, numbered by `program`."""
        import pandas as pd

        tables = [c.ops.assign(program=number) for number, c in enumerate(self.comparisons)]
        return pd.concat(tables, ignore_index=True)

    def programs(self) -> pd.DataFrame:
        """One row a Program: times in microseconds, errors in percent, stall error in ns a store."""
        import pandas as pd

        names = self.schedules or ["train"] * len(self.comparisons)
        return pd.DataFrame(
            {
                "schedule": name,
                "stalled_share": c.stalled_share,
                "simulated_issue_us": c.simulated_issue_us,
                "measured_issue_us": c.measured_issue_us,
                "error_pct": c.error_pct,
                "makespan_error_pct": c.makespan_error_pct,
                "stall_error_ns": c.stall_error_ns,
                "noise_pct": c.noise_pct,
                "repeats": c.repeats,
                "simulated_wait_us": c.simulated_wait_us,
                "measured_wait_us": c.measured_wait_us,
                "simulated_makespan_us": c.simulated_makespan_us,
                "measured_makespan_us": c.measured_makespan_us,
            }
            for name, c in zip(names, self.comparisons, strict=True)
        )

    def plot(self) -> Figure:
        """Issue time of each Program, simulated against measured."""
        from ..plots.beside_figures import beside_figure

        return beside_figure(self.programs().rename(columns={"schedule": "what"}), each="a program")

    def _repr_html_(self) -> str:
        import pandas as pd

        table = pd.DataFrame(self.by_schedule()).to_html(index=False, float_format="{:.2f}".format, na_rep="")
        return f"<p>{self.summary.verdict}</p>{table}"

    def write_ops(self, path: str | Path) -> None:
        """`ops` as Parquet."""
        table = self.ops()
        with write_whole(path) as temporary:
            table.to_parquet(temporary)
