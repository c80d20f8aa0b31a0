"""From a scenario's name, file or mapping to everything that a run needs.

load_scenario(...) the file, with overrides, checked: a `Resolved`
build_program(...) its Program and Fabric
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sim.arguments import paths_and_values
from ..sim.checked import Place, Where, check, closest, meant, nowhere
from ..sim.machine import PARTS, Machine
from . import catalogue
from .any_file import check_kind
from .document import Document, literal, parse, read, split_path
from .machine_files import IN_SCENARIO, File, machine_from, number_names, of_machine, shorter_first
from .model_errors import named_as_written
from .schema import Scenario
from .tensor_parallel import TensorParallelWorkload
from .workloads import WORKLOADS, BurstTrainWorkload

if TYPE_CHECKING:
    from ..sim.program import Program
    from ..sim.topology import Fabric
    from .workload import PolicyChoice

FILES = (("workload", "routing", "file"), ("workload", "file"))
"""Keys that name a file: a recorded routing, a Program."""


@dataclass(frozen=True, repr=False)
class Resolved:
    """A scenario with its machine, known to fit each other: what `load_scenario` gives, and `run` and others take.

    `places` says where each of its keys was written, `given` what it was loaded from and the overrides of that: what a run
    says of an override must not depend on whether the run or the one who loaded the scenario was given it.
    """

    scenario: Scenario
    machine: Machine
    places: Where = field(default=nowhere, repr=False, compare=False, kw_only=True)
    given: tuple[Any, Mapping[str, Any]] | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __repr__(self) -> str:
        workload = self.scenario.workload
        policy = f", policy {workload.policy_name}" if workload.policy_name else ""
        where = f"on {workload.gpus} GPUs of {self.machine.name}"
        return f"<Scenario {self.scenario.name}: {workload.title}{policy}, {where}>"

    def fabric(self) -> Fabric:
        """What the workload runs on, cut into the scenario's granules or else the machine's."""
        with named_as_written(self.scenario.workload, self.places):
            return self.scenario.disturb.of_fabric(self.scenario.workload.fabric(self.machine, self.scenario.granule))

    def program(self) -> Program:
        """The schedule that the workload becomes on this machine."""
        workload, seed, disturb = self.scenario.workload, self.scenario.seed, self.scenario.disturb
        with named_as_written(workload, self.places):
            if isinstance(workload, BurstTrainWorkload | TensorParallelWorkload):
                least_factor = disturb.least_factor(workload.fabric(self.machine, self.scenario.granule))
                return disturb.of_program(workload.build(self.machine, seed, least_factor))
            return disturb.of_program(workload.build(self.machine, seed))

    def policies(self) -> Mapping[str, PolicyChoice]:
        """The policies that the workload can be given on this machine."""
        with named_as_written(self.scenario.workload, self.places):
            return self.scenario.workload.policies(self.machine, self.scenario.seed)


def load_scenario(
    scenario: str | FilePath | Mapping[str, Any] | Scenario,
    overrides: Mapping[str, Any] | None = None,
    label: str = "override",
) -> Resolved:
    """A scenario from the catalogue, a file, a mapping or a `Scenario`, with values replaced by dotted path.

    A mapping may have a `Machine` under `machine`. `overrides` maps paths such as 'workload.burst' or
    'machine.interconnect.drain_rate' to values as YAML or NumPy would have them; `label` names their origin in errors.
    Raises `InputError` naming file, line, field, value and what is allowed.
    """
    given = paths_and_values(overrides)
    document, file = written(scenario)
    changes = {path: literal(plain(value), Place(option=f"{label} {path}")) for path, value in given.items()}
    loaded = load_document(document, file, changes, label)
    return replace(loaded, given=(scenario, given)) if given else loaded


def load_document(
    document: Document, file: File | None, changes: Mapping[str, Document], label: str = "override"
) -> Resolved:
    """As `load_scenario`, for a scenario that was read already, and changes that know their place.

    A shorter path is applied before a longer one, such as `machine` before a number of it, in whatever order they come.
    A file that is named in a file is looked for beside that one; one named by an option or a call, in the working folder.
    """
    for path, change in shorter_first(changes).items():
        document = _replaced(document, path, change, label)
    for keys in FILES:
        document = _file_found(document, keys)
    checked = check(Scenario, document.data, document.place)
    return _resolved(checked, document, file)


def build_program(
    scenario: str | FilePath | Mapping[str, Any] | Scenario | Resolved,
) -> tuple[Program, Fabric]:
    """The schedule of a scenario, and the fabric that it runs on. Raises `InputError` as `load_scenario` does."""
    resolved = scenario if isinstance(scenario, Resolved) else load_scenario(scenario)
    return resolved.program(), resolved.fabric()


def parse_overrides(texts: list[str], label: str = "--set") -> dict[str, Any]:
    """'key.path=value' texts as a mapping; a value is read as YAML. Raises `InputError` naming the text."""
    values: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals:
            raise Place(option=label).error("has no '='", (), text, "key.path=value, such as workload.burst=64KiB")
        if path in values:
            raise Place(option=label).error("is given twice", (path,), value)
        values[path] = parse(value, f"{label} {path}").data
    return values


def machine_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides of `--set` where there is only a machine, see `of_machine`.

    Raises `InputError` for a path to anything but a part of a machine.
    """
    for path, value in overrides.items():
        if path.removeprefix(IN_SCENARIO).split(".")[0] not in PARTS:
            reason = f"is no number of the machine{closest(path, [IN_SCENARIO + name for name in number_names()])}"
            raise Place(option=f"--set {path}").error(reason, (path,), value, "machine.PART.NAME")
    return of_machine(overrides, "--set ")


def written(
    scenario: str | FilePath | Mapping[str, Any] | Scenario, place: Place | None = None, beside: File | None = None
) -> tuple[Document, File | None]:
    """What was written, with the scenario's name, and the file if there is one.

    A name that stands at `place` in the file `beside` is looked for there. Raises `InputError`.
    """
    if isinstance(scenario, Scenario):
        return Document(scenario.model_dump()), None
    if isinstance(scenario, Mapping):
        return Document({"name": "unnamed", **plain(scenario)}), None
    file = catalogue.find(scenario, "scenario", place, beside)
    document = read(file)
    if not isinstance(document.data, dict):
        raise document.place(()).error("must be a mapping", (), allowed="the keys of a scenario")
    check_kind(document, "scenario")
    if "workload" not in document.data and document.data.keys() & {"base", *PARTS}:
        raise document.place(()).error(catalogue.is_other_kind("machine", "scenario"), ())
    if "name" not in document.data:
        document = document.put(("name",), literal(FilePath(file.name).stem, document.place(())))
    return document, file


def plain(value: Any) -> Any:
    """A value that a program has worked out as YAML would have it: NumPy's numbers and arrays as Python's."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def _replaced(document: Document, path: str, change: Document, label: str) -> Document:
    """`document` with one value replaced; a path into the machine becomes an override of the machine."""
    keys = split_path(path, label)
    if keys[0] not in Scenario.model_fields:
        meant = _meant(path, document)
        raise change.place(()).error(f"is not a known key{meant}", keys, change.data, list(Scenario.model_fields))
    if keys[0] == "machine" and len(keys) > 1 and isinstance(document.data.get("machine"), (str, Machine)):
        named = document.part("machine")
        document = document.put(("machine",), Document({"base": named.data}, named.places))
    if keys[0] == "machine" and keys[1:2] not in ((), ("base",), ("overrides",)):
        keys = ("machine", "overrides", ".".join(str(key) for key in keys[1:]))
    if keys in (("machine",), ("machine", "base"), *(("machine", "overrides", part) for part in PARTS)):
        change = _machine_file_found(change)
    return document.put(keys, change)


def _machine_file_found(change: Document) -> Document:
    """A change that names a machine's file, with the whole path: it need not be written beside the scenario."""
    if isinstance(change.data, dict) and "base" in change.data:
        return change.put(("base",), _machine_file_found(change.part("base")))
    if not isinstance(change.data, (str, FilePath)) or not catalogue.is_file(change.data):
        return change
    written_in = change.place(()).file
    folder = FilePath(written_in).parent if written_in else FilePath()
    return Document(str((folder / change.data).absolute()), change.places)


def _file_found(document: Document, path: tuple[str, ...]) -> Document:
    """A file that a file names under `path` is looked for beside that one."""
    value = document.data
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    written_in = document.place(path).file
    if not isinstance(value, str) or written_in is None:
        return document
    return document.put(path, literal(str(FilePath(written_in).parent / value), document.place(path)))


def _meant(path: str, document: Document) -> str:
    """What a path that begins with no key of a scenario was meant to be: 'workload.gap' for 'gap' or 'gap_us'."""
    written = document.data.get("workload")
    kind = WORKLOADS.get(str(written.get("kind"))) if isinstance(written, dict) else None
    paths: list[tuple[str, ...]] = [("workload", name) for name in kind.model_fields] if kind else []
    paths += [("machine", *name.split(".")) for name in number_names()]
    known = [".".join(keys) for keys in paths]
    if meant(path, known):
        return closest(path, known)
    if top := closest(path.split(".")[0], Scenario.model_fields):
        return top
    whole = {".".join(keys[start:]): ".".join(keys) for keys in paths for start in range(1, len(keys))}
    found = get_close_matches(path, whole, n=1, cutoff=0.75)
    return f"; did you mean {whole[found[0]]!r}?" if found else ""


def _resolved(scenario: Scenario, document: Document, file: File | None) -> Resolved:
    place = document.place
    changes = {
        path: literal(value, place(("machine", "overrides", path)))
        for path, value in scenario.machine.overrides.items()
    }
    machine = machine_from(scenario.machine.base, changes, place(("machine", "base")), file)
    _check_fit(scenario, machine, place)
    return Resolved(scenario, machine, places=place)


def _check_fit(scenario: Scenario, machine: Machine, place: Where = nowhere) -> None:
    """Raises `InputError` where the workload asks for more than the machine has, or for numbers that it does not have."""
    workload = scenario.workload
    missing = [name for name in workload.compute_numbers() if getattr(machine.compute, name) is None]
    if missing:
        kind, names = ("workload", "kind"), ", ".join(f"compute.{name}" for name in missing)
        also = f"another machine, or a machine file with base: {machine.name} that gives each of them with its source"
        raise place(kind).error(f"needs numbers that {machine.name} does not have: {names}", kind, workload.kind, also)
    room = min(machine.stage.capacity_sm.value, machine.stage.capacity_gpu.value)
    limits: list[tuple[tuple[str, ...], int | None, int, str]] = [
        (("workload", "gpus"), workload.gpus, machine.gpus, "GPUs"),
        (("workload", "producers"), getattr(workload, "producers", None), machine.sms, "SMs a GPU"),
        (("granule",), scenario.granule, room, "B of room in a stage"),
    ]
    for path, asked, limit, what in limits:
        if asked is not None and asked > limit:
            raise place(path).error(
                f"is more than the {limit} {what} of {machine.name}", path, asked, f"at most {limit}"
            )
    if scenario.disturb and workload.is_mirrored:
        raise place(("disturb",)).error("makes ranks differ", ("disturb",), allowed="workload.ranks: all")
    for key, gpu in scenario.disturb.gpus():
        if gpu >= workload.gpus:
            path = ("disturb", key, "gpu")
            raise place(path).error("takes no part", path, gpu, f"0 to {workload.gpus - 1}")
