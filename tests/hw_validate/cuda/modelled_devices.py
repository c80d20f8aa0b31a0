"""`Devices` that answer as a GPU with a known stage would: tables by the laws of sim/burst_gap.py, replays by simulation.

They read what is to be done out of the memory that the collector wrote, and write times where the kernels would. So what
comes out at the other end can be compared with the stage that went in. `fails` makes one of their calls raise.
"""

import itertools
from dataclasses import replace

import numpy as np
from xstage.hw_validate.cuda import experiments as e
from xstage.hw_validate.cuda import lower, replay_job, run_programs
from xstage.hw_validate.cuda.errors import KernelError
from xstage.hw_validate.cuda.ranks import simulated_ranks
from xstage.hw_validate.cuda.replayed import Overheads, priced
from xstage.hw_validate.cuda.run_bursts import PARAMETERS
from xstage.sim import program as p
from xstage.sim.burst_gap import XStage, capacity, issue_time
from xstage.sim.machine import Machine

from .emulated_devices import APART, FIRST_ADDRESS, EmulatedBuffer, facts

CYCLES_PER_NS = 1.5
TICK_NS = 32
RELEASE_NS, TICKET_NS, FLAG_NS, BARRIER_NS, NOTING_NS, BACK_NS = 700.0, 350.0, 1200.0, 2500.0, 20.0, 900.0
PULL_GBS = 40.0

PROGRAMS = {}
"""Programs that were lowered, by their ops: a modelled GPU simulates them, and the tables alone do not say all."""


def _key(ops):
    without_times = ops.copy()
    without_times["ticks"] = 0
    return without_times.tobytes()


def _lowered(program, target):
    made = lower.lower(program, target)
    PROGRAMS[_key(made.tables["ops"])] = program
    return made


run_programs.lower = _lowered


def stage(drain="52 GB/s", per_sm_kib=6.0, gpu_kib=160.0):
    return XStage(t0_ps=100_000, issue_kbs=40_000_000, drain_kbs=float(drain.split()[0]) * 1e6,
                  capacity_per_producer_bytes=per_sm_kib * 1024, capacity_total_bytes=gpu_kib * 1024)  # fmt: skip


class ModelledDevices:
    def __init__(self, stage=None, sms=32, gpus=1, noise=0.01, clock_moves=0.0, reachable=True, free_bytes=1 << 32,
                 fails=None, compute_capability="90", atomics=True, shared_bytes=100 << 10, weights=(1.0,),
                 back_ns=BACK_NS, warm=1.0, warm_from=0, beside_fences=1.0, beside_hogs=1.0, in_sm_ns=0.0):  # fmt: skip
        """`weights`: by SM in turn, what it gets of the link. As a share of the usual, `warm`: what a burst to the same
        places takes, from `warm_from` bytes on; `beside_fences`: what one takes beside releases; `beside_hogs`: what a
        release takes while other SMs store, of Q / R more than alone. `in_sm_ns`: what one to the own SM takes."""
        self.stage, self.noise, self.clock_moves = stage, noise, clock_moves
        self.reachable, self.fails, self.atomics = reachable, fails or {}, atomics
        self._facts = [facts(i, sms, free_bytes=free_bytes, compute_capability=compute_capability,
                             clock_mhz=1000 * CYCLES_PER_NS, shared_per_block_bytes=shared_bytes,
                             shared_per_sm_bytes=160 << 10) for i in range(gpus)]  # fmt: skip
        self.weights = np.resize(weights, sms)
        self.back_ns, self.warm, self.warm_from, self.beside_fences = back_ns, warm, warm_from, beside_fences
        self.beside_hogs, self.in_sm_ns = beside_hogs, in_sm_ns
        self.rng = np.random.default_rng(0)
        self.live, self._address, self._calls = {}, itertools.count(FIRST_ADDRESS, APART), {}

    def cycles_per_ns(self):
        """The SM clock of the run that is going on; others may have one that changes."""
        return CYCLES_PER_NS

    def _called(self, name):
        self._calls[name] = self._calls.get(name, 0) + 1
        error = self.fails.get((name, self._calls[name])) or self.fails.get((name, "always"))
        if error:
            raise error

    def facts(self):
        return self._facts

    def platform(self):
        return {"cuda_driver": "13.0", "cupy": "made up"}

    def can_access(self, device, peer):
        return self.reachable

    def native_atomics(self, device, peer):
        return self.atomics

    def enable_access(self, device, peer):
        self._called("enable_access")

    def device_memory(self, device, size):
        self._called("device_memory")
        return self._buffer(size, device)

    def host_memory(self, size):
        self._called("host_memory")
        return self._buffer(size, -1)

    def prepare(self, device, source, kernels):
        self._called("prepare")
        if source not in ("bursts.cu", "replay.cu"):
            raise KernelError(f"{source} computes, which a modelled GPU does not")
        return {"registers": 80, "local_bytes": 0, "shared_bytes": 0}

    def now(self, device):
        return {}

    def run(self, launches, abort, deadline_s):
        self._called("run")
        for launch in launches:
            if launch.kernel == "replay":
                self._replay(launch)
            else:
                assert launch.parameters.dtype == PARAMETERS
                self._answer(launch)
        return 0.1

    def _buffer(self, size, home):
        address = next(self._address)
        self.live[address] = EmulatedBuffer(address, np.zeros(min(size, 1 << 26), np.uint8), home, self.live)
        self.live[address].__class__ = _Sized
        self.live[address].told = size
        return self.live[address]

    def _at(self, address, dtype, count=None):
        """Memory at an address, wherever in a buffer it lies."""
        base = max(first for first in self.live if first <= address)
        data = self.live[base].data[address - base :]
        dtype = np.dtype(dtype)
        return data[: len(data) // dtype.itemsize * dtype.itemsize if count is None else count * dtype.itemsize].view(
            dtype
        )

    def _replay(self, launch):
        """A Program as simulated, with 60 ns added to each pause; everything but stores takes no time of its own."""
        q = launch.parameters[0]
        ops = self._at(int(q["ops"]), lower.OP, int(q["ops_bytes"]) // lower.OP.itemsize)
        program = self._at_this_clock(PROGRAMS[_key(ops)], ops)
        there = int(self._at(int(q["landing"]), "u8")[1])
        is_peer = int(q["n_ctas"]) > launch.grid
        far = is_peer or self.live[max(first for first in self.live if first <= there)].home != launch.device
        machine = self.machine() if far else self.machine(drain="4000 GB/s", gpu_kib=1 << 20, per_sm_kib=1 << 15)
        made = priced(program, machine, Overheads(compute_ns=60))
        times = simulated_ranks(made, machine, "peer" if is_peer else "host").ops()
        times = times[times["kind"] != "task"].sort_values(["lane", "start_us", "end_us"], kind="stable")
        if is_peer:
            times = times[times["gpu"] == launch.device]
        to_ticks = 1000 * self.cycles_per_ns() * np.exp(0.3 * self.noise * self.rng.standard_normal())
        records = np.zeros(len(times), dtype=replay_job.RECORD)
        for name in ("lane", "task", "op"):
            records[name] = times[name]
        records["start"] = np.round(times["start_us"].to_numpy() * to_ticks)
        records["end"] = np.round(times["end_us"].to_numpy() * to_ticks)
        pauses = (times["kind"] == "compute").to_numpy()
        records["start"][pauses] += round(30 * self.cycles_per_ns())
        records["end"][pauses] -= round(30 * self.cycles_per_ns())
        self._at(int(q["records"]), replay_job.RECORD)[: len(records)] = records
        self._at(int(q["n_records"]), "u4")[0] = len(records)
        ctas = self._at(int(q["times"]), replay_job.TIMES)[int(q["first_cta"]) : int(q["first_cta"]) + launch.grid]
        ctas["global_start"], ctas["global_end"] = 1_000_000, 3_000_000
        ctas["clock_start"], ctas["clock_end"] = 7, 7 + round(2_000_000 * self.cycles_per_ns())

    def _at_this_clock(self, program, lowered):
        """Pauses are so many ticks, however long those are."""
        ops, pauses = program.ops.copy(), lowered["kind"] == p.COMPUTE
        ops["duration_ps"][pauses] = np.round(1000 * lowered["ticks"][pauses] / self.cycles_per_ns())
        return replace(program, ops=ops)

    def machine(self, drain=None, gpu_kib=None, per_sm_kib=None):
        """The stage as a machine for the simulator."""
        s = self.stage

        def number(value):
            return {"value": value, "source": "made up"}

        each = round(1024 * per_sm_kib) if per_sm_kib else round(s.capacity_per_producer_bytes)
        whole = round(1024 * gpu_kib) if gpu_kib else round(s.capacity_total_bytes)
        return Machine.parse({
            "name": "modelled",
            "compute": {"sms": number(self._facts[0].sms)},
            "stage": {"t0": number(f"{round(s.t0_ps)} ps"), "issue_rate": number(f"{round(s.issue_kbs)} kB/s"),
                      "capacity_sm": number(f"{each} B"), "capacity_gpu": number(f"{whole} B"), "granule": number("128 B")},
            "interconnect": {"kind": number("switch"), "gpus": number(2), "latency": number(f"{BACK_NS / 2} ns"),
                             "drain_rate": number(drain or f"{round(s.drain_kbs)} kB/s")},
        })  # fmt: skip

    def _answer(self, launch):
        given = launch.parameters[0]
        table = self._at(int(given["rows"]), e.ROW, int(given["n_rows"]))
        marks = self._at(int(given["marks"]), "u4")
        ns = np.cumsum(np.concatenate([[1_000_000], table["rest_ns"] + 100_000.0]))
        rate = self.cycles_per_ns() * (1 + self.clock_moves * np.linspace(0, 1, len(ns)))
        ticks = np.concatenate([[0], np.cumsum(np.diff(ns) * rate[:-1])])
        times = np.zeros((len(table), 4), dtype=np.uint64)
        times[:, 0], times[:, 1] = ns[:-1], ticks[:-1]
        times[:, 2], times[:, 3] = ns[:-1] + 50_000, ticks[:-1] + 50_000 * self.cycles_per_ns()
        self.live[int(given["row_times"])].write(times)
        ends = np.array([[ns[0] - 1000, ticks[0], ns[-1], ticks[-1]]] * launch.grid)
        ends[:, 1] -= 1000 * self.cycles_per_ns()
        ends[:, 1::2] += 5000 * self.cycles_per_ns()
        times[:, 1::2] += np.uint64(5000 * self.cycles_per_ns())
        self.live[int(given["row_times"])].write(times)
        self.live[int(given["cta_times"])].write(ends.astype(np.uint64))
        self.live[int(given["cta_sm"])].write(np.arange(launch.grid, dtype=np.uint32))
        for row, speed, count in zip(table, rate, e.noters(table), strict=False):
            noted = self._row(row, int(count), int(given["n_ranks"])) * (speed if row["kind"] != e.CLOCK else 1)
            first = int(row["first_mark"])
            marks[first : first + noted.size] = np.round(noted).astype(np.uint64).ravel()

    def _row(self, row, count, ranks):
        """[SMs, bursts, marks] in ns."""
        bursts, n_marks, kind = int(row["bursts"]), int(row["marks"]), int(row["kind"])
        if kind == e.CLOCK:
            when = TICK_NS * (1 + np.arange(bursts))
            return np.stack([when * self.cycles_per_ns(), when], axis=1)[None]
        took = self._issue_ns(row, bursts) * self._uneven(row, count, bursts)
        is_warm = row["flags"] & e.SAME and row["bytes"] >= self.warm_from
        took *= (self.warm if is_warm else 1) * (self.beside_fences if row["flags"] & e.FENCES else 1)
        took = took * (1 + self.noise * self.rng.standard_normal((count, bursts)))
        took = {e.TICKET: TICKET_NS, e.FLAG: FLAG_NS, e.SYNC: BARRIER_NS}.get(kind, 0) + took
        took += NOTING_NS * CYCLES_PER_NS / self.cycles_per_ns()  # so many cycles
        gap = row["gap_cycles"] / self.cycles_per_ns()
        start = np.concatenate([np.zeros((count, 1)), np.cumsum(took + gap, axis=1)[:, :-1]], axis=1)
        noted = np.repeat(start[..., None], n_marks, axis=2)
        noted[..., 1:] += took[..., None]
        later = 2
        if row["flags"] & e.FENCE:
            released = RELEASE_NS
            if row["flags"] & e.LIGHT and row["producers"] > 0:
                released = self.beside_hogs * (RELEASE_NS + self.full_ns(int(row["producers"])))
            noted[..., later:] += self.in_sm_ns if row["flags"] & e.IN_SM else released
            later += 1
        if row["flags"] & (e.BACK | e.ECHO) and later < n_marks:
            noted[..., later:] += self.back_ns
        return noted

    def full_ns(self, producers):
        """How long it takes to drain what the stage holds for so many SMs."""
        return float(1e6 * capacity(self.stage, producers) / self.stage.drain_kbs) if self.stage else 0.0

    def _uneven(self, row, count, bursts):
        """What bursts take that follow each other without a gap, of what they would if all SMs got as much, [SMs, bursts].

        A fluid: those that still store have the link among them, by their weights.
        """
        weights = self.weights[:count]
        stalls = self.stage is not None and self._issue_ns(row, 1)[0] > 1.01 * (100 + row["bytes"] / 40)
        if row["kind"] != e.STORE or not stalls or np.ptp(weights) == 0 or row["gap_cycles"]:
            return np.ones((count, bursts))
        left, ended, now = np.full(count, float(bursts)), np.zeros((count, bursts)), 0.0
        while (stores := left > 1e-9).any():
            speed = np.where(stores, weights, 0) / weights[stores].sum() * count
            until = np.ceil(left - 1e-9) - 1  # the bursts that are left then
            step = ((left - until)[stores] / speed[stores]).min()
            now, left = now + step, left - speed * step
            for sm in np.flatnonzero(stores & (left <= until + 1e-9)):
                left[sm] = until[sm]
                ended[sm, bursts - 1 - int(until[sm])] = now
        return np.diff(ended, axis=1, prepend=0.0)

    def _issue_ns(self, row, bursts):
        size, k = float(row["bytes"]), int(row["producers"])
        if row["kind"] == e.PULL:
            return np.full(bursts, BACK_NS + k * size / PULL_GBS)
        if row["kind"] not in (e.STORE, e.BULK) or size == 0 or k == 0:
            return np.zeros(bursts)
        if row["flags"] & e.LOCAL or self.stage is None:
            return np.full(bursts, 100 + size / 40)
        first = float(issue_time(self.stage, k, size, mode="isolated"))
        gap_ps = 1000 * float(row["gap_cycles"]) / self.cycles_per_ns()
        later = float(issue_time(self.stage, k, size, gap_ps, "free_running"))
        return np.array([first] + [later] * (bursts - 1)) / 1000


class _Sized(EmulatedBuffer):
    """Says that it is as large as was asked for, whatever it holds: nobody looks at what stores write."""

    @property
    def size(self):
        return self.told
