"""The machines, scenarios and studies that come with xstage, by name, and the rule that tells a name from a file.

An entry is a YAML file of this package, named by its stem. What ends in .yaml or .yml, or has a folder in it, is a file of
one's own; anything else is a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

from ..sim.checked import Place, closest

Kind = Literal["machine", "scenario", "study"]

FOLDERS: dict[Kind, tuple[str, ...]] = {
    "machine": ("machines",),
    "scenario": ("microbenchmarks", "workloads"),
    "study": ("studies",),
}
COMMANDS: dict[Kind, str] = {"scenario": "run", "study": "sweep"}
"""What runs a kind."""
NAME_OR_FILE = "a name from `xstage scenarios`, or a .yaml file"


@dataclass(frozen=True)
class Entry:
    """One file of the catalogue."""

    name: str
    kind: Kind
    folder: str
    file: Traversable


def entries(kind: Kind | None = None) -> list[Entry]:
    """All entries, or those of one kind, by kind and name."""
    return sorted(_entries(kind), key=lambda entry: (entry.kind, entry.name))


def find(
    name: str | Path,
    kind: Kind,
    place: Place | None = None,
    beside: Traversable | Path | None = None,
    key: str | None = None,
) -> Traversable | Path:
    """The file that `name` means: an entry's, or a file of one's own (relative to the folder of `beside`, if given).

    Raises `InputError` for the `key` at `place`, with the closest name, if there is no such entry. Whether a file of one's
    own exists is found out on reading it.
    """
    where = place or Place()
    if kind == "scenario":
        _check_no_program(name, key or kind, where)
    check_name(name, key or kind, where)
    if is_file(name):
        return beside.parent / name if isinstance(beside, Path) else Path(name)
    known = {entry.name: entry.file for entry in entries(kind)}
    if name not in known:
        if other := next((entry.kind for entry in entries() if entry.name == name), None):
            raise where.error(is_other_kind(other, kind, alone=place is None), (key or kind,), name)
        also = ", ".join(known) + f", or the path of a {kind} file that ends in .yaml"
        raise where.error(f"is not in the catalogue{_meant(str(name), known, beside)}", (key or kind,), name, also)
    return known[name]


def is_other_kind(kind: Kind, wanted: Kind, alone: bool = True) -> str:
    """What an error says about one kind where another is wanted; `alone`: it was given to a command."""
    command = COMMANDS.get(kind) if alone and wanted in COMMANDS else None
    return f"is a {kind}, not a {wanted}" + (f": use `xstage {command}`" if command else "")


def check_name(name: object, key: str, place: Place) -> None:
    """Raises `InputError` for the `key` at `place` if `name` is neither text nor a path."""
    if not isinstance(name, (str, Path)):
        raise place.error(f"is of type {type(name).__name__}", (key,), name, "a name, or the path of a file")


def _check_no_program(name: object, key: str, place: Place) -> None:
    """Raises `InputError` for a Program, or its file, that is given where a scenario is wanted."""
    if isinstance(name, (str, Path)):
        if Path(name).suffix == ".npz":
            allowed = f"a scenario with machine: and workload: {{kind: program, file: {name}}}"
            raise place.error("is the file of a Program, which names no machine", (key,), str(name), allowed)
    elif type(name).__name__ == "Program":
        allowed = '{"question": ..., "machine": ..., "workload": {"kind": "program", "file": PROGRAM}}'
        raise place.error("is a Program, which names no machine", (key,), None, allowed)


def is_file(name: str | Path) -> bool:
    """Whether `name` means a file of one's own, not an entry."""
    return isinstance(name, Path) or name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name


def find_any(name: str, allowed: str = NAME_OR_FILE) -> Entry:
    """The entry of that name, of any kind. Raises `InputError` with the closest name if there is none."""
    known = {entry.name: entry for entry in entries()}
    if name not in known:
        raise Place().error(f"is not in the catalogue{_meant(name, known)}", ("name",), name, allowed)
    return known[name]


def _meant(name: str, known: Iterable[str], beside: Traversable | Path | None = None) -> str:
    """What an unknown name may have been meant to be: a file without its ending, or the closest entry."""
    folder = beside.parent if isinstance(beside, Path) else Path()
    file = next((f"{name}{ending}" for ending in (".yaml", ".yml") if (folder / f"{name}{ending}").is_file()), None)
    return f"; did you mean {file!r}?" if file else closest(name, known)


def _entries(kind: Kind | None) -> Iterator[Entry]:
    root = files(__package__)
    for each, folders in FOLDERS.items():
        for folder in folders if kind in (None, each) else ():
            directory = root.joinpath(folder)
            if directory.is_dir():
                for file in directory.iterdir():
                    if file.name.endswith(".yaml"):
                        yield Entry(file.name.removesuffix(".yaml"), each, folder, file)
