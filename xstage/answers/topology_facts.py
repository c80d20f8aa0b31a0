"""What a topology became: ports, lengths of routes, and what it carries when GPUs send evenly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..sim.topology import Fabric
from ..sim.traffic import Carried, all_to_all, bisection, route_lengths, to_next, unused_links
from ..sim.units import gbs, us
from ..terminal.output import table

MOST_NAMED = 3


def topology_facts(kind: str, fabric: Fabric) -> dict[str, Any]:
    """Plain data; rates are GB/s in one direction, null where there is nobody to send to."""
    n = fabric.n_gpus
    apart = ~np.eye(n, dtype=bool)
    lengths, latencies = route_lengths(fabric)[apart], fabric.latency_ps[apart]
    return {
        "kind": kind,
        "gpus": n,
        "ports": fabric.n_ports,
        "links": fabric.n_ports - 2 * n,
        "links_on_no_route": unused_links(fabric),
        "route_ports": [int(lengths.min()), int(lengths.max())] if n > 1 else None,
        "latency_us": [us(int(latencies.min())), us(int(latencies.max()))] if n > 1 else None,
        "next_gbs": _gbs(to_next(fabric)),
        "all_to_all_gbs": _gbs(all_to_all(fabric)),
        "all_to_all_limited_by": list(all_to_all(fabric).limited_by),
        "bisection_gbs": _gbs(bisection(fabric)),
        "bisection_limited_by": list(bisection(fabric).limited_by),
    }


def shown_topology(facts: dict[str, Any]) -> list[Any]:
    """The same for a person."""
    rows: list[tuple[str, str]] = [
        ("kind", facts["kind"]),
        ("GPUs", str(facts["gpus"])),
        ("ports", f"{facts['ports']}, of which {facts['links']} are links"),
    ]
    if facts["route_ports"]:
        rows += [
            ("ports on a route", _range(facts["route_ports"])),
            ("latency of a route", f"{_range(facts['latency_us'])} us"),
            ("each GPU to the next, all at once", f"{facts['next_gbs']:.4g} GB/s a GPU, of the slowest"),
            ("All-to-All", f"{facts['all_to_all_gbs']:.4g} GB/s a GPU{_limit(facts['all_to_all_limited_by'])}"),
            ("first half to second half", f"{facts['bisection_gbs']:.4g} GB/s{_limit(facts['bisection_limited_by'])}"),
        ]
    if idle := facts["links_on_no_route"]:
        rows.append(("on no route", f"{_named(idle)}: no rate of theirs can matter"))
    return [table("topology, one direction", ("", ""), rows), ""]


def _gbs(carried: Carried) -> float | None:
    return gbs(carried.rate_kbs) if math.isfinite(carried.rate_kbs) else None


def _range(ends: list[Any]) -> str:
    low, high = (f"{end:g}" for end in ends)
    return low if low == high else f"{low} to {high}"


def _limit(ports: list[str]) -> str:
    return f", limited by {_named(ports)}"


def _named(ports: list[str]) -> str:
    """Ports by name, or those of one kind by how many there are."""
    kinds = {port.split()[0] for port in ports}
    if len(ports) > MOST_NAMED and kinds <= {"egress", "ingress"}:
        return f"{len(ports)} ports of GPUs"
    more = len(ports) - MOST_NAMED
    return ", ".join(ports[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
