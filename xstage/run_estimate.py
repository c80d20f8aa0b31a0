"""What one run will take, before it runs: its schedule is built and counted, and a short run of the engine is timed.

Ops and granules are exact. Events follow from them (a granule passes the ports of its route, drains and arrives, and a lane
has a turn after whatever takes time), time from events and what an event takes on this computer and this many GPUs, memory
from the tables of the engine.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .clock import PATIENCE_S
from .output import parts_html, table
from .scenarios.loader import Resolved
from .sim import program as p
from .sim.errors import InputError
from .sim.granule_counts import op_gpus, op_granules, total_granules
from .sim.outcome import GRANULE_RECORD, LANE_TOTAL, OP_RECORD, PORT_TOTAL, SPAN, Layout
from .sim.program_view import op_repeats
from .sim.units import format_size

if TYPE_CHECKING:
    from .sim.program import Program
    from .sim.topology import Fabric

REFERENCE_EVENTS = {"compiled": 300_000, "simpy": 10_000}
"""About how many events the timed run has."""
REFERENCE_S = 0.1  # it is repeated if it is shorter
EVENTS_OF_STORE = 2  # of each granule, beside one a port: it drains, and its lane goes on
EVENTS_OF_SIGNAL = 3  # and it is seen
EVENTS_OF_LOAD = 3  # beside those of replies: the request leaves and arrives, and the load ends
EVENTS_OF_OWN_LOAD = 2
MOST_IN_FLIGHT = {"compiled": 2_000_000, "simpy": 0}  # granules of the timed run, beyond those of its events
TABLES_OF_TRACE = 3  # records, the table that is made of them, and what is written


@dataclass(frozen=True)
class RunEstimate:
    """`ops` and `granules` are counted; the rest is about. `wall_s` is all of it, `build_s` was measured."""

    ops: int
    granules: int
    events: int
    build_s: float
    wall_s: float
    memory_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        return parts_html(estimate_parts(self))


@dataclass(frozen=True)
class Built(Resolved):
    """A scenario whose schedule and fabric are made once, and what that took."""

    built: tuple[Program, Fabric] = field(repr=False)
    build_s: float = 0.0

    @classmethod
    def of(cls, resolved: Resolved) -> Built:
        started = time.perf_counter()
        made = resolved.program(), resolved.fabric()
        took = time.perf_counter() - started
        return cls(resolved.scenario, resolved.machine, made, took, places=resolved.places)

    def program(self) -> Program:
        return self.built[0]

    def fabric(self) -> Fabric:
        return self.built[1]

    @cached_property
    def events(self) -> int:
        """About how many model events the run has."""
        return _events(*self.built)


def estimate_run(resolved: Resolved, engine: str | None = None, trace: str | None = None) -> RunEstimate:
    """What `resolved` will take in time and memory. Raises what building its schedule raises."""
    built = resolved if isinstance(resolved, Built) else Built.of(resolved)
    program, fabric = built.built
    layout = Layout.of(program, fabric)
    simulate_s = expected_s(built, engine)
    memory = _resident_bytes() + _engine_bytes(program, fabric, layout, trace or resolved.scenario.trace)
    return RunEstimate(
        ops=int(op_repeats(program).sum()),
        granules=total_granules(program, fabric),
        events=built.events,
        build_s=built.build_s,
        wall_s=built.build_s + simulate_s,
        memory_bytes=memory,
    )


def expected_s(built: Built, engine: str | None = None) -> float:
    """Seconds that the engine will take for a schedule, by timing it on a short one on the same fabric.

    What it takes to compile the engine, or to load it, is not in it.
    """
    from .sim.execute import simulate
    from .sweeps.task import warm_up

    chosen = engine or built.scenario.engine
    if chosen not in REFERENCE_EVENTS:
        raise InputError("is not known", field="engine", value=chosen, allowed=REFERENCE_EVENTS)
    program, fabric = _reference(built, REFERENCE_EVENTS[chosen], MOST_IN_FLIGHT[chosen])
    if chosen == "compiled":
        warm_up()
    events, took, started = 0, 0.0, time.perf_counter()
    while took < REFERENCE_S:
        events += max(1, simulate(program, fabric, chosen, "off").outcome.events)  # type: ignore[arg-type]
        took = time.perf_counter() - started
    return built.events * took / events


def estimate_parts(found: RunEstimate) -> list[Any]:
    """An estimate for a person."""
    building = f"{found.build_s:.2g} s to build the schedule"
    rows = [
        ("ops", f"{found.ops}, and {found.granules} granules"),
        ("events", f"about {found.events:.3g}"),
        ("time", f"about {found.wall_s:.3g} s, of which {building}, once the engine is loaded"),
        ("memory", f"about {format_size(found.memory_bytes)}"),
    ]
    return [table("", ("", ""), rows)]


def peak_memory() -> dict[str, float]:
    """The most memory that this process has held, as a field of `timing`: it differs from run to run, as times do."""
    return {"peak_memory_bytes": _resident_bytes()}


def cost_parts(timing: dict[str, float]) -> list[Any]:
    """What a run that took its time has cost, for a person."""
    if timing["wall_s"] < PATIENCE_S:
        return []
    memory = format_size(int(timing["peak_memory_bytes"]))
    return ["", f"took {timing['wall_s']:.1f} s, {timing['build_s']:.1f} s of it to build the schedule, and {memory}"]


def _reference(built: Built, events: int, most_in_flight: int) -> tuple[Program, Fabric]:
    """A burst of all SMs of all GPUs over all others, with as many lanes and ports, and as many granules in flight.

    What is in flight at a time decides how much of the engine's state stays in the processor's caches.
    """
    from .sim.schedules import burst_train

    program, fabric = built.built
    gpus = program.n_gpus
    if gpus < 2:
        return program, fabric
    size = _mean_granule_bytes(program, fabric)
    wanted = max(events // (EVENTS_OF_STORE + 2), min(_in_flight(program, fabric), most_in_flight))
    producers = min(built.machine.sms, max(1, wanted // gpus))
    each = max(1, wanted // (gpus * producers))
    shape = burst_train.BurstTrain(
        producers=producers, burst_bytes=each * size, gap_ps=0, bursts=1, mode="free_running",
        destination="all", gpus=gpus, senders="all",
    )  # fmt: skip
    return burst_train.build(built.machine, shape), replace(fabric, granule_bytes=size)


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

    A lane is taken to wait at each WAIT and ACQUIRE, which it need not, and never for a task, a window or an issue port.
    """
    ops, kind, gpu = program.ops, program.ops["kind"], op_gpus(program)
    granules = op_granules(program, fabric, gpu)
    lengths = np.diff(fabric.route_first)
    ports = float(lengths[lengths > 0].mean()) if lengths.any() else 0.0
    own_load, sent = (kind == p.LOAD) & (ops["target"] == gpu), granules > 0
    events = np.select(
        [own_load, kind == p.LOAD, kind == p.STORE, (kind == p.SIGNAL) & sent, np.isin(kind, (p.WAIT, p.ACQUIRE))],
        [EVENTS_OF_OWN_LOAD, (granules - 1) * ports + EVENTS_OF_LOAD, granules * (ports + EVENTS_OF_STORE),
         ports + EVENTS_OF_SIGNAL, 1],
        ops["duration_ps"] > 0,
    )  # fmt: skip
    return round(float((events * op_repeats(program)).sum()))


def _engine_bytes(program: Program, fabric: Fabric, layout: Layout, trace: str) -> int:
    """What the compiled engine holds beside the schedule, and a full trace beside that."""
    from .sim import engine_compiled as engine

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
    from .sweeps.task import peak_bytes

    return peak_bytes()
