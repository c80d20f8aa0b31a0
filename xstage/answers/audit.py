"""`xstage audit`: whether bursts of remote stores fit a machine's stage as they are.

R is that of stores to the next GPU while all GPUs of the machine do so, unless `to` and `gpus` say otherwise: a fused kernel
runs on all of them, and what they share, such as the core of a switch, drains for one GPU what it drains for all together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from ..scenarios.machine_files import load_machine, of_machine
from ..sim import burst_gap
from ..sim.arguments import check_flag, check_whole, paths_and_values
from ..sim.burst_gap import Audit, XStage
from ..sim.errors import InputError, XstageError
from ..sim.interconnect import Destination
from ..sim.machine import Machine
from ..sim.units import PS_PER_US, format_size, format_time, gbs, parse_size, parse_time
from ..terminal.output import parts_html, table, warning_parts, with_warnings
from .audit_certainty import Bursts, Certainty, Verdict, certainty
from .audit_rates import raised

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DESTINATIONS = get_args(Destination)


@dataclass(frozen=True, repr=False)
class BurstAudit(Audit):
    """An `Audit` with what was asked: `producers` of `machine` store `burst_bytes` each, and then nothing for `gap_ps`.

    R is that of one of `gpus` GPUs and of stores `to` where the sentence `stores_to` says. `certainty` has the verdict at
    the ends of the machine's intervals, and the numbers that all follows from.
    """

    machine: str
    stage: XStage
    producers: int
    burst_bytes: int
    gap_ps: int
    synchronised: bool
    to: Destination
    gpus: int
    certainty: Certainty
    warnings: tuple[str, ...] = ()

    @property
    def stores_to(self) -> str:
        """Where stores go, and who else stores at the same time."""
        return stores_to(self.to, self.gpus)

    def as_dict(self) -> dict[str, object]:
        """The answer of `xstage audit --json`, without the fields that all answers share."""
        asked = {
            "machine": self.machine, "producers": self.producers, "burst_bytes": self.burst_bytes,
            "gap_us": self.gap_ps / PS_PER_US, "synchronised": self.synchronised,
            "to": self.to, "gpus": self.gpus, "drain_rate_is": self.stores_to,
            "stage": {name: float(value) for name, value in asdict(self.stage).items()},
            **self.certainty.as_dict(),
        }  # fmt: skip
        return with_warnings({field.name: getattr(self, field.name) for field in fields(Audit)} | asked, self.warnings)

    @classmethod
    def of_answer(cls, answer: Mapping[str, Any]) -> Self:
        """The audit that an answer of `--json` is of."""
        found = {field.name: answer[field.name] for field in fields(Audit)}
        return cls(
            **found, machine=answer["machine"], stage=XStage(**answer["stage"]), producers=answer["producers"],
            burst_bytes=answer["burst_bytes"], gap_ps=round(answer["gap_us"] * PS_PER_US),
            synchronised=answer["synchronised"], to=answer["to"], gpus=answer["gpus"],
            certainty=Certainty.of_answer(answer), warnings=tuple(answer.get("warnings", ())),
        )  # fmt: skip

    @property
    def bursts(self) -> Bursts:
        return Bursts(self.producers, self.burst_bytes, self.gap_ps, self.synchronised)

    @property
    def verdict(self) -> Verdict:
        return self.bursts.verdict(self.stage)

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
            f"{self.producers} SMs of {self.machine} store {self.stores_to}; {format_time(self.gap_ps)} between bursts"
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
    to: Destination = "next",
    gpus: int | None = None,
) -> BurstAudit:
    """Whether bursts of remote stores fit a machine's stage as they are, by what margins, and what to do if not.

    `producers` SMs of each GPU store `burst` ('32 KiB') each and then nothing for `gap` ('4 us'). `machine` is a name of
    the catalogue, a file or a `Machine`; `overrides` replaces its numbers by dotted path, and a warning names those that
    change nothing. `to` says where stores go, and so which R drains them: to the `next` GPU while all GPUs do so
    (the slowest counts), scattered over `all` others while all do so, or to a `peer`, GPU 1, while only GPU 0 stores. `gpus`
    take part, by default all that the machine has. Closed forms: no simulation runs. Raises `InputError`.
    """
    check_flag(synchronised, "synchronised")
    if to not in DESTINATIONS:
        raise InputError("is unknown", field="to", value=to, allowed=DESTINATIONS)
    if gpus is not None:
        check_whole(gpus, "gpus")
    changed = of_machine(paths_and_values(overrides))
    known = load_machine(machine, changed)
    _check_producers(producers, known)
    count = known.gpus if gpus is None else gpus
    asked = Bursts(producers, parse_size(burst, "burst"), parse_time(gap, "gap"), synchronised)
    stage, found = _judged(known, to, count, asked)
    answer = BurstAudit(
        **{field.name: getattr(found, field.name) for field in fields(Audit)}, machine=known.name, stage=stage,
        **asdict(asked), to=to, gpus=count, certainty=certainty(known, to, count, asked),
    )  # fmt: skip
    return replace(answer, warnings=tuple(_without_effect(answer, machine, changed, gpus)))


def _check_producers(given: int, machine: Machine) -> None:
    """Raises `InputError` for what is no number of SMs of the machine."""
    reason = ""
    if not isinstance(given, Integral) or isinstance(given, bool):
        reason = "must be a whole number"
    elif given < 0:
        reason = "is below 0"
    elif given > machine.sms:
        reason = f"is more than the SMs of {machine.name}"
    if reason:
        raise InputError(reason, field="producers", value=given, allowed=f"0 to {machine.sms}")


def _judged(machine: Machine, to: Destination, gpus: int, bursts: Bursts) -> tuple[XStage, Audit]:
    """A machine's stage, and what the closed forms say about bursts in it."""
    stage = machine.x_stage(to, gpus)
    asked = (bursts.producers, bursts.burst_bytes, bursts.gap_ps, bursts.synchronised)
    faster = partial(raised, machine, to, gpus)
    return stage, burst_gap.audit(stage, *asked, faster, machine.stage.granule.value)


def stores_to(to: Destination, gpus: int) -> str:
    """Where stores go, and who else stores at the same time."""
    if to == "peer":
        return "to GPU 1, while no other GPU stores"
    where = "to the next GPU" if to == "next" else "to all other GPUs"
    if gpus == 1:
        return where
    return f"{where}, while {'both' if gpus == 2 else f'all {gpus}'} GPUs do so"


def _without_effect(
    found: BurstAudit, machine: str | Path | Machine, overrides: Mapping[str, Any], gpus: int | None
) -> list[str]:
    """A sentence for each override without which the answer is the same."""
    sentences = []
    for path, value in overrides.items():
        others = {key: kept for key, kept in overrides.items() if key != path}
        try:
            known = load_machine(machine, others)
            stage, without = _judged(known, found.to, known.gpus if gpus is None else gpus, found.bursts)
        except XstageError:  # the machine needs it
            continue
        kept = (getattr(found, field.name) == getattr(without, field.name) for field in fields(Audit))
        if stage == found.stage and all(kept):
            sentence = f"{path} = {value} changes nothing"
            if path.startswith("interconnect."):
                sentence += f": {gbs(found.stage.drain_kbs):.4g} GB/s drain {found.stores_to}, with or without it"
            sentences.append(sentence)
    return sentences


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
        ("drain rate (R)", f"{gbs(found.stage.drain_kbs):.1f} GB/s {found.stores_to}"),
        ("drain rate to spare", f"{found.rate_margin_gbs:.1f} GB/s"),
        ("room to spare at the peak", format_size(found.capacity_margin_bytes)),
    ]
    size = format_size(found.burst_bytes)
    who = f"1 SM of {found.machine} stores {size}"
    if found.producers != 1:
        who = f"{found.producers} SMs of {found.machine} store {size} each"
    then = f"then nothing for {format_time(found.gap_ps)}" if found.gap_ps else "one burst right after the other"
    asked = f"{who} {found.stores_to}, {then}: {found.verdict}."
    sure = [line] if (line := found.certainty.told) else []
    return [asked, found.reason, *sure, "", table("", ("", ""), rows), *warning_parts(found.warnings)]


def _gap(us: float | None) -> str:
    return "none: no gap helps by itself" if us is None else f"{us:.3f} us"


def _long_run_gap(found: BurstAudit) -> list[tuple[str, str]]:
    """The gap that has to be there beside smaller bursts or a larger stage, where it is not the one that is enough."""
    needed = found.long_run_gap_us
    return [] if needed == found.recovery_gap_us else [("gap that the long run needs", f"{needed:.3f} us")]
