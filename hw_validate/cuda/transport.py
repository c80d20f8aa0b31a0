"""Where the remote bytes of a measurement lie, and where its flags lie.

    peer    several GPUs of this process; each stores into the memory of the next (NVLink or PCIe). Flags lie in the memory
            of the GPU that waits for them.
    host    one GPU; what would go to a peer goes to pinned host memory, over PCIe or a chip-to-chip link. Flags lie in the
            GPU's own memory, so that waiting costs the link nothing.
    local   one GPU; everything stays in its own memory: the control.

The law of the stage can be seen on `host` too, but R and Q there are those of the way to the host, not of NVLink.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...sim.errors import InputError
from .device import Buffer, DeviceFacts, Devices
from .errors import MemoryTooSmallError, NoPeerAccessError
from .experiments import MOST_RANKS

TRANSPORTS = ("peer", "host", "local")
AUTO = "auto"
MiB = 2**20
LEAST_BYTES, USUAL_BYTES = 64 * MiB, 1024 * MiB
AGAIN_S = 1.0
"""Before memory that was not there is asked for once more."""
FREE_SHARE = 0.4
"""Of the memory that is free, one buffer takes no more than this."""


@dataclass(eq=False)
class Transport:
    """Memory for the stores of one measurement. `ranks[r]` is the device of rank r; `far[r]` is where bursts to rank r go,
    `own[r]` memory of rank r itself. `warnings` are for the record and for people. `no_signals` says why kernels that signal
    between ranks cannot run (None: they can); stores and flags that one rank alone writes always can."""

    name: str
    ranks: list[DeviceFacts]
    far: list[Buffer]
    own: list[Buffer]
    warnings: list[str] = field(default_factory=list)
    no_signals: str | None = None

    @property
    def n_ranks(self) -> int:
        return len(self.ranks)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "devices": [rank.index for rank in self.ranks],
            "far_bytes": [buffer.size for buffer in self.far],
            "own_bytes": [buffer.size for buffer in self.own],
        }


@contextmanager
def open_transport(
    devices: Devices, name: str = AUTO, ranks: int | None = None, most_bytes: int = USUAL_BYTES
) -> Iterator[Transport]:
    """The transport of that name (auto: `peer` where two GPUs can reach each other, else `host`) with its memory.

    `ranks` GPUs take part in `peer` (default: all that can). Raises `InputError` for a name or a number that there is not,
    `NoPeerAccessError`, `MemoryTooSmallError`.
    """
    if name not in (*TRANSPORTS, AUTO):
        raise InputError("is no transport", field="transport", value=name, allowed=(AUTO, *TRANSPORTS))
    facts = devices.facts()
    warnings: list[str] = []
    clique = _reachable(devices, facts)
    if name == AUTO:
        no_signals = without_atomics(devices, clique)
        name = "peer" if len(clique) > 1 and no_signals is None else "host"
        if name == "host" and len(facts) > 1:
            why = no_signals or _no_peers(devices, facts)
            warnings.append(f"{why}: measuring stores to the host instead")
    if name != "peer" and ranks not in (None, 1):
        raise InputError("needs transport peer", field="gpus", value=ranks, allowed="1")
    chosen = _peers(devices, facts, clique, ranks) if name == "peer" else facts[:1]
    if name == "peer" and len(chosen) < len(facts) and ranks is None:
        left = [one.index for one in facts if one not in chosen]
        warnings.append(f"GPUs {left} take no part: not all others can reach them")
    no_signals = without_atomics(devices, chosen) if name == "peer" else None
    if no_signals is not None:
        warnings.append(f"{no_signals}: stores are measured, programs are not replayed")
    transport = Transport(name, chosen, [], [], warnings, no_signals)
    try:
        for rank in chosen:
            # A GPU has as much room for each that may store to it as a single one would need.
            for buffers, size, on_host in (
                (transport.far, most_bytes * len(chosen), name == "host"),
                (transport.own, most_bytes, False),
            ):
                buffers.append(_buffer(devices, rank, size, on_host, warnings))
                buffers[-1].clear()
        if name == "peer":
            for a in chosen:
                for b in chosen:
                    if a is not b:
                        devices.enable_access(a.index, b.index)
        yield transport
    finally:
        for buffer in (*transport.far, *transport.own):
            buffer.free()


def peer_matrix(devices: Devices) -> list[list[bool]]:
    """Whether GPU a (row) can store into the memory of GPU b (column)."""
    found = devices.facts()
    return [[a.index == b.index or devices.can_access(a.index, b.index) for b in found] for a in found]


def _reachable(devices: Devices, facts: Sequence[DeviceFacts]) -> list[DeviceFacts]:
    """GPU 0 and those that it and all of them before can reach both ways, and that are equal to it."""
    clique: list[DeviceFacts] = []
    for one in facts:
        equal = not clique or (one.name, one.sms) == (clique[0].name, clique[0].sms)
        both = all(devices.can_access(one.index, o.index) and devices.can_access(o.index, one.index) for o in clique)
        if equal and both:
            clique.append(one)
    return clique


def _peers(
    devices: Devices, facts: list[DeviceFacts], clique: list[DeviceFacts], ranks: int | None
) -> list[DeviceFacts]:
    if len(facts) < 2:
        raise NoPeerAccessError("transport peer needs two GPUs, and there is one; use transport host")
    if len(clique) < 2:
        raise NoPeerAccessError(f"{_no_peers(devices, facts)}; use transport host")
    wanted = len(clique) if ranks is None else ranks
    if not 2 <= wanted <= len(clique):
        raise InputError(
            "are not there", field="gpus", value=ranks, allowed=f"2 to {len(clique)} that reach each other"
        )
    return clique[: min(wanted, MOST_RANKS)]


def _no_peers(devices: Devices, facts: Sequence[DeviceFacts]) -> str:
    blocked = [
        (a.index, b.index)
        for a in facts
        for b in facts
        if a.index != b.index and not devices.can_access(a.index, b.index)
    ]
    if not blocked:
        return "the GPUs are not equal"
    a, b = blocked[0]
    return (
        f"peer access is missing: GPU {a} cannot store into the memory of GPU {b} (no link, or an IOMMU is in the way)"
    )


def without_atomics(devices: Devices, facts: Sequence[DeviceFacts]) -> str | None:
    """Which GPU cannot add to the counters of which, in words; None if all can."""
    for a in facts:
        for b in facts:
            if a.index != b.index and not devices.native_atomics(a.index, b.index):
                return (
                    f"GPU {a.index} can store to GPU {b.index}, but not add to its counters (no native atomics between "
                    "them, as is usual over PCIe), so that signals could be lost"
                )
    return None


def _buffer(devices: Devices, rank: DeviceFacts, most_bytes: int, on_host: bool, warnings: list[str]) -> Buffer:
    """As much as wanted, or half and half again where there is less; asked for once more before, because another process may
    just be giving its own back."""
    size = most_bytes if on_host else min(most_bytes, int(FREE_SHARE * rank.free_bytes))
    size = size // MiB * MiB if size >= MiB else size
    where = "host memory" if on_host else f"GPU {rank.index}"
    least = min(LEAST_BYTES, most_bytes)
    tried_again = False
    while size >= least:
        try:
            made = devices.host_memory(size) if on_host else devices.device_memory(rank.index, size)
        except MemoryTooSmallError:
            if tried_again:
                size //= 2
            else:
                time.sleep(AGAIN_S)
            tried_again = True
            continue
        if size < most_bytes:
            warnings.append(
                f"{where} gave {size // MiB} MiB of the {most_bytes // MiB} wanted: addresses repeat after so much, and the "
                "largest bursts may be left out"
            )
        return made
    raise MemoryTooSmallError(f"{where} has no {least / MiB:g} MiB free, which a measurement needs at least")


def far_addresses(transport: Transport, most: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Addresses that bursts to each rank go to, as kernels take them."""
    addresses = np.zeros(most, dtype=np.uint64)
    addresses[: transport.n_ranks] = [buffer.address for buffer in transport.far]
    return addresses
