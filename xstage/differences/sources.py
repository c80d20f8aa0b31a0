"""The two sides of `xstage diff`: whatever it is, as a flat table of values by dotted path.

kind        comes from                                      is compared by
run         `xstage run --json`, a trace as Parquet, a Run  metrics; those of a trace are worked out from its ops
result      any other command with --json                   every field but times
scenario    a name, a YAML file, a mapping                  its keys, and the numbers of its machine
machine     a name, a YAML file                             its numbers
study       a name, a YAML file                             its keys
schedule    a Program as .npz                               its size, work, meta, and rows of its tables
sweep       the folder of a sweep                           columns, point by point
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..answers.saved import check_regular, read_answer
from ..scenarios.any_file import find_entry
from ..scenarios.catalogue import entries
from ..scenarios.loader import Resolved, load_scenario
from ..scenarios.schema import Scenario
from ..sim.errors import InputError
from ..sim.machine import Machine
from ..sim.program import Program
from ..sweeps.table import FILE, read_table
from .change import Change, relative_pct, same
from .sweeps import Points, compare_tables

if TYPE_CHECKING:
    import pandas as pd

    from ..answers.run import Run
    from ..sweeps.run import Sweep

Comparable: TypeAlias = "str | Path | Mapping[str, Any] | Run | Scenario | Resolved | Machine | Program | Sweep"

NOT_COMPARED = ("timing", "command", "question", "changed", "schema_version", "trace", "warnings", "explain")
"""Fields of answers that say how, when or where, and not what was found."""
NAMES = ("part", "policy", "name")
"""Fields of answers by which the parts of a list are called."""
ALLOWED = (
    "a name from `xstage scenarios`, a .yaml file, an answer as .json, a trace as .parquet, a Program as .npz, "
    "or the folder of a sweep"
)


@dataclass(frozen=True, eq=False)
class Source:
    """One side: its kind, its name, and its values, or the thing itself where values alone do not say what differs."""

    kind: str
    name: str
    values: dict[str, Any]
    program: Program | None = None
    table: pd.DataFrame | None = None


def source_of(given: Comparable) -> Source:
    """Read one side. Raises `InputError` if it is nothing that can be compared."""
    from ..answers.run import Run
    from ..sweeps.run import Sweep

    match given:
        case str() | Path():
            return _named(str(given))
        case Run():
            return Source("run", given.resolved.scenario.name, _answer(given.as_dict()))
        case Sweep():
            return _sweep(given.folder)
        case Program():
            return _program("Program", given)
        case Machine():
            return Source("machine", given.name, _machine(given))
        case Resolved():
            return _scenario(given)
        case Scenario() | Mapping():
            return _scenario(load_scenario(given))
    raise InputError("cannot be compared", field="type", value=type(given).__name__, allowed=ALLOWED)


def compared(one: Source, other: Source) -> tuple[int, list[Change], list[str], Points | None]:
    """How many values were looked at, what differs, what else there is to say, and the points of two sweeps."""
    if one.table is not None and other.table is not None:
        return compare_tables((one.name, one.table), (other.name, other.table))
    names = {**one.values, **other.values}
    pairs = ((what, one.values.get(what), other.values.get(what)) for what in names)
    changes = [Change(what, old, new, relative_pct(old, new)) for what, old, new in pairs if not same(old, new)]
    notes = []
    if one.program is not None and other.program is not None:
        notes = ["", *one.program.diff(other.program)]
    return len(names), changes, notes, None


def _named(name: str) -> Source:
    path = Path(name)
    if path.is_dir() and not (_is_entry(name) and not (path / FILE).exists()):
        return _sweep(path)
    check_regular(path)
    match path.suffix:
        case ".npz":
            return _program(name, Program.load(path))
        case ".json":
            return _json(path)
        case ".parquet":
            return _trace(path)
        case ".yaml" | ".yml" | "":
            return _entry(name)
    raise InputError("is nothing that can be compared", file=name, allowed=ALLOWED)


def _is_entry(name: str) -> bool:
    """Whether the catalogue has the name: then a folder is meant only if it holds a sweep."""
    return any(entry.name == name for entry in entries())


def _entry(name: str) -> Source:
    from ..scenarios.document import read
    from ..scenarios.machine_files import load_machine
    from ..scenarios.study import load_study

    entry = find_entry(name, ALLOWED)
    if entry.kind == "scenario":
        return _scenario(load_scenario(name), name)
    if entry.kind == "machine":
        return Source("machine", name, _machine(load_machine(name)))
    load_study(name)
    return Source("study", name, flat(read(entry.file).data))


def _scenario(resolved: Resolved, name: str | None = None) -> Source:
    written = resolved.scenario.model_dump(mode="json", exclude={"name", "machine"}, exclude_none=True)
    machine = {f"machine.{number}": value for number, value in _machine(resolved.machine).items()}
    base = resolved.scenario.machine.base
    named = {"machine": base.name if isinstance(base, Machine) else base}
    return Source("scenario", name or resolved.scenario.name, flat(written) | named | machine)


def _machine(machine: Machine) -> dict[str, Any]:
    return flat({name: number.model_dump(mode="json")["value"] for name, number in machine.numbers()})


def _json(path: Path) -> Source:
    data = read_answer(path)
    return Source("run" if "makespan_us" in data else "result", str(path), _answer(data))


def _answer(data: Mapping[str, Any]) -> dict[str, Any]:
    return flat({key: value for key, value in data.items() if key not in NOT_COMPARED})


def _trace(path: Path) -> Source:
    if path.name == FILE:
        return _sweep(path.parent)
    from ..hw_validate.readers.read import read_trace
    from .traces import trace_metrics

    return Source("run", str(path), flat(trace_metrics(read_trace(path))))


def _sweep(folder: Path) -> Source:
    return Source("sweep", str(folder), {}, table=read_table(folder))


def _program(name: str, program: Program) -> Source:
    from .traces import program_facts

    return Source("schedule", name, flat(program_facts(program)), program=program)


def flat(data: Any, above: str = "") -> dict[str, Any]:
    """{'a': {'b': [1, 2]}} as {'a.b.0': 1, 'a.b.1': 2}; an empty list or mapping is a value.

    Parts of a list that have names go by those: {'roofs': [{'part': 'egress', 'gbs': 9}]} as {'roofs.egress.gbs': 9}.
    """
    if isinstance(data, Mapping) and data:
        pairs = list(data.items())
    elif isinstance(data, (list, tuple)) and data:
        pairs = list(zip(_names(data), data, strict=True))
    else:
        return {above: str(data) if isinstance(data, (list, tuple, Mapping)) else data}
    result: dict[str, Any] = {}
    for key, value in pairs:
        result |= flat(value, f"{above}.{key}" if above else str(key))
    return result


def _names(parts: Sequence[Any]) -> Sequence[Any]:
    """What tells the parts of a list apart: a name, or else the place."""
    for key in NAMES:
        found = [part.get(key) if isinstance(part, Mapping) else None for part in parts]
        if all(isinstance(name, str) for name in found) and len(set(found)) == len(found):
            return found
    return range(len(parts))
