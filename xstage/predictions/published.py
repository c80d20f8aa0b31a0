"""Predict every published measurement, and say how well: `xstage published`.

    rows      each measurement with its prediction, or the reason why there is none
    summary   errors by kind of kernel, family, machine and number of tokens
    choices   whether the model tells which of two schedules is faster
    targets   what the project set out to reach on its own rows, met or missed
    parts     phases of a call and moments inside, beside the whole calls and not counted with them

Rows that gave a machine file a number are predicted and not judged. Spans and stalls of single tiles are in
`xstage paper tiles`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..table_rows import plain_rows, records
from ..terminal.output import Printed
from ..terminal.progress import Progress, silent
from .machine_fit import overhead_us

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..scenarios.published.cases import Mapped
    from ..sim.machine import Machine

WORKERS = 2
PART_COLUMNS = (
    "machine", "version", "part", "hidden", "tokens_per_rank", "time_us", "predicted_us", "error_pct", "source_url"
)  # fmt: skip
"""What `as_dict` says of a part; its row has the rest."""


@dataclass(frozen=True, repr=False, eq=False)
class Published(Printed):
    """`rows`: input columns, kind, predicted_us, error_pct, judged, skipped, detail, baseline_us, approximation and case.

    `of_project`: they are the project's own. Its targets are set for those.
    """

    rows: pd.DataFrame
    of_project: bool = True

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Errors by kind, family, machine and range of tokens; `noise_pct` is how far repeated measurements differ."""
        from .summary import summary

        return summary(self.rows)

    @cached_property
    def baseline(self) -> dict[str, Any]:
        """How far the roofline is off, on the rows that are judged."""
        from .summary import error_numbers

        judged = self.rows[self.rows.judged]
        return {
            "name": "roofline: max(FLOPs / peak, bytes / HBM rate, bytes sent / link rate)",
            **error_numbers(100 * (judged.baseline_us / judged.time_us - 1)),
        }

    @cached_property
    def choices(self) -> pd.DataFrame:
        """Pairs of schedules measured on the same machine, shape, tokens and source, and which one the model prefers."""
        from .choices import choices

        return choices(self.rows)

    @cached_property
    def targets(self) -> pd.DataFrame:
        """What was to be reached, what was reached, and what contributes most where it was missed. Empty for other rows."""
        import pandas as pd

        from .targets import COLUMNS, targets

        return targets(self) if self.of_project else pd.DataFrame(columns=list(COLUMNS))

    @cached_property
    def parts(self) -> pd.DataFrame:
        """Rows of parts that are predicted, those that gave a machine file a number left out."""
        rows = self.rows
        return rows[(rows.timed == "part") & rows.predicted_us.notna() & ~rows.fit.astype(bool)]

    @property
    def coverage_pct(self) -> float:
        """Part of the rows that is predicted."""
        return 100.0 * float(self.rows.predicted_us.notna().mean()) if len(self.rows) else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage published --json`, without the fields that all answers share."""
        from .choices import score

        return {
            "rows": records(self.rows),
            "summary": records(self.summary),
            "coverage_pct": self.coverage_pct,
            "baseline": self.baseline,
            "faster_schedule": score(self.choices),
            "targets": records(self.targets),
            "parts": records(self.parts[[name for name in PART_COLUMNS if name in self.parts]]),
        }

    def plot(self) -> Figure:
        """Predicted against measured times of the rows that are judged, or of all that are predicted if none is."""
        from ..plots.reach_figures import measured_figure

        judged = self.rows[self.rows.judged]
        return measured_figure(judged if len(judged) else self.rows[self.rows.predicted_us.notna()])

    def __repr__(self) -> str:
        return f"<Published: {len(self.rows)} rows, {int(self.rows.judged.sum())} judged>"

    def printed(self) -> list[Any]:
        """Summary, what was skipped, and targets, for a person."""
        from .output import published_parts

        return published_parts(self)


def published(
    data: str | Path | None = None,
    *,
    gpu: str | None = None,
    variant: str | None = None,
    machines: Mapping[str, str | Path] | None = None,
    workers: int = WORKERS,
    progress: Progress = silent,
) -> Published:
    """Predict the published measurements, or those in a CSV file with one column per quantity
    (`scenarios.published.load_like`; an error names the columns); machines are taken as they are.

    `gpu` and `variant` choose rows by those columns: a name such as H20, and a pattern such as 'sm90_*', which may also be
    that of a version. `machines` gives GPUs, by the same column, another machine: a name or a file. Equal cases are
    simulated once, in `workers` processes. Raises `InputError` for a file that cannot be read, and where no row is left.
    """
    import pandas as pd

    from ..scenarios.published import Kind, load_like, load_published
    from ..sim.arguments import check_path, check_text, check_whole
    from ..sim.errors import InputError

    if data is not None:
        check_path(data, "data")
    for field, value in (("gpu", gpu), ("variant", variant)):
        if value is not None:
            check_text(value, field)
    check_whole(workers, "workers")
    kinds: tuple[Kind, ...] = ("megamoe", "attention_tp")
    tables = [load_published(kind) for kind in kinds] if data is None else [load_like(data)]
    rows = [row for table in tables for row in plain_rows(table.reset_index())]
    if not rows:
        raise InputError("holds no row", file=str(data))
    rows = _on_machines(_chosen(rows, gpu, variant), machines or {})
    return Published(pd.DataFrame(predicted(rows, workers, progress)), of_project=data is None and not machines)


def _on_machines(rows: list[dict[str, Any]], machines: Mapping[str, str | Path]) -> list[dict[str, Any]]:
    """The rows, those of some GPUs on machines that were given for them. Raises `InputError` for a GPU that no row has."""
    from ..scenarios.machine_files import load_machine
    from ..sim.errors import InputError

    known = {row["gpu"].lower(): row["gpu"] for row in rows}
    chosen = {gpu.lower(): str(machine) for gpu, machine in machines.items()}
    for gpu, machine in machines.items():
        if gpu.lower() not in known:
            raise InputError("has no row", field="machine", value=gpu, allowed=", ".join(sorted(known.values())))
        load_machine(machine)
    return [row | {"machine": chosen.get(row["gpu"].lower(), row["machine"])} for row in rows]


def _chosen(rows: list[dict[str, Any]], gpu: str | None, variant: str | None) -> list[dict[str, Any]]:
    """The rows of a GPU and of the variants, or versions, that a pattern matches; upper and lower case are the same."""
    from ..sim.checked import closest
    from ..sim.errors import InputError

    if gpu is not None:
        known = sorted({row["gpu"] for row in rows})
        rows = [row for row in rows if row["gpu"].lower() == gpu.lower()]
        if not rows:
            raise InputError("has no row", field="gpu", value=gpu, allowed=", ".join(known))
    if variant is None:
        return rows
    names = {row[key] for row in rows for key in ("variant", "version") if row[key]}
    matching = {name for name in names if fnmatchcase(name.lower(), variant.lower())}
    if not matching:
        raise InputError(
            f"matches no row{closest(variant, names)}", field="variant", value=variant,
            allowed="a name in the columns variant or version, or a pattern of one such as 'sm90_*'",
        )  # fmt: skip
    return [row for row in rows if row["variant"] in matching or row["version"] in matching]


def predicted(rows: list[dict[str, Any]], workers: int = 1, progress: Progress = silent) -> list[dict[str, Any]]:
    """The rows of a table of `load_published` or `load_like`, with their predictions."""
    from ..scenarios.published.cases import mapped
    from .answers import Answer, answers

    maps = [mapped(row) for row in rows]
    machines = _machines(rows, maps)
    questions = {(row["machine"], found.case): None for row, found in zip(rows, maps, strict=True) if found.case}
    order = ordered(questions)
    found: dict[Any, Answer] = {}
    whole, done = sum(_size(case) for _, case in order), 0.0
    for position, reply in answers([(machines[name], case) for name, case in order if case], workers):
        found[order[position]] = reply
        done += _size(order[position][1])
        progress(len(found), len(order), done / whole)
    return [
        _row(row, one, found.get((row["machine"], one.case)) if one.case else None)
        for row, one in zip(rows, maps, strict=True)
    ]


def _row(row: Mapping[str, Any], found: Mapped, reply: Any) -> dict[str, Any]:
    """One answer. Launch overhead that the source states is part of what it measured, and so of the prediction."""
    skipped, detail, time = found.skipped, found.detail, None
    if reply is not None and reply.predicted_us is not None:
        time = reply.predicted_us + overhead_us(row)
    elif reply is not None:
        skipped, detail = "part not modelled", reply.reason
    return {
        **row,
        "kind": kind_of(row),
        "predicted_us": time,
        "error_pct": None if time is None else 100 * (time - row["time_us"]) / row["time_us"],
        "judged": time is not None and not row["fit"] and row["timed"] == "kernel",
        "skipped": skipped,
        "detail": detail,
        "baseline_us": None if reply is None else reply.baseline_us,
        "approximation": "; ".join(found.approximations),
        "case": None if found.case is None else f"{hash_of(found.case)}",
    }


def kind_of(row: Mapping[str, Any]) -> str:
    """megamoe, attention, ulysses or tensor parallel: what is computed, whoever wrote it."""
    if row["table"] == "megamoe":
        return "megamoe"
    return {"fa": "attention", "ulysses_a2a": "ulysses", "a2a_bw": "all-to-all"}.get(
        row["operation"], "tensor parallel"
    )


def hash_of(case: Any) -> str:
    """A short name of a case: equal cases have equal names."""
    from hashlib import sha256

    return sha256(repr(case).encode()).hexdigest()[:12]


def _machines(rows: list[dict[str, Any]], maps: list[Mapped]) -> dict[str, Machine]:
    from ..scenarios.machine_files import load_machine

    names = {row["machine"] for row, found in zip(rows, maps, strict=True) if found.case is not None}
    return {name: load_machine(name) for name in sorted(names)}


def ordered(questions: Iterable[Any]) -> list[Any]:
    """Questions that share a routing side by side, and what takes longest first, so that no worker ends with it."""
    from .answers import drawn_for

    together: dict[Any, list[Any]] = {}
    for question in questions:
        case = question[1]
        together.setdefault(drawn_for(case) or question, []).append(question)
    batches = [sorted(batch, key=_by_call) for batch in together.values()]
    batches.sort(key=lambda batch: sum(_size(case) for _, case in batch), reverse=True)
    return [question for batch in batches for question in batch]


def _by_call(question: tuple[str, Any]) -> str:
    """Parts of one call side by side: its run is kept for them."""
    machine, case = question
    return f"{machine} {getattr(case, 'call', case)!r}"


def _size(case: Any) -> float:
    """About what a case takes to simulate, in the time of a row that an expert gets; the rest is what any case takes."""
    shape = case.shape
    if hasattr(shape, "topk"):
        return float(40_000 + shape.tokens * shape.topk * shape.ranks)
    if hasattr(shape, "head_dim"):
        return float(shape.tokens * shape.local_heads * shape.ranks * shape.batch) / 50
    return 20_000 + 2.5 * float(shape.m * shape.ranks)
