"""Where the `xstage` command begins: before anything is imported that takes long, so that Ctrl-C always gets an answer."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return its exit code; 1, and one JSON object with --json, if it is interrupted on its way."""
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:
        if "--json" in sys.argv:
            sys.stdout.write('{"error": {"type": "Interrupted", "message": "interrupted"}}\n')
        else:
            print("xstage: interrupted", file=sys.stderr)
        return 1
