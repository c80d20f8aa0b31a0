"""The microbenchmark of the X-Stage: K producers of one GPU issue B bytes, do something else for G, and so on.

Modes
    free_running   every producer goes at its own pace. Their starts are spread evenly over one period, because the steady
                   state that the paper's law describes has many producers that do not march in step.
    synchronised   all producers start each burst together, and the gap begins when the last has issued its own.
    isolated       synchronised, with gaps long enough for the stage to run empty: each burst meets an empty stage.

    >>> BurstTrain(producers=4, burst_bytes=32768, gap_ps=0, bursts=3, mode="sometimes")
    Traceback (most recent call last):
    xstage.sim.errors.InputError: mode = 'sometimes': is unknown (allowed: free_running, synchronised, isolated)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from .. import burst_gap
from ..errors import InputError
from ..program import COMPUTE, SIGNAL, STORE, WAIT, Program
from ..program_builder import ProgramBuilder, Seat
from ..program_check import MAX_STORE_BYTES
from .size_limit import check_ops

if TYPE_CHECKING:
    from ..machine import Machine

Mode = Literal["free_running", "synchronised", "isolated"]
Destination = Literal["peer", "all"]
Senders = Literal["one", "all"]


@dataclass(frozen=True)
class BurstTrain:
    """`producers` SMs of each sending GPU store `burst_bytes` each, `bursts` times, `gap_ps` apart.

    destination: "peer" stores to the next GPU, "all" deals each burst over all other GPUs.
    senders: "one" (GPU 0) or "all" GPUs.
    """

    producers: int
    burst_bytes: int
    gap_ps: int = 0
    bursts: int = 1
    mode: Mode = "free_running"
    destination: Destination = "peer"
    senders: Senders = "one"
    gpus: int = 2

    def __post_init__(self) -> None:
        for name, kind in (("mode", Mode), ("destination", Destination), ("senders", Senders)):
            if getattr(self, name) not in get_args(kind):
                raise InputError("is unknown", field=name, value=getattr(self, name), allowed=get_args(kind))
        for name, least in (("producers", 0), ("burst_bytes", 0), ("gap_ps", 0), ("bursts", 1), ("gpus", 2)):
            if getattr(self, name) < least:
                raise InputError("is too small", field=name, value=getattr(self, name), allowed=f"{least} or more")
        if self.burst_bytes >= MAX_STORE_BYTES:
            most = f"0 to {MAX_STORE_BYTES - 1}"
            raise InputError("is too large for one burst", field="burst_bytes", value=self.burst_bytes, allowed=most)


def build(machine: Machine, shape: BurstTrain, least_factor: float = 1.0) -> Program:
    """The Program: on every sending GPU a lane a producer, and for each burst a task `burst` and a task `gap`.

    `least_factor` is what a degraded port has left of its rate: gaps and starts that go by R go by so much of it.
    Raises `InputError` if there are more producers than SMs, or too many bursts.
    """
    n_ops = shape.producers * (2 * shape.bursts - 1) * (shape.gpus if shape.senders == "all" else 1)
    check_ops(n_ops, "bursts", shape.bursts)
    if shape.producers > machine.sms:
        raise InputError("more than SMs", field="producers", value=shape.producers, allowed=f"0 to {machine.sms}")
    builder = ProgramBuilder(shape.gpus)
    senders = range(shape.gpus) if shape.senders == "all" else range(1)
    for sender in senders:
        if shape.producers and shape.burst_bytes:
            _add_sender(builder, machine, shape, sender, least_factor)
    return builder.build(schedule="burst_train", **asdict(shape))


def _add_sender(builder: ProgramBuilder, machine: Machine, shape: BurstTrain, sender: int, least_factor: float) -> None:
    k, n = shape.producers, shape.bursts
    rows = _destinations(builder, shape, sender)
    issue_ps = machine.issue_time_ps(shape.burst_bytes)
    first_store = builder.ops(STORE, target=rows, bytes=shape.burst_bytes, duration_ps=issue_ps)
    store_run = builder.runs(first_store + np.arange(len(rows)), 1)
    gap_ps = _gap_ps(machine, shape, least_factor)
    if shape.mode == "free_running":
        gap_run = builder.runs(builder.ops(COMPUTE, duration_ps=gap_ps), 1) + np.zeros(n - 1, dtype=int)
    else:
        barrier = builder.counters(home=sender, cause="barrier")
        met = np.arange(1, n) * k
        columns = np.tile([0, 0, gap_ps], (n - 1, 1))
        counts = np.stack([np.ones(n - 1, dtype=int), met, np.zeros(n - 1, dtype=int)], axis=1)
        first = builder.ops([SIGNAL, WAIT, COMPUTE], counter=[barrier, barrier, -1], count=counts, duration_ps=columns)
        gap_run = builder.runs(first + 3 * np.arange(n - 1), 3) + np.arange(n - 1)

    runs_of_burst = np.tile(store_run + np.arange(k) % len(rows), (n, 1))  # [burst, producer]
    bursts = builder.tasks(runs_of_burst.ravel(), 1, phase="burst", m_block=np.repeat(np.arange(n), k))
    order = np.empty((k, 2 * n - 1), dtype=int)
    order[:, ::2] = bursts + np.arange(n * k).reshape(n, k).T
    if n > 1:
        gaps = builder.tasks(np.repeat(gap_run, k), 1, phase="gap", m_block=np.repeat(np.arange(n - 1), k))
        order[:, 1::2] = gaps + np.arange((n - 1) * k).reshape(n - 1, k).T
    queues = builder.queues(order.ravel(), np.full(k, 2 * n - 1))
    plans = builder.private_plans(queues, k)
    producer = np.arange(k)
    seat = Seat("producer", sm=producer, start_ps=_starts_ps(machine, shape, least_factor))
    builder.groups(gpu=sender, plan=plans + producer, seats=[seat])


def _destinations(builder: ProgramBuilder, shape: BurstTrain, sender: int) -> Any:
    """Row of `destinations` for each of the rotations in use; producer i takes rotation i."""
    others = [(sender + step) % shape.gpus for step in range(1, shape.gpus)]
    if shape.destination == "peer":
        return np.array([builder.destination({others[0]: shape.burst_bytes})])
    whole, rest = divmod(shape.burst_bytes, len(others))
    rotations = [others[turn:] + others[:turn] for turn in range(len(others))]
    return np.array(
        [builder.destination({g: whole + (i < rest) for i, g in enumerate(turned)}) for turned in rotations]
    )


def _gap_ps(machine: Machine, shape: BurstTrain, least_factor: float) -> int:
    if shape.mode != "isolated":
        return shape.gap_ps
    rate = int(machine.drain_kbs("all" if shape.destination == "all" else "next", shape.gpus) * least_factor)
    empty_after = -(-shape.producers * shape.burst_bytes * 10**9 // max(1, rate))
    return max(shape.gap_ps, empty_after)


def _starts_ps(machine: Machine, shape: BurstTrain, least_factor: float) -> Any:
    if shape.mode != "free_running":
        return 0
    stage = machine.x_stage(shape.destination, shape.gpus)
    stage = replace(stage, drain_kbs=stage.drain_kbs * least_factor)
    period = burst_gap.period(stage, shape.producers, shape.burst_bytes, shape.gap_ps, "free_running")
    return np.floor(np.arange(shape.producers) * float(period) / shape.producers).astype(np.int64)
