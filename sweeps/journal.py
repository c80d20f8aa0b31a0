"""Every record of a sweep, durable, in one SQLite file; a sweep that was stopped in any way goes on from it.

A record is written once, under the key of its point, with the run that computed it. One sweep at a time holds the file.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from ..sim.errors import InputError, XstageError
from .task import OUTSIDE_CAUSES, Record

FILE = "journal.sqlite"
SCHEMA = 1

_TABLE = """
CREATE TABLE IF NOT EXISTS records (
    key TEXT PRIMARY KEY,
    run TEXT NOT NULL,
    metrics TEXT,
    error_type TEXT,
    error TEXT,
    timing TEXT NOT NULL
) WITHOUT ROWID
"""


class Journal:
    """The journal of a folder. Raises `InputError` if another sweep holds it, or the file is something else.

    What was added is durable once `commit` returns. As a context it closes at the end, with what was committed.
    """

    def __init__(self, folder: Path):
        self.file = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(self.file, timeout=0.5, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"cannot be written: {error}", field="output", value=str(folder)) from None
        try:
            with self._readable():
                self._open()
        except InputError:
            self._base.close()
            raise

    def _open(self) -> None:
        self._base.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._base.execute("PRAGMA synchronous = FULL")
        self._base.execute("BEGIN EXCLUSIVE")  # with the mode above, the lock stays until the file is closed
        [found] = self._base.execute("PRAGMA user_version").fetchone()
        if found not in (0, SCHEMA):
            raise sqlite3.DatabaseError(f"its format is {found}, this version of xstage reads {SCHEMA}")
        self._base.execute(_TABLE)
        self._base.execute(f"PRAGMA user_version = {SCHEMA}")
        self._base.execute("COMMIT")

    def forget_outside_causes(self) -> None:
        """Drop records that say something about the computer and not about their point, so that these are tried again."""
        marks = ", ".join("?" * len(OUTSIDE_CAUSES))
        with self._readable():
            self._base.execute(f"DELETE FROM records WHERE error_type IN ({marks})", OUTSIDE_CAUSES)

    def add(self, records: Iterable[Record], run: str) -> None:
        """Write records; they last once `commit` returns. A key that is there already raises `XstageError`."""
        rows = [
            (
                r.key,
                run,
                None if r.metrics is None else json.dumps(r.metrics),
                r.error_type,
                r.error,
                json.dumps(r.timing),
            )
            for r in records
        ]
        try:
            if not self._base.in_transaction:
                self._base.execute("BEGIN")
            self._base.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError as error:
            raise XstageError(f"a point was computed twice: {error}") from None
        except sqlite3.Error as error:
            raise XstageError(f"{self.file} cannot be written: {error}") from None

    def commit(self) -> None:
        if self._base.in_transaction:
            try:
                self._base.execute("COMMIT")
            except sqlite3.Error as error:
                raise XstageError(f"{self.file} cannot be written: {error}") from None

    def keys(self) -> dict[str, bool]:
        """The keys of all records, and whether each is a result rather than an error."""
        with self._readable():
            return {key: bool(ok) for key, ok in self._base.execute("SELECT key, metrics IS NOT NULL FROM records")}

    def get(self, key: str) -> tuple[Record, str] | None:
        """The record of a key and the run that wrote it, if there is one."""
        with self._readable():
            row = self._base.execute(
                "SELECT metrics, error_type, error, timing, run FROM records WHERE key = ?", (key,)
            ).fetchone()
            if row is None:
                return None
            metrics, error_type, error, timing, run = row
            metrics = None if metrics is None else json.loads(metrics)
            return Record(key, metrics, error_type, error, json.loads(timing)), run

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """While the block reads. Raises `InputError` if another sweep holds the file, or it is damaged or no journal."""
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            busy = "locked" in str(error)
            reason = "is in use by another sweep" if busy else f"is no journal of a sweep that can be read: {error}"
            allowed = None if busy else "another folder; without this file the sweep starts anew"
            raise InputError(reason, field="output", value=str(self.file), allowed=allowed) from None

    def close(self) -> None:
        self._base.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
