"""What a store meets after it is issued: the stages of its SM and GPU, then the ports of its route.

A `Fabric` is a topology lowered to arrays, ready for an engine. Ports 0 .. n-1 are the egress of each GPU, ports
n .. 2n-1 the ingress, the rest are links between them. A route from one GPU to another is a list of ports that begins
with the sender's egress and ends with the receiver's ingress.

    egress 0 --+                 +-- ingress 0            switch: every egress meets every ingress, nothing between
    egress 1 --+-- (the switch) -+-- ingress 1
    egress 0 ----- link 0>1 -------- ingress 1            direct: one link for each ordered pair
    egress 0 ----------------------- ingress of all       mirrored: one GPU of many equal ones

sim/topologies.py has the wirings in which links are shared, sim/routes.py the routes through them, sim/mirror.py one GPU
for many, and sim/shared_gpus.py several ranks on one GPU.

Rates are what stores achieve in the long run, not the line rate, so that packet headers are already paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import InputError, ProgramError
from .program_check import MAX_STORE_BYTES

PLAIN, SCATTER, REDUCE_RATE = range(3)
"""Columns of `Fabric.rates_kbs`: a store to one GPU, a store dealt over several (egress), a store that adds (ingress)."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Fabric:
    """The post-issue side of a machine as arrays. Rates in kB/s, times in ps, sizes in bytes.

    `capacity_sm` and `capacity_gpu` are the paper's Q in its two possible places: Q(K) = min(K * q_sm, Q_gpu).
    `stage_of_gpu` says whose Q_gpu the stores of each GPU share: by default its own. Replies to loads take the routes of
    stores, unless they have routes of their own.
    A signal is smaller than 2^31 bytes, as the piece of a store always is, and a load request no larger than its reply:
    times then fit into 64 bits. Raises `InputError` where a rate, a capacity, a stage or a granule makes no sense.
    """

    n_gpus: int
    granule_bytes: int
    capacity_sm: Array  # [n_gpus] room in the stage of one SM
    capacity_gpu: Array  # [n_gpus] room in the stage of the whole GPU
    rates_kbs: Array  # [n_ports, 3] by PLAIN, SCATTER, REDUCE_RATE
    route_first: Array  # [n_gpus * n_gpus + 1] offsets into route_ports, by source * n_gpus + destination
    route_ports: Array
    latency_ps: Array  # [n_gpus, n_gpus] from the last drained byte to visibility; the diagonal is a GPU's own memory
    port_names: tuple[str, ...]
    signal_bytes: int = 32
    request_permille: int = 0  # bytes of a load request, on egress and links, per 1000 bytes asked for
    fair_replies: bool = (
        False  # an egress alternates between stores and load replies, instead of first come first served
    )
    scatter_from: int = 2  # other GPUs from which on a store is a scatter; 1 where one GPU stands for many
    stage_of_gpu: Array | None = None  # [n_gpus] the GPU whose stage it uses
    reply_first: Array | None = None  # as route_first, by owner * n_gpus + puller
    reply_ports: Array | None = None

    def __post_init__(self) -> None:
        whole = ("granule_bytes", "capacity_sm", "capacity_gpu", "rates_kbs", "latency_ps", "signal_bytes")
        _check_whole(self, (*whole, "request_permille"))
        for name in ("capacity_sm", "capacity_gpu", "rates_kbs"):
            smallest = int(np.min(getattr(self, name), initial=1))
            if smallest < 1:
                raise InputError("must be above 0", field=name, value=smallest)
        if self.stage_of_gpu is not None and not np.isin(self.stage_of_gpu, np.arange(self.n_gpus)).all():
            field, allowed = "stage_of_gpu", f"0 to {self.n_gpus - 1}"
            raise InputError("names a GPU that there is not", field=field, value=self.stage_of_gpu, allowed=allowed)
        for name in ("latency_ps", "request_permille"):
            if np.min(getattr(self, name), initial=0) < 0:
                raise InputError("must be zero or more", field=name, value=int(np.min(getattr(self, name))))
        for name in ("granule_bytes", "signal_bytes"):
            if getattr(self, name) < 1:
                raise InputError("must be above 0", field=name, value=getattr(self, name))
        for name, most in (("signal_bytes", MAX_STORE_BYTES - 1), ("request_permille", 1000)):
            if getattr(self, name) > most:
                raise InputError("is too large", field=name, value=getattr(self, name), allowed=f"at most {most}")
        for name in ("capacity_sm", "capacity_gpu"):
            room = int(np.min(getattr(self, name), initial=2**62))
            for piece in ("granule_bytes", "signal_bytes"):
                if getattr(self, piece) > room:
                    raise InputError(
                        f"must fit into the stage, but {name} is {room} bytes",
                        field=piece,
                        value=getattr(self, piece),
                        allowed=f"1 to {room}",
                    )

    @property
    def n_ports(self) -> int:
        return len(self.rates_kbs)

    @property
    def stages(self) -> Array:
        """The GPU whose stage each GPU uses. int [n_gpus]."""
        return np.arange(self.n_gpus) if self.stage_of_gpu is None else self.stage_of_gpu

    @property
    def reply_routes(self) -> tuple[Array, Array]:
        """Offsets and ports of the routes of replies, as `route_first` and `route_ports`."""
        if self.reply_first is None or self.reply_ports is None:
            return self.route_first, self.route_ports
        return self.reply_first, self.reply_ports

    def route(self, source: int, destination: int, reply: bool = False) -> list[int]:
        """Ports from one GPU to another, in order. Raises `ProgramError` if there is no route."""
        first, ports = self.reply_routes if reply else (self.route_first, self.route_ports)
        pair = source * self.n_gpus + destination
        if source != destination and first[pair] == first[pair + 1]:
            raise ProgramError(f"GPU {destination} cannot be reached from GPU {source} on this topology")
        return [int(port) for port in ports[first[pair] : first[pair + 1]]]


@dataclass(frozen=True)
class StageParameters:
    """What `switch` and `direct` need besides the wiring; the same for every GPU. Units as in `Fabric`.

    Raises `InputError` for a size, a latency or a share that is no whole number.
    """

    granule_bytes: int
    capacity_sm_bytes: int
    capacity_gpu_bytes: int
    latency_ps: int = 0
    local_latency_ps: int = 0
    fan_out_efficiency: float = 1.0
    duplex_efficiency: float = 1.0
    reduce_efficiency: float = 1.0
    signal_bytes: int = 32
    request_permille: int = 0
    fair_replies: bool = False

    def __post_init__(self) -> None:
        whole = ("granule_bytes", "capacity_sm_bytes", "capacity_gpu_bytes", "latency_ps", "local_latency_ps")
        _check_whole(self, (*whole, "signal_bytes", "request_permille"))


def switch(n_gpus: int, rate_kbs: int, stage: StageParameters) -> Fabric:
    """A non-blocking switch: a granule passes its sender's egress and its receiver's ingress, each at `rate_kbs`."""
    routes = [[[a, n_gpus + b] if a != b else [] for b in range(n_gpus)] for a in range(n_gpus)]
    return lowered(n_gpus, [rate_kbs] * (2 * n_gpus), [], routes, stage)


def direct(n_gpus: int, link_rate_kbs: int, stage: StageParameters) -> Fabric:
    """One link of `link_rate_kbs` for each ordered pair of GPUs; egress and ingress are as wide as their links together."""
    peers = max(1, n_gpus - 1)
    links = [(a, b) for a in range(n_gpus) for b in range(n_gpus) if a != b]
    port_of = {pair: 2 * n_gpus + index for index, pair in enumerate(links)}
    routes = [[[a, port_of[a, b], n_gpus + b] if a != b else [] for b in range(n_gpus)] for a in range(n_gpus)]
    rates = [link_rate_kbs * peers] * (2 * n_gpus) + [link_rate_kbs] * len(links)
    return lowered(n_gpus, rates, [f"link {a}>{b}" for a, b in links], routes, stage)


def lowered(
    n_gpus: int,
    rates_kbs: Sequence[int],
    link_names: Sequence[str],
    routes: Sequence[Sequence[Sequence[int]]],
    stage: StageParameters,
    latency_ps: Array | None = None,
) -> Fabric:
    """A Fabric from the rates of all ports (egress, ingress, links) and `routes[source][destination]`.

    `latency_ps` by source and destination; without it `stage.latency_ps` holds for all. Raises `InputError`.
    """
    for name in ("fan_out_efficiency", "duplex_efficiency", "reduce_efficiency"):
        efficiency = getattr(stage, name)
        if not 0 < efficiency <= 1:
            raise InputError("must be above 0 and at most 1", field=name, value=efficiency)
    plain = np.array(rates_kbs, dtype=float) * stage.duplex_efficiency
    by_use = np.stack([plain, plain, plain], axis=1)
    by_use[:n_gpus, SCATTER] *= stage.fan_out_efficiency
    by_use[n_gpus : 2 * n_gpus, REDUCE_RATE] *= stage.reduce_efficiency
    ports_by_pair = [ports for row in routes for ports in row]
    latency = np.full((n_gpus, n_gpus), stage.latency_ps) if latency_ps is None else latency_ps
    latency = latency.astype(np.int64)
    np.fill_diagonal(latency, stage.local_latency_ps)
    return Fabric(
        n_gpus=n_gpus,
        granule_bytes=stage.granule_bytes,
        capacity_sm=np.full(n_gpus, stage.capacity_sm_bytes, dtype=np.int64),
        capacity_gpu=np.full(n_gpus, stage.capacity_gpu_bytes, dtype=np.int64),
        rates_kbs=np.floor(by_use).astype(np.int64),
        route_first=np.concatenate([[0], np.cumsum([len(ports) for ports in ports_by_pair])]).astype(np.int32),
        route_ports=np.array([port for ports in ports_by_pair for port in ports], dtype=np.int32),
        latency_ps=latency,
        port_names=tuple(
            [f"egress {g}" for g in range(n_gpus)] + [f"ingress {g}" for g in range(n_gpus)] + [*link_names]
        ),
        signal_bytes=stage.signal_bytes,
        request_permille=stage.request_permille,
        fair_replies=stage.fair_replies,
    )


def _check_whole(given: Fabric | StageParameters, names: Sequence[str]) -> None:
    """Raises `InputError` for a number, or an array, that is not of whole numbers."""
    for name in names:
        number = getattr(given, name)
        if (dtype := np.asarray(number).dtype).kind not in "iu":
            value = f"an array of {dtype}" if np.ndim(number) else number
            raise InputError("must be whole, in 64 bits", field=name, value=value)
