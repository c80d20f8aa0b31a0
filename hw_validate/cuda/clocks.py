"""Timers of several GPUs on one axis: how far each is ahead of that of rank 0, measured before and after what is timed.

An SM of rank 0 notes its global timer, asks the other GPU for its own, and notes it again when the answer has come: the
answer lies between both, and of many such ping-pongs the one with the shortest round trip says most, to half of that trip.
Timers also run at slightly different rates. So the offset is told before and after, and at any time in between it is on the
line through both.

Needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import experiments as e
from .device import Devices
from .job import Array
from .noted import Noted
from .run_bursts import BurstRunner
from .transport import MiB, open_transport

PING_PONGS, ROUNDS = 64, 3
Offsets = dict[str, list[dict[str, float]]]
"""By rank (a string, as in JSON) one entry a measurement: `at_ns` of rank 0's timer, `ahead_ns` of its own, `trip_ns`."""


def offsets_now(runner: BurstRunner) -> Offsets:
    """One measurement of every rank but 0; nothing where there is one rank."""
    ranks = range(1, runner.transport.n_ranks)
    if not ranks:
        return {}
    row = {"producers": 1, "bursts": PING_PONGS, "marks": 6}
    table = np.concatenate([e.row(e.OFFSET, r - 1, target=r, **row) for r in ranks] * ROUNDS)
    run = runner.run(runner.resolve(table))
    return {rank: [told] for rank, told in Noted.of(run.arrays(), [{"group": "offset"}] * len(ranks)).offsets().items()}


def offsets_between(devices: Devices, ranks: int) -> Offsets:
    """The same for the first `ranks` GPUs that reach each other, with memory of its own for the time that it takes."""
    with open_transport(devices, "peer", ranks, MiB) as transport, BurstRunner(devices, transport) as runner:
        return offsets_now(runner)


def joined(before: Offsets, after: Offsets) -> Offsets:
    """Both measurements of every rank, in order of time."""
    return {rank: told + after.get(rank, []) for rank, told in before.items()}


def to_add_ns(offsets: Offsets, outputs: Mapping[str, Array], gpus: int) -> dict[int, float] | None:
    """What is to be added to the timer of each GPU to be that of GPU 0, when the kernel with these outputs started.

    `outputs` has `times@G` as replay_job.py tells. None if no offset is known.
    """
    if not offsets:
        return None
    starts = [words["global_start"] for name, words in outputs.items() if name.startswith("times@")]
    started = min((int(words[words > 0].min()) for words in starts if (words > 0).any()), default=0)
    return {gpu: -ahead_ns(offsets.get(str(gpu), []), started) for gpu in range(gpus)}


def ahead_ns(told: list[dict[str, Any]], at_ns: float) -> float:
    """The offset at a time of rank 0's timer: on the line through both measurements, or that of the only one, or 0."""
    if not told:
        return 0.0
    first, last = told[0], told[-1]
    elapsed = last["at_ns"] - first["at_ns"]
    if elapsed <= 0:
        return float(first["ahead_ns"])
    share = float(np.clip((at_ns - first["at_ns"]) / elapsed, 0.0, 1.0))
    return float(first["ahead_ns"] + share * (last["ahead_ns"] - first["ahead_ns"]))
