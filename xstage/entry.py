"""Where the `xstage` command begins: before anything is imported that takes long, so that Ctrl-C always gets an answer."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys

_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # what a shell says of a process so ended


class Terminated(BaseException):
    """SIGTERM, as batch systems and `timeout` send it: an end like that of Ctrl-C, which leaves no half-written file."""


def main() -> int:
    """Run the command line and return its exit code, 143 if SIGTERM ends it on its way. With --json that is told in one JSON
    object.

    Ctrl-C is told, too, and then ends the process by SIGINT, so that a loop of a shell ends with it: a shell goes on after a
    command that has only returned a code.
    """
    signal.signal(signal.SIGTERM, _terminate)
    _prepare_output()
    code = 0
    # Registered before anything else is, it is called last, when all that was opened or started has been closed and ended.
    atexit.register(lambda: _end_by_sigint() if code == _INTERRUPTED else None)
    try:
        from .cli import main as run

        code = run()
    except KeyboardInterrupt:
        code = _told("Interrupted", _INTERRUPTED)
    except Terminated:
        code = _told("Terminated", _TERMINATED)
    return code


def _end_by_sigint() -> None:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)


def _prepare_output() -> None:
    """Standard output that takes all that is written: to nowhere if it is closed, '?' for what its encoding lacks."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _terminate(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # `timeout` sends it twice: the second must not end what the first one began
    raise Terminated


def _told(kind: str, code: int) -> int:
    if "--json" in sys.argv:
        sys.stdout.write(f'{{"error": {{"type": "{kind}", "message": "{kind.lower()}"}}}}\n')
    else:
        print(f"xstage: {kind.lower()}", file=sys.stderr)
    return code
