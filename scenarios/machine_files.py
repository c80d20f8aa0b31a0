"""Machine files: a description of one's own, or a base machine with changes.

    base: hgx-b200                 # a name of the catalogue, or a file beside this one
    compute: hgx-h100              # a part as text: taken from that machine
    interconnect:
      drain_rate: {value: 358 GB/s, assumed: true, source: half as many links}
      fan_out_efficiency: null     # takes a number away

A part that is a mapping replaces single numbers of the base, value and source together. Overrides (of a scenario, of
`--set`, of a Python call) do the same by dotted path, and may be bare values: these are marked as assumed.

No rate is computed from the clock of a machine, so that a changed clock with the rates of the base is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path as FilePath
from typing import Any, TypeVar

from ..sim.arguments import paths_and_values
from ..sim.checked import Place, closest
from ..sim.errors import InputError
from ..sim.interconnect import A_LINK
from ..sim.machine import PARTS, Machine
from . import catalogue
from .any_file import check_kind
from .document import Document, literal, read, split_path

File = FilePath | Traversable
Changed = TypeVar("Changed")

IN_SCENARIO = "machine."
"""What stands before the path of a machine's number in a scenario."""
RATES_BY_CLOCK = ("bf16_tflops", "fp8_tflops", "fp4_tflops")


def load_machine(
    name: str | FilePath | Machine, overrides: Mapping[str, Any] | None = None, prefix: str = "override "
) -> Machine:
    """A machine of the catalogue or of a file, or another `Machine` with changes.

    `overrides` replaces numbers by dotted path, such as {'interconnect.drain_rate': '358 GB/s'}, which may begin with
    'machine.' as in a scenario; errors name them by `prefix` and path. Raises `InputError` for what is not acceptable.
    """
    given = of_machine(paths_and_values(overrides), prefix)
    changes = {path: literal(value, Place(option=f"{prefix}{path}")) for path, value in given.items()}
    return machine_from(name, changes)


def of_machine(overrides: Mapping[str, Any], prefix: str = "override ") -> dict[str, Any]:
    """Overrides of a machine, whose paths may be those of a scenario, without their 'machine.'. Raises `InputError` for a
    number that is given both ways.
    """
    found = {path.removeprefix(IN_SCENARIO): value for path, value in overrides.items()}
    for path in found:
        if path in overrides and IN_SCENARIO + path in overrides:
            raise InputError("is given twice", field=f"{prefix}{path}")
    return found


def machine_from(
    name: str | FilePath | Machine,
    changes: Mapping[str, Document],
    place: Place | None = None,
    beside: File | None = None,
) -> Machine:
    """As `load_machine`, for changes that know their place, and a name that stands at `place` in the file `beside`."""
    if isinstance(name, Machine):
        document = Document(name.model_dump(mode="json", exclude_none=True))
    else:
        document = _document(catalogue.find(name, "machine", place, beside), ())
    if changes:
        changes = shorter_first(changes)
        layers = [_change(path, change) for path, change in changes.items()]
        _check_clock(document, layers)
        for layer in layers:
            document = _layered(document, layer, beside, ())
        said = ", ".join(f"{path} = {_shown(change.data)}" for path, change in changes.items())
        document = document.put(("name",), literal(f"{document.data['name']} with {said}", Place()))
    return Machine.parse(document.data, document.place)


def shorter_first(changes: Mapping[str, Changed]) -> dict[str, Changed]:
    """`changes` by dotted path, in an order in which none replaces what another has put inside it."""
    return dict(sorted(changes.items(), key=lambda change: change[0].count(".")))


def _document(file: File, above: tuple[str, ...]) -> Document:
    """A machine file with its bases filled in; `above` are the files that led here."""
    document = read(file)
    if not isinstance(document.data, dict):
        raise document.place(()).error("must be a mapping", (), allowed="the keys of a machine")
    check_kind(document, "machine")
    if "name" not in document.data:
        document = document.put(("name",), literal(FilePath(file.name).stem, document.place(())))
    above = (*above, str(file))
    if "base" not in document.data:
        return _layered(Document({}), document, file, above)
    base = _other(document.data["base"], "base", document.place(("base",)), file, above)
    _check_clock(base, [document])
    return _layered(base.without("name").without("description"), document.without("base"), file, above)


def _other(name: Any, key: str, place: Place, beside: File | None, above: tuple[str, ...]) -> Document:
    """The machine that another one refers to under `key`."""
    if not isinstance(name, str):
        raise place.error("must be the name or file of a machine", (key,), name)
    file = catalogue.find(name, "machine", place, beside, key)
    if str(file) in above:
        raise place.error("leads back to this machine", (key,), name)
    return _document(file, above)


def _layered(base: Document, top: Document, beside: File | None, above: tuple[str, ...]) -> Document:
    """`base` with what `top` says: whole parts from other machines, single numbers, or the end of a number."""
    result = base
    for key, value in top.data.items():
        if key in PARTS and isinstance(value, str):
            other = _other(value, key, top.place((key,)), beside, above)
            if key not in other.data:
                raise top.place((key,)).error(f"is a machine without {key}", (key,), value)
            result = result.put((key,), other.part(key))
        elif key in PARTS and isinstance(value, dict) and isinstance(base.data.get(key), dict):
            for name, number in value.items():
                if number is not None:
                    result = result.put((key, name), top.part(key).part(name))
                elif name in base.data[key]:
                    result = result.put((key,), result.part(key).without(name))
                else:
                    raise top.place((key, name)).error("is null, but there is nothing to take away", (key, name))
        else:
            result = result.put((key,), top.part(key))
    return result


def _check_clock(base: Document, layers: Iterable[Document]) -> None:
    """Raises `InputError` for layers that change the clock and leave the rates of `base` as they are."""
    known = base.data.get("compute")
    if not isinstance(known, dict) or "clock_mhz" not in known:
        return
    changed: dict[str, Document] = {}
    for layer in layers:
        if isinstance(compute := layer.data.get("compute"), dict):
            changed |= {name: layer.part("compute").part(name) for name in compute}
    rates, clock = [name for name in RATES_BY_CLOCK if name in known], changed.get("clock_mhz")
    if rates and clock is not None and clock.data is not None and not changed.keys() & set(rates):
        path, reason = ("compute", "clock_mhz"), "changes nothing alone, as no rate is computed from it"
        allowed = f"with {' and '.join(rates)}, in proportion to {_shown(known['clock_mhz'])} MHz"
        value = clock.data.get("value") if isinstance(clock.data, dict) else clock.data
        raise clock.place(()).error(reason, path, value, allowed)


def _change(path: str, change: Document) -> Document:
    """The top layer that one override makes."""
    place = change.place(())
    keys = split_path(path, place.option or "overrides")
    if keys[:2] == ("interconnect", "links") and len(keys) > 2:
        raise place.error(
            "is one link of a list, which changes as a whole", keys, allowed=f"interconnect.links, {A_LINK}"
        )
    if keys[0] not in PARTS or len(keys) > 2:
        prefix = IN_SCENARIO if f" {IN_SCENARIO}" in (place.option or "") else ""
        raise place.error(
            f"is no number of a machine{closest(path, [f'{prefix}{name}' for name in number_names()])}",
            keys,
            allowed=f"{', '.join(PARTS)}, or one of their numbers",
        )
    if len(keys) == 1:
        if isinstance(change.data, dict):
            marked = {name: _marked(change.part(name)) for name in change.data}
            return Document({keys[0]: {name: number.data for name, number in marked.items()}}, {(keys[0],): place})
        return Document({keys[0]: change.data}, {(keys[0],): place})
    return Document({keys[0]: {keys[1]: _marked(change).data}}, {keys: place})


def _marked(number: Document) -> Document:
    """A bare value as an assumed number whose source is the place that sets it."""
    if number.data is None or isinstance(number.data, dict):
        return number
    place = number.place(())
    by = place.option or ":".join(str(part) for part in (place.file, place.line) if part is not None) or "an override"
    return Document({"value": number.data, "assumed": True, "source": f"set by {by}"}, number.places)


def _shown(value: Any) -> str:
    return str(value["value"]) if isinstance(value, dict) and "value" in value else str(value)


def number_names() -> list[str]:
    """Every number of a machine by its dotted name, such as 'compute.sms'."""
    models = {part: Machine.model_fields[part].annotation for part in PARTS}
    return [f"{part}.{name}" for part, model in models.items() for name in getattr(model, "model_fields", ())]
