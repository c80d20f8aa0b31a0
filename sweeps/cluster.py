"""A Dask cluster that exists already. Workers compute and need no shared disk; only the client, which is here, writes.

Start its workers with one thread each: the compiled engine does not share the interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

from ..sim.errors import InputError, XstageError
from .batch import MOST, Batches
from .task import Record, Task, compute_all, identity

Future = Any  # Dask's own types come and go with its versions, and with whether it is installed
Client = Any

TICK_S = 0.2
CONNECT_S = 10
DELIVERY_S = 0.5  # what a point may take beyond its time, on its way to the worker and back


class Cluster:
    """The cluster behind a scheduler's address, whose workers have been found to hold the same model.

    With `timeout_s`, points are sent one by one, and one that takes longer is given up. Its worker goes on with it all the
    same, and points that Dask sends there in the meantime may be given up too; the next sweep tries them again.
    Raises `InputError` if Dask is not installed, nobody answers at the address, or a worker's xstage is another one.
    """

    def __init__(self, address: str, timeout_s: float | None = None):
        self.timeout_s = timeout_s
        self._client: Client = _connect(address)
        try:
            self._check_workers(address)
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        return int(sum(self._client.nthreads().values()))

    def run(self, tasks: Iterator[Task]) -> Generator[list[Record], None, None]:
        batches = Batches(tasks, most=MOST if self.timeout_s is None else 1)
        a_thread = 2 if self.timeout_s is None else 1  # a second batch waits its turn, so its time would run early
        sent: dict[Future, tuple[list[Task], float]] = {}
        try:
            while batches.prepare() or sent:
                while len(sent) < a_thread * max(1, self.count) and (batch := batches.next()):
                    sent[self._client.submit(compute_all, batch, pure=False)] = (batch, time.monotonic())
                records: list[Record] = []
                for future in self._ended(sent):
                    batch, since = sent.pop(future)
                    records += self._records(future, batch, since)
                for record in records:
                    batches.learn(record)
                yield records
        finally:
            self._client.cancel(list(sent))

    def close(self) -> None:
        self._client.close()

    def _check_workers(self, address: str) -> None:
        """Raises `InputError` unless every worker has the version and the model's sources that are here."""
        answers = self._client.run(identity, on_error="return")
        if not answers:
            raise InputError("is a cluster without workers", field="dask", value=address)
        here = identity()
        for worker, found in answers.items():
            if isinstance(found, BaseException):
                raise InputError(
                    f"worker {worker} cannot load xstage: {found}",
                    field="dask", value=address, allowed=f"workers with xstage {here[0]}",
                )  # fmt: skip
            if tuple(found) != here:
                raise InputError(
                    f"worker {worker} has xstage {found[0]} with model {found[1][:12]}",
                    field="dask", value=address, allowed=f"xstage {here[0]} with model {here[1][:12]}, as here",
                )  # fmt: skip

    def _ended(self, sent: dict[Future, tuple[list[Task], float]]) -> list[Future]:
        """Those that are done, or have had their time; waits for a moment if there are none."""
        until = time.monotonic() + TICK_S
        while True:
            now = time.monotonic()
            late = self.timeout_s is not None
            ended = [f for f, (_, since) in sent.items() if f.done() or (late and now - since > self._patience())]
            if ended or now >= until:
                return ended
            time.sleep(0.005)

    def _patience(self) -> float:
        """Seconds from sending to giving up."""
        return DELIVERY_S + (self.timeout_s or 0.0)

    def _records(self, future: Future, batch: list[Task], since: float) -> list[Record]:
        took = {"wall_s": time.monotonic() - since}
        if not future.done():
            future.cancel()
            return [Record(task.key, None, "Timeout", f"took longer than {self.timeout_s:g} s", took) for task in batch]
        if future.status != "finished":
            reason: Any = future.exception()
            return [Record(task.key, None, "WorkerDied", f"Dask gave up on it: {reason}", took) for task in batch]
        model, records = future.result()
        if model != identity()[1]:
            raise XstageError(f"a worker that joined the cluster has another model: {model[:12]}")
        return list(records)


def _connect(address: str) -> Client:
    try:
        import distributed
    except ImportError:
        raise InputError(
            "needs Dask, which is not installed", field="dask", value=address, allowed="pip install 'xstage[dask]'"
        ) from None
    try:
        client: Client = distributed.Client
        return client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        reason = f"does not answer as a Dask scheduler: {error}"
        raise InputError(reason, field="dask", value=address, allowed="such as tcp://127.0.0.1:8786") from None
