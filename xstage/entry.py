"""Where the `xstage` command begins: before anything is imported that takes long, so that Ctrl-C always gets an answer."""

from __future__ import annotations

import io
import os
import signal
import sys

_TERMINATED = 128 + signal.SIGTERM  # what a shell says of a process that SIGTERM ended


class Terminated(BaseException):
    """SIGTERM, as batch systems and `timeout` send it: an end like that of Ctrl-C, which leaves no half-written file."""


def main() -> int:
    """Run the command line and return its exit code; 1 if Ctrl-C ends it on its way, 143 if SIGTERM does.

    With --json that is told in one JSON object.
    """
    signal.signal(signal.SIGTERM, _terminate)
    _prepare_output()
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:
        return _told("Interrupted", 1)
    except Terminated:
        return _told("Terminated", _TERMINATED)


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
