"""The combine: every SM adds up the rows that came back for its share of the GPU's own tokens, which it reads from HBM.

A token has a row for each of its slots that is not masked, and one more that all shared experts left together: the kernels
skip masked slots, and shared experts are one wide expert to them (`sm100_fp8_fp4_mega_moe.cuh` of
https://github.com/deepseek-ai/DeepGEMM, commit 0274ad7). SM i takes tokens i, i + SMs, and so on.

It starts when barrier 2 is through, or early: an SM without tiles left takes those of its tokens whose experts have all
returned their rows, in the order in which they are nominally ready, and needs no barrier.

An expert counts as done at a GPU when its last row is visible there. The kernels learn it from a flag that the owner sends
after that, about one latency later; left out. An SM reads at its share of the rate of HBM also while others still have
tiles. Source: `impls/sm90_fp8_fused_mega_moe.cuh`, https://github.com/deepseek-ai/DeepGEMM/pull/440.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...program import COMPUTE, NO_COUNTER, WAIT
from ...program_builder import ProgramBuilder, Seat
from ...tile_cost import needed
from .shape import MegaMoe

if TYPE_CHECKING:
    from ...machine import Machine

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Done:
    """When tokens of one GPU may be combined early. A flag is one expert of one rank.

    `left` + its SM is the counter that tells that the SM has no tiles left; the first `busy` SMs have some. `flags` are
    those of every token, [tokens, experts]; `counter` and `arrivals` say when a flag is up, `last` where the last tile of
    its expert stands in the nominal order, [flags].
    """

    left: Ints
    busy: int
    flags: Ints
    counter: Ints
    arrivals: Ints
    last: Ints


def rows_to_combine(topk: NDArray[np.int32], shape: MegaMoe) -> Ints:
    """Rows that are added up for each token of one rank, from its experts or -1, [tokens, k]."""
    rows: Ints = np.count_nonzero(topk >= 0, axis=1) + (shape.shared_experts > 0)
    return rows


def combine_bytes(shape: MegaMoe, rows: Ints, tokens: Ints | int) -> Ints:
    """Bytes of HBM that it takes to add `rows` rows up to `tokens` rows of bf16."""
    moved: Ints = rows * shape.return_bytes(shape.hidden) + tokens * 2 * shape.hidden
    return moved


def add_combine(builder: ProgramBuilder, machine: Machine, shape: MegaMoe, gpu: int, go: int, token_rows: Ints) -> None:
    """Lanes that start when the counter `go` is 1; `token_rows` as from `rows_to_combine`."""
    n = min(machine.sms, shape.tokens)
    if not n:
        return
    index = np.arange(n)
    waits = builder.runs(np.full(n, builder.ops(WAIT, counter=go, count=1)), 1) + index
    sm = np.arange(shape.tokens) % n
    rows = np.bincount(sm, weights=token_rows).astype(np.int64)
    times = _times_ps(machine, combine_bytes(shape, rows, np.bincount(sm)), index)
    adds = builder.runs(builder.ops(COMPUTE, duration_ps=times) + index, 1) + index
    _add_lanes(builder, gpu, index, waits, adds)


def add_early_combine(
    builder: ProgramBuilder, machine: Machine, shape: MegaMoe, gpu: int, done: Done, token_rows: Ints
) -> None:
    """Lanes that each start when their SM has no tiles left, and wait for the experts of each token."""
    if not shape.tokens:
        return
    order, sm = _tokens_of_sms(done)
    token, flag = _first_waits(done, order, sm)
    lanes, lane = np.unique(sm, return_inverse=True)
    # Tokens before which nothing is to wait for are combined with the one before.
    starts = np.union1d(np.flatnonzero(np.diff(sm, prepend=-1)), token)
    tokens, rows = np.diff(starts, append=shape.tokens), np.add.reduceat(token_rows[order], starts)
    times = _times_ps(machine, combine_bytes(shape, rows, tokens), lane[starts])

    none = np.zeros_like(starts)
    place = np.concatenate([token, starts])
    is_wait = np.arange(len(place)) < len(token)
    sort = np.lexsort((np.concatenate([flag, none]), ~is_wait, place))
    ops = builder.ops(
        np.where(is_wait, WAIT, COMPUTE)[sort],
        counter=np.concatenate([done.counter[flag], none + NO_COUNTER])[sort],
        count=np.concatenate([done.arrivals[flag], none])[sort],
        duration_ps=np.concatenate([np.zeros_like(flag), times])[sort],
    )
    n_ops = np.bincount(lane[place])
    index = np.arange(len(lanes))
    idle = builder.ops(WAIT, counter=done.left[lanes], count=(lanes < done.busy).astype(np.int64))
    waits = builder.runs(idle + index, 1) + index
    adds = builder.runs(ops + np.cumsum(n_ops) - n_ops, n_ops) + index
    _add_lanes(builder, gpu, lanes, waits, adds)


def _tokens_of_sms(done: Done) -> tuple[Ints, Ints]:
    """The tokens SM by SM, of each in the order in which they are nominally ready, and the SM of each."""
    sm = np.arange(len(done.flags)) % len(done.left)
    ready = np.where(_is_awaited(done, done.flags), done.last[done.flags], -1).max(axis=1, initial=-1)
    order = np.lexsort((ready, sm))
    return order, sm[order]


def _first_waits(done: Done, order: Ints, sm: Ints) -> tuple[Ints, Ints]:
    """Places in `order` at which an SM waits for a flag that it has not waited for before, and the flag."""
    flags = done.flags[order]
    place, slot = np.nonzero(_is_awaited(done, flags))
    flag = flags[place, slot]
    _, first = np.unique(sm[place] * len(done.last) + flag, return_index=True)
    return place[first], flag[first]


def _is_awaited(done: Done, flags: Ints) -> NDArray[np.bool_]:
    return np.where(flags >= 0, done.arrivals[flags] > 0, False)


def _times_ps(machine: Machine, moved: Ints, lane: Ints) -> Ints:
    """How long SMs take to read and write `moved` bytes, at a share of the rate of HBM.

    What a `lane` does takes `combine_floor` together at least; lanes stand one after the other.
    """
    rate = float(needed(machine, "hbm_rate") * needed(machine, "hbm_efficiency")) * 1e3 / machine.sms / 1e12  # B a ps
    times: Ints = np.ceil(moved / rate).astype(np.int64)
    whole = np.bincount(lane, weights=times).astype(np.int64)
    last = np.cumsum(np.bincount(lane)) - 1
    times[last] += np.maximum(0, int(needed(machine, "combine_floor")) - whole)
    return times


def _add_lanes(builder: ProgramBuilder, gpu: int, sm: Ints, waits: Ints, adds: Ints) -> None:
    """A lane for each SM with two tasks: wait, and combine."""
    n = len(sm)
    index = np.arange(n)
    tasks = [builder.tasks(runs, 1, phase=phase) + index for runs, phase in ((waits, "barrier"), (adds, "combine"))]
    plans = builder.private_plans(builder.queues(np.stack(tasks, axis=1).ravel(), np.full(n, 2)), n) + index
    builder.groups(gpu=gpu, plan=plans, seats=[Seat("combine", sm=sm)])
