"""AllGather + GEMM: the rows of the input arrive block by block, and tiles wait for theirs.

Counters: one for each rank and block of rows, bumped when the block has arrived there (`inputs`). A rank's own rows need
none. With `multicast` a block leaves its rank once and the switch copies it; otherwise each peer is sent its own: one peer
after the other on one switch, where a single one takes the whole rate, all at once where peers have links of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import InputError
from ...program import NO_COUNTER, NO_QUEUE, UNTIL_EXHAUSTED
from ...program_builder import ProgramBuilder, Seat
from ...traffic import to_one
from ..op_variants import op_variants, runs_by_seat
from ..store_parts import MOST_BYTES
from .collective import add_collective
from .gemm import Gemm, Ints
from .shape import ELEMENT_BYTES, Policy, TensorParallel


class Gather:
    """Rows of the input on their way to every rank."""

    def __init__(self, gemm: Gemm, policy: Policy, how: str) -> None:
        self.gemm, self.policy, self.how = gemm, policy, how
        self.shape: TensorParallel = gemm.shape
        self.builder: ProgramBuilder = gemm.builder
        self.ranks = self.shape.ranks
        self.multicast = self.shape.algorithm == "multicast"
        first_of_block = np.unique(gemm.tiles.m_block, return_index=True)[1]
        self.rows: Ints = gemm.tiles.rows[first_of_block]
        self.per_rank = len(self.rows) // self.ranks  # blocks of one rank's rows
        home = np.repeat(np.arange(self.ranks), len(self.rows))
        self.arrived = self.builder.counters(home=home, cause="inputs")
        self.peers = self.builder.counters(home=np.arange(self.ranks), cause="peer") if how == "serial" else NO_COUNTER

    def add_rank(self, rank: int) -> None:
        gemm = self.gemm
        order = gemm.order(rank)
        if self.how == "compute_only":
            gemm.add_groups(rank, gemm.local_store(rank), order)
        elif self.how == "serial":
            self._add_serial(rank, order)
        else:
            block = gemm.tiles.m_block
            own = block // self.per_rank == rank
            counter = np.where(own, NO_COUNTER, self.arrived + rank * len(self.rows) + block)
            gemm.add_groups(rank, gemm.local_store(rank), order, guards=[(counter, np.where(own, 0, 1))])
            self._add_senders(rank)

    def _add_serial(self, rank: int, order: Ints) -> None:
        gathered = self.builder.counters(home=rank, cause="inputs")
        share = self.shape.local_m * self.shape.k * ELEMENT_BYTES
        add_collective(self.gemm, self.policy, rank, share, 1, self.peers, before=gathered)
        store = self.gemm.local_store(rank)
        self.gemm.add_groups(rank, store, order, guards=[(gathered, 1)], start_ps=0)

    def _add_senders(self, rank: int) -> None:
        """The rank's rows to its peers, by a copy engine or by the reserved SMs.

        The copy engine has a lane for each peer where peers have links of their own, and one for all of them otherwise.
        """
        builder = self.builder
        block, peer, size, store = self._once_for_all(rank) if self.multicast else self._to_each(rank)
        self._check_store(size)
        if self.how != "reserved_sms":  # the copy engine is no SM: it issues as fast as the network drains
            store["duration_ps"] = -(-size * 10**9 // self._link_kbs(rank, peer))
        ops = op_variants(builder, len(size), [store])
        tasks = builder.tasks(runs_by_seat(builder, [ops]), 1, phase="gather", m_block=block) + np.arange(len(size))
        lane = np.zeros_like(peer) if self.how == "reserved_sms" or self.gemm.one_switch else peer
        queues = [builder.queue(tasks[lane == one]) for one in np.unique(lane)]
        plans = [builder.plan(repeat=[(queue, NO_QUEUE, UNTIL_EXHAUSTED)]) for queue in queues]
        lanes = max(len(plans), self.policy.reserved_sms)
        sm = self.gemm.sms + np.arange(lanes)
        role = "comm" if self.how == "reserved_sms" else "copy engine"
        builder.groups(
            gpu=np.full(lanes, rank),
            plan=np.broadcast_to(plans, lanes),
            seats=[Seat(role, sm=sm, start_ps=self.gemm.start_ps(rank))],
        )

    def _link_kbs(self, rank: int, peer: Ints) -> Any:
        """What a lane of the copy engine sends at most, to each of `peer` where it serves one alone."""
        if self.multicast or self.gemm.one_switch:
            return self.gemm.machine.drain_kbs("peer", self.ranks)
        peers, which = np.unique(peer, return_inverse=True)
        return np.array([int(to_one(self.gemm.fabric, rank, one).rate_kbs) for one in peers.tolist()])[which]

    def _check_store(self, size: Ints) -> None:
        """One STORE takes the rows of a block whole."""
        if size.max(initial=0) > MOST_BYTES:
            most = MOST_BYTES // (int(self.rows.max()) * ELEMENT_BYTES)
            allowed = f"1 to {most} for blocks of {int(self.rows.max())} rows"
            raise InputError("makes rows too long for one store", field="k", value=self.shape.k, allowed=allowed)

    def _to_each(self, rank: int) -> tuple[Ints, Ints, Ints, dict[str, Any]]:
        """Block, receiver, bytes and stores of a rank's rows for each peer.

        In step s rank r serves rank r - s. On one switch a step takes all blocks of the rank, so that every rank receives
        from one at a time, in the order in which it wants rows; otherwise one block, so that all links are busy.
        """
        store = np.arange((self.ranks - 1) * self.per_rank)
        if self.gemm.one_switch:
            step, place = np.divmod(store, self.per_rank)
        else:
            place, step = np.divmod(store, self.ranks - 1)
        block, peer = rank * self.per_rank + place, (rank - 1 - step) % self.ranks
        size = self.rows[block] * self.shape.k * ELEMENT_BYTES
        pairs, which = np.unique(np.stack([peer, size]), axis=1, return_inverse=True)
        first_row = self.builder.destinations_flat(pairs[0], pairs[1], np.ones(pairs.shape[1], dtype=int))
        rows = first_row + np.asarray(which).ravel()
        return block, peer, size, self.gemm.store(rows, size, self.arrived + peer * len(self.rows) + block)

    def _once_for_all(self, rank: int) -> tuple[Ints, Ints, Ints, dict[str, Any]]:
        """The same of rows that the switch copies to all peers at once."""
        block = rank * self.per_rank + np.arange(self.per_rank)
        size = self.rows[block] * self.shape.k * ELEMENT_BYTES
        peers = [(rank + step) % self.ranks for step in range(1, self.ranks)]
        sizes, which = np.unique(size, return_inverse=True)
        rows = np.array([self.builder.destination(dict.fromkeys(peers, int(one)), replicate=True) for one in sizes])
        store = self.gemm.store(rows[which], size, self.arrived + block, len(self.rows))
        return block, np.full_like(block, rank), size, store
