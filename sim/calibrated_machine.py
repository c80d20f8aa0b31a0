"""A calibration as a machine: each fitted number with its source and interval, and a file that `load_machine` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .calibrate import Calibration, Estimate
from .files import write_whole
from .machine import Machine


def machine_of(calibration: Calibration, name: str, source: str, description: str = "", granule_bytes: int = 64,
               latency_ns: float = 0.0, capacity_alone: Estimate | None = None) -> Machine:  # fmt: skip
    """The machine whose GPU 0 is the calibrated producers, and whose GPU 1 is the memory that they store to.

    Every fitted number carries its interval, and `source` with the quality of the fit. `capacity_alone` is Q of a producer
    that stores while the others do not; without it each has its share of Q(K), no more.
    """
    c = calibration
    fitted = f"{source}; fit over {c.configurations} configurations, off by {c.residual_pct:.1f} % in the median"

    def number(text: str, low: str, high: str) -> dict[str, Any]:
        return {"value": text, "source": fitted, "interval": [low, high]}

    def scaled(estimate: Estimate, factor: float, unit: str, least: int) -> dict[str, Any]:
        texts = [f"{max(least, round(x * factor))} {unit}" for x in (estimate.value, estimate.low, estimate.high)]
        return number(*texts)

    def assumed(value: Any, why: str) -> dict[str, Any]:
        return {"value": value, "assumed": True, "source": why}

    room = max(round(c.capacity_bytes.value), granule_bytes)
    return Machine.parse({
        "name": name,
        "description": description,
        "compute": {"sms": {"value": c.producers, "source": f"{source}: producers that stored at the same time"}},
        "stage": {
            "t0": scaled(c.t0_ns, 1000, "ps", 0),
            "issue_rate": scaled(c.issue_gbs, 1e6, "kB/s", 1),
            "capacity_sm": scaled(c.capacity_bytes, 1 / c.producers, "B", granule_bytes)
            if capacity_alone is None
            else scaled(capacity_alone, 1, "B", granule_bytes),
            "capacity_gpu": scaled(c.capacity_bytes, 1, "B", granule_bytes),
            "granule": assumed(f"{min(granule_bytes, room)} B", "resolution of the simulation: one line of a store"),
        },
        "interconnect": {
            "kind": assumed("switch", "one memory behind all producers"),
            "gpus": assumed(2, "the producers, and what they store to"),
            "drain_rate": scaled(c.drain_gbs, 1e6, "kB/s", 1),
            "latency": assumed(f"{round(1000 * latency_ns)} ps", "no part of the law: not measured"),
        },
    })  # fmt: skip


def write_machine(machine: Machine, path: str | Path) -> None:
    """A machine file that `load_machine` reads; it appears whole or not at all."""
    import yaml

    text = yaml.safe_dump(machine.model_dump(mode="json", exclude_unset=True), sort_keys=False, width=120)
    with write_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
