"""Every error that xstage raises on purpose.

`XstageError` is the root. The command line turns `InputError` (and `ProgramError`) into exit code 2 and any other into 1.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 200
"""Characters of a value that a message repeats; `as_dict` has all of it."""


class XstageError(Exception):
    """Root of the hierarchy; `str(error)` is meant for a person, `as_dict()` for `--json`."""

    def as_dict(self) -> dict[str, object]:
        return {"type": type(self).__name__, "message": str(self)}


class InputError(XstageError):
    """A value that a person gave is not acceptable.

    The message says where (file, line, field), what was given, and what is allowed.
    """

    def __init__(
        self,
        reason: str,
        *,
        field: str | None = None,
        value: object = None,
        allowed: Iterable[object] | str | None = None,
        file: str | None = None,
        line: int | None = None,
    ):
        self.reason = reason
        self.field = field
        self.value = value
        self.allowed = allowed if isinstance(allowed, str) or allowed is None else ", ".join(str(a) for a in allowed)
        self.file = file
        self.line = line
        super().__init__(self._message())

    def _message(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        said = repr(self.value)
        said = said if len(said) <= LONGEST else f"{said[:LONGEST]}..."
        subject = f"{self.field} = {said}" if self.field and self.value is not None else self.field
        text = ": ".join(part for part in (where, subject, self.reason) if part)
        return f"{text} (allowed: {self.allowed})" if self.allowed else text

    def as_dict(self) -> dict[str, object]:
        details = {
            "reason": self.reason,
            "field": self.field,
            "value": None if self.value is None else str(self.value),
            "allowed": self.allowed,
            "file": self.file,
            "line": self.line,
        }
        return super().as_dict() | {key: value for key, value in details.items() if value is not None}


class ProgramError(XstageError):
    """A Program contradicts itself or the fabric it is to run on; nothing was run."""


class DeadlockError(XstageError):
    """A run reached a point from which it can never finish; the message names lanes, counters and missing counts."""


class LimitError(XstageError):
    """A run would leave the range of 64-bit picoseconds, or the memory it was given."""
