"""What one run will take, before it runs: its schedule is built and counted, and the beginning of the run is timed.

Ops and granules are exact. Events follow from them (a granule passes the ports of its route, drains and arrives, and a lane
has a turn after whatever takes time), memory from the tables of the engine. Time is what the first seconds of the run itself
took, by the share of its tasks and granules that were done then: what an event takes depends on everything in the schedule
that fills the processor's caches, lanes above all, so that no other schedule tells it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..sim import program as p
from ..sim.granule_counts import op_granules, pieces_of_rows, total_granules
from ..sim.layout import Layout
from ..sim.outcome import GRANULE_RECORD, LANE_TOTAL, OP_RECORD, PORT_TOTAL, SPAN
from ..sim.program_index import op_gpus, op_repeats
from ..sim.run_options import check_options
from ..sim.units import format_size
from ..terminal.output import Printed, table
from ..terminal.progress import PATIENCE_S
from .api import resolved_scenario
from .built import Built

if TYPE_CHECKING:
    from ..sim.program import Program
    from ..sim.topology import Fabric
    from .reruns import Given

WATCHED_S = 3.0
"""How long a run is watched; in the first second of one with many GPUs little is under way yet."""
EVENTS_OF_SIGNAL = 3  # beside one a port: its granule drains and is seen, and the lane goes on
EVENTS_OF_LOAD = 3  # beside those of replies: the request leaves and arrives, and the load ends
EVENTS_OF_OWN_LOAD = 2
TABLES_OF_TRACE = 3  # records, the table that is made of them, and what is written


@dataclass(frozen=True)
class RunEstimate(Printed):
    """`ops` and `granules` are counted; the rest is about. `wall_s` is all of it, `build_s` was measured."""

    ops: int
    granules: int
    events: int
    build_s: float
    wall_s: float
    memory_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def printed(self) -> list[Any]:
        """An estimate for a person."""
        building = f"{self.build_s:.2g} s to build the schedule"
        rows = [
            ("ops", f"{self.ops}, and {self.granules} granules"),
            ("events", f"about {self.events:.3g}"),
            ("time", f"about {self.wall_s:.3g} s, of which {building}, once the engine is loaded"),
            ("memory", f"about {format_size(self.memory_bytes)}"),
        ]
        return [table("", ("", ""), rows)]


def estimate_run(
    scenario: Given | Built,
    engine: str | None = None,
    trace: str | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
) -> RunEstimate:
    """What a scenario will take in time and memory: a name of the catalogue, a file, a mapping, or a `Scenario`.

    `engine`, `trace` and `overrides` are those of `run`. Raises what building the schedule raises.
    """
    resolved = scenario if isinstance(scenario, Built) else resolved_scenario(scenario, overrides)
    check_options(engine or resolved.scenario.engine, trace or resolved.scenario.trace)
    built = resolved if isinstance(resolved, Built) else Built.of(resolved)
    program, fabric = built.program(), built.fabric()
    _load(engine or built.scenario.engine)
    held = _resident_bytes()  # the engine itself, but none of the tables that it makes while it is watched
    memory = held + _engine_bytes(program, fabric, Layout.of(program, fabric), trace or built.scenario.trace)
    return RunEstimate(
        ops=int(op_repeats(program).sum()),
        granules=total_granules(program, fabric),
        events=_events(program, fabric),
        build_s=built.build_s,
        wall_s=built.build_s + expected_s(built, engine),
        memory_bytes=memory,
    )


class _WatchedError(Exception):
    """Enough of a run was seen."""


def expected_s(built: Built, engine: str | None = None) -> float:
    """Seconds that the engine will take: those of a run that is over within `WATCHED_S`, else by what is done until then.

    That is counted in tasks and granules, see `simulate`; what comes before the first of them is taken once. What it takes
    to compile the engine, or to load it, is not in it. Raises what the run raises.
    """
    from ..sim.execute import simulate

    chosen = engine or built.scenario.engine
    _load(chosen)
    program, fabric = built.program(), built.fabric()
    seen: list[tuple[float, float]] = []
    started = time.perf_counter()

    def watch(share: float) -> None:
        seen.append((time.perf_counter() - started, share))
        (first_s, first), (now_s, now) = seen[0], seen[-1]
        if now_s - first_s >= WATCHED_S and now > first:
            raise _WatchedError

    try:
        simulate(program, fabric, chosen, "off", watch)  # type: ignore[arg-type]
    except _WatchedError:
        (first_s, first), (now_s, now) = seen[0], seen[-1]
        return now_s + (1 - now) * (now_s - first_s) / (now - first)
    return time.perf_counter() - started


def peak_memory() -> dict[str, float]:
    """The most memory that this process has held, as a field of `timing`: it differs from run to run, as times do."""
    return {"peak_memory_bytes": _resident_bytes()}


def cost_parts(timing: dict[str, float]) -> list[Any]:
    """What a run that took its time has cost, for a person."""
    if timing["wall_s"] < PATIENCE_S:
        return []
    memory = format_size(int(timing["peak_memory_bytes"]))
    return ["", f"took {timing['wall_s']:.1f} s, {timing['build_s']:.1f} s of it to build the schedule, and {memory}"]


def _load(engine: str) -> None:
    from ..sim.compilation import warm_up

    if engine == "compiled":
        warm_up()


def _mean_granule_bytes(program: Program, fabric: Fabric) -> int:
    """Bytes of a granule in the mean: shares of a scatter are often smaller than a whole one."""
    granules = total_granules(program, fabric)
    moves = np.isin(program.ops["kind"], (p.STORE, p.LOAD))
    moved = int((program.ops["bytes"] * op_repeats(program))[moves].sum())
    return int(np.clip(moved // max(1, granules), 1, fabric.granule_bytes))


def _in_flight(program: Program, fabric: Fabric) -> int:
    """Granules at a time: full stages, and a load for each lane."""
    room = int(fabric.capacity_gpu[np.unique(fabric.stages[: program.n_gpus])].sum())
    most = room // _mean_granule_bytes(program, fabric) + len(program.lanes)
    return min(most, total_granules(program, fabric))


def _events(program: Program, fabric: Fabric) -> int:
    """What granules meet on their way, on a route of the mean length, and the turns of lanes.

    Of a store each granule passes ports and drains, its lane goes on after each piece, and the last of a share is seen.
    A lane is taken to wait at each WAIT and ACQUIRE, which it need not, and never for a task, a window or an issue port.
    """
    ops, kind, gpu = program.ops, program.ops["kind"], op_gpus(program)
    granules = op_granules(program, fabric, gpu)
    lengths = np.diff(fabric.route_first)
    ports = float(lengths[lengths > 0].mean()) if lengths.any() else 0.0
    own_load, sent = (kind == p.LOAD) & (ops["target"] == gpu), granules > 0
    row = np.where(kind == p.STORE, ops["target"], 0)
    issued = np.append(pieces_of_rows(program, fabric), 0)[row]
    shares = np.append(program.destinations["n_shares"], 0)  # where nothing is stored there is no row
    seen = np.where(sent & (ops["counter"] != p.NO_COUNTER), shares[row], 0)
    events = np.select(
        [own_load, kind == p.LOAD, kind == p.STORE, (kind == p.SIGNAL) & sent, np.isin(kind, (p.WAIT, p.ACQUIRE))],
        [EVENTS_OF_OWN_LOAD, (granules - 1) * ports + EVENTS_OF_LOAD, granules * (ports + 1) + issued + seen,
         ports + EVENTS_OF_SIGNAL, 1],
        ops["duration_ps"] > 0,
    )  # fmt: skip
    return round(float((events * op_repeats(program)).sum()))


def _engine_bytes(program: Program, fabric: Fabric, layout: Layout, trace: str) -> int:
    """What the compiled engine holds beside the schedule, and a full trace beside that."""
    from ..sim import engine_compiled as engine

    lanes, groups, sms = len(program.lanes), len(program.groups), len(layout.sm_gpu)
    pool = engine.FIRST_POOL
    while pool < _in_flight(program, fabric):
        pool *= 2  # as the engine does
    sizes = (
        (lanes, engine.LANE_STATE), (lanes, LANE_TOTAL), (groups, engine.GROUP_STATE), (sms, engine.SM_STATE),
        (fabric.n_ports, engine.PORT_STATE), (fabric.n_ports, PORT_TOTAL), (len(program.counters), engine.COUNTER_STATE),
        (len(program.slots), engine.SLOT_STATE), (lanes + 4 * groups, engine.WATCHER), (layout.n_spans, SPAN),
        (pool + pool // 2, engine.GRANULE), (pool + lanes, engine.HEAP),
        (pool + lanes + fabric.n_ports, engine.PLACE),
    )  # fmt: skip
    records = layout.max_op_records * OP_RECORD.itemsize + layout.max_granules * GRANULE_RECORD.itemsize
    kept = TABLES_OF_TRACE * records if trace == "full" else 0
    return sum(count * dtype.itemsize for count, dtype in sizes) + kept


def _resident_bytes() -> int:
    """The most memory that this process has held so far, which includes the schedule."""
    from ..sweeps.task import peak_bytes

    return peak_bytes()
