"""A schedule of one's own as a workload: a Program that was made in Python, or the file that it was saved in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from zipfile import is_zipfile

from pydantic import Field, InstanceOf, PlainSerializer, model_validator
from pydantic.json_schema import SkipJsonSchema

from ..sim.checked import refusal
from ..sim.errors import InputError, ProgramError
from ..sim.machine import Machine
from ..sim.program import Program
from ..sim.quantities import Count, Text
from .workload import Workload

ISSUE = ("stage.t0", "stage.issue_rate")
"""Numbers of a machine that say how long a store takes to issue."""
IN_MEMORY = "in memory: "
"""Before what stands for a Program that is in no file, where only text can stand."""


class ProgramWorkload(Workload):
    """The Program in `file`, as `Program.save` wrote it, or in Python the `Program` itself; `gpus` are as many as it has.

    What computes takes as long as the Program says, on whatever machine. So do stores to issue with `issue_times: own`;
    with `issue_times: machine` each STORE takes T_iss0 of the machine, see sim/issue_times.py.
    """

    kind: Literal["program"]
    gpus: Annotated[Count, SkipJsonSchema(), Field(exclude=True)]
    file: Annotated[
        Text | SkipJsonSchema[InstanceOf[Program]], PlainSerializer(lambda file: _as_text(file), when_used="json")
    ]
    issue_times: Literal["own", "machine"] = "own"

    @model_validator(mode="before")
    @classmethod
    def _with_its_gpus(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not set(data) <= set(cls.model_fields):
            return data
        file = str(data["file"]) if isinstance(data.get("file"), Path) else data.get("file")
        if not isinstance(file, (str, Program)):
            reason = "is missing" if file is None else "is no Program"
            raise refusal(reason, key=("file",), allowed="the file of a Program (.npz), or in Python a Program")
        gpus, asked = _gpus(file), data.get("gpus")
        if asked not in (None, gpus):
            raise refusal("is the Program's own number", key=("gpus",), allowed=f"{gpus}, or nothing")
        return {**data, "file": file, "gpus": gpus}

    @property
    def title(self) -> str:
        """With the name that the schedule has, or else the name of the file."""
        of_file = Path(self.file).name if isinstance(self.file, str) else "made in Python"
        return f"Program {self.schedule.meta.get('schedule', of_file)}"

    @property
    def schedule(self) -> Program:
        """The Program as it was made. Raises `InputError` if its file can no longer be read."""
        try:
            return _read(self.file)
        except ProgramError as error:
            raise InputError(str(error), field="file", value=str(self.file)) from None

    def build(self, machine: Machine, seed: int) -> Program:
        """The Program, on a machine that has its SMs."""
        from ..sim.issue_times import issued_by

        program = self.schedule
        last = int(program.lanes["sm"].max(initial=0))
        if last >= machine.sms:
            allowed = f"SM 0 to {machine.sms - 1}, which {machine.name} has"
            raise InputError(f"has a lane on SM {last}", field="file", value=_as_text(self.file), allowed=allowed)
        return issued_by(program, machine) if self.issue_times == "machine" else program


def fixed(workload: Workload, numbers: Iterable[str]) -> list[str]:
    """Those of a machine's `numbers`, by dotted name, that a Program of one's own has durations in place of."""
    if not isinstance(workload, ProgramWorkload):
        return []
    own = ISSUE if workload.issue_times == "own" else ()
    return [name for name in numbers if name in own or name.split(".")[0] == "compute"]


def _gpus(file: str | Program) -> int:
    """How many GPUs the Program has. Refuses what is none, or cannot run on the GPUs of a machine."""
    if isinstance(file, str) and file.startswith(IN_MEMORY):
        allowed = "its file: Program.save(FILE), then file: FILE"
        raise refusal("was made in Python, and is asked for where only files are read", key=("file",), allowed=allowed)
    try:
        program = _read(file)
    except ProgramError as error:
        raise refusal(str(error), key=("file",), allowed="a file that Program.save wrote") from None
    if program.meta.get("ranks") == "symmetric":
        reason = "is one rank against its mirror, which needs the ports that its own scenario makes"
        raise refusal(reason, key=("file",), allowed="a Program of all ranks")
    return program.n_gpus


def _read(file: str | Program) -> Program:
    """The Program, from its file if it is in one. Raises `ProgramError`, without the name of the file."""
    if isinstance(file, Program):
        return file
    try:
        known = Path(file).stat()
        if not is_zipfile(file):
            raise ProgramError("is no Program")
    except OSError as error:
        raise ProgramError(f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # a name that no file can have
        raise ProgramError(f"cannot be read: {error}") from None
    try:
        return _loaded(file, known.st_mtime_ns, known.st_size)
    except ProgramError as error:
        raise ProgramError(str(error).removeprefix(f"{file}: ")) from None


@lru_cache(maxsize=4)  # answers resolve a scenario again and again
def _loaded(file: str, changed_ns: int, size: int) -> Program:
    return Program.load(file)


def _as_text(file: str | Program) -> str:
    """A file by its name, a Program in a few words, with what tells it from every other."""
    if isinstance(file, str):
        return file
    digest = hashlib.sha256()
    for _, table in file.tables():
        for name in table.dtype.names or (...,):
            digest.update(table[name].tobytes())
    digest.update(repr((file.n_gpus, file.roles, file.phases, file.meta)).encode())
    return f"{IN_MEMORY}{file!r}, SHA-256 {digest.hexdigest()[:16]}"
