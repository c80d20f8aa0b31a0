"""What a calibration gives: the fitted machine, and the times behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sim.calibrate import BurstTimes, Calibration
from ..sim.calibrated_machine import write_machine
from ..sim.machine import Machine

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration with the times behind it. `control_ns` are ordinary stores of `isolated_bytes` into the producer's own
    memory, `completed_ns` isolated bursts including the wait until all their stores have left the core (have arrived, on a
    GPU). `details` is what only this backend tells."""

    calibration: Calibration
    machine: Machine
    times: BurstTimes
    control_ns: Any
    completed_ns: Any
    isolated_bytes: Any
    host: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """`t_iss0_ns`, `drain_gbs`, `capacity_bytes`, `intervals`, how good the fit is, and what it cannot say."""
        return {**self.calibration.as_dict(), "warnings": self.warnings, "host": self.host, **self.details}

    def write(self, path: str | Path) -> None:
        """The machine file, for `--machine` or a scenario."""
        write_machine(self.machine, path)

    def plot(self) -> Figure:
        """The law that was fitted: issue time of an isolated burst, with the interval of the knee."""
        from ..plots.run_figures import law_figure

        return law_figure(self.as_dict())

    def _repr_html_(self) -> str:
        import pandas as pd

        found: dict[str, Any] = self.calibration.as_dict()
        rows = [(name, found[name], *interval) for name, interval in found["intervals"].items()]
        return str(pd.DataFrame(rows, columns=["number", "value", "low", "high"]).to_html(index=False))
