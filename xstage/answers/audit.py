"""`xstage audit`: whether bursts of remote stores fit a machine's stage as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..scenarios.machine_files import load_machine
from ..sim import burst_gap
from ..sim.burst_gap import Audit, XStage
from ..sim.errors import InputError
from ..sim.machine import Machine
from ..sim.units import PS_PER_US, format_size, format_time, parse_size, parse_time
from ..terminal.output import parts_html, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class BurstAudit(Audit):
    """An `Audit` with what was asked: `producers` of `machine` store `burst_bytes` each, and then nothing for `gap_ps`."""

    machine: str
    stage: XStage
    producers: int
    burst_bytes: int
    gap_ps: int
    synchronised: bool

    def as_dict(self) -> dict[str, object]:
        """The answer of `xstage audit --json`, without the fields that all answers share."""
        asked = {
            "machine": self.machine, "producers": self.producers, "burst_bytes": self.burst_bytes,
            "gap_us": self.gap_ps / PS_PER_US, "synchronised": self.synchronised,
            "stage": {name: float(value) for name, value in asdict(self.stage).items()},
        }  # fmt: skip
        return {field.name: getattr(self, field.name) for field in fields(Audit)} | asked

    @classmethod
    def of_answer(cls, answer: Mapping[str, Any]) -> Self:
        """The audit that an answer of `--json` is of."""
        found = {field.name: answer[field.name] for field in fields(Audit)}
        return cls(
            **found, machine=answer["machine"], stage=XStage(**answer["stage"]), producers=answer["producers"],
            burst_bytes=answer["burst_bytes"], gap_ps=round(answer["gap_us"] * PS_PER_US),
            synchronised=answer["synchronised"],
        )  # fmt: skip

    @property
    def verdict(self) -> str:
        return "fits" if self.fits else "stalls" if self.stall_us else "only the first burst stalls"

    def plot(self) -> Figure:
        """How long bursts of other sizes take to issue, the first one and those in the long run, and where this one is."""
        import numpy as np
        import pandas as pd

        from ..plots.burst_figures import audit_figure

        knee = burst_gap.knee(self.stage, self.producers)
        most = max(2.0 * self.burst_bytes, 1.3 * knee if np.isfinite(knee) else 0.0, 1024.0)
        sizes = np.linspace(most / 300, most, 300)
        steady: burst_gap.Mode = "synchronised" if self.synchronised else "free_running"
        modes: dict[str, burst_gap.Mode] = {"first burst": "isolated", "in the long run": steady}
        curves = [
            pd.DataFrame({
                "series": name, "burst_kib": sizes / 1024,
                "t_iss_us": burst_gap.issue_time(self.stage, self.producers, sizes, self.gap_ps, mode) / 1e6,
            })
            for name, mode in modes.items()
        ]  # fmt: skip
        setting = (
            f"{self.producers} SMs of {self.machine} that store to one peer, {format_time(self.gap_ps)} between bursts"
        )
        return audit_figure(pd.concat(curves, ignore_index=True), self.burst_bytes / 1024, self.verdict, setting)

    def __repr__(self) -> str:
        return f"<BurstAudit of {self.producers} SMs of {self.machine}: {self.verdict}>"

    def _repr_html_(self) -> str:
        return parts_html(audit_parts(self))


def audit(
    machine: str | Path | Machine,
    producers: int,
    burst: str,
    gap: str = "0 us",
    synchronised: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> BurstAudit:
    """Whether bursts of remote stores fit a machine's stage as they are, by what margins, and what to do if not.

    `producers` SMs of one GPU store `burst` ('32 KiB') each and then nothing for `gap` ('4 us'). `machine` is a name of
    the catalogue, a file or a `Machine`; `overrides` replaces numbers of a named one by dotted path. Closed forms: no
    simulation runs. Raises `InputError`.
    """
    if isinstance(machine, Machine):
        if overrides:
            raise InputError("cannot change a Machine; give them when it is loaded", field="overrides",
                             value=", ".join(overrides))  # fmt: skip
        known = machine
    else:
        known = load_machine(machine, overrides)
    most = f"0 to {known.sms}"
    if not isinstance(producers, Integral):
        raise InputError("must be a whole number", field="producers", value=producers, allowed=most)
    if not 0 <= producers <= known.sms:
        reason = "is below 0" if producers < 0 else f"is more than the SMs of {known.name}"
        raise InputError(reason, field="producers", value=producers, allowed=most)
    stage, size, wait = known.x_stage(), parse_size(burst, "burst"), parse_time(gap, "gap")
    found = burst_gap.audit(stage, producers, size, wait, synchronised, _nominal(known))
    return BurstAudit(
        **{field.name: getattr(found, field.name) for field in fields(Audit)},
        machine=known.name, stage=stage, producers=producers, burst_bytes=size, gap_ps=wait, synchronised=synchronised,
    )  # fmt: skip


def _nominal(machine: Machine) -> tuple[str, float] | None:
    """The rate that a machine file gives and R follows from, in words, and its value in kB/s; None for a list of links."""
    for name in ("drain_rate", "link_rate"):
        if (rate := getattr(machine.interconnect, name)) is not None:
            return name.replace("_", " "), rate.value
    return None


def audit_parts(found: BurstAudit) -> list[Any]:
    """The same for a person."""
    rows = [
        ("advice", found.advice),
        ("phase", found.phase.replace("_", "-")),
        ("in the long run a burst issues in", f"{found.t_iss_us:.3f} us, of which stalled {found.stall_us:.3f} us"),
        ("the first burst stalls", f"{found.first_stall_us:.3f} us, if all start it together"),
        ("gap that removes the stall", _gap(found.recovery_gap_us)),
        ("of which missing", _gap(found.missing_gap_us)),
        *_long_run_gap(found),
        ("drain rate to spare", f"{found.rate_margin_gbs:.1f} GB/s"),
        ("room to spare at the peak", format_size(found.capacity_margin_bytes)),
    ]
    asked = f"{found.producers} SMs of {found.machine} store {format_size(found.burst_bytes)} each to one peer"
    asked += f", then nothing for {format_time(found.gap_ps)}: {found.verdict}."
    return [asked, found.reason, "", table("", ("", ""), rows)]


def _gap(us: float | None) -> str:
    return "none: no gap helps by itself" if us is None else f"{us:.3f} us"


def _long_run_gap(found: BurstAudit) -> list[tuple[str, str]]:
    """The gap that has to be there beside smaller bursts or a larger stage, where it is not the one that is enough."""
    needed = found.long_run_gap_us
    return [] if needed == found.recovery_gap_us else [("gap that the long run needs", f"{needed:.3f} us")]
