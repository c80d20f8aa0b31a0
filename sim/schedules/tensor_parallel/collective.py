"""A collective of its own after or before the GEMM: each term a task of one lane, so that spans show it.

Within a node a rank stores its share to every other. Between nodes of g GPUs libraries reduce or copy within a node, so
that a network interface carries a g-th; here, in `PIECES` pieces:

    lane 0   each piece of the share to the ranks of the same place in other nodes, read from memory by a network interface
    lane 1   each piece of the same place from all nodes, once it is there, to every other rank of the node

That is an AllGather. A ReduceScatter does the same the other way round, in the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...program import COMPUTE, FROM_MEMORY, SIGNAL, STORE, WAIT
from ...program_builder import Seat
from ...tile_cost import needed_wiring
from ..store_parts import store_parts
from .gemm import Gemm
from .shape import Policy

if TYPE_CHECKING:
    from ...machine import Machine

PIECES = 16
"""Between nodes: the shorter of the two ways, over NVLink and over the network, adds a sixteenth of its time."""

Op = dict[str, Any]


class Collective:
    """Each rank's `share` bytes reach every other rank, `rounds` times, each round when the one before has arrived.

    With `in_switch` there is one round, in which each rank multicasts its share: what the switch adds up before takes time,
    but no port.
    """

    def __init__(self, gemm: Gemm, policy: Policy, share: int, rounds: int = 1, in_switch: bool = False) -> None:
        self.gemm, self.share, self.in_switch = gemm, share, in_switch
        self.launch_ps, self.rate_kbs = serial_terms(gemm, policy, in_switch)
        self.bus_rounds, rounds = (rounds, 1) if in_switch else (1, rounds)
        ranks = gemm.shape.ranks
        self.node = ranks if in_switch else gemm.node
        self.crossed, self.arrived = (self._counters(rounds) for _ in range(2))

    def _counters(self, rounds: int) -> list[int]:
        """First of one counter a rank, by round."""
        ranks = np.arange(self.gemm.shape.ranks)
        return [self.gemm.builder.counters(home=ranks, cause="peer") for _ in range(rounds)]

    def add_rank(self, rank: int, after: tuple[int, int] | None = None, before: int | None = None) -> None:
        """It starts when the counter of `after` has reached its count, or at once; at its end it signals `before`, one
        launch of the GEMM later.
        """
        start = [("join", [_wait(*after)])] if after else []
        start.append(("launch", [{"kind": COMPUTE, "duration_ps": self.launch_ps}]))
        lanes = self._within_a_node(rank) if self.node == self.gemm.shape.ranks else self._between_nodes(rank)
        if before is not None:
            launch = {"kind": COMPUTE, "duration_ps": self.gemm.launch_ps}
            lanes[0] += [launch, {"kind": SIGNAL, "counter": before, "count": 1}]
        builder, start_ps = self.gemm.builder, self.gemm.starts_ps[rank]
        for sm, exchange in enumerate(lanes):
            phases = [*start, ("collective", exchange)]
            tasks = [builder.tasks(builder.op_list(ops), 1, phase=phase) for phase, ops in phases]
            plan = builder.plan(repeat=[builder.queue(tasks)])
            builder.groups(gpu=rank, plan=plan, seats=[Seat("comm", sm=sm, start_ps=start_ps)])

    def _within_a_node(self, rank: int) -> list[list[Op]]:
        ranks, ops = self.gemm.shape.ranks, list[Op]()
        peers = [(rank + step) % ranks for step in range(1, ranks)]
        for arrived in self.arrived:
            stores, count = self._to_each(peers, self.share, arrived, self.rate_kbs)
            ops += [*stores, _wait(arrived + rank, count)]
        return [ops]

    def _between_nodes(self, rank: int) -> list[list[Op]]:
        """The lane that crosses to other nodes, and the one that hands out within the node."""
        ranks, node, across, within = self.gemm.shape.ranks, self.node, list[Op](), list[Op]()
        same_place, neighbours = self.gemm.same_place(rank).tolist(), self.gemm.neighbours(rank).tolist()
        n_pieces = min(PIECES, self.share)
        # the rate counts what all other ranks send, of which what crosses does not pass this lane
        within_kbs = max(1, self.rate_kbs * (ranks // node) * (node - 1) // (ranks - 1))
        pieces = [self.share * (i + 1) // n_pieces - self.share * i // n_pieces for i in range(n_pieces)]
        for crossed, arrived in zip(self.crossed, self.arrived, strict=True):
            crossing = handed_out = 0
            for piece in pieces:
                stores, count = self._to_each(same_place, piece, crossed, self.rate_kbs, FROM_MEMORY)
                across += stores
                crossing += count
                within.append(_wait(crossed + rank, crossing))
                stores, count = self._to_each(neighbours, ranks // node * piece, arrived, within_kbs)
                within += stores
                handed_out += count
            within.append(_wait(arrived + rank, handed_out))
            across += [_wait(crossed + rank, crossing), _wait(arrived + rank, handed_out)]
        return [across, within]

    def _to_each(
        self, peers: list[int], size: int, counter: int, rate_kbs: int, flags: int = 0
    ) -> tuple[list[Op], int]:
        """STOREs of `size` bytes to each of `peers`, and how often the counter of a rank is bumped if all do so."""
        parts = store_parts(size, len(peers))
        copies = 1 if self.in_switch else len(peers)
        targets = {
            part: self.gemm.builder.destination(dict.fromkeys(peers, part), self.in_switch and part > 0)
            for part in dict.fromkeys(parts)
        }
        stores = [
            {
                "kind": STORE,
                "target": targets[part],
                "bytes": part * copies,
                "duration_ps": -(-part * len(peers) * self.bus_rounds * 10**9 // rate_kbs),
                "counter": counter,
                "stride": 1,
                "flags": flags,
            }
            for part in parts
        ]
        return stores, len(parts) * len(peers)


def _wait(counter: int, count: int) -> Op:
    return {"kind": WAIT, "counter": counter, "count": count}


def serial_terms(gemm: Gemm, policy: Policy, in_switch: bool = False) -> tuple[int, int]:
    """Launch (ps) and rate (kB/s): the policy's, or the machine's. Raises `InputError` if neither is given."""
    launch, rate = policy.launch_ps, policy.rate_kbs
    if launch is None:
        launch = needed_wiring(gemm.machine, "collective_launch", nor="the policy")
    if rate is None:
        rate = all_reduce_kbs(gemm) if in_switch else needed_wiring(gemm.machine, "ring_rate", nor="the policy")
    return launch, rate


def all_reduce_kbs(gemm: Gemm) -> int:
    """Bus bandwidth of an AllReduce that the switch adds up, in kB/s: what was measured, but no more than the slowest
    port lets through.

    Raises `InputError` for a machine without.
    """
    through = int(all_reduce_port_kbs(gemm.machine, gemm.shape.ranks) * gemm.least_factor)
    return min(needed_wiring(gemm.machine, "all_reduce_rate"), max(1, through))


def all_reduce_port_kbs(machine: Machine, ranks: int) -> int:
    """The most that ports let through of it. Of n bytes each of P ranks sends all to be added up, and a P-th of the sums to
    all: n (1 + 1/P) by R, where the bus bandwidth counts 2 n (P-1)/P. Fewer than four ranks are below what eight reach.
    """
    return machine.drain_kbs("peer", ranks) * 2 * (ranks - 1) // (ranks + 1)
