"""Models of what a person configures, and errors that name the field.

`Checked` is the base of every machine and scenario model (frozen; an unknown key is an error). `check` is the one way from
plain data to such a model: it raises `InputError`, with file and line if `where` knows them. Field types with units are in
sim/quantities.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from .errors import InputError

Path = tuple[str | int, ...]
"""Keys and list positions from the top of the data to a value."""


@dataclass(frozen=True)
class Place:
    """Where a person wrote a value: a line of a file, or an option that replaces what the file says."""

    file: str | None = None
    line: int | None = None
    option: str | None = None

    def error(
        self, reason: str, path: Path, value: object = None, allowed: Iterable[object] | str | None = None
    ) -> InputError:
        """The `InputError` for a value that stands here."""
        field = ".".join(str(part) for part in path)
        if self.option:
            named = self.option.split()[-1].endswith(field.removesuffix(".value"))
            field = self.option if named else f"{self.option}, {field}"
        shown = value if isinstance(value, (str, int, float)) else None
        return InputError(reason, field=field or None, value=shown, allowed=allowed, file=self.file, line=self.line)


Where = Callable[[Path], Place]


def nowhere(path: Path) -> Place:
    """The place of data that was never written in a file."""
    return Place()


def refusal(reason: str, *, key: Path = (), allowed: str | None = None) -> PydanticCustomError:
    """What a validator raises for a value, or for the value under `key` in it; `check` makes an `InputError` of it."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason, "key": key, "allowed": allowed})


SYMBOLS = {"Q": ("capacity_sm", "capacity_gpu"), "R": ("drain_rate",), "T_iss0": ("t0", "issue_rate")}
"""The numbers of the X-Stage by the keys that set them."""
UNIT = r"(?:ps|ns|us|ms|s|bytes|b|[kmg]i?b|[kmgt]bs?|pct|per_\w+)"
"""What stands behind a name as its unit: `gap_us`, `burst_bytes`, `drain_rate_gbs`, `tokens_per_rank`."""


def closest(name: object, known: Iterable[str]) -> str:
    """'; did you mean X?' for the known name that `name` was meant to be, or that is most like it, or nothing."""
    names = list(known)
    found = meant(str(name), names) or difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def meant(name: str, known: Sequence[str]) -> list[str]:
    """The known names, or dotted paths, that `name` surely is another word for; none where one would have to guess.

    That is the last part of a path ('sms' for 'compute.sms'), that with a unit behind it ('gap_us' for 'gap'), or a
    symbol of `SYMBOLS`.
    """
    last, ends = name.rpartition(".")[2], {path: path.rpartition(".")[2] for path in known}
    if same := [path for path, end in ends.items() if end == last]:
        return [max(same, key=lambda path: difflib.SequenceMatcher(None, name, path).ratio())]
    if begun := [path for path, end in ends.items() if re.fullmatch(rf"{re.escape(end)}_{UNIT}", last, re.I)]:
        return [max(begun, key=lambda path: len(ends[path]))]
    return [path for path, end in ends.items() if end in SYMBOLS.get(last, ())]


class Checked(BaseModel):
    """A frozen model that refuses keys it does not know, and suggests the one that was meant."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __dir__(self) -> list[str]:
        """Without the names that pydantic gives every model, which would hide the few of its own."""
        return [name for name in super().__dir__() if name.startswith("__") or not hasattr(BaseModel, name)]

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in data:
                if key not in cls.model_fields:
                    reason = f"is not a known key{closest(key, cls.model_fields)}"
                    raise refusal(reason, key=(key,), allowed=", ".join(cls.model_fields))
        elif not isinstance(data, cls):
            raise refusal("must be a mapping", allowed=f"the keys {', '.join(cls.model_fields)}")
        return data


M = TypeVar("M", bound=BaseModel)


def check(model: type[M], data: object, where: Where = nowhere) -> M:
    """`data` as a `model`. Raises `InputError` for the first value that is not acceptable."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _input_error(error.errors()[0], data, where) from None


def _input_error(found: ErrorDetails, data: object, where: Where) -> InputError:
    details = found.get("ctx", {})
    path, value = _path_in(data, found["loc"], is_missing=found["type"] == "missing"), found["input"]
    template = _REASONS.get(found["type"])
    reason = template.format(**details) if template else found["msg"].removeprefix("Input ")
    allowed = None
    match found["type"]:
        case "refused":
            reason, allowed = details["reason"], details["allowed"]
            if key := tuple(details["key"]):
                value, path = _value_at(value, key), path + key
        case "missing":
            reason, value = "is missing", None
        case "union_tag_not_found":
            reason, value, path = "is missing", None, (*path, details["discriminator"].strip("'"))
        case "union_tag_invalid":
            path, value, allowed = (
                (*path, details["discriminator"].strip("'")),
                details["tag"],
                details["expected_tags"],
            )
            reason = f"is not known{closest(value, _names(allowed))}"
        case "literal_error":
            reason, allowed = f"is not known{closest(value, _names(details['expected']))}", details["expected"]
    return where(path).error(reason, path, value, allowed)


_REASONS = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "less_than": "must be below {lt:g}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "too_short": "must have {min_length} or more",
    "too_long": "must have {max_length} or less",
}
"""Reasons in the words of this project, by pydantic's type of error."""


def _path_in(data: object, location: Sequence[str | int], is_missing: bool) -> Path:
    """A pydantic location without the tags of unions, which are no keys of the data; the last key may be missing there."""
    path: Path = ()
    for position, part in enumerate(location):
        inside = _value_at(data, path)
        is_key = part in inside if isinstance(inside, Mapping) else isinstance(part, int)
        if is_key or (is_missing and position == len(location) - 1):
            path = (*path, part)
    return path


def _value_at(data: object, path: Path) -> object:
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, Sequence) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _names(quoted: str) -> list[str]:
    """Names in pydantic's own list of choices: \"'a', 'b' or 'c'\"."""
    return [name.strip().strip("'") for part in quoted.split(",") for name in part.split(" or ")]
