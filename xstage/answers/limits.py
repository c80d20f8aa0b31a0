"""The limits that cost a scenario time, and the scenario without some of them: what `explain` removes one after the other.

The rates of an interconnect are two limits: R, at which a GPU sends and takes in, and that of what lies between GPUs
(links, network interfaces, the core of a switch). The latter comes before Q: with a stage without limit, stores fill the
queue of a slow link, and the replies of pulls wait behind them. T_iss0 comes after all of these: as long as stores wait for
room or for a port, issuing them faster only makes them wait longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..scenarios.loader import Resolved
from ..sim import waterfall
from ..sim.arguments import names
from ..sim.checked import closest
from ..sim.errors import InputError
from .needed_parts import uses_links, without_drain_limit, without_link_limit
from .reruns import with_numbers

if TYPE_CHECKING:
    from ..scenarios.schema import Scenario
    from ..scenarios.workload import Workload
    from ..sim.machine import Machine
    from ..sim.program import Program
    from ..sim.topology import Fabric
    from ..sim.trace import Trace

L2_CACHE = "l2_cache"
LINKS = "links"
LINKS_OF = {
    "islands": ("NIC rate", "network interfaces without limit"),
    "oversubscribed_switch": ("switch core rate", "the switch's core without limit"),
    "multi_plane_switch": ("plane link rate", "links to the planes without limit"),
}
"""What lies between GPUs, by the kind of interconnect, where it is not a link: its label, and without what it is gone."""
FOLDED = "drain rate R, with links"
"""One rank that stands for all has no links of its own."""
FEEDS = ("fp4_unpack", L2_CACHE, "hbm", "l2_feed")
"""Limits that a tile's main loop holds: it is as long as the slowest of the Tensor Cores and what feeds them."""
IMBALANCE = "imbalance"
SENDING = "sending"
ISSUE = "issue"
AT_ONCE_KBS = 10**12
"""Rate at which stores are issued at once: 1 KiB in 1 ps, so that SMs still store in turns and not one after the other."""

KEPT_BYTES = 2**30


@dataclass(frozen=True)
class Limit:
    """Something that costs time and can be taken away: from the fabric, from the scenario (None where it is not there), or
    from the machine that the Program is built for (None, and not there where neither Program nor fabric changes). `text` is
    the label of its bar, at most 25 characters, and `symbol` the paper's.
    """

    name: str
    text: str
    removed: str
    fabric: Callable[[Fabric], Fabric] | None = None
    scenario: Callable[[Scenario], Scenario | None] | None = None
    machine: Callable[[Machine], Machine | None] | None = None
    symbol: str | None = None


def _undisturbed(kind: str) -> Callable[[Scenario], Scenario | None]:
    """Without the disturbances of one kind."""

    def change(scenario: Scenario) -> Scenario | None:
        if not getattr(scenario.disturb, kind):
            return None
        return scenario.model_copy(update={"disturb": scenario.disturb.model_copy(update={kind: ()})})

    return change


def _with(change: Callable[[Workload], Workload | None]) -> Callable[[Scenario], Scenario | None]:
    """With a changed workload."""

    def changed(scenario: Scenario) -> Scenario | None:
        workload = change(scenario.workload)
        return None if workload is None else scenario.model_copy(update={"workload": workload})

    return changed


def _in_time(scenario: Scenario) -> Scenario | None:
    """With no rank late, whether the workload or a disturbance made it so."""
    workload = _with(lambda w: w.without_late_ranks())(scenario)
    return _undisturbed("late_gpu")(workload or scenario) or workload


def _unlimited(*numbers: str) -> Callable[[Machine], Machine | None]:
    """With numbers of the compute part so large that they limit nothing; None where the machine has none of them."""

    def change(machine: Machine) -> Machine | None:
        known = {number: value for number in numbers if (value := getattr(machine.compute, number)) is not None}
        if not known:
            return None
        compute = {
            number: value.model_copy(update={"value": waterfall.WITHOUT_LIMIT}) for number, value in known.items()
        }
        return machine.model_copy(update={"compute": machine.compute.model_copy(update=compute)})

    return change


def _issued_at_once(machine: Machine) -> Machine:
    """With stores that take no time to issue."""
    return with_numbers(machine, {"stage.t0": 0, "stage.issue_rate": AT_ONCE_KBS})


LIMITS = (
    Limit("degraded_link", "degraded link", "links as they should be", scenario=_undisturbed("degraded_link")),
    Limit("slow_gpu", "slow GPU", "GPUs that are equally fast", scenario=_undisturbed("slow_gpu")),
    Limit("late_ranks", "late ranks", "a start of all at once", scenario=_in_time),
    Limit(
        LINKS,
        "link rate",
        "links between GPUs without limit",
        waterfall.without_link_limit,
        machine=without_link_limit,
    ),
    Limit(
        "capacity",
        "stage capacity Q",
        "a stage without limit",
        waterfall.without_capacity_limit,
        symbol="Q",
    ),
    Limit(
        "drain_rate",
        "drain rate R",
        "GPUs that send and take in without limit",
        waterfall.without_rate_limit,
        machine=without_drain_limit,
        symbol="R",
    ),
    Limit(
        ISSUE,
        "issue time T_iss0",
        "stores that take no time to issue",
        machine=_issued_at_once,
        symbol="T_iss0",
    ),
    Limit("latency", "link latency", "no latency", waterfall.without_latency),
    Limit(
        "fp4_unpack",
        "FP4 unpacking",
        "weights that need no unpacking",
        machine=_unlimited("fp4_unpack"),
    ),
    Limit(
        L2_CACHE,
        "L2 misses (weights)",
        "an L2 cache that keeps every weight tile, so that each is read from HBM once",
        machine=_unlimited("l2"),
    ),
    Limit("hbm", "HBM bandwidth", "an HBM without limit", machine=_unlimited("hbm_rate")),
    Limit(
        "l2_feed",
        "L2-to-SM bandwidth",
        "an L2 cache that feeds every SM as fast as it multiplies",
        machine=_unlimited("l2_throughput", "sm_feed", "sm_port", "l2_rate"),
    ),
    Limit(
        IMBALANCE, "routing imbalance", "as many rows for every expert", scenario=_with(lambda w: w.without_imbalance())
    ),
    Limit(SENDING, "sending itself", "nothing to send", scenario=_with(lambda w: w.without_sending())),
)
"""In the order in which they are removed unless another is asked for."""


def named(limit: Limit, resolved: Resolved) -> Limit:
    """`limit` as it is called on the scenario's interconnect."""
    kind = resolved.machine.interconnect.kind.value
    if limit.name == LINKS and kind in LINKS_OF:
        text, removed = LINKS_OF[kind]
        return replace(limit, text=text, removed=removed)
    symmetric = resolved.scenario.workload.is_mirrored
    return replace(limit, text=FOLDED) if limit.name == "drain_rate" and symmetric and kind != "switch" else limit


def ordered(order: Sequence[str] | None) -> list[Limit]:
    """The limits by name or by the paper's symbol. Raises `InputError` for one that there is not or that is given twice."""
    known = {limit.name: limit for limit in LIMITS}
    symbols = {limit.symbol: limit.name for limit in LIMITS if limit.symbol}
    if order is None:
        return list(LIMITS)
    found: list[Limit] = []
    for name in names(order, "order"):
        limit = known.get(symbols.get(name, name))
        if limit is None:
            reason = f"is no limit that can be removed{closest(name, known)}"
            raise InputError(reason, field="order", value=name, allowed=limit_names())
        if limit in found:
            raise InputError("is given twice", field="order", value=name)
        found.append(limit)
    return found


def limit_names() -> list[str]:
    """What `order` takes, in the order of `LIMITS`: 'capacity (or Q)'."""
    return [f"{limit.name} (or {limit.symbol})" if limit.symbol else limit.name for limit in LIMITS]


class WithoutLimits:
    """A scenario run without some of its limits. A schedule is built once for all runs that it is the same in, as long as
    `KEPT_BYTES` hold those there are; beyond, the oldest is built again.
    """

    def __init__(self, resolved: Resolved):
        self._resolved = resolved
        self._programs: dict[frozenset[str], Program] = {}

    def run(self, removed: Sequence[Limit]) -> Trace:
        """The run without these limits, which are all there."""
        from ..sim.execute import simulate

        changed = self._changed(removed)
        assert changed is not None  # limits that are not there have been left out

        # The fabric is that of the machine as it is: a wiring may derive the rates of GPUs from those of their links.
        fabric = replace(changed, machine=self._resolved.machine).fabric()
        for limit in removed:
            fabric = limit.fabric(fabric) if limit.fabric else fabric
        return simulate(self._program(removed), fabric, self._resolved.scenario.engine, "off")

    def there(self, limits: Sequence[Limit]) -> list[Limit]:
        """Those of `limits` that the scenario has at all. One of `FEEDS` is there even where another hides it, which has to
        be removed first.
        """
        feeds = [limit for limit in LIMITS if limit.name in FEEDS and self._changed([limit])]
        return [limit for limit in limits if self._is_there(limit, feeds)]

    def _is_there(self, limit: Limit, feeds: Sequence[Limit]) -> bool:
        if limit.name == LINKS:
            return uses_links(self._resolved)
        if limit.name == ISSUE:
            return self._changes_tiles(limit, [])
        if limit.name not in FEEDS:
            return self._changed([limit]) is not None
        others = [other for other in feeds if other is not limit]
        return limit in feeds and (self._changes_tiles(limit, []) or self._changes_tiles(limit, others))

    def _changes_tiles(self, limit: Limit, removed: Sequence[Limit]) -> bool:
        """Whether some op takes another time without `limit`, when these are gone already."""
        before, after = self._program(removed), self._program([*removed, limit])
        return not np.array_equal(before.ops["duration_ps"], after.ops["duration_ps"])

    def _program(self, removed: Sequence[Limit]) -> Program:
        changing = frozenset(limit.name for limit in removed if limit.scenario or limit.machine)
        if changing not in self._programs:
            changed = self._changed(removed)
            assert changed is not None
            self._programs[changing] = changed.program()
            while len(self._programs) > 1 and sum(made.ops.nbytes for made in self._programs.values()) > KEPT_BYTES:
                del self._programs[next(iter(self._programs))]
        return self._programs[changing]

    def _changed(self, removed: Sequence[Limit]) -> Resolved | None:
        """The scenario without what these add to it or to its machine; None if one of them is not there."""
        scenario, machine = self._resolved.scenario, self._resolved.machine
        # From the last to the first, in whatever order they go: the core of a switch after the ports that it is a share of.
        for limit in sorted(removed, key=LIMITS.index, reverse=True):
            if limit.scenario is not None:
                changed = limit.scenario(scenario)
                if changed is None:
                    return None
                scenario = changed
            if limit.machine is not None:
                remade = limit.machine(machine)
                if remade is None:
                    return None
                machine = remade
        return replace(self._resolved, scenario=scenario, machine=machine)
