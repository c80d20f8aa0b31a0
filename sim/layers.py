"""A block of a model as kernels one after another: how long it takes, where the time goes, how much of it is communication.

A block is a list of `Kernel`s. Each is simulated on its own and takes until its last byte is visible; then the list is laid
out in time: a kernel starts when those it comes `after` (by default the one before it) and the one before it on its
stream have ended. So separate kernels never share the network or the SMs; kernels on different streams overlap freely.

    >>> qkv = Kernel("qkv", Exchange(100_000_000, ranks=8))
    >>> norm = Kernel("norm", Elementwise(50_000_000), after=(), stream="comm")
    >>> [kernel.name for kernel in (qkv, norm)]
    ['qkv', 'norm']

Communication that is exposed is the time of the block less its time when every kernel takes what it takes alone: with all
its data in place and nothing to send. For attention and a GEMM that is the kernel that stores to its own memory, for a
collective nothing, for MegaMoE what is left without counts, barriers, pull and return (schedules/megamoe/in_place.py). So
the pull of a MegaMoE call counts as communication whatever bounds it, the network or the warps that fetch row after row.
One rank has nobody to communicate with, and takes its time alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from .errors import InputError
from .execute import simulate
from .mirror import mirrored
from .placement import contiguous
from .pools import pools
from .predict import GemmCall, exchange_ps, one_stands_for_all
from .schedules import attention_a2a, megamoe, tensor_parallel
from .schedules.attention_a2a import Attention
from .schedules.megamoe import MegaMoe
from .schedules.megamoe.in_place import with_rows_in_place
from .tile_cost import needed
from .units import PS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from .machine import Machine
    from .program import Program
    from .routing import Routing
    from .topology import Fabric
    from .trace import Trace

Stream = Literal["compute", "comm"]

FREE_NETWORK = 1000
"""How many times wider a network without limits is."""

ATTENTION_ALONE = attention_a2a.Policy("compute_only")


@dataclass(frozen=True)
class AttentionKernel:
    """Attention, with the All-to-All of its output by `policy`."""

    shape: Attention
    policy: attention_a2a.Policy = ATTENTION_ALONE


@dataclass(frozen=True, eq=False)
class MoeKernel:
    """One MegaMoE call."""

    shape: MegaMoe
    policy: megamoe.Policy
    routing: Routing


@dataclass(frozen=True)
class Exchange:
    """An All-to-All of its own, such as that of Q, K and V, in which one of `ranks` sends so many bytes: `exchange_ps`."""

    bytes_sent: int
    ranks: int


@dataclass(frozen=True)
class Elementwise:
    """A kernel that memory bounds, such as a norm: bytes read and written."""

    bytes_moved: int


Work = AttentionKernel | GemmCall | MoeKernel | Exchange | Elementwise


@dataclass(frozen=True)
class Kernel:
    """One kernel of a block. `after` names what it waits for; None is the kernel before it in the list."""

    name: str
    work: Work
    after: tuple[str, ...] | None = None
    stream: Stream = "compute"


class KernelLength(NamedTuple):
    """How long a kernel takes until its last byte is visible, and how long without communication, ps.

    `mirror_busy_pct` is how busy its busiest port was where one rank was simulated for all, 0 where all were.
    """

    time_ps: int
    alone_ps: int
    mirror_busy_pct: float = 0.0


@dataclass(frozen=True)
class KernelTime:
    """Start and length of a kernel in a block, and what else `KernelLength` says of it."""

    name: str
    stream: Stream
    start_ps: int
    time_ps: int
    alone_ps: int
    mirror_busy_pct: float = 0.0


@dataclass(frozen=True)
class BlockTime:
    """A block laid out in time. `alone_ps` is its length if no kernel communicated."""

    kernels: tuple[KernelTime, ...]
    total_ps: int
    alone_ps: int

    @property
    def exposed_ps(self) -> int:
        """Communication that the block's length contains."""
        return self.total_ps - self.alone_ps

    def table(self) -> pd.DataFrame:
        """One row a kernel: start, time, time alone and exposed communication (us), and its share of the block (pct)."""
        import pandas as pd

        return pd.DataFrame(
            {
                "kernel": kernel.name,
                "stream": kernel.stream,
                "start_us": kernel.start_ps / PS_PER_US,
                "time_us": kernel.time_ps / PS_PER_US,
                "alone_us": kernel.alone_ps / PS_PER_US,
                "exposed_us": (kernel.time_ps - kernel.alone_ps) / PS_PER_US,
                "share_pct": 100 * kernel.time_ps / max(1, self.total_ps),
            }
            for kernel in self.kernels
        )


def simulate_block(
    machine: Machine,
    kernels: Sequence[Kernel],
    granule_bytes: int | None = None,
    known: dict[Work, KernelLength] | None = None,
) -> BlockTime:
    """Simulate every kernel once and lay them out. Equal kernels are simulated once.

    `known` keeps their lengths for other blocks on the same machine. Raises `InputError` if a name stands twice, or a kernel
    waits for one that does not come before it.
    """
    after = _dependencies(kernels)
    known = {} if known is None else known
    for kernel in kernels:
        if kernel.work not in known:
            known[kernel.work] = kernel_length(machine, kernel.work, granule_bytes)
    lengths = [known[kernel.work] for kernel in kernels]
    starts, total = _lay_out(kernels, after, [length.time_ps for length in lengths])
    _, alone_total = _lay_out(kernels, after, [length.alone_ps for length in lengths])
    rows = (
        KernelTime(kernel.name, kernel.stream, start, *length)
        for kernel, start, length in zip(kernels, starts, lengths, strict=True)
    )
    return BlockTime(tuple(rows), total, alone_total)


def kernel_length(machine: Machine, work: Work, granule_bytes: int | None = None) -> KernelLength:
    """A kernel simulated, or by a closed form. Raises `InputError` if the machine lacks a number."""
    match work:
        case Exchange():
            return KernelLength(exchange_ps(machine, work.bytes_sent, work.ranks), 0)
        case Elementwise():
            rate = needed(machine, "hbm_rate") * needed(machine, "hbm_efficiency")
            time = needed(machine, "kernel_launch") + round(work.bytes_moved * 1e9 / rate)
            return KernelLength(time, time)
        case AttentionKernel():
            alone = attention_a2a.build(machine, work.shape, work.policy.alone)
            program = attention_a2a.build(machine, work.shape, work.policy)
        case GemmCall():
            alone = tensor_parallel.build(machine, work.shape, work.policy.alone)
            program = tensor_parallel.build(machine, work.shape, work.policy)
        case MoeKernel():
            return _length_of_experts(machine, work, granule_bytes)
    fabric = machine.fabric(work.shape.ranks, granule_bytes)
    return KernelLength(_run(program, fabric).makespan_ps, _run(alone, fabric).makespan_ps)


def _length_of_experts(machine: Machine, work: MoeKernel, granule_bytes: int | None) -> KernelLength:
    """One rank stands for all where there are many rows, and all ranks are alike."""
    rows = pools(work.routing, contiguous(work.shape.experts, work.shape.ranks)).rows_per_rank
    fabric = machine.fabric(work.shape.ranks, granule_bytes)
    is_mirror = fabric.n_gpus > 1 and one_stands_for_all(fabric, rows, work.shape.tokens)
    fabric = mirrored(fabric) if is_mirror else fabric
    ranks: Literal["all", "symmetric"] = "symmetric" if is_mirror else "all"
    program = megamoe.build(machine, work.shape, work.policy, work.routing, ranks=ranks)
    trace = _run(program, fabric)
    time = trace.makespan_ps
    alone = time
    if work.shape.ranks > 1:
        alone = _run(with_rows_in_place(program), _without_limits(fabric)).makespan_ps
    busy = int(trace.outcome.ports["busy_ps"].max(initial=0)) if is_mirror else 0
    return KernelLength(time, alone, 100 * busy / max(1, time))


def _run(program: Program, fabric: Fabric) -> Trace:
    return simulate(program, fabric, trace="off")


def _without_limits(fabric: Fabric) -> Fabric:
    """The same GPUs, each as far from its own L2 as ever, on a network without limits."""
    wide = {name: getattr(fabric, name) * FREE_NETWORK for name in ("rates_kbs", "capacity_sm", "capacity_gpu")}
    local = np.diag(np.diag(fabric.latency_ps))
    return replace(fabric, latency_ps=local, request_permille=0, **wide)


def _dependencies(kernels: Sequence[Kernel]) -> list[list[int]]:
    """Places of the kernels that each kernel waits for."""
    place: dict[str, int] = {}
    waits: list[list[int]] = []
    for index, kernel in enumerate(kernels):
        if kernel.name in place:
            raise InputError("stands twice in the block", field="name", value=kernel.name)
        for name in kernel.after or ():
            if name not in place:
                raise InputError(f"of {kernel.name} does not come before it", field="after", value=name, allowed=place)
        default = [index - 1] if index else []
        waits.append(default if kernel.after is None else [place[name] for name in kernel.after])
        place[kernel.name] = index
    return waits


def _lay_out(kernels: Sequence[Kernel], after: list[list[int]], times: list[int]) -> tuple[list[int], int]:
    """Starts of the kernels, and the end of the last one."""
    starts: list[int] = []
    ends: list[int] = []
    stream_end: dict[Stream, int] = {}
    for kernel, waits, time in zip(kernels, after, times, strict=True):
        start = max([stream_end.get(kernel.stream, 0), *(ends[place] for place in waits)])
        starts.append(start)
        ends.append(start + time)
        stream_end[kernel.stream] = start + time
    return starts, max(ends, default=0)
