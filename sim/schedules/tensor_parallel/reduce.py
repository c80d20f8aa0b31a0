"""GEMM + ReduceScatter and GEMM + AllReduce: what happens to the tiles of a partial result.

Counters: `arrived`, one a rank, counts what reaches it for good; `ready`, one a tile and rank, says that a tile lies in the
rank's own memory (policies that copy it later); `summed`, one a tile (one a tile and rank for one_shot, in_switch, and a
ReduceScatter between nodes), counts the contributions at whoever adds them up; `left`, one a rank for in_switch, counts the
lanes that have finished.

in_switch follows the public CuTe DSL kernel: a tile is announced when it lies in memory, by a release; a lane of each SM
then takes sums from the switch; and no lane ends before those of all ranks have released what they stored.
https://github.com/NVIDIA/cutlass, examples/python/CuTeDSL/cute/blackwell/kernel/distributed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...program import COMPUTE, FROM_MEMORY, NO_QUEUE, REDUCE, UNTIL_EXHAUSTED, WAIT
from ...program_builder import ProgramBuilder
from ...tile_cost import needed
from ...traffic import to_one
from ..op_variants import OpVariants, op_variants, runs_by_seat
from .collective import Collective, all_reduce_kbs
from .gemm import BUFFER, READY, Gemm, Ints, give, take
from .shape import ELEMENT_BYTES, Policy, TensorParallel

FLAG_BYTES = 32
ADDING_THREADS, LOAD_BYTES = 128, 16
"""Of a one-shot AllReduce: the four warps that can read accumulators add up what arrives, 16 bytes a load."""
FEWEST_SMS_AT_RATE = 16
SMS_AT_RATE = {"sm100": 24}
"""SMs that NCCL gives to an AllReduce which the switch adds up, within a node: `src/transport/nvls.cc` of
https://github.com/NVIDIA/nccl. The fewest on Hopper, and where not named.
"""


class Reduce:
    """A partial result on its way to its owners (and from them to everybody)."""

    def __init__(self, gemm: Gemm, policy: Policy, how: str) -> None:
        self.gemm, self.policy, self.how = gemm, policy, how
        self.shape: TensorParallel = gemm.shape
        self.builder: ProgramBuilder = gemm.builder
        self.ranks, self.tiles = self.shape.ranks, gemm.tiles
        self.arrived = self.builder.counters(home=np.arange(self.ranks), cause="peer")
        self.summed = self.contributions = np.zeros(0, dtype=np.int64)
        self.stores: list[list[dict[str, Any]]] = []  # by node
        self.in_switch = how not in ("compute_only", "serial") and self.shape.algorithm == "in_switch"
        if self.in_switch:
            self.how = "reserved_sms" if how == "reserved_sms" else "fused"
            self._announce()
            return
        if how == "serial":
            share = self.shape.m * self.shape.n * ELEMENT_BYTES // self.ranks
            rounds = 2 if self.shape.operation == "gemm_ar" else 1
            self.collective = Collective(gemm, policy, share, rounds, self.shape.algorithm == "in_switch")
        elif how != "compute_only":
            self._contribute()
        n = len(self.tiles)
        if how in ("fused", "reshaped"):
            self.spread = [gemm.store_lane(stores, n, spread=how == "reshaped") for stores in self.stores]
            self.at_once = [gemm.store_lane(stores, n) for stores in self.stores]
        elif how == "reserved_sms":
            self.copies = [op_variants(self.builder, n, stores) for stores in self.stores]

    def add_rank(self, rank: int) -> None:
        gemm, order = self.gemm, self.gemm.order(rank)
        if self.how == "compute_only":
            gemm.add_groups(rank, gemm.local_store(rank), order)
        elif self.in_switch:
            gemm.add_groups(rank, self._local_store_with_flag(rank), order)
            self._add_comm_groups(rank, None)
        elif self.how == "serial":
            done = self.builder.counters(home=rank, cause="inputs")
            gemm.add_groups(rank, gemm.local_store(rank, done), order)
            self.collective.add_rank(rank, after=(done, len(self.tiles)))
        elif self.how == "reserved_sms":
            home = np.full(len(self.tiles), rank)
            ready = self.builder.counters(home=home, cause="inputs") + np.arange(len(self.tiles))
            gemm.add_groups(rank, gemm.local_store(rank, ready), order)
            self._add_comm_groups(rank, self._tasks(self.copies[self._node(rank)], order, (ready, 1), "copy"))
            self._cross(rank)
        else:
            node = self._node(rank)
            gemm.add_groups(rank, self.spread[node], order, last=self.at_once[node])
            self._add_comm_groups(rank, None)
            self._cross(rank)

    def _node(self, rank: int) -> int:
        """The node of a rank, 0 where stores are the same on all of them."""
        return rank // self.gemm.node % len(self.stores)

    # --- the first half: contributions to whoever adds them up

    def _contribute(self) -> None:
        """STOREs of each tile by piece, the counter of its contributions, and how many of them there will be."""
        pieces = self.policy.pieces if self.how == "reshaped" else 1
        bands = self._bands(pieces)  # rows of [tiles, pieces]
        size = bands * self.tiles.columns[:, None] * ELEMENT_BYTES
        if self.shape.operation == "gemm_rs":
            self.stores = self._to_row_owners(pieces)
            return
        tile = np.arange(len(self.tiles))
        if self.shape.algorithm == "one_shot":
            home = np.repeat(np.arange(self.ranks), len(tile))
            summed, stride = self.builder.counters(home=home, cause="peer") + tile, len(tile)
            targets, flags = self._rows(size, np.arange(self.ranks), replicate=True), 0
        else:
            summed, stride = self.builder.counters(home=tile % self.ranks, cause="peer") + tile, 0
            targets, flags = self._to_tile_owners(size), REDUCE
        self.stores = [[self.gemm.store(targets[:, i], size[:, i], summed, stride, flags) for i in range(pieces)]]
        self.summed, self.contributions = summed, self.ranks * (size > 0).sum(axis=1)

    def _announce(self) -> None:
        """in_switch: a tile stays where it is, and a flag tells every rank that it is there."""
        tile, home = np.arange(len(self.tiles)), np.repeat(np.arange(self.ranks), len(self.tiles))
        self.summed = self.builder.counters(home=home, cause="peer") + tile
        self.contributions = np.full(len(tile), self.ranks)
        flag = self._rows(np.full(1, FLAG_BYTES), np.arange(self.ranks), replicate=True)[0]
        target, size = np.full(len(tile), flag), np.full(len(tile), FLAG_BYTES)
        self.left = self.builder.counters(home=np.arange(self.ranks), cause="barrier")
        self.stores = [[self.gemm.store(target, size, self.summed, len(tile))]]
        self.leave = self.gemm.store(flag, FLAG_BYTES, self.left, 1)
        self.release = {"kind": COMPUTE, "duration_ps": self.gemm.machine.interconnect.release.value}

    def _local_store_with_flag(self, rank: int) -> OpVariants:
        sizes, which = np.unique(self.tiles.bytes, return_inverse=True)
        rows = np.array([self.builder.destination({rank: int(size)}) for size in sizes])
        local = self.gemm.store(rows[which], self.tiles.bytes)
        ops = [take(READY), local, self.release, *self.stores[0], give(BUFFER)]
        return op_variants(self.builder, len(self.tiles), ops)

    def _leave_together(self, rank: int) -> Ints:
        """A task for each lane of a rank: it releases what it stored, and waits until every lane of every rank has."""
        lanes = self.gemm.comm_lanes
        wait = {"kind": WAIT, "counter": self.left + rank, "count": self.ranks * lanes}
        ops = self.builder.op_list([self.release, self.leave, wait])
        runs = np.broadcast_to(ops, lanes)
        return self.builder.tasks(runs, 1, phase="leave") + np.arange(lanes)

    def _bands(self, pieces: int) -> Ints:
        height = -(-self.shape.block_m // pieces)
        return np.asarray(np.clip(self.tiles.rows[:, None] - height * np.arange(pieces), 0, height))

    def _to_row_owners(self, pieces: int) -> list[list[dict[str, Any]]]:
        """Rows belong to ranks in m / ranks contiguous parts; a tile may lie over a border.

        Rows of another node are added up at the same place of the own one, and cross as a sum, see `_cross`.
        """
        node, nodes = self.gemm.node, self.ranks // self.gemm.node
        height = -(-self.shape.block_m // pieces)
        first = self.tiles.first_row[:, None] + height * np.arange(pieces)
        end = np.minimum(first + height, (self.tiles.first_row + self.tiles.rows)[:, None])
        own = np.arange(self.ranks) * self.shape.local_m
        rows = np.minimum(end[..., None], own + self.shape.local_m) - np.maximum(first[..., None], own)
        size = np.maximum(0, rows) * self.tiles.columns[:, None, None] * ELEMENT_BYTES  # [tiles, pieces, ranks]
        self.bytes_of_owner = size.sum(axis=1)
        by_place = size.reshape(*size.shape[:2], nodes, node).sum(axis=2)
        total, tile = size.sum(axis=2), np.arange(len(self.tiles))
        counter, stride = np.full(len(tile), self.arrived), 1
        if nodes > 1:
            home = np.repeat(np.arange(self.ranks), len(tile))
            counter, stride = self.builder.counters(home=home, cause="peer") + tile, len(tile)
            self.summed, self.contributions = counter, node * (by_place > 0).sum(axis=1)  # [tiles, place]
        stores = []
        for first_rank in range(0, self.ranks, node):
            targets = self._dealt(by_place.reshape(-1, node), first_rank + np.arange(node)).reshape(total.shape)
            stores.append([self.gemm.store(targets[:, i], total[:, i], counter, stride, REDUCE) for i in range(pieces)])
        return stores

    def _dealt(self, size: Ints, gpus: Ints) -> Ints:
        """Destinations rows of stores that deal `size` [stores, gpus] over `gpus`."""
        flat, which = np.unique(size, axis=0, return_inverse=True)
        row, place = np.nonzero(flat)
        counts = np.bincount(row, minlength=len(flat))
        return self.builder.destinations_flat(gpus[place], flat[row, place], counts) + np.asarray(which).ravel()

    def _cross(self, rank: int) -> None:
        """Sums of rows whose owners have the same place in other nodes, by the copy engine, which is a network interface:
        it reads them from memory, and does not wait behind what the SMs store over NVLink.
        """
        node = self.gemm.node
        if self.shape.operation != "gemm_rs" or node == self.ranks:
            return
        others = self.gemm.same_place(rank)
        size = self.bytes_of_owner[:, others]
        total = size.sum(axis=1)
        store = self.gemm.store(self._dealt(size, others), total, self.arrived, 1, REDUCE | FROM_MEMORY)
        store["duration_ps"] = -(-total * 10**9 // int(to_one(self.gemm.fabric, rank, int(others[0])).rate_kbs))
        order = self.gemm.order(rank)
        guard = self.summed + len(self.tiles) * rank, self.contributions[:, rank % node]
        ops = op_variants(self.builder, len(total), [store])
        tasks = self._tasks(ops, order[total[order] > 0], guard, "cross")
        self.gemm.add_copy_engine(rank, tasks, np.zeros_like(tasks))

    def _to_tile_owners(self, size: Ints) -> Ints:
        """Destinations rows of stores of `size` [tiles, pieces] to tile mod ranks."""
        owner = np.broadcast_to((np.arange(len(size)) % self.ranks)[:, None], size.shape)
        pairs, which = np.unique(np.stack([owner.ravel(), size.ravel()]), axis=1, return_inverse=True)
        kept = pairs[1] > 0
        first = self.builder.destinations_flat(pairs[0][kept], pairs[1][kept], kept.astype(int))
        return (first + np.asarray(which).reshape(size.shape)).astype(np.int64)

    def _rows(self, size: Ints, gpus: Ints, replicate: bool) -> Ints:
        """Destinations rows of stores of `size` to each of `gpus`."""
        sizes, which = np.unique(size, return_inverse=True)
        rows = [self.builder.destination({int(g): int(one) for g in gpus}, replicate and one > 0) for one in sizes]
        return np.asarray(rows)[np.asarray(which).reshape(size.shape)]

    # --- the second half: sums to everybody, by a comm lane on each SM or on SMs of their own

    def _add_comm_groups(self, rank: int, copies: Any | None) -> None:
        queues = [] if copies is None else [self.builder.queue(copies)]
        if self.shape.operation == "gemm_ar":
            queues.append(self.builder.queue(self._finish_tasks(rank)))
        if not queues:
            return
        first, second = (*queues, NO_QUEUE)[:2]
        plan = self.builder.plan(repeat=[(first, second, 1 if second != NO_QUEUE else UNTIL_EXHAUSTED)])
        self.gemm.add_comm(rank, plan)

    def _read_ps(self, size: Ints) -> Ints:
        """Reading `size` bytes of P copies by the warps of one epilogue: their loads in flight by the latency of memory.

        No faster than an SM's share of HBM. Each thread has one load of 16 bytes from every copy in flight.
        """
        machine = self.gemm.machine
        in_flight = ADDING_THREADS * self.ranks * LOAD_BYTES
        ps_per_byte = needed(machine, "epilogue_floor") / in_flight  # the floor is one latency of memory
        share = 1e9 * machine.sms / needed(machine, "hbm_rate")
        return np.asarray(np.ceil(size * max(ps_per_byte, share)), dtype=np.int64)

    def _from_switch(self, rank: int) -> OpVariants:
        """A rank's P-th of each tile's sum, fetched from the switch and multicast, at its lane's part of the rate.

        A lane goes through the whole tile, valid or not, and waits for the switch once.
        """
        machine, size, shape = self.gemm.machine, self.tiles.bytes, self.shape
        whole = shape.block_m * shape.block_n * ELEMENT_BYTES
        share = size // self.ranks + (rank < size % self.ranks)
        rate_kbs = all_reduce_kbs(self.gemm) * self.ranks // (2 * (self.ranks - 1))
        pace = 2 * machine.interconnect.latency.value - (-whole * self._lanes_at_rate() * 10**9 // rate_kbs)
        others = (rank + 1 + np.arange(self.ranks - 1)) % self.ranks
        store = self.gemm.store(self._rows(share, others, replicate=True), share, self.arrived, 1)
        store["duration_ps"] = np.maximum(store["duration_ps"], pace)
        return op_variants(self.builder, len(self.tiles), [store])

    def _lanes_at_rate(self) -> int:
        """Comm lanes that it takes to reach the whole rate: whole SMs, or warps beside the GEMM on all SMs."""
        machine = self.gemm.machine
        if self.how != "reserved_sms":
            return machine.sms
        return max(self.gemm.comm_lanes, SMS_AT_RATE.get(needed(machine, "kernels"), FEWEST_SMS_AT_RATE))

    def _finish_tasks(self, rank: int) -> Ints:
        """What a rank does with complete sums: store them to the others, or (one_shot) add up what has arrived."""
        if self.in_switch:
            guard = (self.summed + len(self.tiles) * rank, self.contributions)
            sums = self._tasks(self._from_switch(rank), self.gemm.order(rank), guard, "broadcast")
            return np.concatenate([sums, self._leave_together(rank)])
        tile, size = np.arange(len(self.tiles)), self.tiles.bytes
        order = self.gemm.order(rank)
        if self.shape.algorithm == "one_shot":
            work = {"kind": COMPUTE, "duration_ps": self._read_ps(self.ranks * size)}
            add = op_variants(self.builder, len(tile), [work])
            guard = (self.summed + len(tile) * rank, self.contributions)
            return self._tasks(add, order, guard, "add")
        others = (rank + 1 + np.arange(self.ranks - 1)) % self.ranks
        multicast = self.shape.algorithm == "multicast"
        copies = 1 if multicast else len(others)
        rows = self._rows(size, others, replicate=multicast)
        out = op_variants(self.builder, len(tile), [self.gemm.store(rows, size * copies, self.arrived, 1)])
        mine = order[order % self.ranks == rank]
        return self._tasks(out, mine, (self.summed, self.contributions), "broadcast")

    def _tasks(self, ops: OpVariants, which: Ints, guard: tuple[Any, Any], phase: str) -> Ints:
        """A task for each tile of `which`, in that order; `ops` and `guard` are by tile."""
        runs = runs_by_seat(self.builder, [ops])
        counter, count = (np.broadcast_to(part, len(self.tiles))[which] for part in guard)
        tags: Mapping[str, Any] = {"m_block": self.tiles.m_block[which], "n_block": self.tiles.n_block[which]}
        first = self.builder.tasks(runs[which], 1, guards=[(counter, count)], phase=phase, **tags)
        return first + np.arange(len(which))
