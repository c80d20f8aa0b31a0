"""The command line that is running, so that its answer can say how to get it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_WORDS: ContextVar[tuple[str, ...] | None] = ContextVar("words", default=None)


@contextmanager
def invoked(words: Sequence[str]) -> Iterator[None]:
    """While the block runs, `command` is `xstage` with these words."""
    token = _WORDS.set(tuple(words))
    try:
        yield
    finally:
        _WORDS.reset(token)


def command() -> str | None:
    """The command line, quoted for a shell; None where functions were called from Python."""
    words = _WORDS.get()
    return None if words is None else shlex.join(("xstage", *words))
