"""The same function over many plain inputs, on a few processes of this computer.

    python -m xstage.workers PARENT_PID ANSWERS_FD

Each process is a fresh Python that loads this package and never the program that asked, so that one may ask from a notebook,
from a thread, or from a script without `if __name__ == "__main__"`. A function must therefore be one of a module. It comes
with its input as a pickle on standard input; what it gives, or raises, goes back on a pipe.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import closing
from itertools import groupby
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NamedTuple, TypeVar

from .sim.compilation import compile_engine
from .sim.errors import XstageError
from .sweeps.parent import end_with, kill_worker, send, start_worker
from .terminal.progress import Progress, silent

Given = TypeVar("Given")
Made = TypeVar("Made")


def map_on_workers(
    function: Callable[[Given], Made], inputs: Sequence[Given], workers: int, progress: Progress = silent
) -> list[Made]:
    """`function` of each input, in their order; in this process for a single worker. The first error ends it all."""
    made: dict[int, Made] = {}
    with closing(each_on_workers(function, inputs, workers)) as found:
        for position, one in found:
            made[position] = one
            progress(len(made), len(inputs))
    return [made[position] for position in range(len(inputs))]


def each_on_workers(
    function: Callable[[Given], Made],
    inputs: Sequence[Given],
    workers: int,
    together: Callable[[Given], Hashable] | None = None,
) -> Generator[tuple[int, Made]]:
    """Position and result of each input, as they come; in this process for a single worker. The first error ends it all.

    Neighbours for which `together` gives the same go to one worker, one after the other. No process is left when the
    iterator ends or is closed.
    """
    if workers <= 1 or len(inputs) <= 1:
        for position, one in enumerate(inputs):
            yield position, function(one)
        return
    compile_engine()
    batches = deque(
        deque(batch) for _, batch in groupby(range(len(inputs)), lambda at: together(inputs[at]) if together else at)
    )
    pool: list[_Worker[Given, Made]] = []
    try:
        while batches and len(pool) < workers:
            pool.append(_Worker(function, inputs, batches.popleft()))
            pool[-1].give()
        for _ in range(len(inputs)):
            yield _next_of(pool, batches)
    finally:
        for worker in pool:
            worker.kill()


def _next_of(pool: Sequence[_Worker[Any, Made]], batches: deque[deque[int]]) -> tuple[int, Made]:
    """What is ready next; its worker goes on with its batch, or with another one."""
    busy = {worker.answers: worker for worker in pool if worker.batch}
    worker = busy[wait(list(busy))[0]]  # type: ignore[index]  # it gives back what it was given
    position, made = worker.receive()
    if not worker.batch and batches:
        worker.batch = batches.popleft()
    worker.give()
    return position, made


class _Failure(NamedTuple):
    """What a function raised, and where it was."""

    error: Exception
    where: str


class _Worker(Generic[Given, Made]):
    """One process and its batch of positions, at the first of which it is at work."""

    def __init__(self, function: Callable[[Given], Made], inputs: Sequence[Given], batch: deque[int]):
        self._function, self._inputs, self.batch = function, inputs, batch
        self._process, self.answers = start_worker(__name__)

    def give(self) -> None:
        """Send the first input of the batch, if there is one. That the process has ended, `receive` finds out."""
        if self.batch:
            send(self._process, (self._function, self._inputs[self.batch[0]]))

    def receive(self) -> tuple[int, Made]:
        """Position and result of what it was at work at. Raises what the function raised."""
        try:
            found: Any = self.answers.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            raise XstageError(f"a worker process ended with exit code {code}; what it said is above") from None
        if isinstance(found, _Failure):
            found.error.add_note(f"In a worker process:\n{found.where}")
            raise found.error
        return self.batch.popleft(), found

    def kill(self) -> None:
        kill_worker(self._process, self.answers)


def serve() -> None:
    """Answer until the input ends."""
    parent, answers = (int(text) for text in sys.argv[1:3])
    end_with(parent)
    with Connection(answers, readable=False) as pipe:
        while True:
            try:
                function, given = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            try:
                found = function(given)
            except Exception as error:  # a fault of the program belongs to whoever asked
                found = _Failure(error, traceback.format_exc())
            try:
                pipe.send(found)
            except BrokenPipeError:  # whoever asked has gone
                return


if __name__ == "__main__":
    from xstage.workers import serve as serve_from_package  # failures are then pickled as this package's

    serve_from_package()
