"""Build the Program of attention and the All-to-All of its output.

On every SM that computes, a group of two lanes: `mma` runs the main loops, `store` is the asynchronous store that hands the
output buffer back when it has been read out. Two slots join them: free output buffers, and tiles ready to be stored.

    mma     COMPUTE (until the buffer is needed), ACQUIRE buffer, COMPUTE (the rest), RELEASE ready
    store   ACQUIRE ready, STORE, RELEASE buffer                     remote for `piggyback`, else to the GPU's own memory
    comm    ACQUIRE staged, STORE                                    `comm_warp`: a third lane of the group
            STORE, guarded by the tile's counter                     `reserved_sms`: SMs of their own
            WAIT for all tiles, launch, permute, STORE, WAIT         `serial`: one lane for the whole GPU
            STORE, guarded by all tiles; one then WAITs              `serial` of the portable kernel: a lane on every SM

Counters: one a rank counts the parts of tiles that have arrived (`peer`); with `serial` one a rank counts its own finished
tiles, with `reserved_sms` there is one a tile (`inputs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InputError
from ...program import ACQUIRE, COMPUTE, NO_COUNTER, NO_QUEUE, RELEASE, STORE, UNLIMITED_AHEAD, UNTIL_EXHAUSTED, WAIT
from ...program_builder import ProgramBuilder, Seat
from ...tile_cost import needed_wiring
from ..launch import starts_by_rank
from ..op_variants import OpVariants, op_variants, runs_by_seat
from ..policy import check_fits
from ..size_limit import check_ops
from ..store_parts import store_parts
from .cost import AttentionCosts, attention_flops, family_of, tile_times
from .order import Ints, owner_bytes, tile_order
from .shape import ELEMENT_BYTES, Attention, Policy

if TYPE_CHECKING:
    from ...machine import Machine
    from ...program import Program

BUFFER, READY, STAGED = range(3)
"""Slots of a group that computes."""
OPS_OF_TILE = 6
"""Of both lanes, for a tile that is stored in one part and not sent; others have up to 15."""


def build(machine: Machine, shape: Attention, policy: Policy, starts_ps: Sequence[int] = ()) -> Program:
    """The Program for all ranks of `shape`; with one rank every policy is attention alone.

    `starts_ps` delays the launch of ranks, in rank order.

    Raises `InputError` if the machine lacks a number, has too few GPUs, or the policy reserves all its SMs.
    """
    check_fits(machine, shape.ranks, policy.reserved_sms)
    return _Schedule(machine, shape, policy, starts_by_rank(starts_ps, shape.ranks)).build()


class _Schedule:
    """The tables of one Program while it is built; what all ranks share is made first."""

    def __init__(self, machine: Machine, shape: Attention, policy: Policy, starts_ps: list[int]) -> None:
        self.machine, self.shape, self.policy = machine, shape, policy
        self.how = policy.name if shape.ranks > 1 else "compute_only"
        self.family = family_of(machine, shape)
        self.tile = shape.tile(self.family)
        n_tiles = self.tile.blocks(shape.tokens) * shape.heads * shape.batch
        check_ops(OPS_OF_TILE * n_tiles, "tokens x heads x batch", f"{shape.tokens} x {shape.heads} x {shape.batch}")
        self.contract = "late" if policy.own_staging and self.tile.contract == "early" else self.tile.contract
        self.costs = AttentionCosts.of(machine, shape.inputs)
        self.starts_ps = [self.costs.launch_ps + start for start in starts_ps]
        self.sms = machine.sms - (policy.reserved_sms if self.how == "reserved_sms" else 0)
        if self.tile.static:  # clusters side by side
            self.sms = max(self.sms - self.sms % self.tile.multicast, 1)
        self.sizes = owner_bytes(shape, self.tile)  # [m-blocks, stores, ranks]
        self.has_rows = self.sizes.sum(axis=(1, 2)) > 0
        self.builder = ProgramBuilder(shape.ranks)
        self.arrived = self.builder.counters(home=np.arange(shape.ranks), cause="peer")
        self.to_owners = self._rows_to_owners()
        self.mma = self._mma_ops()
        self.is_one_launch = self.how == "serial" and self.family == "portable"
        self.copy = self._copy_ops() if self.how in ("comm_warp", "reserved_sms") or self.is_one_launch else None
        self.piggyback = self._owner_stores() if self.how == "piggyback" else None

    def build(self) -> Program:
        for rank in range(self.shape.ranks):
            self._add_rank(rank)
        return self.builder.build(
            schedule="attention_a2a",
            family=self.family,
            shape=asdict(self.shape),
            policy=asdict(self.policy),
            tile=asdict(self.tile),
            math=self.shape.inputs,
            flops=[attention_flops(self.shape)] * self.shape.ranks,
        )

    # --- ops that the ranks share, by m-block

    def _rows_to_owners(self) -> Ints:
        """Destinations row of each store, [m-blocks, stores]."""
        sizes = self.sizes.reshape(-1, self.shape.ranks)
        row, gpu = np.nonzero(sizes)
        counts = np.bincount(row, minlength=len(sizes))
        first = self.builder.destinations_flat(gpu, sizes[row, gpu], counts)
        return (first + np.arange(len(sizes))).reshape(self.sizes.shape[:2])

    def _mma_ops(self) -> OpVariants:
        times, n = tile_times(self.costs, self.tile, self.shape), self.tile.stores
        ops: list[dict[str, Any]]
        ready: dict[str, Any] = {"kind": RELEASE, "counter": READY}
        if self.contract == "early":
            ops = [
                {"kind": COMPUTE, "duration_ps": times.resume},
                {"kind": ACQUIRE, "counter": BUFFER, "count": n},
                {"kind": COMPUTE, "duration_ps": times.total - times.resume},
                {**ready, "count": n},
            ]
        else:
            one = [{"kind": ACQUIRE, "counter": BUFFER, "count": 1}, {**ready, "count": 1}]
            ops = [{"kind": COMPUTE, "duration_ps": times.total}, *(one * n)]
        return op_variants(self.builder, len(self.sizes), ops)

    def _stores(self, rows: Ints, sizes: Ints, counter: Any, stride: int) -> list[dict[str, Any]]:
        """A STORE for each part of a tile to the destinations `rows`, both [variants, stores].

        With a stride every part bumps a counter at each receiver; without one the last part with bytes bumps `counter`.
        """
        parts = rows.shape[1]
        last = (sizes > 0).sum(axis=1) - 1
        counters = [counter if stride else np.where(last == part, counter, NO_COUNTER) for part in range(parts)]
        return [
            {
                "kind": STORE,
                "target": rows[:, part],
                "bytes": sizes[:, part],
                "duration_ps": self.machine.issue_time_ps(sizes[:, part]),
                "counter": counters[part],
                "stride": stride,
            }
            for part in range(parts)
        ]

    def _store_lane(self, stores: list[dict[str, Any]], after: list[dict[str, Any]]) -> OpVariants:
        take, give = {"kind": ACQUIRE, "counter": READY, "count": 1}, {"kind": RELEASE, "counter": BUFFER, "count": 1}
        ops = [op for store in stores for op in (take, store, give)] + after
        return op_variants(self.builder, len(np.atleast_1d(stores[0]["target"])), ops)

    def _owner_stores(self) -> OpVariants:
        return self._store_lane(self._stores(self.to_owners, self.sizes.sum(axis=2), self.arrived, 1), [])

    def _copy_ops(self) -> OpVariants:
        """What the comm lane does with a finished tile."""
        stores = self._stores(self.to_owners, self.sizes.sum(axis=2), self.arrived, 1)
        before = [{"kind": ACQUIRE, "counter": STAGED, "count": 1}] if self.how == "comm_warp" else []
        return op_variants(self.builder, len(self.sizes), [*before, *stores])

    def _local_stores(self, rank: int, block: Ints, counter: Any) -> OpVariants:
        """Stores of the m-blocks `block` to the rank's own memory."""
        size = self.sizes.sum(axis=2)
        kinds, row = np.unique(size, return_inverse=True)
        rows = np.array([self.builder.destination({rank: int(one)}) for one in kinds])
        after = [{"kind": RELEASE, "counter": STAGED, "count": 1}] if self.how == "comm_warp" else []
        stores = self._stores(rows[row.reshape(size.shape)][block], size[block], counter, 0)
        return self._store_lane(stores, after)

    # --- one rank

    def _add_rank(self, rank: int) -> None:
        head, block = tile_order(self.shape, self.tile, rank, self.policy.rotation)
        ready, variant = self._inputs_counters(rank, len(block)), block
        if self.piggyback is not None:
            runs = runs_by_seat(self.builder, [self.mma, self.piggyback])
        elif self.how == "reserved_sms":
            store = self._local_stores(rank, block, ready + np.arange(len(block)))
            mma = OpVariants(self.mma.first[block], self.mma.n_ops)
            runs, variant = runs_by_seat(self.builder, [mma, store]), np.arange(len(block))
        else:
            store = self._local_stores(rank, np.arange(len(self.sizes)), ready)
            lanes = [self.mma, store] + ([self.copy] if self.how == "comm_warp" and self.copy else [])
            runs = runs_by_seat(self.builder, lanes)
        n_seats = 3 if self.how == "comm_warp" else 2
        tasks = self.builder.tasks(runs[variant], n_seats, phase="attention", m_block=block, n_block=head)
        self._add_computing_groups(rank, tasks + np.arange(len(block)), n_seats)
        if self.how == "reserved_sms":
            kept = np.flatnonzero(self.has_rows[block])
            self._add_comm_groups(rank, head[kept], block[kept], ready + kept)
        elif self.is_one_launch:
            self._add_copies_after_all(rank, head, block, ready)
        elif self.how == "serial":
            self._add_collective(rank, ready, int(self.has_rows[block].sum()))

    def _inputs_counters(self, rank: int, tiles: int) -> int:
        if self.how == "reserved_sms":
            return self.builder.counters(home=np.full(tiles, rank), cause="inputs")
        return self.builder.counters(home=rank, cause="inputs") if self.how == "serial" else NO_COUNTER

    def _add_computing_groups(self, rank: int, tasks: Ints, n_seats: int) -> None:
        builder, sms = self.builder, self.sms
        if self.tile.static:  # linear index with a stride of the grid
            by_sm = np.argsort(np.arange(len(tasks)) % sms, kind="stable")
            counts = np.bincount(np.arange(len(tasks)) % sms, minlength=sms)
            plans: Any = builder.private_plans(builder.queues(tasks[by_sm], counts), sms) + np.arange(sms)
        else:
            plans = builder.plan(repeat=[(builder.queue(tasks), NO_QUEUE, UNTIL_EXHAUSTED)])
        names = ("mma", "store", "comm")[:n_seats]
        seats = [Seat(name, sm=np.arange(sms), start_ps=self.starts_ps[rank]) for name in names]
        slots = (self.tile.stores, 0, 0)[: n_seats if n_seats == 3 else 2]
        ahead = 0 if self.contract == "exit" else UNLIMITED_AHEAD
        builder.groups(gpu=rank, plan=plans, seats=seats, slots=slots, ahead=ahead)

    def _add_comm_groups(self, rank: int, head: Ints, block: Ints, ready: Ints) -> None:
        builder, n = self.builder, self.policy.reserved_sms
        assert self.copy is not None
        runs = runs_by_seat(builder, [self.copy])
        guard = (ready, 1)
        tasks = builder.tasks(runs[block], 1, guards=[guard], phase="copy", m_block=block, n_block=head)
        plan = builder.plan(repeat=[(builder.queue(tasks + np.arange(len(block))), NO_QUEUE, UNTIL_EXHAUSTED)])
        seat = Seat("comm", sm=self.sms + np.arange(n), start_ps=self.starts_ps[rank])
        builder.groups(gpu=np.full(n, rank), plan=plan, seats=[seat])

    def _add_copies_after_all(self, rank: int, head: Ints, block: Ints, done: int) -> None:
        """`serial` in one launch: when all tiles are done, comm lanes of all SMs copy them; one waits for the others'."""
        builder, policy = self.builder, self.policy
        for name in ("launch_ps", "rate_kbs", "permute_kbs"):
            if getattr(policy, name) is not None:
                raise InputError("is what the portable kernel shows itself", field=name, value=getattr(policy, name))
        assert self.copy is not None
        guard = (done, len(block))
        runs = runs_by_seat(builder, [self.copy])
        tasks = builder.tasks(runs[block], 1, guards=[guard], phase="copy", m_block=block, n_block=head)
        parts = int((self.sizes[:, :, rank] > 0).sum())  # of one head, from one rank
        count = parts * self.shape.ranks * self.shape.batch * self.shape.local_heads
        wait = builder.op_list([{"kind": WAIT, "counter": self.arrived + rank, "count": count}])
        arrive = builder.tasks(wait, 1, guards=[guard], phase="arrive")
        copies = builder.queue(np.append(tasks + np.arange(len(block)), arrive))
        plan = builder.plan(repeat=[(copies, NO_QUEUE, UNTIL_EXHAUSTED)])
        seat = Seat("comm", sm=np.arange(self.sms), start_ps=self.starts_ps[rank])
        builder.groups(gpu=np.full(self.sms, rank), plan=plan, seats=[seat])

    def _add_collective(self, rank: int, done: int, tiles: int) -> None:
        """What `serial` does after attention: each term a task, so that spans show it."""
        builder, shape = self.builder, self.shape
        terms = _serial_terms(self.machine, self.policy)
        peers = (rank + 1 + np.arange(shape.ranks - 1)) % shape.ranks
        share = shape.local_tokens * shape.output_dim * ELEMENT_BYTES  # of one head, to one peer
        heads = shape.batch * shape.local_heads
        sizes = store_parts(share, len(peers))
        rows = {size: builder.destination({int(gpu): size for gpu in peers}) for size in dict.fromkeys(sizes)}
        stores = [
            {
                "kind": STORE,
                "target": rows[size],
                "bytes": size * len(peers),
                "duration_ps": _time_ps(size * len(peers), terms["rate_kbs"]),
                "counter": self.arrived,
                "stride": 1,
            }
            for size in sizes
        ]
        arrivals = len(stores) * heads * len(peers)
        phases: dict[str, list[dict[str, Any]]] = {
            "join": [{"kind": WAIT, "counter": done, "count": tiles}],
            "launch": [{"kind": COMPUTE, "duration_ps": terms["launch_ps"]}],
            "permute": [{"kind": COMPUTE, "duration_ps": _permute_ps(shape, terms["permute_kbs"])}],
            "a2a": [*stores * heads, {"kind": WAIT, "counter": self.arrived + rank, "count": arrivals}],
        }
        tasks = [builder.tasks(builder.op_list(ops), 1, phase=phase) for phase, ops in phases.items()]
        builder.groups(gpu=rank, plan=builder.plan(repeat=[builder.queue(tasks)]), seats=[Seat("comm")])


def _serial_terms(machine: Machine, policy: Policy) -> dict[str, Any]:
    """Terms of the serial All-to-All: the policy's, or else the machine's. Raises `InputError` if neither has them."""
    terms = {"launch_ps": policy.launch_ps, "rate_kbs": policy.rate_kbs, "permute_kbs": policy.permute_kbs}
    for name, field in (("launch_ps", "collective_launch"), ("rate_kbs", "all_to_all_rate")):
        if terms[name] is None:
            terms[name] = needed_wiring(machine, field, nor=f"{name} of the policy")
    return terms


def _permute_ps(shape: Attention, permute_kbs: int | None) -> int:
    """Reading and writing the whole local output once; nothing if the All-to-All's bandwidth contains it."""
    size = shape.batch * shape.tokens * shape.local_heads * shape.output_dim * ELEMENT_BYTES
    return 0 if permute_kbs is None else _time_ps(2 * size, permute_kbs)


def _time_ps(size: int, rate_kbs: int) -> int:
    return -(-size * 10**9 // rate_kbs)
