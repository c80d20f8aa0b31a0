"""The order of events at one instant, for SimPy.

SimPy runs events by time, then priority, then order of creation. Two engines can only agree to the last digit if ties are
broken by what an event is, not by when somebody happened to create it. So the priority here is a key (class, number):
first drained granules give their room back, then ports become free, then granules move (by ticket), then lanes (by
number). An event without a key is SimPy's own bookkeeping; it runs first and decides nothing.
"""

from __future__ import annotations

from typing import Any

import simpy

Key = tuple[int, int]

RELEASE_CLASS, PORT_CLASS, GRANULE_CLASS, LANE_CLASS = range(4)
BOOKKEEPING: Key = (-1, 0)


class OrderedEnvironment(simpy.Environment):
    """A SimPy environment in which the `key` of an event is its priority."""

    def schedule(self, event: simpy.Event, priority: Any = None, delay: Any = 0) -> None:
        super().schedule(event, getattr(event, "key", BOOKKEEPING), delay)  # type: ignore[arg-type]


class At(simpy.Event):
    """An event `delay` ps from now that runs by `key` among the events of its instant."""

    def __init__(self, env: simpy.Environment, key: Key, delay: int = 0) -> None:
        super().__init__(env)
        self.key = key
        self._ok = True
        self._value = None
        env.schedule(self, delay=delay)
