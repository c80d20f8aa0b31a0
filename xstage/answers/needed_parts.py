"""What `xstage needs` makes more or less of: the rates of an interconnect and the room of a stage.

Everything is a number of the machine file, so that what was run can be set: `Amount.settings` are overrides, and a run with
them takes just as long. Numbers are rounded to what is printed before they run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..sim.units import format_size, gbs, parse_rate, parse_size
from .reruns import with_numbers

if TYPE_CHECKING:
    from ..scenarios.loader import Resolved
    from ..sim.interconnect import LinkProfile
    from ..sim.machine import Machine
    from ..sim.trace import Trace

UNBOUNDED = 2**20
"""A rate so many times as high limits nothing."""


@dataclass(frozen=True)
class Amount:
    """So much of something: as text, as numbers of the machine by dotted path, and as overrides of a scenario."""

    text: str
    numbers: Mapping[str, Any]
    settings: Mapping[str, Any]

    def of(self, resolved: Resolved) -> Resolved:
        """The scenario on a machine with so much of it."""
        return replace(resolved, machine=with_numbers(resolved.machine, self.numbers))


@dataclass(frozen=True)
class Scalable:
    """Something that there can be `at(factor)` times as much of. `now` is what there is."""

    name: str
    text: str
    now: str
    at: Callable[[float], Amount]


def all_rates(resolved: Resolved) -> Scalable:
    """Every rate of the interconnect that the scenario uses, at the same factor."""
    parts = rate_parts(resolved)
    if resolved.machine.interconnect.kind.value == "oversubscribed_switch":
        return _rate(resolved.machine, "drain_rate", "drain rate (R), the switch's core with it")
    if len(parts) == 1:
        return parts[0]

    def at(factor: float) -> Amount:
        amounts = [part.at(factor) for part in parts]
        return Amount(
            " and ".join(amount.text for amount in amounts),
            {path: value for amount in amounts for path, value in amount.numbers.items()},
            {path: value for amount in amounts for path, value in amount.settings.items()},
        )

    text, now = (" and ".join(getattr(part, name) for part in parts) for name in ("text", "now"))
    return Scalable("drain_rate", text, now, at)


def rate_parts(resolved: Resolved) -> tuple[Scalable, ...]:
    """The rates of the interconnect that can be set apart, without those that no route of the scenario passes."""
    machine = resolved.machine
    match machine.interconnect.kind.value:
        case "islands" if uses_links(resolved):
            return _rate(machine, "drain_rate", "drain rate (R)"), _rate(machine, "nic_rate", "NIC rate")
        case "oversubscribed_switch":
            return _ports_of_switch(machine), _core_of_switch(machine)
        case "direct" | "ring" | "hybrid_cube_mesh":
            return (_rate(machine, "link_rate", "link rate (R)"),)
        case "custom":
            return (_links(machine),)
        case _:
            return (_rate(machine, "drain_rate", "drain rate (R)"),)


def without_drain_limit(machine: Machine) -> Machine:
    """The machine with GPUs that send as fast as what is between them lets them; for a Program that goes by R."""
    if machine.interconnect.drain_rate is None:  # then it is that of the links
        return machine
    if machine.interconnect.kind.value == "oversubscribed_switch":
        return with_numbers(machine, _ports_of_switch(machine).at(UNBOUNDED).numbers)
    return with_numbers(machine, _rate(machine, "drain_rate", "").at(UNBOUNDED).numbers)


def without_link_limit(machine: Machine) -> Machine:
    """The machine with nothing between GPUs that holds them up; for a Program that goes by R."""
    match machine.interconnect.kind.value:
        case "islands":
            part = _rate(machine, "nic_rate", "")
        case "oversubscribed_switch":
            part = _core_of_switch(machine)
        case "direct" | "ring" | "hybrid_cube_mesh":
            part = _rate(machine, "link_rate", "")
        case "custom":
            part = _links(machine)
        case _:
            return machine
    return with_numbers(machine, part.at(UNBOUNDED).numbers)


def uses_links(resolved: Resolved) -> bool:
    """Whether some route of the scenario passes more than an egress and an ingress."""
    fabric = resolved.fabric()
    return bool((fabric.route_ports >= 2 * fabric.n_gpus).any())


def room(resolved: Resolved) -> Scalable:
    """The room of each SM and of each GPU; at least that of a granule."""
    stage, fabric = resolved.machine.stage, resolved.fabric()
    least = max(stage.granule.value, fabric.granule_bytes, fabric.signal_bytes)
    sizes = {"stage.capacity_gpu": stage.capacity_gpu.value, "stage.capacity_sm": stage.capacity_sm.value}

    def at(factor: float) -> Amount:
        texts = {path: format_size(max(least, size * factor), "up") for path, size in sizes.items()}
        return Amount(_room_text(*texts.values()), {path: parse_size(text) for path, text in texts.items()},
                      _overrides(texts))  # fmt: skip

    now = _room_text(*(format_size(size, "up") for size in sizes.values()))
    return Scalable("capacity", "capacity of the stage (Q)", now, at)


def _room_text(of_gpu: str, of_sm: str) -> str:
    return f"{of_gpu}, {of_sm} an SM"


def _rate(machine: Machine, name: str, text: str) -> Scalable:
    rate = int(getattr(machine.interconnect, name).value)
    path = f"interconnect.{name}"

    def at(factor: float) -> Amount:
        shown = rate_text(rate * factor)
        return Amount(shown, {path: parse_rate(shown)}, _overrides({path: shown}))

    return Scalable(name, text, rate_text(rate), at)


def _ports_of_switch(machine: Machine) -> Scalable:
    """The ports of GPUs at a switch whose core stays as it is: it carries a share of what they send."""
    rate = _rate(machine, "drain_rate", "drain rate (R)")
    ratio = float(machine.interconnect.oversubscription.value)  # type: ignore[union-attr]

    def at(factor: float) -> Amount:
        amount, less = rate.at(factor), _ratio(max(1.0, ratio * factor))
        return Amount(amount.text, {**amount.numbers, **less.numbers}, {**amount.settings, **less.settings})

    return replace(rate, at=at)


def _core_of_switch(machine: Machine) -> Scalable:
    ratio = float(machine.interconnect.oversubscription.value)  # type: ignore[union-attr]
    return Scalable("oversubscription", "oversubscription of the switch", f"{ratio:g}",
                    lambda factor: _ratio(max(1.0, ratio / factor)))  # fmt: skip


def _ratio(ratio: float) -> Amount:
    text, path = f"{ratio:.4g}", "interconnect.oversubscription"
    return Amount(text, {path: float(text)}, _overrides({path: float(text)}))


def _links(machine: Machine) -> Scalable:
    """All links of a custom wiring. They have no one rate, so that the factor is what is shown."""
    links = machine.interconnect.links.value  # type: ignore[union-attr]
    path = "interconnect.links"

    def at(factor: float) -> Amount:
        scaled = tuple(link.model_copy(update={"rate": parse_rate(rate_text(link.rate * factor))}) for link in links)
        written = [link.model_dump(mode="json") for link in scaled]
        return Amount(f"{factor:.4g} times that of each link", {path: scaled}, _overrides({path: written}))

    return Scalable("links", "rate of links (R)", "as given", at)


def links_by_use(trace: Trace, machine: Machine) -> list[int]:
    """Entries of a custom wiring by number, that with the busiest link first; without those that carry nothing."""
    if machine.interconnect.links is None:
        return []
    busy = dict(zip(trace.fabric.port_names, trace.outcome.ports["busy_ps"].tolist(), strict=True))
    use = [
        max(busy.get(f"link {start}>{end}", 0) for a, b in entry.pairs() for start, end in ((a, b), (b, a)))
        for entry in machine.interconnect.links.value
    ]
    return sorted((number for number, most in enumerate(use) if most), key=lambda number: -use[number])


def some_links(machine: Machine, chosen: Collection[int]) -> Scalable:
    """Some entries of a custom wiring, by number, the others as they are."""
    links = machine.interconnect.links.value  # type: ignore[union-attr]
    path, named = "interconnect.links", " and ".join(_ends(links[number]) for number in sorted(chosen))

    def at(factor: float) -> Amount:
        texts = {number: rate_text(links[number].rate * factor) for number in sorted(chosen)}
        faster = tuple(
            link.model_copy(update={"rate": parse_rate(texts[number])}) if number in texts else link
            for number, link in enumerate(links)
        )
        written = [link.model_dump(mode="json") for link in faster]
        return Amount(" and ".join(texts.values()), {path: faster}, _overrides({path: written}))

    now = " and ".join(rate_text(links[number].rate) for number in sorted(chosen))
    return Scalable("links", f"rate of the link{'s' if len(chosen) > 1 else ''} {named} (R)", now, at)


def _ends(link: LinkProfile) -> str:
    first, second = link.between
    return f"{first} {'to' if link.one_way else '-'} {second}"


def rate_text(rate_kbs: float) -> str:
    """A rate in GB/s with a digit more than the precision of a search."""
    rate = gbs(rate_kbs)
    return f"{rate:.{0 if rate >= 1000 else 1 if rate >= 100 else 2 if rate >= 10 else 4}f} GB/s"


def _overrides(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {f"machine.{path}": value for path, value in numbers.items()}
