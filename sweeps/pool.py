"""Worker processes of this computer. Each is a fresh Python, so a sweep may be started from anywhere, a notebook too.

A worker that dies or exceeds the time for a point is replaced; the point gets a record that says so.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

from ..sim.errors import LimitError, XstageError
from ..sim.units import format_size
from .batch import Batches
from .parent import kill_worker, send, start_worker
from .task import Record, Task, identity

TICK_S = 0.2


@dataclass
class ProcessPool:
    """`count` processes. `timeout_s` is for each point, `memory_bytes` for each process; `compiled` loads that engine."""

    count: int
    timeout_s: float | None = None
    memory_bytes: int | None = None
    compiled: bool = True

    def run(self, tasks: Iterator[Task]) -> Generator[list[Record], None, None]:
        batches = Batches(tasks)
        workers: list[_Worker] = []
        try:
            while batches.prepare() or any(worker.tasks for worker in workers):
                self._keep_busy(workers, batches)
                batches.prepare()
                wait([worker.answers for worker in workers], TICK_S)
                records: list[Record] = []
                for worker in list(workers):
                    records += worker.read()  # first of all: what is done is not late, however long we were away
                    if (lost := self._lost(worker)) is not None:
                        records += worker.stop(lost, batches)
                        workers.remove(worker)
                for record in records:
                    batches.learn(record)
                yield records
        finally:
            for worker in workers:
                worker.kill()

    def _keep_busy(self, workers: list[_Worker], batches: Batches) -> None:
        """Give each idle worker a batch, and start more workers while there are tasks for them."""
        for worker in workers:
            if worker.idle and batches.prepare():
                worker.give(batches.next())
        while len(workers) < self.count and batches.prepare():
            workers.append(_Worker(self.memory_bytes, self.compiled))

    def _lost(self, worker: _Worker) -> tuple[str, str] | None:
        """Why a worker cannot go on, as type and message of an error."""
        if worker.ended:
            code = worker.process.wait()
            how = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if not worker.ready:
                if self.memory_bytes is not None:
                    raise LimitError(f"a worker did not start in {format_size(self.memory_bytes)} of memory")
                raise XstageError(f"a worker process did not start: {how}; what it said is above")
            return (
                "WorkerDied",
                f"the worker was {how}, perhaps for want of memory" if code < 0 else f"the worker {how}",
            )
        if self.timeout_s is not None and worker.ready and worker.seconds_on_task() > self.timeout_s:
            return "Timeout", f"took longer than {self.timeout_s:g} s"
        return None


@dataclass
class _Worker:
    """One process, and the tasks it was given and has not answered."""

    memory_bytes: int | None
    compiled: bool
    tasks: list[Task] = field(default_factory=list)
    ready: bool = False
    ended: bool = False
    process: subprocess.Popen[bytes] = field(init=False)
    answers: Connection = field(init=False)
    since: float = field(init=False)

    def __post_init__(self) -> None:
        words = str(self.memory_bytes or 0), str(int(self.compiled))
        self.process, self.answers = start_worker("xstage.sweeps.worker", *words)
        self.since = time.monotonic()

    @property
    def idle(self) -> bool:
        return self.ready and not self.tasks and not self.ended

    def give(self, batch: list[Task]) -> None:
        """Send a batch to an idle worker; it is reading, so the pipe does not fill up."""
        self.tasks, self.since = batch, time.monotonic()
        if not send(self.process, batch):
            self.ended = True

    def read(self) -> list[Record]:
        """What the worker has sent by now."""
        records: list[Record] = []
        try:
            while self.answers.poll():
                answer = self.answers.recv()
                self.since = time.monotonic()  # a point's time counts from the answer before it
                if isinstance(answer, Record):
                    del self.tasks[0]
                    records.append(answer)
                elif answer == identity():
                    self.ready = True
                else:
                    raise XstageError("the sources of the model have changed since the sweep began: start it again")
        except (EOFError, OSError):
            self.ended = True
        return records

    def seconds_on_task(self) -> float:
        return time.monotonic() - self.since if self.tasks else 0.0

    def stop(self, reason: tuple[str, str], batches: Batches) -> list[Record]:
        """End the process, hand back the tasks it had not begun, and record why the one under way has no result."""
        self.kill()
        if not self.tasks:
            return []
        failed, *rest = self.tasks
        batches.give_back(rest)
        return [Record(failed.key, None, *reason, {"wall_s": time.monotonic() - self.since})]

    def kill(self) -> None:
        kill_worker(self.process, self.answers)
