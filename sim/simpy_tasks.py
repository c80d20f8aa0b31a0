"""Tasks in SimPy: counters and those who wait for them, queues of tasks, and groups that take tasks by their plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import simpy

from . import program as p

if TYPE_CHECKING:
    from .engine_simpy import Lane, Model

CAUSE = {name: number for number, name in enumerate(p.CAUSES)}


class Watcher:
    """Somebody who waits until a counter is at least `needed`."""

    def __init__(self, needed: int, wake: Callable[[], None]) -> None:
        self.needed = needed
        self.wake = wake


class Counter:
    """A monotone number, and those who wait until it is large enough."""

    def __init__(self, home: int, cause: int, value: int) -> None:
        self.home = home
        self.cause = cause
        self.value = value
        self.watchers: list[Watcher] = []

    def watch(self, needed: int, wake: Callable[[], None]) -> Watcher:
        watcher = Watcher(needed, wake)
        self.watchers.append(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        if watcher in self.watchers:
            self.watchers.remove(watcher)

    def reaches(self, needed: int, env: simpy.Environment) -> simpy.Event:
        """An event for the moment at which the counter is large enough."""
        event = env.event()

        def wake() -> None:
            event.succeed()

        self.watch(needed, wake)
        return event

    def bump(self, amount: int) -> None:
        self.value += amount
        satisfied = [watcher for watcher in self.watchers if watcher.needed <= self.value]
        self.watchers = [watcher for watcher in self.watchers if watcher.needed > self.value]
        for watcher in satisfied:
            watcher.wake()


class Queue:
    """An ordered list of tasks, taken from the head by one group or, as by an atomic cursor, by many."""

    def __init__(self, tasks: list[int]) -> None:
        self.tasks = tasks
        self.head = 0

    @property
    def open(self) -> bool:
        return self.head < len(self.tasks)


class Group:
    """An SM or a cluster of SMs: takes tasks by its plan; every lane of it follows the list of tasks taken."""

    def __init__(self, model: Model, number: int) -> None:
        row, plan = model.program.groups[number], model.program.plans[model.program.groups[number]["plan"]]
        self.model = model
        self.number = number
        self.ahead = int(row["ahead"])
        first = int(plan["first_step"])
        self.steps = model.program.steps[first : first + plan["n_prefix"] + plan["n_repeat"]].tolist()
        self.n_prefix = int(plan["n_prefix"])
        self.step = 0
        self.visits = 0
        self.taken: list[int] = []
        self.lanes: list[Lane] = []
        self.watched: list[tuple[Counter, Watcher]] = []
        slots = model.program.slots[row["first_slot"] : row["first_slot"] + row["n_slots"]]
        self.slots = [simpy.Container(model.env, init=int(value)) for value in slots]

    def take(self) -> tuple[bool, int | None]:
        """Take the next task. (True, None) if one was taken, (False, cause) if not yet, (False, None) if none is left."""
        queues = self._queues_of_next_step()
        if queues is None:
            return False, None
        if len(self.taken) - self.slowest() > self.ahead:
            return False, CAUSE["task"]
        missing = []
        for queue in queues:
            guards = self._open_guards(queue.tasks[queue.head])
            if not guards:
                self._take_head(queue)
                return True, None
            missing += guards
        if not self.watched:
            self.watched = [(counter, counter.watch(needed, self.guard_holds)) for counter, needed in missing]
        return False, missing[0][0].cause

    def _queues_of_next_step(self) -> list[Queue] | None:
        """Queues of the next step that still hold tasks; steps without any are skipped. None if all are exhausted."""
        skipped = 0
        while True:
            if self.step == len(self.steps):
                self.step = self.n_prefix
            if self.step >= self.n_prefix and skipped >= len(self.steps) - self.n_prefix:
                return None
            first, otherwise, _ = self.steps[self.step]
            queues = [self.model.queues[q] for q in (first, otherwise) if q != p.NO_QUEUE and self.model.queues[q].open]
            if queues:
                return queues
            skipped += self.step >= self.n_prefix
            self.step += 1
            self.visits = 0

    def _open_guards(self, task: int) -> list[tuple[Counter, int]]:
        row = self.model.program.tasks[task]
        guards = zip(row["guard_counter"].tolist(), row["guard_count"].tolist(), strict=True)
        pairs = [(self.model.counters[counter], needed) for counter, needed in guards if counter != p.NO_COUNTER]
        return [(counter, needed) for counter, needed in pairs if counter.value < needed]

    def _take_head(self, queue: Queue) -> None:
        self.taken.append(queue.tasks[queue.head])
        queue.head += 1
        self.visits += 1
        times = self.steps[self.step][2]
        if times != p.UNTIL_EXHAUSTED and self.visits >= times:
            self.step += 1
            self.visits = 0

    def guard_holds(self) -> None:
        """One of the guards that kept the group waiting holds now: look again, and no longer at the others."""
        if self.watched:
            for counter, watcher in self.watched:
                counter.unwatch(watcher)
            self.watched = []
            self.wake()

    def wake(self) -> None:
        """A turn for every lane that waits for a task."""
        for lane in self.lanes:
            if lane.waits_for_task is not None and not lane.waits_for_task.triggered:
                lane.waits_for_task.succeed()

    def slowest(self) -> int:
        return min(lane.finished for lane in self.lanes)
