"""Run a Program on a Fabric: check it, choose an engine, and turn its outcome into a `Trace`.

>>> from xstage.sim.program_builder import ProgramBuilder
>>> from xstage.sim.topology import StageParameters, switch
>>> empty = ProgramBuilder(n_gpus=1).build()
>>> simulate(empty, switch(1, 717_000_000, StageParameters(1024, 30 << 10, 4 << 20))).makespan_ps
0
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from . import program as p
from .deadlock import describe
from .errors import DeadlockError, LimitError, ProgramError
from .granule_counts import total_granules
from .layout import Layout
from .memory import most_bytes
from .outcome import GRANULE_RECORD, OP_RECORD, Outcome
from .program_index import op_repeats
from .run_options import check_options
from .trace import Trace
from .units import format_size

if TYPE_CHECKING:
    from .program import Program
    from .run_options import EngineName, TraceLevel
    from .topology import Fabric

LATEST_PS = 2**62


def simulate(
    program: Program,
    fabric: Fabric,
    engine: EngineName = "compiled",
    trace: TraceLevel = "summary",
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """Run `program` to its end.

    `trace` is how much is kept: totals by lane, port and stage ("off"), with a span for each task and lane ("summary"),
    or with every op and granule ("full"). Both engines give the same integers. `progress` is told now and then what share
    of the run is done, by tasks and granules; it may raise, as Ctrl-C does, to end the run.

    Raises `InputError` for an unknown engine or level, `ProgramError` if the program does not fit the fabric,
    `LimitError` if it could run beyond 2^62 ps, `DeadlockError` if it can never finish.
    """
    check_options(engine, trace)
    _check_fit(program, fabric)
    layout = Layout.of(program, fabric)
    _check_memory(layout, trace)
    started = perf_counter()
    told = None if progress is None else _counted(progress, program, fabric, layout)
    if engine == "compiled":
        from . import engine_compiled

        outcome, stuck = engine_compiled.run(program, fabric, layout, trace == "full", told)
    else:
        from . import engine_simpy

        outcome, stuck = engine_simpy.run(program, fabric, layout, trace == "full", told)
    wall_s = perf_counter() - started
    if stuck:
        raise DeadlockError(describe(program, outcome, stuck))
    _refuse_leftovers(program, layout, outcome)
    return Trace(program, fabric, layout, outcome, engine, trace, wall_s)


def _check_fit(program: Program, fabric: Fabric) -> None:
    if program.n_gpus > fabric.n_gpus:
        raise ProgramError(f"the program uses {program.n_gpus} GPUs, the fabric has {fabric.n_gpus}")
    _check_routes(program, fabric)
    latest = worst_case_finish_ps(program, fabric)
    if latest > LATEST_PS:
        raise LimitError(
            f"the run could last {latest / 1e12:.3g} s; times are whole picoseconds below 2^62 ({LATEST_PS / 1e12:.3g} s)"
        )


def _counted(
    progress: Callable[[float], None], program: Program, fabric: Fabric, layout: Layout
) -> Callable[[int, int], None]:
    """What an engine tells, tasks finished and granules sent, as the share of all of them."""
    whole = max(1, layout.n_spans + total_granules(program, fabric))
    return lambda finished, sent: progress(min(1.0, (finished + sent) / whole))


def _check_memory(layout: Layout, trace: TraceLevel) -> None:
    if trace != "full":
        return
    records = layout.max_op_records * OP_RECORD.itemsize + layout.max_granules * GRANULE_RECORD.itemsize
    most = most_bytes()
    if records > most:
        raise LimitError(
            f"a full trace of {layout.max_op_records:,} ops and {layout.max_granules:,} granules needs "
            f"{format_size(records)}, and this machine has room for {format_size(most)}: "
            "take a summary trace, or a larger granule"
        )


def _check_routes(program: Program, fabric: Fabric) -> None:
    lengths = np.diff(fabric.route_first).reshape(fabric.n_gpus, fabric.n_gpus)[: program.n_gpus, : program.n_gpus]
    missing = (lengths == 0) & ~np.eye(program.n_gpus, dtype=bool)
    if missing.any():
        source, destination = np.argwhere(missing)[0]
        raise ProgramError(f"GPU {destination} cannot be reached from GPU {source} on this topology")


def worst_case_finish_ps(program: Program, fabric: Fabric) -> float:
    """An upper bound of the run time in ps: everything one after the other, over the slowest port of the longest route."""
    ops, repeats = program.ops, op_repeats(program).astype(float)
    copies = np.ones(len(ops))
    store = ops["kind"] == p.STORE
    copies[store] = np.maximum(1, program.destinations["n_shares"][ops["target"][store]])
    moves = np.isin(ops["kind"], (p.STORE, p.LOAD, p.SIGNAL))
    hops = float(max(np.diff(first).max(initial=0) for first in (fabric.route_first, fabric.reply_routes[0]))) + 1
    moved = (
        np.where(ops["kind"] == p.SIGNAL, fabric.signal_bytes, ops["bytes"])
        * copies
        * (1 + fabric.request_permille / 1000)
    )
    pieces = moved / fabric.granule_bytes + copies + 1
    slowest = float(fabric.rates_kbs.min(initial=2**62))
    transfer = np.where(moves, hops * (moved * 1e9 / slowest + pieces) + 2 * float(fabric.latency_ps.max(initial=0)), 0)
    start = float(program.lanes["start_ps"].max(initial=0))
    return start + float(((ops["duration_ps"] + transfer) * repeats).sum())


def _refuse_leftovers(program: Program, layout: Layout, outcome: Outcome) -> None:
    listed = np.zeros(len(program.tasks), dtype=bool)
    listed[program.queue_tasks] = True
    has_runs = program.tasks["n_runs"] > 0
    never = listed & has_runs
    never[never] = outcome.spans["group"][layout.span_first[never]] < 0
    if never.any():
        raise ProgramError(
            f"{int(never.sum())} tasks were never taken, the first is tasks[{int(np.argmax(never))}]: "
            "every plan that visits their queue ended before it was empty"
        )
