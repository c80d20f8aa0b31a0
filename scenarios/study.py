"""What a study file says: a question, a scenario, and the values that some of its keys take.

    question: Which R and which Q does the next generation need, so that no burst waits?
    scenario: periodic-train                # a name, a file beside this one, or a scenario written out here
    axes:
      drain_rate: {path: machine.interconnect.drain_rate, range: {start: 400 GB/s, stop: 1600 GB/s, step: 100 GB/s}}
      capacity: {path: machine.stage.capacity_gpu, values: [4 MiB, 8 MiB]}
      workload.burst: [32 KiB, 64 KiB]      # a name that is a path needs no `path`
    zip: [[drain_rate, capacity]]           # from here on optional. These axes move together; others are crossed
    overrides: {trace: "off"}               # the same for every point
    metric: stall_total_us                  # the column that is drawn unless another is asked for; else makespan_us
    include: [{capacity: '<= 4 MiB'}, {workload.burst: 64 KiB}]     # points that match any of these
    exclude: [{drain_rate: ['>= 1 TB/s', 400 GB/s], capacity: 8 MiB}]     # but none of these

Points are numbered from 0 in the order of the axes, the last one changing fastest. `load_study` reads a file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from ..sim.checked import Checked, check, closest, refusal
from ..sim.errors import InputError
from ..sim.quantities import Text
from . import catalogue
from .any_file import check_kind
from .document import Document, literal, read
from .loader import Resolved, load_document, plain, written
from .machine_files import File
from .schema import Scenario, one_line
from .study_values import Kind, Range, comparable, condition, kind_of

MOST_TRIED = 50

Match = dict[Text, Any]
"""Axis to value, list of values, or comparison such as '<= 4 MiB'; a point matches if all of them hold."""


class Axis(Checked):
    """A key of the scenario by its path, and the values that it takes."""

    path: Text | None = None
    values: Annotated[list[Any], Field(min_length=1)] | None = None
    range: Range | None = None

    @model_validator(mode="before")
    @classmethod
    def _values_alone(cls, data: Any) -> Any:
        return {"values": data} if isinstance(data, list) else data

    @model_validator(mode="after")
    def _one_source(self) -> Axis:
        if (self.values is None) == (self.range is None):
            raise refusal("needs either values or range")
        return self

    def listed(self) -> list[Any]:
        return self.range.values() if self.range is not None else list(self.values or ())


class Study(Checked):
    """A study as it is written; `load_study` joins it with its scenario."""

    name: Text
    question: Annotated[Text, AfterValidator(one_line)]
    scenario: Text | dict[str, Any]
    overrides: dict[Text, Any] = Field(default_factory=dict)
    axes: Annotated[dict[Text, Axis], Field(min_length=1)]
    metric: Text = "makespan_us"
    zip: list[Annotated[list[Text], Field(min_length=2)]] = Field(default_factory=list)
    include: list[Match] = Field(default_factory=list)
    exclude: list[Match] = Field(default_factory=list)


@dataclass(frozen=True)
class Point:
    """One combination: the position of each axis's value in its list."""

    number: int
    positions: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LoadedAxis:
    """An axis with its values, each knowing where it was written, and its column in tables."""

    name: str
    path: str
    values: tuple[Document, ...]
    kind: Kind | None

    @property
    def column(self) -> str:
        """The name, with the unit of a quantity, such as burst_bytes."""
        ending = f"_{self.kind.suffix}" if self.kind else ""
        return self.name if self.name.endswith(ending) else self.name + ending

    def cell(self, position: int) -> Any:
        value = self.values[position].data
        if self.kind is not None:
            return self.kind.in_column(value)
        return value if isinstance(value, (bool, int, float, str)) else _text(value)


@dataclass(frozen=True, eq=False)
class LoadedStudy:
    """A study whose axes, zips and filters are known to fit each other."""

    study: Study
    scenario: Document
    file: File | None
    fixed: Mapping[str, Document]
    axes: tuple[LoadedAxis, ...]
    _keeps: Callable[[tuple[int, ...]], bool] = field(repr=False)
    _groups: tuple[tuple[int, ...], ...] = field(repr=False)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the axes that move together; an axis on its own is a group of one."""
        return self._groups

    def points(self) -> Iterator[Point]:
        """All points that the filters leave, in order."""
        lengths = [range(len(self.axes[group[0]].values)) for group in self._groups]
        group_of = {axis: number for number, group in enumerate(self._groups) for axis in group}
        combinations = (
            tuple(chosen[group_of[axis]] for axis in range(len(self.axes))) for chosen in itertools.product(*lengths)
        )
        for number, positions in enumerate(filter(self._keeps, combinations)):
            yield Point(number, positions)

    def changes(self, point: Point) -> dict[str, Document]:
        """What a point replaces, by path."""
        taken = zip(self.axes, point.positions, strict=True)
        return {**self.fixed, **{axis.path: axis.values[position] for axis, position in taken}}

    def resolve(self, point: Point) -> Resolved:
        """The scenario of a point. Raises `InputError` if there is no such scenario."""
        return load_document(self.scenario, self.file, self.changes(point), "axes")

    def cells(self, point: Point) -> dict[str, Any]:
        """Column to value of each axis."""
        taken = zip(self.axes, point.positions, strict=True)
        return {axis.column: axis.cell(position) for axis, position in taken}


def load_study(study: str | FilePath | Mapping[str, Any]) -> LoadedStudy:
    """A study from the catalogue, a file or a mapping. Raises `InputError` naming file, line, field and value."""
    document, file = _read(study)
    checked = check(Study, document.data, document.place)
    axes = tuple(_axis(name, axis, document) for name, axis in checked.axes.items())
    _check_apart(axes, checked, document)
    groups = _groups(checked, axes, document)
    scenario, beside = _scenario(document, file)
    fixed = {path: document.part("overrides").part(path) for path in checked.overrides}
    loaded = LoadedStudy(checked, scenario, beside, fixed, axes, _filter(checked, axes, document), groups)
    _check_some_point(loaded, document)
    return loaded


def _read(study: str | FilePath | Mapping[str, Any]) -> tuple[Document, File | None]:
    if isinstance(study, Mapping):
        return Document({"name": "unnamed", **plain(study)}), None
    file = catalogue.find(study, "study")
    document = read(file)
    if not isinstance(document.data, dict):
        raise document.place(()).error("must be a mapping", (), allowed="the keys of a study")
    check_kind(document, "study")
    if "name" not in document.data:
        document = document.put(("name",), literal(FilePath(file.name).stem, document.place(())))
    return document, file


def _scenario(document: Document, file: File | None) -> tuple[Document, File | None]:
    """The scenario that the study varies, with its own places."""
    said = document.part("scenario")
    if isinstance(said.data, str):
        return written(said.data, document.place(("scenario",)), file)
    if "name" not in said.data:
        said = said.put(("name",), literal(document.data["name"], document.place(("scenario",))))
    return said, file


def _axis(name: str, axis: Axis, document: Document) -> LoadedAxis:
    path = axis.path or name
    first = path.split(".")[0]
    if first not in Scenario.model_fields:
        where, known = ("axes", name, *(("path",) if axis.path else ())), list(Scenario.model_fields)
        reason = f"is no path into a scenario{closest(first, known)}"
        raise document.place(where).error(reason, where, path, f"paths that begin with {', '.join(known)}")
    part = document.part("axes").part(name)
    if axis.range is not None:
        values = tuple(literal(value, part.place(("range",))) for value in axis.listed())
    else:
        listed = part if isinstance(part.data, list) else part.part("values")
        values = tuple(listed.part(position) for position in range(len(listed.data)))
    seen: set[Any] = set()
    for value in values:
        known_as = comparable(value.data)
        if known_as in seen:
            raise value.place(()).error("is given twice", ("axes", name), value.data)
        seen.add(known_as)
    return LoadedAxis(name, path, values, kind_of([value.data for value in values]))


def _check_apart(axes: tuple[LoadedAxis, ...], study: Study, document: Document) -> None:
    """Raises `InputError` if two axes, or an axis and an override, set the same key, or share a column."""
    paths: dict[str, str] = {path: f"overrides.{path}" for path in study.overrides}
    columns: set[str] = set()
    for axis in axes:
        where = ("axes", axis.name)
        if axis.path in paths:
            raise document.place(where).error(f"sets what {paths[axis.path]} sets too", where, axis.path)
        if axis.column in columns:
            raise document.place(where).error(f"has the same column as another axis: {axis.column}", where)
        paths[axis.path] = f"axes.{axis.name}"
        columns.add(axis.column)


def _groups(study: Study, axes: tuple[LoadedAxis, ...], document: Document) -> tuple[tuple[int, ...], ...]:
    """Axes (by number) that move together, in the order of their first."""
    number_of = {axis.name: number for number, axis in enumerate(axes)}
    zipped: dict[int, tuple[int, ...]] = {}
    for index, names in enumerate(study.zip):
        for position, name in enumerate(names):
            where = ("zip", index, position)
            if name not in number_of:
                raise document.place(where).error(f"is no axis{closest(name, number_of)}", where, name, number_of)
            if number_of[name] in zipped or name in names[:position]:
                raise document.place(where).error("is in a zip already", where, name)
            counts = len(axes[number_of[names[0]]].values), len(axes[number_of[name]].values)
            if counts[0] != counts[1]:
                reason = f"has {counts[1]} values, and {names[0]} has {counts[0]}"
                raise document.place(where).error(reason, where, name, "axes of equal length")
        group = tuple(sorted(number_of[name] for name in names))
        zipped |= dict.fromkeys(group, group)
    return tuple(
        zipped.get(number, (number,)) for number in range(len(axes)) if zipped.get(number, (number,))[0] == number
    )


def _filter(study: Study, axes: tuple[LoadedAxis, ...], document: Document) -> Callable[[tuple[int, ...]], bool]:
    """Whether the filters keep a combination. Each match is worked out once for each value of its axis."""
    kept = [_match(("include", index), match, axes, document) for index, match in enumerate(study.include)]
    dropped = [_match(("exclude", index), match, axes, document) for index, match in enumerate(study.exclude)]

    def matches(fits: list[tuple[int, frozenset[int]]], positions: tuple[int, ...]) -> bool:
        return all(positions[axis] in fitting for axis, fitting in fits)

    def keeps(positions: tuple[int, ...]) -> bool:
        wanted = not kept or any(matches(fits, positions) for fits in kept)
        return wanted and not any(matches(fits, positions) for fits in dropped)

    return keeps


def _match(
    where: tuple[str, int], match: Match, axes: tuple[LoadedAxis, ...], document: Document
) -> list[tuple[int, frozenset[int]]]:
    """Number of each axis named, and the positions of its values that fit."""
    number_of = {axis.name: number for number, axis in enumerate(axes)}
    fits = []
    for name, wanted in match.items():
        path = (*where, name)
        if name not in number_of:
            raise document.place(path).error(f"is no axis{closest(name, number_of)}", path, allowed=number_of)
        try:
            holds = condition(wanted)
        except InputError as error:
            raise document.place(path).error(error.reason, path, wanted, error.allowed) from None
        values = [value.data for value in axes[number_of[name]].values]
        fitting = frozenset(position for position, value in enumerate(values) if holds(value))
        if not fitting:
            raise document.place(path).error("matches no value of its axis", path, wanted, _shown(values))
        fits.append((number_of[name], fitting))
    if not fits:
        raise document.place(where).error("is empty", where, allowed="axis: value, or axis: [values]")
    return fits


def _check_some_point(loaded: LoadedStudy, document: Document) -> None:
    """Raises `InputError` if there is no point, or if not one of those tried, spread over the study, has a scenario."""
    count = sum(1 for _ in loaded.points())
    if count == 0:
        key = "include" if loaded.study.include else "exclude"
        raise document.place((key,)).error("leaves no point", (key,))
    errors = []
    for point in itertools.islice(loaded.points(), 0, None, max(1, count // MOST_TRIED)):
        try:
            loaded.resolve(point)
        except InputError as error:
            errors.append(error)
        else:
            return
    raise errors[0]


def _text(value: Any) -> str:
    """A mapping or list as a cell has it: {kind: zipf, exponent: 1} is 'kind=zipf exponent=1', one inside it in brackets, an
    empty one '{}'."""
    if isinstance(value, Mapping) and value:
        return " ".join(f"{key}={_inner(inner)}" for key, inner in value.items())
    return ",".join(map(_text, value)) if isinstance(value, list) and value else str(value)


def _inner(value: Any) -> str:
    return f"({_text(value)})" if isinstance(value, Mapping) and value else _text(value)


def _shown(values: list[Any]) -> str:
    return ", ".join(str(value) for value in values[:10]) + (", ..." if len(values) > 10 else "")
