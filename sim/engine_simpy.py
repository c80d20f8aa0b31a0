"""The reference engine: a Program run by SimPy processes, readable next to the paper.

A lane is a process that takes tasks and runs its ops. How tasks are taken stands in `simpy_tasks`, what happens to a store
after it is issued in `simpy_stage`, the order of events at one instant in `simpy_order`. The compiled engine follows the
same rules and gives the same integers.

The rule for every request (room, port, slot, window): if it is granted at once the lane goes on in the same turn,
otherwise it has a new turn when the grant comes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from . import program as p
from .outcome import GRANULE_RECORD, LANE_TOTAL, OP_OF_TASK_WAIT, OP_RECORD, PORT_TOTAL, SPAN, Outcome, Stuck
from .simpy_order import LANE_CLASS, At, OrderedEnvironment
from .simpy_stage import Granule, IssueQueue, Network, Stage, Steps
from .simpy_tasks import CAUSE, Counter, Group, Queue

if TYPE_CHECKING:
    from .layout import Layout
    from .program import Program
    from .topology import Fabric

Cut = tuple[int, list[int], bool, int]
"""A granule of a store: bytes, receivers, whether it is the last of its share, and bytes issued before."""

NONE = -1
STEPS_AT_A_TIME = 10_000  # of SimPy's events; some tenths of a second


class Lane:
    """A sequential actor (gpu, sm, role): runs its part of each task of its group, op by op."""

    def __init__(self, model: Model, number: int) -> None:
        row = model.program.lanes[number]
        self.model = model
        self.env = model.env
        self.number = number
        self.key = (LANE_CLASS, number)
        self.gpu = int(row["gpu"])
        self.start_ps = int(row["start_ps"])
        self.group = model.groups[int(row["group"])]
        self.seat = len(self.group.lanes)
        self.group.lanes.append(self)
        self.sm = model.sms[int(model.layout.lane_sm[number])]
        self.window = simpy.Container(model.env, init=int(row["window"]))
        self.begun = self.finished = 0
        self.waits_for_task: simpy.Event | None = None
        self.port: Any = None  # a request for the issue port that the lane keeps for its next op
        self.totals = model.lane_totals[number]
        self.stall = self.wait = 0
        self.cause = NONE
        self.place = (NONE, NONE)  # task and op at which the lane stands

    @property
    def now(self) -> int:
        return int(self.env.now)

    # --- turns

    def turn(self, event: simpy.Event) -> Steps:
        """Stop until `event` has happened, then go on in a new turn."""
        event.key = self.key  # type: ignore[attr-defined]
        yield event
        self.model.lane_turns += 1

    def spend(self, time: int) -> Steps:
        self.totals["busy_ps"] += time
        if time > 0:
            yield from self.turn(At(self.env, self.key, time))

    def wait_for(self, event: simpy.Event, cause: int) -> Steps:
        """Wait for a request; no turn is lost if it has been granted already."""
        if not event.triggered:
            since = self.now
            yield from self.turn(event)
            self._account_wait(self.now - since, cause)

    def _account_wait(self, time: int, cause: int) -> None:
        self.wait += time
        self.cause = cause
        self.totals["wait_ps"][cause] += time

    # --- tasks

    def live(self) -> Steps:
        yield from self.turn(At(self.env, self.key, self.start_ps))
        while (task := (yield from self._next_task())) is not None:
            run = self.model.program.runs[self.model.program.tasks[task]["first_run"] + self.seat]
            span = self.model.spans[self.model.layout.span_first[task] + self.seat]
            span["group"], span["start_ps"], stall_before = self.group.number, self.now, int(self.totals["stall_ps"])
            for op in range(int(run["first_op"]), int(run["first_op"]) + int(run["n_ops"])):
                start, self.stall, self.wait, self.cause = self.now, 0, 0, NONE
                self.place = (task, op)
                yield from self._perform(op)
                self.model.record(self, task, op, start)
            span["end_ps"], span["stall_ps"] = self.now, self.totals["stall_ps"] - stall_before
            self.place = (NONE, NONE)
            self._finish_task()
        self.totals["end_ps"] = self.now
        self.model.running.discard(self.number)

    def _next_task(self) -> Steps:
        since, self.stall, self.wait, waited = self.now, 0, 0, False
        while self.begun == len(self.group.taken):
            taken, cause = self.group.take()
            if taken:
                self.group.wake()
            elif cause is None:
                self._end_task_wait(NONE, since, waited)
                return None
            else:
                self.cause, waited = cause, True
                self.waits_for_task = self.env.event()
                yield from self.turn(self.waits_for_task)
                self.waits_for_task = None
        task = self.group.taken[self.begun]
        self._end_task_wait(task, since, waited)
        self.begun += 1
        return task

    def _end_task_wait(self, task: int, since: int, waited: bool) -> None:
        if waited:
            self._account_wait(self.now - since, self.cause)
            if self.now > since:
                self.model.record(self, task, OP_OF_TASK_WAIT, since)

    def _finish_task(self) -> None:
        before = self.group.slowest()
        self.finished += 1
        if self.group.ahead != p.UNLIMITED_AHEAD and self.group.slowest() > before:
            self.group.wake()

    # --- ops

    def _perform(self, number: int) -> Steps:
        op = self.model.program.ops[number]
        kind, counter, count = int(op["kind"]), int(op["counter"]), int(op["count"])
        if kind == p.COMPUTE:
            yield from self.spend(int(op["duration_ps"]))
        elif kind == p.STORE:
            granules = self._granules(op)
            undivided = granules and op["flags"] & p.UNDIVIDED
            parts = [granules] if undivided else [[granule] for granule in granules]
            for part in parts:
                yield from self._issue(number, op, part, bool(op["flags"] & p.WITH_NEXT) and part is parts[-1])
        elif kind == p.LOAD:
            yield from self.wait_for(self.window.get(1), CAUSE["window"])
            self._load(number, op)
        elif kind == p.SIGNAL and self.model.counters[counter].home == self.gpu:
            yield from self.spend(int(op["duration_ps"]))
            self.model.counters[counter].bump(count)
        elif kind == p.SIGNAL:
            home, size = self.model.counters[counter].home, self.model.fabric.signal_bytes
            yield from self._issue(number, op, [(size, [home], True, 0)], keep=False)
        elif kind == p.WAIT:
            target = self.model.counters[counter]
            if target.value < count:
                yield from self.wait_for(target.reaches(count, self.env), target.cause)
        elif kind == p.ACQUIRE:
            yield from self.wait_for(self.group.slots[counter].get(count), CAUSE["slot"])
        else:
            self.group.slots[counter].put(count)

    def _granules(self, op: Any) -> list[Cut]:
        """How a store is cut: (bytes, receivers, last of its share, bytes issued before), in order of issue."""
        row, most = self.model.program.destinations[op["target"]], self.model.fabric.granule_bytes
        shares = self.model.program.shares[row["first"] : row["first"] + row["n_shares"]].tolist()
        cut: list[Cut] = []
        issued = 0
        if row["replicate"]:
            receivers = [gpu for gpu, _ in shares]
            while receivers and issued < op["bytes"]:
                size = min(most, int(op["bytes"]) - issued)
                cut.append((size, receivers, issued + size == op["bytes"], issued))
                issued += size
        dealt = 0
        while not row["replicate"] and issued < op["bytes"]:
            for gpu, total in shares:
                if total > dealt:
                    size = min(most, total - dealt)
                    cut.append((size, [gpu], dealt + size == total, issued))
                    issued += size
            dealt += most
        return cut

    def _issue(self, number: int, op: Any, granules: list[Cut], keep: bool) -> Steps:
        """Granules, one after the other, while the lane has the issue port of its SM; it may `keep` it for its next op."""
        port, self.port = self.port or self.sm.port.request(), None
        yield from self._wait_for_port(port)
        for granule in granules[:-1]:
            yield from self._issue_one(number, op, *granule)
            self._issued(op, *granule)
        yield from self._issue_one(number, op, *granules[-1])
        if keep:
            self.port = port
        else:
            self.sm.port.release(port)
        self._issued(op, *granules[-1])

    def _issue_one(self, number: int, op: Any, size: int, receivers: list[int], last: bool, issued: int) -> Steps:
        """One granule: room in the SM's stage, room in the GPU's stage. From then on it drains.

        The granule is issued while it waits for room, so only what the waiting takes beyond the issue time is stall. What
        goes FROM_MEMORY needs no room.
        """
        sm, stage = self.sm, self.model.stages[self.gpu]
        start, issue = self.now, _issue_share(op, size, issued)
        remote = [gpu for gpu in receivers if gpu != self.gpu]
        if remote and op["flags"] & p.FROM_MEMORY:
            self._send(number, op, size, remote, last)
        elif remote:
            yield from self._wait_for_room(sm.stage.room.get(size), start + issue)
            yield from self._wait_for_room(stage.room.get(size), start + issue)
            stall = max(0, self.now - start - issue)
            sm.end_stall(stall)
            self.stall += stall
            self.totals["stall_ps"] += stall
            sm.stage.admit(size)
            stage.admit(size)
            self._send(number, op, size, remote, last)
        self.totals["busy_ps"] += issue
        if self.now < start + issue:
            yield from self.turn(At(self.env, self.key, start + issue - self.now))

    def _issued(self, op: Any, size: int, receivers: list[int], last: bool, _issued_before: int) -> None:
        """The end of a granule's issue. What stays on this GPU is visible then."""
        if op["kind"] == p.STORE:
            self.totals["stored_bytes"] += size
        if self.gpu in receivers and last and op["counter"] != p.NO_COUNTER:
            self.model.counters[int(op["counter"] + op["stride"] * self.gpu)].bump(1)

    def _wait_for_port(self, port: simpy.Event) -> Steps:
        if port.triggered:
            return
        since, stalled = self.now, self.sm.stall_clock()
        yield from self.turn(port)
        stall = self.sm.stall_clock() - stalled
        self.stall += stall
        self.totals["stall_ps"] += stall
        if self.now - since > stall:
            self._account_wait(self.now - since - stall, CAUSE["issue"])

    def _wait_for_room(self, room: simpy.Event, issued_at: int) -> Steps:
        if not room.triggered:
            self.sm.begin_stall(issued_at)
            yield from self.turn(room)

    def _send(self, number: int, op: Any, size: int, receivers: list[int], last: bool) -> None:
        network, counters, now = self.model.network, self.model.counters, self.now
        ticket = network.take_tickets(len(receivers))
        left, from_memory = len(receivers), bool(op["flags"] & p.FROM_MEMORY)

        def on_drained() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not from_memory:
                self.model.stages[self.gpu].drain(size)
                self.sm.stage.drain(size)

        def granule(index: int, receiver: int) -> Granule:
            g = Granule(ticket + index, size, self.gpu, receiver, self.number, number, now, on_drained=on_drained)
            g.parcel, g.from_memory = ticket, from_memory
            g.reduce = op["kind"] == p.STORE and bool(op["flags"] & p.REDUCE)
            if op["kind"] == p.SIGNAL:
                g.on_visible = lambda: counters[int(op["counter"])].bump(int(op["count"]))
            elif last and op["counter"] != p.NO_COUNTER:
                g.on_visible = lambda: counters[int(op["counter"] + op["stride"] * receiver)].bump(1)
            return g

        granules = [granule(index, receiver) for index, receiver in enumerate(receivers)]
        if op["kind"] == p.STORE and self.model.program.destinations[op["target"]]["replicate"]:
            network.multicast(Granule(ticket, size, self.gpu, receivers[-1], self.number, number, now), granules)
        else:
            granules[0].scatter = op["kind"] == p.STORE and self._deals_over_several(op)
            network.send(granules[0])

    def _deals_over_several(self, op: Any) -> bool:
        """Whether a store is dealt over more than one other GPU, so that it drains at the rate of a scatter."""
        row = self.model.program.destinations[op["target"]]
        receivers = self.model.program.shares["gpu"][row["first"] : row["first"] + row["n_shares"]]
        return int((receivers != self.gpu).sum()) >= self.model.fabric.scatter_from

    def _load(self, number: int, op: Any) -> None:
        """Ask the owner for the data; its reply comes in granules, and the last of them ends the load."""
        network, fabric, owner, size = self.model.network, self.model.fabric, int(op["target"]), int(op["bytes"])
        most = size if owner == self.gpu else fabric.granule_bytes
        sizes = [min(most, size - done) for done in range(0, size, most)]
        ticket = network.take_tickets(1 + len(sizes))
        asked = 0 if owner == self.gpu else -(-size * fabric.request_permille // 1000)
        self.totals["loaded_bytes"] += size

        def finish() -> None:
            if op["counter"] != p.NO_COUNTER:
                self.model.counters[int(op["counter"])].bump(1)
            self.window.put(1)

        def reply() -> None:
            for index, part in enumerate(sizes, start=1):
                g = Granule(ticket + index, part, owner, self.gpu, self.number, number, self.now, is_reply=True)
                g.on_visible = finish if index == len(sizes) else None
                if owner == self.gpu:
                    g.finish = self.now
                    network.arrive(g)
                else:
                    network.send(g)

        request = Granule(ticket, asked, self.gpu, owner, self.number, number, self.now)
        network.request(request, reply)


def _issue_share(op: Any, size: int, issued: int) -> int:
    """The part of an op's issue time T_iss0 that falls on `size` bytes after `issued`; the parts add up exactly."""
    total, duration = int(op["bytes"]) if op["kind"] == p.STORE else size, int(op["duration_ps"])
    before, after = (duration // total * done + duration % total * done // total for done in (issued, issued + size))
    return after - before


class Model:
    """Everything that lives while a Program runs."""

    def __init__(self, program: Program, fabric: Fabric, layout: Layout) -> None:
        self.program, self.fabric, self.layout = program, fabric, layout
        self.env = OrderedEnvironment(initial_time=0)
        self.network = Network(self.env, fabric)
        self.counters = [Counter(*row) for row in program.counters.tolist()]
        first = program.queues["first"]
        self.queues = [
            Queue(program.queue_tasks[a : a + n].tolist())
            for a, n in zip(first, program.queues["n_tasks"], strict=True)
        ]
        stages = [Stage(self.env, int(capacity)) for capacity in fabric.capacity_gpu]
        self.stages = [stages[gpu] for gpu in fabric.stages]
        self.sms = [IssueQueue(self.env, int(fabric.capacity_sm[gpu])) for gpu in layout.sm_gpu]
        self.lane_totals = np.zeros(len(program.lanes), LANE_TOTAL)
        self.spans = np.zeros(layout.n_spans, SPAN)
        self.spans["group"] = NONE
        self.op_records: list[tuple[int, ...]] = []
        self.lane_turns = 0
        self.groups = [Group(self, number) for number in range(len(program.groups))]
        self.lanes = [Lane(self, number) for number in range(len(program.lanes))]
        self.running = set(range(len(self.lanes)))

    def record(self, lane: Lane, task: int, op: int, start: int) -> None:
        cause = lane.cause if lane.wait > 0 else NONE
        self.op_records.append((lane.number, task, op, cause, start, lane.now, lane.stall, lane.wait))


def run(
    program: Program, fabric: Fabric, layout: Layout, full: bool, progress: Callable[[int, int], None] | None = None
) -> tuple[Outcome, list[Stuck]]:
    """Run a Program. Returns the outcome and the lanes that could not finish. `progress` is told now and then how many tasks
    lanes have finished and how many granules have got their tickets."""
    model = Model(program, fabric, layout)
    for lane in model.lanes:
        model.env.process(lane.live())
    network = model.network
    with suppress(simpy.core.EmptySchedule):
        while True:
            for _ in range(STEPS_AT_A_TIME):
                model.env.step()
            if progress is not None:
                progress(sum(lane.finished for lane in model.lanes), network.tickets)
    granules = np.array(sorted(network.records), dtype=np.int64).reshape(-1, len(GRANULE_RECORD.names or ()))
    records = np.zeros(len(granules) if full else 0, GRANULE_RECORD)
    for column, name in enumerate(GRANULE_RECORD.names or ()):
        if full:
            records[name] = granules[:, column]
    outcome = Outcome(
        lanes=model.lane_totals,
        spans=model.spans,
        ports=np.array(list(network.totals()), dtype=PORT_TOTAL),
        peak_sm_bytes=np.array([sm.stage.peak for sm in model.sms], dtype=np.int64),
        peak_gpu_bytes=np.array([stage.peak for stage in model.stages[: program.n_gpus]], dtype=np.int64),
        counters=np.array([counter.value for counter in model.counters], dtype=np.int64),
        events=model.lane_turns + network.events,
        granules=network.tickets,
        lanes_end_ps=int(model.lane_totals["end_ps"].max(initial=0)),
        arrived_ps=network.arrived_ps,
        op_records=np.array(model.op_records if full else [], dtype=OP_RECORD),
        granule_records=records,
    )
    return outcome, [Stuck(number, *model.lanes[number].place) for number in sorted(model.running)]
