"""Predictions in processes of their own, and the process itself: `python -m xstage.predictions.worker`.

Each is a fresh Python that answers pickled pairs of a machine's text and a case, one at a time, so that predictions can be
asked for from anywhere, a notebook too.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import groupby
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from ..sim.errors import XstageError

if TYPE_CHECKING:
    from ..sim.machine import Machine
    from ..sim.predict import Case


class Answer(NamedTuple):
    """Predicted time and roofline in us, or why there is none."""

    predicted_us: float | None
    baseline_us: float | None
    reason: str = ""


def answer(machine: Machine, case: Case) -> Answer:
    """The prediction and its null baseline, which a part does not have.

    What the machine or the schedule refuses becomes the reason.
    """
    from ..sim.predict import PartCase, predict_us, roofline_us

    try:
        whole = not isinstance(case, PartCase)
        return Answer(predict_us(machine, case), roofline_us(machine, case) if whole else None)
    except XstageError as error:
        return Answer(None, None, str(error))


@cache
def machine_of(text: str) -> Machine:
    """The machine that `text_of` gave: machines have no pickled form."""
    from ..sim.machine import Machine

    return Machine.parse(json.loads(text))


def text_of(machine: Machine) -> str:
    """A machine as text."""
    return json.dumps(machine.model_dump(mode="json", exclude_unset=True))


def answers(asked: Sequence[tuple[Machine, Case]], workers: int) -> Iterator[tuple[int, Answer]]:
    """Position and answer of each question, as they come. With one worker everything runs in this process.

    A worker gets neighbours that share a routing one after the other: it draws the routing once.
    """
    if workers < 2 or len(asked) < 2:
        for position, (machine, case) in enumerate(asked):
            yield position, answer(machine, case)
        return
    from ..sim.compilation import compile_engine

    compile_engine()
    texts = {id(machine): text_of(machine) for machine, _ in asked}
    questions = [(position, texts[id(machine)], case) for position, (machine, case) in enumerate(asked)]
    batches = [tuple(batch) for _, batch in groupby(questions, lambda question: drawn_for(question[2]) or question[0])]
    processes = [_start() for _ in range(min(workers, len(batches)))]
    free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    for process in processes:
        free.put(process)
    answered: SimpleQueue[tuple[int, Answer | Exception]] = SimpleQueue()
    pool = ThreadPoolExecutor(len(processes))
    try:
        for batch in batches:
            pool.submit(_ask_each, free, batch, answered)
        for _ in asked:
            position, found = answered.get()
            if isinstance(found, Exception):
                raise found
            yield position, found
    finally:
        for process in processes:
            process.kill()
            process.wait()
        pool.shutdown(wait=False, cancel_futures=True)


def drawn_for(case: Case) -> tuple[int, ...] | None:
    """What the routing of a case is drawn for; None for a case without one."""
    from ..sim.predict import routing_key
    from ..sim.schedules.megamoe import MegaMoe

    return routing_key(case.shape) if isinstance(case.shape, MegaMoe) else None


def _start() -> subprocess.Popen[bytes]:
    """A worker in a process group of its own: Ctrl-C reaches who asked, and that one ends its workers."""
    command = [sys.executable, "-m", "xstage.predictions.worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)


def _ask_each(
    free: SimpleQueue[subprocess.Popen[bytes]],
    batch: Sequence[tuple[int, str, Case]],
    answered: SimpleQueue[tuple[int, Answer | Exception]],
) -> None:
    """Put a batch of questions to one process. After an error the rest of the batch stays without answers."""
    process = free.get()
    position = -1
    try:
        for position, text, case in batch:
            answered.put((position, _ask(process, (text, case))))
    except Exception as error:  # a fault of the program belongs to whoever asked
        answered.put((position, error))
    finally:
        free.put(process)


def _ask(process: subprocess.Popen[bytes], question: tuple[str, Case]) -> Answer:
    assert process.stdin is not None and process.stdout is not None
    try:
        pickle.dump(question, process.stdin)
        process.stdin.flush()
        found: Any = pickle.load(process.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        raise XstageError(f"a worker process ended with exit code {process.wait()}; what it said is above") from None
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, Answer)
    return found


def _serve() -> None:
    """Answer until the input ends. What anything prints goes to standard error: standard output carries the answers."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            text, case = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        found: Answer | Exception
        try:
            found = answer(machine_of(text), case)
        except Exception as error:
            found = error
        try:
            pickle.dump(found, out)
            out.flush()
        except BrokenPipeError:  # whoever asked has gone
            os._exit(1)


if __name__ == "__main__":
    from xstage.predictions.worker import (
        _serve as serve,
    )  # so that answers are pickled as this package's, not as __main__'s

    serve()
