"""Fit a machine file's free numbers to the published times that are set aside for it, and write them into its text.

scenarios/published/fit_parameters.csv lists the free numbers of each machine with what was believed before; fit.csv marks
the rows, at most two shapes a machine and kind of kernel. All other rows are judged, and no number may come from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from ..sim.errors import InputError
from ..sim.fit_times import Fit, FittedNumber, Parameter, fit
from ..terminal.output import Printed, table
from ..terminal.progress import Progress, silent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_SIMULATIONS_SHOWN = 60


@dataclass(frozen=True, repr=False)
class MachineFit(Printed):
    """The fit of one machine: the calls that were measured, in words, and the numbers."""

    machine: str
    calls: tuple[str, ...]
    fit: Fit

    def numbers(self) -> dict[str, dict[str, Any]]:
        """What belongs in the machine file, by dotted path."""
        return {number.parameter.name: self._entry(number) for number in self.fit.numbers}

    def as_dict(self) -> dict[str, Any]:
        fitted, calls = self.fit, []
        for call in zip(self.calls, fitted.measured_us, fitted.before_us, fitted.predicted_us, strict=True):
            calls.append(dict(zip(("call", "measured_us", "before_us", "predicted_us"), call, strict=True)))
        numbers = [
            {"parameter": n.parameter.name, "unit": n.parameter.unit, "value": n.value, "interval": [n.low, n.high],
             "prior": [n.parameter.low, n.parameter.high], "sensitivity": list(n.sensitivity), "informed": n.informed,
             "flag": n.flag or None}
            for n in fitted.numbers
        ]  # fmt: skip
        return {"machine": self.machine, "calls": calls, "numbers": numbers, "simulations": fitted.simulations}

    def plot(self) -> Figure:
        """The error of each call that was measured, before and after the fit."""
        import pandas as pd

        from ..plots.difference_figures import fit_figure

        fitted = self.fit
        errors = [
            (call, *(100 * (time / measured - 1) for time in (before, after)))
            for call, measured, before, after in zip(
                self.calls, fitted.measured_us, fitted.before_us, fitted.predicted_us, strict=True
            )
        ]
        return fit_figure(pd.DataFrame(errors, columns=["call", "before_pct", "after_pct"]), self.machine)

    def __repr__(self) -> str:
        return f"<MachineFit of {self.machine}: {len(self.fit.numbers)} numbers, {len(self.calls)} calls>"

    def printed(self) -> list[Any]:
        """The fit for a person."""
        fitted = self.fit
        calls = [
            (call, measured, before, after, 100 * (after / measured - 1))
            for call, measured, before, after in zip(
                self.calls, fitted.measured_us, fitted.before_us, fitted.predicted_us, strict=True
            )
        ]
        numbers = [
            (n.parameter.name, _text(n.value, n.parameter.unit), f"{n.low:.4g} to {n.high:.4g}",
             f"{n.parameter.low:.4g} to {n.parameter.high:.4g}", " ".join(f"{s:+.2f}" for s in n.sensitivity),
             f"{100 * n.informed:.0f} %", n.flag)
            for n in fitted.numbers
        ]  # fmt: skip
        return [
            table(f"{self.machine}: measured calls", ("call", "measured us", "before", "after", "error %"), calls),
            "",
            table("numbers", ("number", "value", "interval", "before", "sensitivity", "narrower", ""), numbers),
        ]

    def _entry(self, number: FittedNumber) -> dict[str, Any]:
        parameter = number.parameter
        moves = " and ".join(f"{slope:+.2f}" for slope in number.sensitivity)
        source = (
            f"fitted to the times set aside in published/fit.csv (xstage published --fit {self.machine}), which it moves "
            f"by {moves} (d ln t / d ln x); before: {_text(parameter.low, '')} to "
            f"{_text(parameter.high, parameter.unit)}, {parameter.reason}"
        )
        source += f"; {number.flag}" if number.flag else ""
        interval = [
            _text(min(number.low, number.value), parameter.unit),
            _text(max(number.high, number.value), parameter.unit),
        ]
        return {"value": _text(number.value, parameter.unit), "source": source, "interval": interval}


def fit_machine(name: str, progress: Progress = silent) -> MachineFit:
    """Fit the numbers that fit_parameters.csv lists for a machine of the catalogue to whole calls; repeats count once.

    Raises `InputError` for a machine without such numbers, or without rows.
    """
    from ..scenarios.machine_files import load_machine
    from ..scenarios.published.cases import mapped
    from ..scenarios.published.load import load_published
    from ..scenarios.published.schema import Kind
    from ..sim.predict import Case, predict_us
    from ..table_rows import plain_rows

    parameters = free_numbers(name)
    kinds: tuple[Kind, ...] = ("megamoe", "attention_tp")
    tables = [load_published(kind) for kind in kinds]
    measured: dict[Case, list[float]] = {}
    names: dict[Case, str] = {}
    for rows in tables:
        for row in plain_rows(rows[rows.fit & (rows.machine == name) & (rows.timed == "kernel")]):
            if (case := mapped(row).case) is not None:
                measured.setdefault(case, []).append(time_of_kernel(row))
                names.setdefault(case, _call(row))
    done = 0

    def predict(numbers: Mapping[str, float]) -> list[float]:
        nonlocal done
        machine = load_machine(name, {p.name: _exact(numbers[p.name], p.unit) for p in parameters})
        times = []
        for case in measured:
            times.append(predict_us(machine, case))
            done += 1
            progress(done, max(_MOST_SIMULATIONS_SHOWN, done + 1))
        return times

    middles = [geometric_mean(times) for times in measured.values()]
    return MachineFit(name, tuple(names.values()), fit(parameters, middles, predict))


def write_fit(done: MachineFit, path: str | Path) -> None:
    """A copy of the machine's file of the catalogue with the fitted numbers in it; it appears whole or not at all."""
    from ..scenarios import catalogue
    from ..scenarios.machine_edit import with_numbers
    from ..sim.files import write_whole

    text = catalogue.find(done.machine, "machine").read_text(encoding="utf-8")
    with write_whole(path) as temporary:
        temporary.write_text(with_numbers(text, done.numbers()), encoding="utf-8")


def free_numbers(machine: str) -> list[Parameter]:
    """The free numbers of a machine. Raises `InputError` if it has none."""
    from ..scenarios.published.mapping import fit_parameters

    lines = fit_parameters()
    found = [_parameter(line) for line in lines if line["machine"] == machine]
    if not found:
        allowed = sorted({line["machine"] for line in lines})
        raise InputError("has no numbers to fit", field="machine", value=machine, allowed=allowed)
    return found


def time_of_kernel(row: Mapping[str, Any]) -> float:
    """The row's time less what its source says is launch overhead inside it (the middle, where it gives a range)."""
    return float(row["time_us"]) - overhead_us(row)


def overhead_us(row: Mapping[str, Any]) -> float:
    """Launch overhead that the source states, the middle of its range; 0 if it states none."""
    low, high = row.get("offset_low_us"), row.get("offset_high_us")
    return 0.0 if low is None or low != low or high is None or high != high else (float(low) + float(high)) / 2


def _parameter(line: Mapping[str, str]) -> Parameter:
    low, _, unit = line["low"].partition(" ")
    most = 1.0 if "efficiency" in line["parameter"] else float("inf")
    return Parameter(line["parameter"], unit, float(low), float(line["high"].partition(" ")[0]), line["reason"], most)


def _exact(value: float, unit: str) -> float | str:
    """As an override of a machine: text to a millionth of the unit, which is a ps of a us and a kB/s of a GB/s."""
    return f"{value:.6f} {unit}" if unit else value


def _text(value: float, unit: str) -> str:
    return f"{value:.4g} {unit}".strip()


def _call(row: Mapping[str, Any]) -> str:
    if row["table"] == "megamoe":
        return f"{row['variant']}, hidden {row['hidden']}, {row['tokens_per_rank']:g} tokens"
    return f"{row['variant']}, head dim {row['head_dim']}, {row['seq']} tokens"
