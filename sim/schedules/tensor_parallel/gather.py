"""AllGather + GEMM: the rows of the input arrive block by block, and tiles wait for theirs.

Counters: one for each rank and block of rows, bumped when the block has arrived there (`inputs`). A rank's own rows need
none. With `multicast` a block leaves its rank once and the switch copies it; otherwise each peer is sent its own: one peer
after the other on one switch, where a single one takes the whole rate, all at once where peers have links of their own.
Between nodes a block crosses once to each, to the same place, which passes it on to its node; what crosses is read from
memory by a network interface.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import InputError
from ...program import FROM_MEMORY, NO_COUNTER, NO_QUEUE, UNTIL_EXHAUSTED
from ...program_builder import ProgramBuilder
from ...traffic import to_one
from ..op_variants import op_variants, runs_by_seat
from ..store_parts import MOST_BYTES
from .collective import Collective
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
        if how == "serial":
            self.collective = Collective(gemm, policy, self.shape.local_m * self.shape.k * ELEMENT_BYTES)

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
        self.collective.add_rank(rank, before=gathered)
        store = self.gemm.local_store(rank)
        self.gemm.add_groups(rank, store, order, guards=[(gathered, 1)], start_ps=0)

    def _add_senders(self, rank: int) -> None:
        """The rank's rows to its peers, by a copy engine or by the reserved SMs, which leave other nodes to the engine.

        The copy engine has a lane for each peer where peers have links of their own, and one for all of them otherwise.
        """
        block, peer = self._sends(rank)
        size, store = self._stores(rank, block, peer)
        self._check_store(size)
        crosses = peer // self.gemm.node != rank // self.gemm.node
        by_sm = (self.how == "reserved_sms") & ~crosses
        store["flags"] = np.where(crosses, FROM_MEMORY, 0)
        # the copy engine is no SM: it issues as fast as the network drains
        drained_ps = -(-size * 10**9 // self._link_kbs(rank, peer))
        store["duration_ps"] = np.where(by_sm, store["duration_ps"], drained_ps)
        runs = runs_by_seat(self.builder, [op_variants(self.builder, len(size), [store])])
        own = block // self.per_rank == rank
        there = np.where(own, NO_COUNTER, self.arrived + rank * len(self.rows) + block), np.where(own, 0, 1)
        first = self.builder.tasks(runs, 1, guards=[there], phase="gather", m_block=block)
        tasks = first + np.arange(len(size))
        lane = np.zeros_like(peer) if self.gemm.one_switch else peer
        self.gemm.add_copy_engine(rank, tasks[~by_sm], lane[~by_sm])
        if self.how == "reserved_sms":
            plan = self.builder.plan(repeat=[(self.builder.queue(tasks[by_sm]), NO_QUEUE, UNTIL_EXHAUSTED)])
            self.gemm.add_comm(rank, plan)

    def _link_kbs(self, rank: int, peer: Ints) -> Any:
        """What a lane of the copy engine sends at most, to each of `peer` where it serves one alone."""
        drain_kbs = self.gemm.machine.drain_kbs("peer", self.ranks)
        if self.gemm.one_switch:
            return drain_kbs
        peers, which = np.unique(peer, return_inverse=True)
        rates = [
            int(to_one(self.gemm.fabric, rank, one).rate_kbs) if one != rank else drain_kbs for one in peers.tolist()
        ]
        return np.array(rates)[which]

    def _check_store(self, size: Ints) -> None:
        """One STORE takes the rows of a block whole."""
        if size.max(initial=0) > MOST_BYTES:
            most = MOST_BYTES // (int(self.rows.max()) * ELEMENT_BYTES)
            allowed = f"1 to {most} for blocks of {int(self.rows.max())} rows"
            raise InputError("makes rows too long for one store", field="k", value=self.shape.k, allowed=allowed)

    def _sends(self, rank: int) -> tuple[Ints, Ints]:
        """Blocks that a rank sends, in order, and the peer that each goes to, or itself for all in its node by multicast.

        Its own blocks go to its node and to the same place of other nodes; those that come from there to its node. In step
        s rank r of a node serves r - s. On one switch a step takes all blocks of the rank, so that every rank receives from
        one at a time, in the order in which it wants rows; otherwise one block, so that all links are busy.
        """
        neighbours = np.array([rank]) if self.multicast else self.gemm.neighbours(rank)[::-1]
        same_place = self.gemm.same_place(rank)[::-1]
        place = np.arange(self.per_rank)
        own = rank * self.per_rank + place
        if self.gemm.one_switch:
            return np.tile(own, len(neighbours)), np.repeat(neighbours, len(own))
        passed_on = (same_place * self.per_rank + place[:, None]).ravel()
        peers = np.concatenate([same_place, neighbours])
        block = np.concatenate([np.repeat(own, len(peers)), np.repeat(passed_on, len(neighbours))])
        return block, np.concatenate([np.tile(peers, len(own)), np.tile(neighbours, len(passed_on))])

    def _stores(self, rank: int, block: Ints, peer: Ints) -> tuple[Ints, dict[str, Any]]:
        """Bytes and STOREs of what `_sends` says."""
        size = self.rows[block] * self.shape.k * ELEMENT_BYTES
        pairs, which = np.unique(np.stack([peer, size]), axis=1, return_inverse=True)
        rows = np.array([self._destination(rank, *pair) for pair in pairs.T.tolist()])
        store = self.gemm.store(rows[np.asarray(which).ravel()], size, self.arrived + block, len(self.rows))
        return size, store

    def _destination(self, rank: int, peer: int, size: int) -> int:
        if peer != rank:
            return self.builder.destination({peer: size})
        return self.builder.destination(dict.fromkeys(self.gemm.neighbours(rank).tolist(), size), replicate=True)
