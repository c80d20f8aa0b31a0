"""The X-Stage in SimPy: the issue queue of an SM, its finite outstanding capacity, and the drain servers behind it.

    lane --> issue port --> room in the SM's stage --> room in the GPU's stage --> egress --> ... --> ingress --> visible
             (T_iss0)       (q_sm)                     (Q)                         (drain servers, rate R)

A granule holds its room from admission until the last drain server is through with it. While there is no room the issue
port is kept waiting; what that takes beyond the granule's own issue time is the stall.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import simpy
from simpy.resources.resource import Request

from .simpy_order import GRANULE_CLASS, PORT_CLASS, RELEASE_CLASS, At, Key, OrderedEnvironment
from .topology import PLAIN, REDUCE_RATE, SCATTER

if TYPE_CHECKING:
    from .topology import Fabric

Steps = Generator[simpy.Event, Any, Any]


class Stage:
    """Finite outstanding capacity: `room` is what is left of Q, `held` what has been admitted and not yet drained."""

    def __init__(self, env: simpy.Environment, capacity: int) -> None:
        self.room = simpy.Container(env, capacity=capacity, init=capacity)
        self.held = 0
        self.peak = 0

    def admit(self, size: int) -> None:
        self.held += size
        self.peak = max(self.peak, self.held)

    def drain(self, size: int) -> None:
        self.held -= size
        self.room.put(size)


class IssueQueue:
    """The issue port of an SM, which its lanes share first come, first served, and the SM's part of the stage.

    `stall_clock` tells for how long granules of this SM have been stalled so far, so that a lane that queues behind a
    stalled granule can tell that part of its waiting from waiting for its turn.
    """

    def __init__(self, env: simpy.Environment, capacity: int) -> None:
        self.env = env
        self.port = simpy.Resource(env, capacity=1)
        self.stage = Stage(env, capacity)
        self.stalled_total = 0
        self.stalled_since: int | None = None

    def stall_clock(self) -> int:
        running = 0 if self.stalled_since is None else max(0, int(self.env.now) - self.stalled_since)
        return self.stalled_total + running

    def begin_stall(self, time: int) -> None:
        """The granule at the port has no room: from `time` on, when it would have been issued, it stalls."""
        self.stalled_since = time

    def end_stall(self, stall: int) -> None:
        self.stalled_total += stall
        self.stalled_since = None


class DrainServer:
    """A port: it serves one granule at a time, first come, first served, at the rate R of the machine.

    A granule may go on to its next port as soon as it starts here (cut-through), but keeps this port busy until
    finish = max(finish at the port before, start + service).
    """

    def __init__(self, env: OrderedEnvironment, number: int, rates: Any) -> None:
        self.env = env
        self.number = number
        self.rates = [int(rate) for rate in rates]
        self.server = simpy.Resource(env, capacity=1)
        self.busy_ps = 0
        self.bytes = 0

    def serve(self, granule: Granule, use: int) -> Steps:
        """Wait for the port, take it, and return at once; it frees itself at `granule.finish`."""
        turn = self._request(granule)
        if not turn.triggered:
            turn.key = granule.key  # type: ignore[attr-defined]
            yield turn
        now = int(self.env.now)
        service = max(1, -(-granule.bytes * 10**9 // self.rates[use]))
        granule.finish = max(granule.finish, now + service)
        self.busy_ps += service
        self.bytes += granule.bytes
        free = At(self.env, (PORT_CLASS, self.number), granule.finish - now)

        def release(_: simpy.Event) -> None:
            self.server.release(turn)

        free.callbacks.append(release)

    def _request(self, granule: Granule) -> Request:
        return self.server.request()


class FairEgress(DrainServer):
    """An egress that serves stores and load replies in turn while both are waiting."""

    def __init__(self, env: OrderedEnvironment, number: int, rates: Any) -> None:
        super().__init__(env, number, rates)
        self.server = _TurnTaking(env)

    def _request(self, granule: Granule) -> Request:
        return _KindRequest(self.server, granule.is_reply)


class _KindRequest(Request):
    def __init__(self, server: simpy.Resource, is_reply: bool) -> None:
        self.is_reply = is_reply
        super().__init__(server)


class _TurnTaking(simpy.Resource):
    """A server that prefers, among those waiting, the kind that it did not serve last."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env, capacity=1)
        self.served_reply = True

    def _trigger_put(self, get_event: Any) -> None:
        other_kind = [request for request in self.put_queue if request.is_reply != self.served_reply]
        if other_kind:
            self.put_queue.remove(other_kind[0])
            self.put_queue.insert(0, other_kind[0])
        super()._trigger_put(get_event)

    def _do_put(self, event: Any) -> None:
        super()._do_put(event)
        if event.triggered:
            self.served_reply = event.is_reply


@dataclass
class Granule:
    """A piece of a store, of a signal, or of a load's reply on its way. Its ticket breaks ties between granules."""

    ticket: int
    bytes: int
    source: int
    destination: int
    lane: int
    op: int
    admitted: int
    scatter: bool = False
    reduce: bool = False
    is_reply: bool = False
    from_memory: bool = False
    parcel: int | None = None
    finish: int = 0
    on_drained: Callable[[], None] = lambda: None
    on_visible: Callable[[], None] | None = None

    @property
    def key(self) -> Key:
        return (GRANULE_CLASS, self.ticket)


@dataclass
class Network:
    """All ports, the routes between GPUs, and what happens to a granule on its way."""

    env: OrderedEnvironment
    fabric: Fabric
    ports: list[DrainServer] = field(default_factory=list)
    events: int = 0
    tickets: int = 0
    arrived_ps: int = 0
    records: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fabric = self.fabric
        for number, rates in enumerate(fabric.rates_kbs):
            fair = fabric.fair_replies and number < fabric.n_gpus
            self.ports.append((FairEgress if fair else DrainServer)(self.env, number, rates))

    def take_tickets(self, count: int) -> int:
        first = self.tickets
        self.tickets += count
        return first

    def send(self, granule: Granule) -> None:
        """Start to drain a granule that has been admitted to the stage, or that a network interface reads from memory."""
        route = self.fabric.route(granule.source, granule.destination, granule.is_reply)
        if granule.from_memory:
            route = route[1:-1] or route
        self.env.process(self._drain(granule, route))

    def multicast(self, first: Granule, copies: list[Granule]) -> None:
        """Drain one granule through its egress and a copy of it through everything behind."""
        self.env.process(self._multicast(first, copies))

    def request(self, granule: Granule, arrive: Callable[[], None]) -> None:
        """Send a load request: it passes egress and links as a store does, and arrives one latency later.

        It takes no stage, and not the owner's ingress: there it would wait behind the stores of all others, and nobody has
        seen requests do so.
        """
        self.env.process(self._request(granule, arrive))

    def arrive(self, granule: Granule) -> None:
        """The last byte of a granule has been drained: it will be visible one latency later."""
        latency = int(self.fabric.latency_ps[granule.source, granule.destination])
        visible = granule.finish + latency
        self.arrived_ps = max(self.arrived_ps, visible)
        self.record(granule, visible)
        if granule.on_visible is not None:
            self._when(granule, visible, granule.on_visible)

    def record(self, granule: Granule, visible: int) -> None:
        g = granule
        parcel = g.ticket if g.parcel is None else g.parcel
        route = (g.source, g.destination)
        self.records.append((g.ticket, parcel, g.lane, g.op, *route, g.bytes, g.admitted, g.finish, visible))

    def _drain(self, granule: Granule, route: list[int]) -> Steps:
        yield At(self.env, granule.key)
        for number in route:
            yield from self._pass(granule, number)
        yield from self._last_drained(granule)

    def _multicast(self, first: Granule, copies: list[Granule]) -> Steps:
        yield At(self.env, first.key)
        yield from self._pass(first, self.fabric.route(first.source, first.destination)[0])
        for copy in copies:
            copy.finish = first.finish
            route = self.fabric.route(copy.source, copy.destination)
            self.env.process(self._drain(copy, route[1:]))

    def _pass(self, granule: Granule, number: int) -> Steps:
        n = self.fabric.n_gpus
        use = PLAIN
        if number < n and granule.scatter:
            use = SCATTER
        elif n <= number < 2 * n and granule.reduce:
            use = REDUCE_RATE
        yield from self.ports[number].serve(granule, use)
        self.events += 1

    def _last_drained(self, granule: Granule) -> Steps:
        if granule.is_reply:
            self.arrive(granule)  # a reply holds no room, so nobody waits for its end
            return
        yield At(self.env, (RELEASE_CLASS, granule.ticket), granule.finish - int(self.env.now))
        self.events += 1
        self.arrive(granule)
        granule.on_drained()

    def _request(self, granule: Granule, arrive: Callable[[], None]) -> Steps:
        yield At(self.env, granule.key)
        granule.finish = int(self.env.now)
        for number in self.fabric.route(granule.source, granule.destination)[:-1] if granule.bytes > 0 else ():
            yield from self._pass(granule, number)
        arrival = granule.finish + int(self.fabric.latency_ps[granule.source, granule.destination])

        def answer() -> None:
            self.record(granule, arrival)
            arrive()

        self._when(granule, arrival, answer)

    def _when(self, granule: Granule, time: int, action: Callable[[], None]) -> None:
        def act(_: simpy.Event) -> None:
            self.events += 1
            action()

        At(self.env, granule.key, time - int(self.env.now)).callbacks.append(act)

    def totals(self) -> Iterator[tuple[int, int]]:
        return ((port.busy_ps, port.bytes) for port in self.ports)
