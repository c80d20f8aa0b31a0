"""How long something has taken, on standard error, while this process is busy in compiled code.

The compiled engine does not give up the interpreter before its run has ended, so no thread of this process could say
anything meanwhile. A second process keeps the clock; it ends with us, however we end.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 2.0
BETWEEN_S = {True: 1.0, False: 10.0}
"""Seconds between two lines, by whether they are for a terminal, where each replaces the one before."""

_WATCH = """
import select, sys, time
doing, expected, patience, between, terminal = sys.argv[1], *map(float, sys.argv[2:5]), sys.argv[5] == "True"
started, pause = time.monotonic(), patience
while not select.select([sys.stdin], [], [], pause)[0]:
    pause, took = between, time.monotonic() - started
    left = f", about {expected - took:.0f} s left" if expected > took else ", longer than expected" if expected else ""
    text = f"{doing}: {took:.0f} s{left}"
    sys.stderr.write(f"\\r\\033[K{text}" if terminal else f"{text}\\n")
    sys.stderr.flush()
else:
    if terminal:
        sys.stderr.write("\\r\\033[K")
"""


@contextmanager
def clock(doing: str, expected_s: float = 0.0) -> Iterator[None]:
    """Say what is being done and for how long, once it has taken over two seconds; with what is left if that is known."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    words = [doing, str(expected_s), str(PATIENCE_S), str(BETWEEN_S[terminal]), str(terminal)]
    watch = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for the run alone
    )
    try:
        yield
    finally:
        watch.communicate()
