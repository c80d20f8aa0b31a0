"""The GEMM that all tensor-parallel schedules share: what its tiles cost, their order, and the lanes of an SM.

    SM90    one accumulator, in the registers of the warps that write it out: no MMA runs during an epilogue
            the output lies over the last input stage: the next tile runs `RESUME_STEPS` steps of k before it needs it
            mma       ACQUIRE accumulator, COMPUTE (those steps), ACQUIRE buffer, COMPUTE (the rest), RELEASE full
            epilogue  ACQUIRE full, COMPUTE, RELEASE accumulator, RELEASE ready
            store     ACQUIRE ready, STORE, RELEASE buffer
    SM100   two accumulators in TMEM, so that an epilogue runs beside the next MMA, and a buffer of its own for the output
            mma       ACQUIRE accumulator, COMPUTE, RELEASE full
            epilogue  ACQUIRE full, ACQUIRE buffer, COMPUTE, RELEASE accumulator, RELEASE ready
            store     as above

A buffer of its own (`Policy.own_staging`, `reshaped`) gives SM90 the lanes of SM100 with its one accumulator. All policies
pay the same epilogue: they differ in what a store holds up. FP32 sums of 128 x 256 fill half of the registers of an SM, so
there is no second set; kernels in which two warpgroups take turns (ping-pong) have tiles of 64 rows and are not modelled.

Sources: https://github.com/HazyResearch/ThunderKittens, kernels/parallel (GEMM + ReduceScatter on H100: tiles of 128 x 256,
k in steps of 64, four stages, one warp that stores).

A main loop is bound by the MMA, by the port through which an SM takes its operands in (valid rows and columns only; the two
CTAs of an SM100 tile of 256 x 256 share its columns), or by HBM, which reads each operand once in the course of the kernel.
What L2 costs beyond that is inside the MMA efficiency. Each tile computes all its rows and columns, valid or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...program import ACQUIRE, COMPUTE, NO_COUNTER, RELEASE, STORE
from ...program_builder import ProgramBuilder, Seat
from ...tile_cost import TileCosts, epilogue_ps, main_loop_ps, needed
from ..op_variants import OpVariants, op_variants, runs_by_seat
from .shape import ELEMENT_BYTES, Policy, TensorParallel
from .wiring import node_size, on_one_switch

if TYPE_CHECKING:
    from ...machine import Machine
    from ...topology import Fabric

Ints = NDArray[np.int64]

RESUME_STEPS = 3
"""Steps of k that fit into the stages which the output of the tile before does not cover."""

PAIRED_COLUMNS = 256
"""From this width of a tile on two CTAs of SM100 work on it together."""

BUFFER, FULL, READY, ACCUMULATOR = range(4)
"""Slots of a group: output buffers, full accumulators, tiles ready to be stored, free accumulators."""
ACCUMULATORS = {"sm100": 2}
"""Of an SM, one where not named: in registers there is no room for another."""


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles of one rank in row-major order of blocks: `m_block`, `n_block`, valid `rows` and `columns`, [tiles]."""

    m_block: Ints
    n_block: Ints
    first_row: Ints
    rows: Ints
    columns: Ints

    @property
    def bytes(self) -> Ints:
        return self.rows * self.columns * ELEMENT_BYTES

    def __len__(self) -> int:
        return len(self.m_block)


def tiles(shape: TensorParallel, in_place: bool = False) -> Tiles:
    """All tiles of a rank; see `TensorParallel.part_rows`."""
    part_rows = shape.part_rows(in_place)
    per_part = -(-part_rows // shape.block_m)
    part, block = np.divmod(np.arange(shape.m // part_rows * per_part), per_part)
    first = part * part_rows + block * shape.block_m
    rows = np.minimum(shape.block_m, part_rows - block * shape.block_m)
    n_blocks = -(-shape.local_n // shape.block_n)
    m_block, n_block = np.divmod(np.arange(len(first) * n_blocks), n_blocks)
    columns = np.minimum(shape.block_n, shape.local_n - n_block * shape.block_n)
    return Tiles(m_block, n_block, first[m_block], rows[m_block], columns)


@dataclass(frozen=True)
class TileTime:
    """Times of every tile in ps."""

    main: int
    epilogue: int
    resume: int

    @classmethod
    def of(cls, machine: Machine, shape: TensorParallel, sms: int | None = None, in_place: bool = False) -> TileTime:
        """On `sms` of the machine's SMs, by default as many as the shape takes; `in_place` as in `tiles`."""
        # An SM takes in what its port lets through. `l2_throughput` is left out: how much of what SMs read together comes
        # from L2 once is not known for these kernels.
        port = needed(machine, "sm_port") / 1e3
        costs = replace(TileCosts.of(machine, "bf16"), feed_bytes_per_us=port, l2_bytes_per_us=np.inf)
        sums = shape.block_m * shape.block_n
        flops = np.array([2.0 * sums * shape.local_k])
        waves = -(-shape.n_tiles(in_place) // (sms or min(machine.sms, shape.grid or machine.sms)))
        operands = (shape.m + shape.local_n) * shape.local_k * ELEMENT_BYTES
        of_tile = np.array([_operand_bytes(machine, shape, in_place)])
        main = int(main_loop_ps(costs, flops, of_tile, np.array([operands / waves]))[0])
        steps = -(-shape.local_k // shape.block_k)
        epilogue = int(epilogue_ps(costs, sums, "scatter"))
        return cls(main, epilogue, main * min(steps, RESUME_STEPS) // steps)


def _operand_bytes(machine: Machine, shape: TensorParallel, in_place: bool) -> int:
    """What one SM takes in for one tile."""
    pair = 2 if needed(machine, "kernels") == "sm100" and shape.block_n >= PAIRED_COLUMNS else 1
    rows, columns = min(shape.block_m, shape.part_rows(in_place)), min(shape.block_n, shape.local_n)
    return (rows + columns // pair) * shape.local_k * ELEMENT_BYTES


class Gemm:
    """Tables of the GEMM in a Program that is being built."""

    def __init__(
        self,
        machine: Machine,
        shape: TensorParallel,
        policy: Policy,
        builder: ProgramBuilder,
        sms: int,
        starts_ps: list[int],
        least_factor: float = 1.0,
    ) -> None:
        self.machine, self.shape, self.policy, self.builder, self.sms = machine, shape, policy, builder, sms
        self.tiles = tiles(shape, policy.in_place)
        self.time = TileTime.of(machine, shape, sms, policy.in_place)
        self.launch_ps: int = needed(machine, "kernel_launch")
        self.starts_ps, self.least_factor = starts_ps, least_factor
        kernels = needed(machine, "kernels")
        self.slots = (1, 0, 0, ACCUMULATORS.get(kernels, 1))
        self.aliased = kernels == "sm90" and not policy.alone.own_staging
        self.mma, self.epilogue = self._mma_and_epilogue()

    @cached_property
    def fabric(self) -> Fabric:
        """The wiring of the ranks."""
        return self.machine.fabric(self.shape.ranks)

    @cached_property
    def node(self) -> int:
        """GPUs of each node, all if there is one."""
        return node_size(self.machine, self.shape.ranks)

    def neighbours(self, rank: int) -> Ints:
        """The other ranks of its node, from the next one on."""
        return rank // self.node * self.node + (rank + np.arange(1, self.node)) % self.node

    def same_place(self, rank: int) -> Ints:
        """The ranks of the same place in other nodes, from the next node on."""
        return (rank + np.arange(self.node, self.shape.ranks, self.node)) % self.shape.ranks

    @cached_property
    def one_switch(self) -> bool:
        """Whether the ranks meet on one switch."""
        return on_one_switch(self.fabric)

    def start_ps(self, rank: int) -> int:
        """When the kernel of a rank begins."""
        return self.starts_ps[rank] + self.launch_ps

    def _mma_and_epilogue(self) -> tuple[OpVariants, OpVariants]:
        main, epilogue, resume = self.time.main, self.time.epilogue, self.time.resume
        if self.aliased:
            mma = [
                take(ACCUMULATOR),
                {"kind": COMPUTE, "duration_ps": resume},
                take(BUFFER),
                {"kind": COMPUTE, "duration_ps": main - resume},
                give(FULL),
            ]
            finish = [take(FULL), {"kind": COMPUTE, "duration_ps": epilogue}, give(ACCUMULATOR), give(READY)]
        else:
            mma = [take(ACCUMULATOR), {"kind": COMPUTE, "duration_ps": main}, give(FULL)]
            work = {"kind": COMPUTE, "duration_ps": epilogue}
            finish = [take(FULL), take(BUFFER), work, give(ACCUMULATOR), give(READY)]
        return op_variants(self.builder, 1, mma), op_variants(self.builder, 1, finish)

    def store_lane(self, stores: Sequence[Mapping[str, Any]], variants: int, spread: bool = False) -> OpVariants:
        """Ops of the store lane: the STOREs of one tile, at once or spread over the next main loop."""
        issue = sum(np.asarray(store["duration_ps"], dtype=np.int64) for store in stores)
        gap = np.maximum(0, self.time.main - issue) // len(stores) if spread else 0
        ops: list[Mapping[str, Any]] = [take(READY), stores[0]]
        for store in stores[1:]:
            ops += [{"kind": COMPUTE, "duration_ps": gap}, store]
        return op_variants(self.builder, variants, [*ops, give(BUFFER)])

    def store(
        self, target: Any, size: Any, counter: Any = NO_COUNTER, stride: int = 0, flags: int = 0
    ) -> dict[str, Any]:
        """One STORE for each variant."""
        return {
            "kind": STORE,
            "target": target,
            "bytes": size,
            "duration_ps": self.machine.issue_time_ps(np.asarray(size, dtype=np.int64)),
            "counter": counter,
            "stride": stride,
            "flags": flags,
        }

    def local_store(self, rank: int, counter: Any = NO_COUNTER) -> OpVariants:
        """Stores of all tiles to the rank's own memory, one variant a tile."""
        sizes, which = np.unique(self.tiles.bytes, return_inverse=True)
        rows = np.array([self.builder.destination({rank: int(size)}) for size in sizes])
        return self.store_lane([self.store(rows[which], self.tiles.bytes, counter)], len(self.tiles))

    def order(self, rank: int) -> Ints:
        """Tiles of a rank in the order it works through them, [tiles].

        Rows are gathered from rank r on, so that its own come first; they are scattered, if the policy has `rotation`, from
        rank r + 1 on, so that ranks aim at different owners and its own rows come last. Otherwise in plain order: the owner
        of an AllReduce tile is tile mod ranks, which spreads by itself.

        On one switch all rows of a rank come before those of the next. Where blocks of all ranks are on their way at the
        same time, over links of their own or by multicast, the first block of each rank comes before the second of any, but
        rows of the rank's own node before those of others.
        """
        shape, tiles = self.shape, self.tiles
        gathers = shape.operation == "ag_gemm"
        if not gathers and not (self.policy.rotation and shape.operation == "gemm_rs"):
            return np.arange(len(tiles))
        step = (tiles.first_row // shape.local_m - rank - (not gathers)) % shape.ranks
        if self.one_switch and not (gathers and shape.algorithm == "multicast"):
            return np.argsort(step, kind="stable")
        owner, block = np.divmod(tiles.first_row, shape.local_m)
        block //= shape.block_m
        near = 1 * (owner // self.node == rank // self.node) + (owner == rank)
        return np.lexsort((step, tiles.n_block, block, -near if gathers else near))

    def add_groups(
        self,
        rank: int,
        store: OpVariants,
        order: Ints,
        *,
        last: OpVariants | None = None,
        guards: Sequence[tuple[Any, Any]] = (),
        start_ps: int | None = None,
    ) -> None:
        """The groups of a rank: tiles in `order`, dealt over the SMs in turn.

        `store` has a variant a tile, and so has `last`, what an SM does with its last tile instead; guards are by tile.
        """
        builder, n = self.builder, len(order)
        place = np.arange(n)
        stores = (
            store.first[order]
            if last is None
            else np.where(place < n - self.sms, store.first[order], last.first[order])
        )
        lanes = [OpVariants(np.repeat(one.first, n), one.n_ops) for one in (self.mma, self.epilogue)]
        runs = runs_by_seat(builder, [*lanes, OpVariants(stores, store.n_ops)])
        ordered = [(np.broadcast_to(counter, n)[order], np.broadcast_to(count, n)[order]) for counter, count in guards]
        tags = {"m_block": self.tiles.m_block[order], "n_block": self.tiles.n_block[order]}
        tasks = builder.tasks(runs, 3, guards=ordered, phase="gemm", **tags) + place
        by_sm = np.argsort(place % self.sms, kind="stable")
        queues = builder.queues(tasks[by_sm], np.bincount(place % self.sms, minlength=self.sms))
        plans = builder.private_plans(queues, self.sms) + np.arange(self.sms)
        start = self.start_ps(rank) if start_ps is None else start_ps
        seats = [Seat(role, sm=np.arange(self.sms), start_ps=start) for role in ("mma", "epilogue", "store")]
        builder.groups(gpu=rank, plan=plans, seats=seats, slots=self.slots)

    @property
    def _comm_sms(self) -> Ints:
        """SMs that have a comm lane: those that are reserved, or all that compute."""
        reserved = self.policy.name == "reserved_sms"
        return self.sms + np.arange(self.policy.reserved_sms) if reserved else np.arange(self.sms)

    @property
    def comm_lanes(self) -> int:
        return len(self._comm_sms)

    def add_comm(self, rank: int, plan: int) -> None:
        """Comm lanes of a rank, which take their tasks from one plan."""
        seat = Seat("comm", sm=self._comm_sms, start_ps=self.start_ps(rank))
        self.builder.groups(gpu=np.full(self.comm_lanes, rank), plan=plan, seats=[seat])

    def add_copy_engine(self, rank: int, tasks: Ints, lane: Ints) -> None:
        """Lanes on no SM, each with those of `tasks` that `lane` gives it, in order.

        What they send to other nodes is read from memory by a network interface (`FROM_MEMORY`).
        """
        queues = [self.builder.queue(tasks[lane == one]) for one in np.unique(lane)]
        if queues:
            plans = [self.builder.plan(repeat=[queue]) for queue in queues]
            beyond = max(self.sms, self._comm_sms[-1] + 1) + np.arange(len(plans))
            seat = Seat("copy engine", sm=beyond, start_ps=self.start_ps(rank))
            self.builder.groups(gpu=np.full(len(plans), rank), plan=np.array(plans), seats=[seat])


def take(slot: int) -> dict[str, int]:
    return {"kind": ACQUIRE, "counter": slot, "count": 1}


def give(slot: int) -> dict[str, int]:
    return {"kind": RELEASE, "counter": slot, "count": 1}


def balance_k(flops_per_s: float, drain_kbs: float, ranks: int) -> float:
    """Reduction length on a rank at which the stores of GEMM + ReduceScatter keep up with the GEMM: rate (P-1) / (P R).

    With 16-bit outputs. Below it the drain rate sets the time, above it the GEMM.

        >>> round(balance_k(650e12, 450e6, ranks=8))
        1264
    """
    return flops_per_s * (ranks - 1) / ranks / (drain_kbs * 1e3)
