"""The compiled engine: whether it is compiled already, and compiling it once, before processes would each do so."""

from __future__ import annotations

import sys
from pathlib import Path

CACHE_ADVICE = "name a folder for it in NUMBA_CACHE_DIR"


def compile_engine() -> None:
    """Compile here, once and saying so, rather than in every worker at the same time."""
    if not engine_is_compiled():
        _announce()
        warm_up()


def warm_up() -> None:
    """Load the compiled engine, or compile it if that was never done here: a run without an event would do neither."""
    from .execute import simulate
    from .program import COMPUTE
    from .program_builder import ProgramBuilder, Seat
    from .topology import StageParameters, switch

    builder = ProgramBuilder(n_gpus=1)
    task = builder.tasks(first_run=builder.op_list([{"kind": COMPUTE, "duration_ps": 1}]), n_runs=1)
    builder.groups(gpu=0, plan=builder.plan(repeat=[builder.queue([task])]), seats=[Seat("any")])
    simulate(builder.build(), switch(1, 1_000_000, StageParameters(1024, 1024, 1024)))


def engine_is_compiled() -> bool:
    """Whether an earlier run has left compiled code of this engine behind; False means that the next run compiles it."""
    from . import engine_compiled

    source = Path(engine_compiled.__file__)
    changed = source.stat().st_mtime
    kept = (index for folder in cache_folders() for index in folder.glob(f"{source.stem}.*.nbi"))
    return any(index.stat().st_mtime >= changed for index in kept)


def cache_folders() -> list[Path]:
    """Where numba keeps the compiled engine."""
    from . import engine_compiled

    folders = (f.stats.cache_path for f in vars(engine_compiled).values() if hasattr(f, "stats"))
    return sorted({Path(folder) for folder in folders if folder})


def _announce() -> None:
    how_often = "once for this installation" if cache_folders() else f"as each process must ({CACHE_ADVICE})"
    print(f"Compiling the engine, {how_often}: 20 s to a minute", file=sys.stderr)
