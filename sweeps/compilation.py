"""The compiled engine: whether it is compiled already, and compiling it once, before processes would each do so."""

from __future__ import annotations

import sys
from pathlib import Path

CACHE_ADVICE = "name a folder for it in NUMBA_CACHE_DIR"


def compile_engine() -> None:
    """Compile here, once and saying so, rather than in every worker at the same time."""
    from .task import warm_up

    if not engine_is_compiled():
        announce_compilation()
        warm_up()


def engine_is_compiled() -> bool:
    """Whether an earlier run has left compiled code of this engine behind; False means that the next run compiles it."""
    from ..sim import engine_compiled

    source = Path(engine_compiled.__file__)
    changed = source.stat().st_mtime
    kept = (index for folder in cache_folders() for index in folder.glob(f"{source.stem}.*.nbi"))
    return any(index.stat().st_mtime >= changed for index in kept)


def announce_compilation() -> None:
    """Say on standard error that the next run compiles the engine first, if so."""
    if engine_is_compiled():
        return
    how_often = "once for this installation" if cache_folders() else f"as each process must ({CACHE_ADVICE})"
    print(f"Compiling the engine, {how_often}: 20 s to a minute", file=sys.stderr)


def cache_folders() -> list[Path]:
    """Where numba keeps the compiled engine."""
    from ..sim import engine_compiled

    folders = (f.stats.cache_path for f in vars(engine_compiled).values() if hasattr(f, "stats"))
    return sorted({Path(folder) for folder in folders if folder})
