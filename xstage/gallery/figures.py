"""`xstage figures`: the figures that teach the model, each from a table that is stored beside it.

A figure is a table and a function that draws it. The table is written as CSV, read back and drawn, so that the picture holds
what the file says and `redraw` gives the same bytes without a simulation. A new figure is a `Drawing` in drawings.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plots.figure_file import FORMATS
from ..plots.save import save_drawings, save_table
from ..sim.arguments import check_flag, check_path, check_whole, names
from ..sim.checked import closest
from ..sim.compilation import compile_engine
from ..sim.errors import InputError
from ..sim.files import make_folder
from ..terminal.output import Printed, table
from ..terminal.progress import Progress, silent
from .drawings import DRAWINGS, Drawing, Inputs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawn:
    """A figure that was written. `files` are drawings, then the CSV."""

    name: str
    shows: str
    files: tuple[Path, ...]
    table: pd.DataFrame
    wall_s: float

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "shows": self.shows, "files": [str(file) for file in self.files]}


@dataclass(frozen=True, repr=False)
class Figures(Printed):
    """What `figures` wrote to a folder."""

    folder: Path
    drawn: tuple[Drawn, ...]

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage figures --json`, without the fields that all answers share."""
        return {"output": str(self.folder), "figures": [one.as_dict() for one in self.drawn]}

    def plot(self, name: str) -> Figure:
        """One of them again, from its table. Raises `InputError` for a name that is not among them."""
        known = {one.name: one for one in self.drawn}
        if name not in known:
            raise InputError("was not drawn", field="name", value=name, allowed=known)
        return chosen([name])[0].draw(known[name].table)

    def __repr__(self) -> str:
        return f"<Figures in {self.folder}: {', '.join(one.name for one in self.drawn)}>"

    def printed(self) -> list[Any]:
        """What was written, for a person."""
        rows = [(one.name, one.shows, f"{one.wall_s:.1f} s") for one in self.drawn]
        kinds = ", ".join(dict.fromkeys(file.suffix for one in self.drawn for file in one.files))
        return [table("", ("figure", "shows", ""), rows), "", f"written to {self.folder}: {kinds} of each"]


def figures(
    folder: str | Path,
    only: Sequence[str] | None = None,
    *,
    formats: Sequence[str] = ("png", "svg"),
    redraw: bool = False,
    calls: str | Path | None = None,
    published: str | Path | None = None,
    workers: int = 2,
    progress: Progress = silent,
) -> Figures:
    """Write the figures named in `only` (default: all of `DRAWINGS`) with their tables to `folder`.

    `redraw` takes the tables that are in `folder`. `calls` is a folder that `xstage paper speedups -o DIR` wrote (all 84
    calls, not the 42 balanced ones), `published` a file that `xstage published --json` printed (all rows, not some).
    Raises `InputError` for an unknown figure or format, a folder that cannot be made, a file that does not fit, or one that
    no figure is drawn from.
    """
    drawings, kinds = chosen(only), _known_formats(names(formats, "format"))
    check_path(folder, "folder")
    check_flag(redraw, "redraw")
    check_whole(workers, "workers")
    given = {"calls": calls, "published": published}
    _check_used(given, [] if redraw else [drawing.name for drawing in drawings])
    if not redraw:
        make_folder(folder)
        if any(drawing.simulates and given.get(drawing.name) is None for drawing in drawings):
            compile_engine()
    inputs = Inputs(workers, _path(calls, "calls"), _path(published, "published"))
    done: list[Drawn] = []
    for drawing in drawings:
        started = time.perf_counter()
        stored = Path(folder) / f"{drawing.name}.csv"
        if not redraw:
            save_table(drawing.table(inputs), stored)
        data = _read_table(stored)
        files = save_drawings(drawing.draw(data), Path(folder), drawing.name, kinds)
        done.append(Drawn(drawing.name, drawing.shows, (*files, stored), data, time.perf_counter() - started))
        progress(len(done), len(drawings))
    return Figures(Path(folder), tuple(done))


def chosen(only: Sequence[str] | None) -> list[Drawing]:
    """The drawings of these names, or all. Raises `InputError` for another name, or for none."""
    known = {drawing.name: drawing for drawing in DRAWINGS}
    if only is None:
        return list(DRAWINGS)
    asked = names(only, "only")
    if not asked:
        raise InputError("names no figure", field="only", allowed=known)
    for name in asked:
        if name not in known:
            raise InputError(f"is no figure{closest(name, known)}", field="only", value=name, allowed=known)
    return [known[name] for name in dict.fromkeys(asked)]


def _check_used(given: Mapping[str, str | Path | None], made: Sequence[str]) -> None:
    """Raises `InputError` for what a figure of that name would be made from, and none is."""
    for name, source in given.items():
        if source is not None and name not in made:
            reason = f"has no effect: the table of figure {name} is not made"
            raise InputError(
                reason, field=name, value=str(source), allowed=f"with {name} among the figures, not redrawn"
            )


def _path(given: str | Path | None, field: str) -> Path | None:
    if given is None:
        return None
    check_path(given, field)
    return Path(given)


def _known_formats(formats: Sequence[str]) -> tuple[str, ...]:
    for kind in formats:
        if kind not in FORMATS:
            raise InputError("is no format of a figure", field="format", value=kind, allowed=FORMATS)
    if not formats:
        raise InputError("names no format", field="format", allowed=FORMATS)
    return tuple(dict.fromkeys(formats))


def _read_table(file: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_csv(file)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", file=str(file), allowed="what `xstage figures` wrote") from error
