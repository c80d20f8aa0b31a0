"""Which rank holds which expert, and which copy of an expert serves a token.

A placement has replicas (physical experts), the same number on every rank. `contiguous` gives every expert one replica;
`eplb` replicates the busy experts and packs replicas so that ranks are about equally loaded, after the description at
https://github.com/deepseek-ai/EPLB. A placement covers one layer; layers are placed independently.

Not modelled: moving weights from one placement to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError


@dataclass(frozen=True, eq=False)
class Placement:
    """`phy2log[p]` is the logical expert of replica p; replica p lives on rank p // replicas_per_rank.

    `phy2log` has shape [replicas], int32, read-only. Replicas number a multiple of `n_ranks` and every logical expert
    has at least one. Raises `InputError` if not.
    """

    phy2log: NDArray[np.int32]
    n_experts: int
    n_ranks: int

    def __post_init__(self) -> None:
        _require_positive(n_experts=self.n_experts, n_ranks=self.n_ranks)
        phy2log = np.array(self.phy2log)
        if phy2log.ndim != 1 or phy2log.size == 0 or phy2log.dtype.kind not in "iu":
            raise InputError("must be a list of expert ids", field="phy2log", value=f"{phy2log.dtype}{phy2log.shape}")
        if phy2log.size % self.n_ranks:
            raise InputError(
                "replicas must divide evenly over ranks",
                field="replicas",
                value=phy2log.size,
                allowed=f"a multiple of {self.n_ranks}",
            )
        if phy2log.min() < 0 or phy2log.max() >= self.n_experts:
            raise InputError("has an expert id out of range", field="phy2log", allowed=f"0 to {self.n_experts - 1}")
        missing = np.setdiff1d(np.arange(self.n_experts), phy2log)
        if missing.size:
            raise InputError("leaves an expert without a replica", field="phy2log", value=int(missing[0]))
        phy2log = phy2log.astype(np.int32)
        phy2log.setflags(write=False)
        object.__setattr__(self, "phy2log", phy2log)

    @property
    def n_replicas(self) -> int:
        return int(self.phy2log.size)

    @property
    def replicas_per_rank(self) -> int:
        return self.n_replicas // self.n_ranks

    @property
    def rank_of_replica(self) -> NDArray[np.int32]:
        """Rank of every replica, [replicas] int32."""
        return np.repeat(np.arange(self.n_ranks, dtype=np.int32), self.replicas_per_rank)

    @property
    def copies(self) -> NDArray[np.int64]:
        """Replicas of every expert, [experts]."""
        return np.bincount(self.phy2log, minlength=self.n_experts)

    @property
    def log2phy(self) -> NDArray[np.int32]:
        """Replicas of every expert in ascending order, [experts, most copies] int32, padded with -1."""
        copies = self.copies
        table = np.full((self.n_experts, int(copies.max())), -1, dtype=np.int32)
        by_expert = np.argsort(self.phy2log, kind="stable")
        expert = self.phy2log[by_expert]
        first = np.cumsum(copies) - copies
        table[expert, np.arange(self.n_replicas) - first[expert]] = by_expert
        return table

    def choose_replica(self, topk: NDArray[np.integer]) -> NDArray[np.int32]:
        """Replica that serves every (rank, token, slot) of `topk` [ranks, tokens, slots]; -1 where `topk` is -1.

        Copies take turns by token: copy (source rank + token) mod copies. The same token always meets the same copy,
        and the turn starts at another copy on every rank, so that a batch of one token a rank spreads too.
        """
        ranks, tokens, _ = topk.shape
        turn = np.arange(ranks)[:, None, None] + np.arange(tokens)[None, :, None]
        expert = np.maximum(topk, 0)
        copies = self.copies
        which = 0 if copies.max() == 1 else turn % copies[expert]
        replica = self.log2phy[expert, which]
        return np.where(topk < 0, np.int32(-1), replica)

    def rank_load(self, expert_load: ArrayLike) -> NDArray[np.float64]:
        """Load of every rank, [ranks], if the copies of an expert share its load `expert_load` [experts] equally."""
        load = checked_load(expert_load, field="expert_load", n_experts=self.n_experts)
        per_replica = (load / self.copies)[self.phy2log]
        per_rank: NDArray[np.float64] = per_replica.reshape(self.n_ranks, self.replicas_per_rank).sum(axis=1)
        return per_rank


@dataclass(frozen=True)
class LoadReport:
    """Rank loads of one expert load under two placements; `saving_pct` is how much the busiest rank sheds."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    max_over_mean_before: float
    max_over_mean_after: float
    saving_pct: float


def compare_load(expert_load: ArrayLike, before: Placement, after: Placement) -> LoadReport:
    """Loads per rank and max/mean before and after a change of placement, for `expert_load` [experts].

    Without any load max/mean is 1 and the saving 0.
    """
    old, new = before.rank_load(expert_load), after.rank_load(expert_load)
    saving = 100 * (1 - float(new.max() / old.max())) if old.max() > 0 else 0.0
    return LoadReport(tuple(old.tolist()), tuple(new.tolist()), max_over_mean(old), max_over_mean(new), saving)


def max_over_mean(load: ArrayLike) -> float:
    """Largest over mean of `load` [n]: 1 is perfect balance, n is everything in one place. 1 if there is no load."""
    values = np.asarray(load, dtype=np.float64)
    return float(values.max() / values.mean()) if values.size and values.any() else 1.0


def contiguous(n_experts: int, n_ranks: int) -> Placement:
    """Expert e on rank e // (n_experts / n_ranks), one replica each; `InputError` unless ranks divide experts."""
    _require_positive(n_experts=n_experts, n_ranks=n_ranks)
    if n_experts % n_ranks:
        raise InputError(
            "experts must divide evenly over ranks; redundant experts (EPLB) can fill the gap",
            field="n_experts",
            value=n_experts,
            allowed=f"a multiple of {n_ranks}",
        )
    return Placement(np.arange(n_experts, dtype=np.int32), n_experts, n_ranks)


def eplb(expert_load: ArrayLike, *, n_replicas: int, n_ranks: int, n_groups: int = 1, n_nodes: int = 1) -> Placement:
    """Placement that balances `expert_load` [experts] over `n_ranks` GPUs with `n_replicas` - experts redundant copies.

    With groups that divide over nodes (`n_groups` % `n_nodes` == 0) it is hierarchical: pack expert groups on nodes,
    replicate inside each node, pack the replicas on the node's GPUs; so a group-limited router stays inside a node. If
    they do not divide it is global: the same with one group and one node. Both are greedy: with a handful of experts a
    rank the busiest rank can come out slightly above that of a lucky contiguous placement.

    Raises `InputError` unless ranks divide replicas, nodes divide ranks, groups divide experts, and replicas cover the
    experts. Source: https://github.com/deepseek-ai/EPLB.
    """
    load = checked_load(expert_load, field="expert_load")
    n_experts = load.size
    _require_positive(n_replicas=n_replicas, n_ranks=n_ranks, n_groups=n_groups, n_nodes=n_nodes)
    if n_replicas < n_experts:
        raise InputError(
            "must cover every expert", field="n_replicas", value=n_replicas, allowed=f"{n_experts} or more"
        )
    _require_multiple("n_replicas", n_replicas, "n_ranks", n_ranks)
    _require_multiple("n_ranks", n_ranks, "n_nodes", n_nodes)
    _require_multiple("experts", n_experts, "n_groups", n_groups)
    if n_groups % n_nodes:
        n_groups, n_nodes = 1, 1

    group_size = n_experts // n_groups
    groups_of_node = pack_evenly(load.reshape(n_groups, group_size).sum(axis=1), n_nodes)
    phy2log = [
        _place_in_node(
            load,
            (groups[:, None] * group_size + np.arange(group_size)).ravel(),
            n_replicas // n_nodes,
            n_ranks // n_nodes,
        )
        for groups in groups_of_node
    ]
    return Placement(np.concatenate(phy2log), n_experts, n_ranks)


def _place_in_node(
    load: NDArray[np.float64], experts: NDArray[np.int64], n_replicas: int, n_ranks: int
) -> NDArray[np.int64]:
    expert = experts[replicate(load[experts], n_replicas)]
    copies = np.bincount(expert, minlength=load.size)
    return expert[pack_evenly(load[expert] / copies[expert], n_ranks)].ravel()


def replicate(load: NDArray[np.float64], n_replicas: int) -> NDArray[np.int64]:
    """Item of every replica, [n_replicas]: one copy each, then extra copies one by one to the largest load per copy.

    Ties go to the first item. This minimises the largest load per copy.
    """
    copies = np.ones(load.size)
    items = list(range(load.size))
    for _ in range(n_replicas - load.size):
        busiest = int(np.argmax(load / copies))
        copies[busiest] += 1
        items.append(busiest)
    return np.array(items, dtype=np.int64)


def pack_evenly(load: NDArray[np.float64], n_packs: int) -> NDArray[np.int64]:
    """Items of every pack, [n_packs, items per pack]: heaviest first, each to the lightest pack that has room.

    Packs hold equally many items; ties go to the first item and the first pack. One item a pack keeps the item order.
    """
    room = load.size // n_packs
    if room == 1:
        return np.arange(n_packs)[:, None]
    packs = np.empty((n_packs, room), dtype=np.int64)
    filled = np.zeros(n_packs, dtype=np.int64)
    weight = np.zeros(n_packs)
    for item in np.argsort(-load, kind="stable"):
        pack = int(np.argmin(np.where(filled < room, weight, np.inf)))
        packs[pack, filled[pack]] = item
        filled[pack] += 1
        weight[pack] += load[item]
    return packs


def checked_load(load: ArrayLike, *, field: str, n_experts: int | None = None) -> NDArray[np.float64]:
    """`load` as float64 [experts]; raises `InputError` unless it is one finite number >= 0 for every expert."""
    values = np.asarray(load, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or (n_experts is not None and values.size != n_experts):
        expected = "one number per expert" if n_experts is None else f"{n_experts} numbers, one per expert"
        raise InputError("has the wrong shape", field=field, value=values.shape, allowed=expected)
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if bad.size:
        raise InputError("must be finite and not negative", field=f"{field}[{bad[0]}]", value=float(values[bad[0]]))
    return values


def _require_positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InputError("must be at least 1", field=name, value=count)


def _require_multiple(name: str, value: int, of: str, divisor: int) -> None:
    if value % divisor:
        raise InputError(f"must be a multiple of {of}", field=name, value=value, allowed=f"a multiple of {divisor}")
