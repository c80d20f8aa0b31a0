"""What a Python caller passes, checked where it enters. Errors have the words of those about files (sim/checked.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from .errors import InputError


def names(given: object, field: str) -> list[str]:
    """The names in a list. One name alone stands for a list of it. Raises `InputError` for what is neither."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, (bytes, Mapping)):
        raise InputError("must be a name, or a list of names", field=field, value=given)
    found = list(given)
    for name in found:
        if not isinstance(name, str):
            raise InputError("must be text", field=field, value=name)
    return found


def check_whole(given: object, field: str, least: int = 1) -> None:
    """Raises `InputError` for what is no whole number, or below `least`. True and False are no numbers."""
    if not isinstance(given, Integral) or isinstance(given, bool):
        raise InputError("must be a whole number", field=field, value=given)
    if given < least:
        raise InputError(f"must be at least {least}", field=field, value=given)


def check_number(given: object, field: str) -> None:
    """Raises `InputError` for what is no number. True and False are none."""
    if not isinstance(given, Real) or isinstance(given, bool):
        raise InputError("must be a number", field=field, value=given)


def check_text(given: object, field: str) -> None:
    """Raises `InputError` for what is no text."""
    if not isinstance(given, str):
        raise InputError("must be text", field=field, value=given)


def check_flag(given: object, field: str) -> None:
    """Raises `InputError` for anything but True and False: 'no' would count as true."""
    if not isinstance(given, bool):
        raise InputError("must be true or false", field=field, value=given)


def check_path(given: object, field: str) -> None:
    """Raises `InputError` for what is no path, such as a number, which would be an open file."""
    if not isinstance(given, (str, Path)):
        raise InputError(f"is of type {type(given).__name__}", field=field, value=given, allowed="a path")


def paths_and_values(given: Any, field: str = "overrides") -> dict[str, Any]:
    """Overrides, or nothing for None. Raises `InputError` for what is no mapping of dotted paths."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(path, str) for path in given):
        raise InputError("must be a mapping", field=field, value=given, allowed="values by dotted path")
    return dict(given)
