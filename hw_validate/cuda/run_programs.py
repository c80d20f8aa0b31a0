"""Replay Programs on GPUs: far, and as the control into the GPU's own memory, again and again in turn. Needs NumPy alone.

A plan holds Programs as they are. They are lowered here (lower.py), for the SMs and the transport that there are. What lies
in memory for a Program is made once; between repeats only what a run changes is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...sim.errors import InputError, ProgramError
from ...sim.program import Program
from ..measuring import MeasurementError, Progress
from .container import Container
from .device import Buffer, Devices
from .errors import KernelError, KernelTimeoutError, MemoryTooSmallError, NoPeerAccessError
from .job import HOST, Array, Job
from .job_memory import JobMemory, Place
from .lower import Target, lower
from .replay_job import PATIENCE_S, RECORD, TIMES, Settings, replay_job, sm_ticks_per_ns
from .transport import Transport

SOURCE, KERNEL = "replay.cu", "replay"
REPEATS, CONTROL_REPEATS = 11, 5
LARGEST_TABLE_BYTES = 1 << 20
"""What ranks send beyond this has its place in the memory of the transport, which is there already."""
_BUFFERS_OF_RANKS = ("landing", "own_landing", "source", "own_source")
_ALIGNMENT = 256
KEYS = ("lane", "task", "op")
MOST_CLOCK_MOVED = 0.01
"""Pauses last so many ticks as were right at one clock. Beyond this share Programs are lowered again, for the clock at which
their first turn ran, but no more often than `MOST_LOWERED_AGAIN`."""
MOST_LOWERED_AGAIN = 2
Runs = dict[tuple[int, str], list[tuple[Any, Any]]]
"""By Program and side: records and times of each repeat."""


class ReplayError(MeasurementError):
    """A replay ended in a way that no Program can; the message says what was noted."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """One Program over repeats. `start` and `end` [repeats, records] are ticks since the start edge, `times` [repeats, CTAs]
    what each CTA noted (replay_job.TIMES). `keys` are lane, task and op of each record, [1, records, 3] if they are the same
    in all repeats, else [repeats, records, 3]: who takes a task of a shared queue is settled anew in each run."""

    keys: np.ndarray[Any, Any]
    start: np.ndarray[Any, Any]
    end: np.ndarray[Any, Any]
    times: np.ndarray[Any, Any]

    def arrays(self) -> dict[str, Any]:
        return {"keys": self.keys, "start": self.start, "end": self.end, "times": self.times}


class _Room:
    """Places in the memory of a transport for large buffers of one job whose first values do not matter: it is there."""

    def __init__(self, job: Job, transport: Transport) -> None:
        self.job, self.transport = job, transport
        self._taken: dict[int, int] = {}

    def place(self, name: str) -> Place | None:
        """Raises `InputError` where there is too little."""
        told, kind = self.job.buffers[name], name.partition("@")[0]
        size = told.values.nbytes
        if size <= LARGEST_TABLE_BYTES or told.pointers or kind not in _BUFFERS_OF_RANKS:
            return None
        whole = self.transport.far[0] if told.home == HOST else self._memory_of(kind, told.home)
        first = self._taken.get(id(whole), 0)
        if first + size > whole.size:
            raise InputError("is too small for this Program", field=f"memory for {kind}",
                             value=whole.size, allowed=f"{first + size} bytes or more")  # fmt: skip
        self._taken[id(whole)] = first + -(-size // _ALIGNMENT) * _ALIGNMENT
        return whole, first

    def _memory_of(self, kind: str, rank: int) -> Buffer:
        own = kind.startswith("own_") or self.transport.name != "peer"
        return (self.transport.own if own else self.transport.far)[rank]


@dataclass(eq=False)
class Replays:
    """What has been noted: arrays by path, and for each Program what there is to tell (`skipped`: why it did not run, or
    ran no further).

    Filled whatever ends the replays, with the repeats before that. `cycles_per_ns` is the SM clock that Programs are lowered
    for, `clock_moved_pct` how far from it any of them ran.
    """

    cycles_per_ns: float
    arrays: dict[str, Any]
    programs: list[dict[str, Any]]
    failures: list[MeasurementError] = field(default_factory=list)
    clock_moved_pct: float = 0.0

    def keep(self, found: Runs) -> None:
        for (number, side), runs in found.items():
            try:
                named = _together(runs).arrays()
            except ReplayError as error:
                self.failed(number, error)
                continue
            self.programs[number][f"{side}_repeats"] = len(runs)
            self.arrays |= {f"replay/{number}/{side}/{name}": array for name, array in named.items()}

    def failed(self, number: int, error: MeasurementError) -> None:
        self.programs[number]["skipped"] = str(error)
        self.failures.append(error)

    def told(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("programs", "cycles_per_ns", "clock_moved_pct")}

    def moved(self, clocks: Array) -> float:
        """The largest share by which clocks of runs differ from the one that Programs are lowered for."""
        return float(np.abs(clocks / self.cycles_per_ns - 1).max(initial=0.0))


def run_programs(
    plan: Container,
    devices: Devices,
    transport: Transport,
    replays: Replays,
    ctas: int,
    left_s: Callable[[], float],
    progress: Progress,
) -> None:
    """Replay all Programs of a plan into `replays`. A Program that cannot run here is told as skipped; so is one that fails,
    which runs no further, and its error is among the failures.

    `left_s` says how much time is left: repeats end when there is none. Raises errors of errors.py, `ReplayError`.
    """
    if transport.no_signals is not None:
        raise NoPeerAccessError(f"{transport.no_signals}; replay with transport host")
    for rank in transport.ranks:
        devices.prepare(rank.index, SOURCE, [KERNEL])
    jobs = _Jobs(plan, devices, transport, replays, ctas)
    found: Runs = {}
    header = plan.header.get("replay", {})
    wanted = {"far": header.get("repeats", REPEATS), "control": header.get("control_repeats", CONTROL_REPEATS)}
    order = np.random.default_rng(plan.header["seed"])
    try:
        for may_lower_again in (True,) * MOST_LOWERED_AGAIN + (False,):
            for number in range(len(replays.programs)):
                jobs.make(number, tuple(wanted))
            progress(f"replaying {len(replays.programs)} programs", 0.0)
            _turn(wanted, 0, jobs, found, order)
            ran_at = _clocks(found)
            if not may_lower_again or replays.moved(ran_at) <= MOST_CLOCK_MOVED:
                break
            replays.cycles_per_ns = float(np.median(ran_at))
            jobs.close_all()
            found.clear()
        turns = max(wanted.values())
        for turn in range(1, turns):
            if left_s() <= 0:
                break
            progress(f"replaying {len(replays.programs)} programs", turn / turns)
            _turn(wanted, turn, jobs, found, order)
    finally:
        replays.clock_moved_pct = 100 * replays.moved(_clocks(found))
        replays.keep(found)
        jobs.close_all()


@dataclass(eq=False)
class _Jobs:
    """Programs of a plan in memory, ready to run, by number and side. `ctas` is how many SMs there are for each."""

    plan: Container
    devices: Devices
    transport: Transport
    replays: Replays
    ctas: int
    ready: dict[tuple[int, str], JobMemory] = field(default_factory=dict)

    def make(self, number: int, sides: Sequence[str]) -> None:
        """All sides of a Program, or none: then it is told as skipped."""
        if "skipped" in self.replays.programs[number]:
            return
        try:
            for side in sides:
                self._make(number, side)
        except (ProgramError, InputError, KernelError, MemoryTooSmallError) as error:
            self.replays.programs[number]["skipped"] = str(error)
            self.close(number)

    def _make(self, number: int, side: str) -> None:
        """Lower a Program and put it into memory; a control that one GPU has no room for is left out."""
        program, transport = program_of(self.plan, number), self.transport
        is_peer = transport.name == "peer" and side == "far"
        if is_peer and program.n_gpus > transport.n_ranks:
            raise InputError(
                "are not there", field="GPUs of the program", value=program.n_gpus, allowed=f"up to {transport.n_ranks}"
            )
        target = _target(program, transport, side)
        lowered = lower(program, target).at_clock(self.replays.cycles_per_ns)
        on_one = max((len(lowered.ctas_of(gpu)) for gpu in range(program.n_gpus)), default=0)
        needed = on_one if is_peer else len(lowered.tables["ctas"])
        if needed > self.ctas and side == "control":
            return
        if needed > self.ctas:
            raise KernelError(f"the program needs {needed} SMs at once, and there are {self.ctas}")
        settings = Settings(patience_ticks=int(PATIENCE_S * 1e9 * self.replays.cycles_per_ns))
        job = replay_job(lowered, {"far": transport.name, "control": "local"}[side], settings)
        gpus = [one.index for one in transport.ranks]
        place = _Room(job, transport).place
        self.ready[number, side] = JobMemory(job, self.devices, gpus, SOURCE, elsewhere=place)
        self.replays.programs[number][f"{side}_target"] = asdict(target)

    def close(self, number: int) -> None:
        for key in [key for key in self.ready if key[0] == number]:
            self.ready.pop(key).close()

    def close_all(self) -> None:
        for memory in self.ready.values():
            memory.close()
        self.ready.clear()


def _turn(wanted: Mapping[str, int], turn: int, jobs: _Jobs, found: Runs, order: np.random.Generator) -> None:
    """Run every side of every Program that is to run so often, in an order of chance."""
    sides = [key for key in jobs.ready if turn < wanted[key[1]]]
    for key in [sides[i] for i in order.permutation(len(sides)).tolist()]:
        if key not in jobs.ready:
            continue
        try:
            jobs.ready[key].run()
            found.setdefault(key, []).append(_noted(jobs.ready[key]))
        except (KernelTimeoutError, ReplayError) as error:
            jobs.replays.failed(key[0], error)
            jobs.close(key[0])


def _clocks(found: Runs) -> Array:
    """How fast SM clocks went in each of these runs, in cycles a ns."""
    rates = [sm_ticks_per_ns(times) for runs in found.values() for _, times in runs]
    return np.array([rate for rate in rates if not np.isnan(rate)])


def program_of(plan: Container, number: int) -> Program:
    """A Program of a plan, or of results. Raises `ProgramError` if it contradicts itself."""
    header = plan.header["programs"][number]
    return Program(
        n_gpus=header["n_gpus"],
        roles=tuple(header["roles"]),
        phases=tuple(header["phases"]),
        meta=header["meta"],
        **plan.under(f"program/{number}"),
    )


def _target(program: Program, transport: Transport, side: str) -> Target:
    """How a Program is laid out in the memory of a transport: every rank has two landing buffers and two sources."""
    rank = transport.ranks[0]
    room = min(buffer.size for buffer in (*transport.far, *transport.own)) // (4 * program.n_gpus + 1) // 4096 * 4096
    shared = min(rank.shared_per_block_bytes, rank.shared_per_sm_bytes // 2 // 1024 * 1024 + 2048)
    is_one_gpu = transport.name != "peer" or side == "control"
    return Target(is_one_gpu=is_one_gpu, landing_bytes=room, source_bytes=room, shared_bytes=shared)


def _noted(memory: JobMemory) -> tuple[Any, Any]:
    """Records of all GPUs in a fixed order, and the times of all CTAs."""
    records, times = [], []
    for grid in memory.job.grids:
        count = int(memory.read(f"n_records@{grid.gpu}")[0])
        noted = memory.read(f"records@{grid.gpu}")
        if count > len(noted):
            raise ReplayError(f"GPU {grid.gpu} noted {count} ops, and the program has {len(noted)}")
        records.append(noted[:count])
        first = int(grid.parameters["first_cta"][0])
        times.append(memory.read(f"times@{grid.gpu}")[first : first + grid.n_ctas])
    together = np.concatenate(records) if records else np.zeros(0, RECORD)
    order = np.lexsort((together["start"], together["op"], together["task"], together["lane"]))
    return together[order], np.concatenate(times) if times else np.zeros(0, TIMES)


def _together(runs: list[tuple[Any, Any]]) -> Replayed:
    sizes = {len(records) for records, _ in runs}
    if len(sizes) > 1:
        raise ReplayError(f"repeats of one program noted {min(sizes)} to {max(sizes)} ops")
    keys = np.stack([np.stack([records[name] for name in KEYS], axis=1) for records, _ in runs]).astype(np.int32)
    return Replayed(
        keys[:1] if (keys == keys[0]).all() else keys,
        np.stack([records["start"] for records, _ in runs]),
        np.stack([records["end"] for records, _ in runs]),
        np.stack([times for _, times in runs]),
    )
