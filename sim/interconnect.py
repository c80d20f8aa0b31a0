"""The interconnect of a machine file: its wiring by `kind`, its rates and latencies, and the Fabric that they make.

    interconnect: {kind: ..., gpus: ..., drain_rate: ..., latency: ..., ...}

`KINDS` lists what each kind needs and may have besides; sim/topologies.py says what each is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from . import topology, traffic
from .checked import Checked, refusal
from .quantities import Count, Efficiency, Fraction, Rate, Sourced, Time, not_given
from .topology import StageParameters
from .units import format_time

if TYPE_CHECKING:
    from networkx import DiGraph

    from .topologies import Node

Kind = Literal[
    "switch", "direct", "oversubscribed_switch", "multi_plane_switch", "ring", "hybrid_cube_mesh", "islands", "custom"
]
MOST_GPUS = 4096
Gpus = Annotated[int, Field(strict=True, ge=1, le=MOST_GPUS)]
"""Every pair of GPUs has a route: with the most that are allowed they take a quarter of a minute to find, and 3 GB."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "switch": ("drain_rate",),
    "direct": ("link_rate",),
    "oversubscribed_switch": ("drain_rate", "oversubscription"),
    "multi_plane_switch": ("drain_rate", "planes"),
    "ring": ("link_rate", "hop_latency"),
    "hybrid_cube_mesh": ("link_rate", "hop_latency"),
    "islands": ("drain_rate", "gpus_per_node", "nic_rate", "nic_latency"),
    "custom": ("links",),
}
"""What each kind needs. `hop_latency` may also stand in a custom one; whatever else a kind does not need it refuses."""

A_LINK = "the whole list; a scenario slows one link down with disturb.degraded_link: {between: [A, B], factor: F}"
"""How a link of a custom wiring is changed."""

_WIRING = tuple(dict.fromkeys(name for names in KINDS.values() for name in names))

Destination = Literal["peer", "next", "all"]
"""Where a GPU stores: to GPU 1 while nobody else stores (`peer`), to the next GPU while all do so (`next`, the slowest
counts), or scattered over all others while all do so (`all`)."""


_ENDS = "a GPU's number, a range of them such as '0-3', or a switch's name"


def _end(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "" or str(value).startswith("-"):
        raise refusal("is no end of a link", allowed=_ENDS)
    nodes = _nodes(value)
    if nodes == [value] and isinstance(value, str) and value[0].isdecimal():  # '0--3'
        raise refusal("is neither a number, nor a range, nor a name", allowed=_ENDS)
    if not nodes:
        raise refusal("is an empty range of GPUs", allowed=_ENDS)
    if isinstance(nodes, range) and nodes[-1] >= MOST_GPUS:
        raise refusal("is a range of more GPUs than a machine may have", allowed=f"0 to {MOST_GPUS - 1}")
    return value


End = Annotated[Any, BeforeValidator(_end)]


class LinkProfile(Checked):
    """One link of a custom wiring, or one for each GPU of a range: `{between: ['0-3', leaf], rate: 50 GB/s}`.

    Both directions run at `rate` each, unless it is `one_way`, from the first end to the second. `latency` comes on top of
    the interconnect's own. Two ranges join each GPU of one to each of the other by one link, also where they overlap.
    """

    between: tuple[End, End]
    rate: Rate
    latency: Time = 0
    one_way: Annotated[bool, Field(strict=True)] = False

    def pairs(self) -> Iterator[tuple[Node, Node]]:
        """The two ends of each link."""
        return joined(self.between, self.one_way)


def joined(between: tuple[End, End], one_way: bool = False) -> Iterator[tuple[Node, Node]]:
    """The two ends of each link between two ends that may be ranges. One of both directions comes once."""
    first, second = (_nodes(end) for end in between)
    had: set[tuple[Node, Node]] = set()
    for a in first:
        for b in second:
            if a == b and not len(first) == len(second) == 1:
                continue
            if one_way or (b, a) not in had:
                had.add((a, b))
                yield a, b


class InterconnectProfile(Checked):
    """The wiring of GPUs. Rates are what stores achieve, of one GPU and one direction.

    `switch`: every GPU stores at `drain_rate` (R), whoever the receivers are. `direct`: one link of `link_rate` for each
    ordered pair of GPUs, so R is one link towards one peer and all of them together for a scatter. The other kinds are in
    sim/topologies.py: `oversubscription` is what GPUs send together over what the switch carries, `hop_latency` what each
    GPU on the way of a route adds, `nic_rate` and `nic_latency` hold between nodes of `gpus_per_node`.
    `fan_out_efficiency` lowers the rate of a scatter, `reduce_efficiency` that of stores that add, at the receiver, and
    `duplex_efficiency` all rates but `nic_rate`, always. `release` is what a store at system scope that releases earlier
    ones waits for them, in kernels that announce each tile to all ranks. A load request costs what a store of
    `load_request_fraction` of the bytes asked for does, on its sender's egress and the links of the route.
    A collective of its own starts `collective_launch` after the kernel before it; an All-to-All sends at `all_to_all_rate`,
    permutations of its data included, an AllGather, ReduceScatter or AllReduce at `ring_rate`, and an AllReduce that the
    switch adds up at `all_reduce_rate`. Both are bus bandwidths: bytes (P-1)/P, for an AllReduce 2 (P-1)/P, by time.
    """

    kind: Sourced[Kind]
    gpus: Sourced[Gpus]
    drain_rate: Sourced[Rate] | None = None
    link_rate: Sourced[Rate] | None = None
    oversubscription: Sourced[Annotated[float, Field(ge=1, allow_inf_nan=False)]] | None = None
    planes: Sourced[Count] | None = None
    gpus_per_node: Sourced[Count] | None = None
    nic_rate: Sourced[Rate] | None = None
    nic_latency: Sourced[Time] | None = None
    links: Sourced[tuple[LinkProfile, ...]] | None = None
    latency: Sourced[Time]
    hop_latency: Sourced[Time] | None = None
    local_latency: Sourced[Time] = Field(default=not_given(0, "a store to a GPU's own memory is visible at once"))
    fan_out_efficiency: Sourced[Efficiency] = Field(default=not_given(1.0, "a scatter drains as fast as a plain store"))
    duplex_efficiency: Sourced[Efficiency] = Field(default=not_given(1.0, "both directions at once cost nothing"))
    reduce_efficiency: Sourced[Efficiency] = Field(default=not_given(1.0, "adding costs the receiver nothing"))
    release: Sourced[Time] = Field(default=not_given(0, "a release waits for nothing"))
    load_request_fraction: Sourced[Fraction] = Field(default=not_given(0.0, "load requests cost nothing"))
    reply_arbitration: Sourced[Literal["fifo", "fair"]] = Field(default=not_given("fifo", "first come, first served"))
    collective_launch: Sourced[Time] | None = None
    all_to_all_rate: Sourced[Rate] | None = None
    ring_rate: Sourced[Rate] | None = None
    all_reduce_rate: Sourced[Rate] | None = None

    @model_validator(mode="after")
    def _fields_of_its_kind(self) -> InterconnectProfile:
        kind = self.kind.value
        needed = KINDS[kind]
        if missing := [name for name in needed if getattr(self, name) is None]:
            raise refusal(f"needs {', '.join(missing)}, which this machine does not give", key=("kind", "value"))
        for name in _WIRING:
            if name not in needed and getattr(self, name) is not None and (kind, name) != ("custom", "hop_latency"):
                reason = f"has no meaning where kind is {kind}"
                instead = f"{', '.join(needed)}{f', {A_LINK}' if kind == 'custom' else ''}"
                raise refusal(reason, key=(name,), allowed=f"null; give {instead}")
        _check_numbers(self)
        return self

    def drain_kbs(self, destination: Destination, n_gpus: int) -> int:
        """R in kB/s of one of the first `n_gpus` GPUs."""
        return _drain_kbs(self, destination, n_gpus)

    def graph(self) -> DiGraph:
        """The wiring of all GPUs as a graph of sim/topologies.py."""
        return _graph(self)

    def fabric(self, n_gpus: int, stage: StageParameters) -> topology.Fabric:
        """Stages and ports of the first `n_gpus` GPUs."""
        if self.kind.value == "switch" and self.drain_rate is not None:
            return topology.switch(n_gpus, self.drain_rate.value, stage)
        if self.kind.value == "direct" and self.link_rate is not None:
            return topology.direct(n_gpus, self.link_rate.value, stage)
        from . import routes

        hop_latency = 0 if self.hop_latency is None else self.hop_latency.value
        fabric = routes.fabric_of(self.graph(), n_gpus, stage, hop_latency)
        return fabric if self.nic_rate is None else _with_network(fabric, self.nic_rate.value)


def _with_network(fabric: topology.Fabric, nic_kbs: int) -> topology.Fabric:
    """`nic_rate` is what an interface carries with both directions busy, so the efficiencies of GPUs' ports leave it be."""
    rates = fabric.rates_kbs.copy()
    rates[2 * fabric.n_gpus :] = nic_kbs
    return replace(fabric, rates_kbs=rates)


def _check_numbers(profile: InterconnectProfile) -> None:
    """Raises what `refusal` makes for numbers that do not go together."""
    from .topologies import CUBE_GPUS

    gpus = profile.gpus.value
    if profile.kind.value == "hybrid_cube_mesh" and gpus != CUBE_GPUS:
        raise refusal("is no hybrid cube mesh", key=("gpus", "value"), allowed=str(CUBE_GPUS))
    if (size := profile.gpus_per_node) is not None and gpus % size.value:
        raise refusal(f"does not divide the {gpus} GPUs", key=("gpus_per_node", "value"))
    if profile.nic_latency is not None and profile.nic_latency.value < profile.latency.value:
        raise refusal("is below the latency within a node", key=("nic_latency", "value"))
    if profile.links is not None:
        _check_links(profile.links.value, gpus)


def _check_links(links: tuple[LinkProfile, ...], gpus: int) -> None:
    """Raises for an end that is no GPU of the machine, a link from a node to itself, two links between the same nodes that
    differ in latency, and a GPU that another cannot reach."""
    after: dict[Node, set[Node]] = {gpu: set() for gpu in range(gpus)}
    latency: dict[tuple[Node, Node], int] = {}
    for position, link in enumerate(links):
        key = ("links", "value", position, "between")
        for a, b in link.pairs():
            for end in (a, b):
                if isinstance(end, int) and not 0 <= end < gpus:
                    raise refusal(f"GPU {end} is not on this machine", key=key, allowed=f"0 to {gpus - 1}, or a switch")
            if a == b:
                raise refusal(f"joins {a} to itself", key=key, allowed="two different ends")
            for ends in ((a, b),) if link.one_way else ((a, b), (b, a)):
                if latency.setdefault(ends, link.latency) != link.latency:
                    raise refusal(
                        f"is not that of an earlier link from {ends[0]} to {ends[1]}, to whose rate this one is added",
                        key=("links", "value", position, "latency"),
                        allowed=format_time(latency[ends]),
                    )
                after.setdefault(ends[0], set()).add(ends[1])
    for gpu in range(gpus):
        reached: set[Node] = {gpu}
        fresh = reached
        while fresh:
            fresh = {node for at in fresh for node in after.get(at, ())} - reached
            reached |= fresh
        if missing := [other for other in range(gpus) if other not in reached]:
            raise refusal(f"leave GPU {missing[0]} out of reach of GPU {gpu}", key=("links", "value"))


def _nodes(end: int | str) -> range | list[Node]:
    """What an end of a link names: a GPU, a range of them, or a switch."""
    if isinstance(end, str):
        first, dash, last = end.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            return range(int(first), int(last) + 1)
        return [int(end) if end.isdecimal() else end]
    return [end]


def _graph(profile: InterconnectProfile) -> DiGraph:
    from . import topologies

    gpus = profile.gpus.value
    numbers = [getattr(profile, name).value for name in KINDS[profile.kind.value] if name != "hop_latency"]
    match profile.kind.value:
        case "hybrid_cube_mesh":
            return topologies.hybrid_cube_mesh(*numbers)
        case "islands":
            rate, size, nic_rate, nic_latency = numbers
            return topologies.islands(gpus, size, rate, nic_rate, nic_latency - profile.latency.value)
        case "custom":
            links = (
                topologies.Link(a, b, one.rate, one.latency, one.one_way) for one in numbers[0] for a, b in one.pairs()
            )
            return topologies.custom(gpus, links)
        case kind:
            build = getattr(topologies, kind)
            graph: DiGraph = build(gpus, *numbers)
            return graph


@lru_cache(maxsize=256)  # a sweep asks again for each of its points, and finding routes is most of the work
def _drain_kbs(profile: InterconnectProfile, destination: Destination, n_gpus: int) -> int:
    assert destination in get_args(Destination)
    enough = 2**40  # nothing here depends on the stage
    efficiency = (profile.fan_out_efficiency.value, profile.duplex_efficiency.value, profile.reduce_efficiency.value)
    count = min(max(2, n_gpus), profile.gpus.value)
    fabric = profile.fabric(count, StageParameters(1, enough, enough, 0, 0, *efficiency, signal_bytes=1))
    if count == 1:
        return int(fabric.rates_kbs[0, topology.PLAIN])
    if destination == "peer":
        return int(traffic.to_one(fabric, 0, 1).rate_kbs)
    if destination == "all" and count > 2:  # a store to the only peer is no scatter
        return int(traffic.all_to_all(fabric).rate_kbs)
    return int(traffic.to_next(fabric).rate_kbs)
