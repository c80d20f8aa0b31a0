"""An answer that a command printed with --json, read from a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..sim.errors import InputError

KINDS = {"command": str, "timing": dict}
"""What is expected of fields that all answers share."""


def read_answer(path: Path, allowed: str = "what a command prints with --json") -> dict[str, Any]:
    """The answer. Raises `InputError` for a file that cannot be read or holds something else, which is named if it is known;
    `allowed` is what is said to be acceptable.

    Numbers are finite and of 64 bits, and text can be written as UTF-8: a file in which they are not was altered.
    """
    file = str(path)
    check_regular(path)
    try:
        found = json.loads(path.read_bytes(), parse_constant=_float, parse_float=_float, parse_int=_int)
        json.dumps(found, ensure_ascii=False).encode()  # no half of a surrogate pair
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=file) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"is not JSON: {error}", file=file, allowed=allowed) from None
    if isinstance(found, dict) and "schema_version" in found:
        for name, kind in KINDS.items():
            if not isinstance(found.get(name, kind()), kind):
                raise InputError(f"is no answer of xstage: its {name} is none", file=file, allowed=allowed)
        return found
    if isinstance(found, dict) and "error" in found:
        raise InputError("is the answer of a command that failed", file=file, allowed="one that did not")
    if isinstance(found, dict) and "traceEvents" in found:
        raise InputError("is a Kineto trace", file=file, allowed="a trace as .parquet, which `xstage import` writes")
    raise InputError("is no answer of xstage", file=file, allowed=allowed)


def check_regular(path: Path) -> None:
    """Raises `InputError` for a pipe or a device, which can be read only once."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError("is a pipe or a device", file=str(path), allowed="the name of a file")


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no finite number")
    return number


def _int(text: str) -> int:
    if not -(2**63) <= (number := int(text)) < 2**64:
        raise ValueError(f"a number of {len(text)} digits is beyond 64 bits")
    return number
