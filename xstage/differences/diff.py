"""`xstage diff`: what differs between two runs, scenarios, machines, studies, schedules or sweeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..sim.errors import InputError
from ..terminal.output import Printed, table
from .change import Change
from .sources import Comparable, compared, source_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from .sweeps import Points

LONGEST_CELL = 60


@dataclass(frozen=True, repr=False)
class Difference(Printed):
    """What differs between `old` and `new`, two things of one `kind`. `compared` counts the values looked at; two sweeps
    are compared at the `points` that both have."""

    kind: str
    old: str
    new: str
    compared: int
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    points: Points | None = None

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.changes) or not self.same_points

    @property
    def same_points(self) -> bool:
        """Whether two sweeps have the same points; True for anything other than sweeps."""
        return self.points is None or not (self.points.old_only or self.points.new_only)

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage diff --json`, without the fields that all answers share."""
        return {
            "kind": self.kind,
            "old": self.old,
            "new": self.new,
            "compared": self.compared,
            "different": len(self.changes),
            "differences": [asdict(change) for change in self.changes],
            "notes": list(self.notes),
        } | ({} if self.points is None else {"points": asdict(self.points)})

    @property
    def frame(self) -> pd.DataFrame:
        """One row per change: what, old, new, relative_pct, points, at."""
        import pandas as pd

        return pd.DataFrame(map(asdict, self.changes), columns=list(Change.__dataclass_fields__))

    def plot(self) -> Figure:
        """The largest changes of numbers, in percent of the old ones."""
        from ..plots.difference_figures import changes_figure

        return changes_figure(self.frame, self.old, self.new)

    def __repr__(self) -> str:
        return f"<Difference of two {self.kind}s: {len(self.changes)} of {self.compared} values>"

    def printed(self) -> list[Any]:
        """The same for a person."""
        same = self.compared - len(self.changes)
        if self.points is not None and not self.points.both:
            return [f"{self.old} and {self.new} have no point in common.", *self.notes]
        if not self.changes and self.same_points:
            return [f"{self.old} and {self.new} are the same {self.kind}: {same} values are equal.", *self.notes]
        if not self.changes:
            return [f"{self.old} and {self.new} are equal{_shared(self)}, in {same} columns.", *self.notes]
        head = f"{self.old} (old) and {self.new} (new), each a {self.kind}: {len(self.changes)} of {self.compared}"
        of_points = any(change.points is not None for change in self.changes)
        columns = ("what", "old", "new", "relative", *(("points", "largest at") if of_points else ()))
        rows = [
            (change.what, _cell(change.old), _cell(change.new), _percent(change.relative_pct),
             *(("" if change.points is None else change.points, change.at or "") if of_points else ()))
            for change in self.changes
        ]  # fmt: skip
        what = f"columns differ{_shared(self)}" if of_points else "values differ"
        shown = table("", columns, rows)
        for column in shown.columns:
            column.overflow = "fold"  # names that are cut cannot be told apart
        return [f"{head} {what}.", "", shown, *self.notes]


def diff(old: Comparable, new: Comparable) -> Difference:
    """What differs between two things of one kind.

    Each is the name of a catalogue entry, a file (scenario, study or machine as .yaml, answer of a command as .json, trace
    as .parquet, Program as .npz), the folder of a sweep, or the corresponding Python object (a mapping is a scenario). A
    scenario is compared with its machine, a trace by what a run says about it. Raises `InputError` for what is none of
    these, and for two of different kinds.
    """
    one, other = source_of(old), source_of(new)
    if one.kind != other.kind:
        raise InputError(
            f"is a {other.kind}, and {one.name} is a {one.kind}", field="new", value=other.name,
            allowed=f"two of one kind, here another {one.kind}",
        )  # fmt: skip
    count, changes, notes, points = compared(one, other)
    return Difference(one.kind, one.name, other.name, count, tuple(changes), tuple(notes), points)


def _shared(found: Difference) -> str:
    """Where two sweeps were compared, if not at all their points."""
    return "" if found.points is None or found.same_points else f" at the {found.points.both} points that both have"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 3]}..."


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) < 0.1:
        return f"{value:+.2g} %"
    digits = 1
    while float(f"{value:.{digits}f}") == -100 != value:  # what is left is not nothing
        digits += 1
    return f"{value:+.{digits}f} %"
