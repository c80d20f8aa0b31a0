"""The other side of the pool: a process that reads batches of tasks from standard input and answers on a pipe.

    python -m xstage.sweeps.worker PARENT_PID ANSWERS_FD MEMORY_BYTES COMPILED

A message is a pickle. First the worker says that it is ready, then it sends each record as soon as there is one. It ends
with its standard input, and if the parent dies also in the midst of a task.
"""

from __future__ import annotations

import pickle
import sys
from importlib import import_module
from multiprocessing.connection import Connection

from ..sim.compilation import warm_up
from .parent import end_with
from .task import compute, identity


def main() -> None:
    parent, answers, memory, compiled = (int(text) for text in sys.argv[1:5])
    end_with(parent)
    if memory:
        _limit_memory(memory)
    try:
        import_module("..sim.execute", __package__)
        if compiled:
            warm_up()
    except MemoryError:
        sys.exit("not even the engine fits into the memory of this worker")
    tasks = sys.stdin.buffer
    with Connection(answers, readable=False) as pipe:
        pipe.send(identity())
        try:
            while True:
                for task in pickle.load(tasks):
                    pipe.send(compute(task))
        except (EOFError, BrokenPipeError):  # the parent has closed our input, or is gone
            return


def _limit_memory(limit: int) -> None:
    """Let no more than this be allocated; a task that needs more ends with a MemoryError."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    main()
