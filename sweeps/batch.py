"""How many tasks are sent to a worker at a time, and the one thing that pool and cluster have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Protocol

from .task import Record, Task

TARGET_S = 0.2
MOST = 100


class Workers(Protocol):
    """Whatever computes tasks."""

    @property
    def count(self) -> int:
        """How many tasks are computed at the same time."""

    def run(self, tasks: Iterator[Task]) -> Generator[list[Record], None, None]:
        """The records, in any order, as they come; an empty list now and then while none does.

        Tasks are drawn no earlier than needed. Closing the iterator stops the workers at once.
        """


class Batches:
    """Tasks in batches that take about `TARGET_S` each, going by those that are done; at first one by one."""

    def __init__(self, tasks: Iterator[Task], most: int = MOST):
        self._tasks, self._most = tasks, most
        self._back: deque[Task] = deque()
        self._seconds = 0.0
        self._done = 0
        self._ready: list[Task] = []

    def prepare(self) -> bool:
        """Draw the next batch now, because there is time; False if there is none."""
        if not self._ready:
            self._ready = self._draw()
        return bool(self._ready)

    def next(self) -> list[Task]:
        """The next batch; empty if there are no more tasks."""
        batch, self._ready = self._ready or self._draw(), []
        return batch

    def give_back(self, tasks: list[Task]) -> None:
        """Tasks that were not computed after all come first again."""
        self._back.extendleft(reversed(tasks))

    def learn(self, record: Record) -> None:
        """Take note of how long a task took."""
        self._seconds += record.timing.get("wall_s", 0.0)
        self._done += 1

    def _draw(self) -> list[Task]:
        size = 1 if not self._done else round(TARGET_S * self._done / max(self._seconds, 1e-6))
        batch: list[Task] = []
        while len(batch) < max(1, min(size, self._most)):
            task = self._back.popleft() if self._back else next(self._tasks, None)
            if task is None:
                break
            batch.append(task)
        return batch
