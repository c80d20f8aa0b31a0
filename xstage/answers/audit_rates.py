"""The numbers of a machine's interconnect that the R of an audit follows from, and which of them to raise."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from ..sim.interconnect import Destination
from ..sim.machine import Machine
from ..sim.units import KBS_PER_GBS, gbs
from .needed_parts import UNBOUNDED
from .reruns import with_numbers

RATES = {"drain_rate": "drain rate", "link_rate": "link rate", "nic_rate": "NIC rate"}
"""Rates of a machine file that R may follow from, as an advice names them."""


def rate_numbers(machine: Machine, to: Destination, gpus: int) -> list[str]:
    """The names of the numbers that R follows from, by dotted path. Of several rates, one that could be halved is none."""
    rates = [path for path in _rates(machine) if _matters(machine, to, gpus, path)]
    others = ["links", "oversubscription"]
    if rates != ["interconnect.nic_rate"]:
        others.append("duplex_efficiency")
    if to == "all" and gpus > 2:  # a store to the only peer is no scatter
        others.append("fan_out_efficiency")
    given = [name for name in others if getattr(machine.interconnect, name) is not None]
    return rates + [f"interconnect.{name}" for name in given]


def raised(machine: Machine, to: Destination, gpus: int, enough_kbs: float) -> str:
    """What brings R to so many kB/s, in words: the rates of the machine file that are too low, in whole GB/s."""
    rates = _rates(machine)
    if not rates:
        return _faster_links(machine, to, gpus, enough_kbs)
    enough: dict[str, int] = {}
    for path, rate in rates.items():
        others = {other: value * UNBOUNDED for other, value in rates.items() if other != path}
        alone = with_numbers(machine, others).drain_kbs(to, gpus)
        enough[path] = ceil(enough_kbs / alone * rate / KBS_PER_GBS) * KBS_PER_GBS
    short = {path: rate for path, rate in enough.items() if rate > rates[path]}
    drains = with_numbers(machine, short).drain_kbs(to, gpus)
    while drains < enough_kbs:  # R is in whole kB/s, rounded down
        short = {path: short.get(path, rate) + KBS_PER_GBS for path, rate in rates.items()}
        drains = with_numbers(machine, short).drain_kbs(to, gpus)
    named = " and ".join(f"a {RATES[_name(path)]} of {gbs(rate):.0f} GB/s" for path, rate in short.items())
    if list(short.values()) == [drains]:
        return named
    return f"{named} in the machine file, with which {gbs(drains):.4g} GB/s drain"


def _faster_links(machine: Machine, to: Destination, gpus: int, enough_kbs: float) -> str:
    """The same for a list of links, which have no one rate."""
    links = machine.interconnect.links.value  # type: ignore[union-attr]
    hundredths = ceil(100 * enough_kbs / machine.drain_kbs(to, gpus))
    while True:
        faster = tuple(link.model_copy(update={"rate": -(-link.rate * hundredths // 100)}) for link in links)
        drains = with_numbers(machine, {"interconnect.links": faster}).drain_kbs(to, gpus)
        if drains >= enough_kbs:
            times = f"links {hundredths / 100:g} times as fast as in the machine file"
            return f"{times}, with which {gbs(drains):.4g} GB/s drain"
        hundredths += 1


def _rates(machine: Machine) -> Mapping[str, int]:
    given = {f"interconnect.{name}": getattr(machine.interconnect, name) for name in RATES}
    return {path: number.value for path, number in given.items() if number is not None}


def _matters(machine: Machine, to: Destination, gpus: int, path: str) -> bool:
    rates: Mapping[str, Any] = _rates(machine)
    if len(rates) == 1:
        return True
    return with_numbers(machine, {path: rates[path] // 2}).drain_kbs(to, gpus) < machine.drain_kbs(to, gpus)


def _name(path: str) -> str:
    return path.rpartition(".")[2]
