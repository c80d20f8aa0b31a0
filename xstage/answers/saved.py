"""An answer that a command printed with --json, read from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..sim.errors import InputError


def read_answer(path: Path, allowed: str = "what a command prints with --json") -> dict[str, Any]:
    """The answer. Raises `InputError` for a file that cannot be read or holds something else, which is named if it is known;
    `allowed` is what is said to be acceptable.
    """
    file = str(path)
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=file) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"is not JSON: {error}", file=file, allowed=allowed) from None
    if isinstance(found, dict) and "schema_version" in found:
        return found
    if isinstance(found, dict) and "error" in found:
        raise InputError("is the answer of a command that failed", file=file, allowed="one that did not")
    if isinstance(found, dict) and "traceEvents" in found:
        raise InputError("is a Kineto trace", file=file, allowed="a trace as .parquet, which `xstage import` writes")
    raise InputError("is no answer of xstage", file=file, allowed=allowed)
