"""A collective of its own after or before the GEMM: each term a task of one lane, so that spans show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...program import COMPUTE, SIGNAL, STORE, WAIT
from ...program_builder import Seat
from ...tile_cost import needed_wiring
from ..store_parts import store_parts
from .gemm import Gemm
from .shape import Policy

if TYPE_CHECKING:
    from ...machine import Machine


def add_collective(
    gemm: Gemm,
    policy: Policy,
    rank: int,
    share: int,
    rounds: int,
    arrived: int,
    after: tuple[int, int] | None = None,
    before: int | None = None,
    in_switch: bool = False,
) -> None:
    """A rank stores `share` bytes to every other, `rounds` times, each round when the one before has arrived.

    It starts when the counter of `after` has reached its count, or at once; at its end it signals `before`, one launch of
    the GEMM later. `arrived` is the first of one counter a rank. With `in_switch` there is one round, in which each rank
    multicasts its share: what the switch adds up before takes time, but no port.
    """
    builder, ranks = gemm.builder, gemm.shape.ranks
    launch_ps, rate_kbs = serial_terms(gemm.machine, policy, in_switch)
    peers = [(rank + step) % ranks for step in range(1, ranks)]
    sizes = store_parts(share, len(peers))
    rows = {
        size: builder.destination(dict.fromkeys(peers, size), in_switch and size > 0) for size in dict.fromkeys(sizes)
    }
    bus_rounds, copies = (rounds, 1) if in_switch else (1, len(peers))
    rounds = 1 if in_switch else rounds
    stores: list[dict[str, Any]] = [
        {
            "kind": STORE,
            "target": rows[size],
            "bytes": size * copies,
            "duration_ps": -(-size * len(peers) * bus_rounds * 10**9 // rate_kbs),
            "counter": arrived,
            "stride": 1,
        }
        for size in sizes
    ]
    waits = [{"kind": WAIT, "counter": after[0], "count": after[1]}] if after else []
    exchange: list[dict[str, Any]] = []
    for turn in range(1, rounds + 1):
        exchange += [*stores, {"kind": WAIT, "counter": arrived + rank, "count": turn * len(sizes) * len(peers)}]
    if before is not None:
        exchange += [{"kind": COMPUTE, "duration_ps": gemm.launch_ps}, {"kind": SIGNAL, "counter": before, "count": 1}]
    launch = [{"kind": COMPUTE, "duration_ps": launch_ps}]
    phases = [("join", waits)] if waits else []
    phases += [("launch", launch), ("collective", exchange)]
    tasks = [builder.tasks(builder.op_list(ops), 1, phase=phase) for phase, ops in phases]
    builder.groups(
        gpu=rank, plan=builder.plan(repeat=[builder.queue(tasks)]), seats=[Seat("comm", start_ps=gemm.starts_ps[rank])]
    )


def serial_terms(machine: Machine, policy: Policy, in_switch: bool = False) -> tuple[int, int]:
    """Launch (ps) and rate (kB/s): the policy's, or the machine's. Raises `InputError` if neither is given."""
    rate = "all_reduce_rate" if in_switch else "ring_rate"
    terms = ((policy.launch_ps, "collective_launch"), (policy.collective_kbs, rate))
    launch, kbs = (
        needed_wiring(machine, field, nor="the policy") if given is None else given for given, field in terms
    )
    return launch, kbs


def all_reduce_kbs(machine: Machine) -> int:
    """Bus bandwidth of an AllReduce that the switch adds up. Raises `InputError` for a machine without."""
    return needed_wiring(machine, "all_reduce_rate")
