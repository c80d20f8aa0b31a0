"""Plans and results as files: one `.npz` with a JSON header and named arrays. Needs NumPy alone.

    PLAN.npz      what is to be run: tables of microbenchmarks, lowered Programs, the Programs themselves
    RESULTS.npz   the plan, what was run of it, what it noted, and on which hardware; whole or in part

Arrays are named by path: `part/bursts/table`, `program/3/...`. A file appears whole or not at all, and can be read with no
more than `numpy.load`.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...sim.errors import InputError
from ...sim.files import write_whole

SUFFIXES = (".npz",)
FORMAT_VERSION = 1
Kind = Literal["plan", "results"]
_BROKEN = (zipfile.BadZipFile, zlib.error, LookupError, ValueError, EOFError, OSError, TypeError, NotImplementedError)


@dataclass(frozen=True, eq=False)
class Container:
    """A header, plain data that JSON can hold, and arrays by path."""

    kind: Kind
    header: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]

    def under(self, prefix: str) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays whose path begins with `prefix/`, by the rest of it."""
        return {name[len(prefix) + 1 :]: array for name, array in self.arrays.items() if name.startswith(prefix + "/")}

    def digest(self) -> str:
        """The same for the same content."""
        sha = hashlib.sha256(json.dumps(self.header, sort_keys=True).encode())
        for name in sorted(self.arrays):
            array = _without_padding(self.arrays[name])
            sha.update(f"{name} {array.dtype.str} {array.shape}".encode())
            sha.update(array.tobytes())
        return sha.hexdigest()[:16]


def save(container: Container, path: str | Path) -> None:
    """Write the file. The suffix should be `.npz`."""
    header = {"format": "xstage-cuda", "format_version": FORMAT_VERSION, "kind": container.kind, **container.header}
    text = np.array(json.dumps(header, sort_keys=True))
    arrays: Mapping[str, Any] = {"header": text, **{name: _without_padding(a) for name, a in container.arrays.items()}}
    with write_whole(path) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, **arrays)


def load(path: str | Path, kind: Kind) -> Container:
    """Read what `save` wrote. Raises `InputError` naming the file if it is not there, not whole, or of the other kind."""
    name = str(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            arrays = {key: file[key] for key in file.files if key != "header"}
    except FileNotFoundError:
        raise InputError("no such file", file=name) from None
    except _BROKEN as error:
        raise InputError(f"is not a whole {kind} file ({error})", file=name) from error
    if not isinstance(header, dict) or header.pop("format", None) != "xstage-cuda":
        raise InputError(f"is not a {kind} file of this program", file=name)
    version, found = header.pop("format_version", None), header.pop("kind", None)
    if version != FORMAT_VERSION:
        raise InputError(
            "cannot be read", file=name, field="format_version", value=version, allowed=str(FORMAT_VERSION)
        )
    if found != kind:
        raise InputError("is the wrong kind of file", file=name, field="kind", value=found, allowed=kind)
    return Container(kind, header, arrays)


def _without_padding(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array with zeros in the gaps between its fields, which else hold what was there before."""
    if array.dtype.names is None:
        return np.ascontiguousarray(array)
    clean = np.zeros(array.shape, dtype=array.dtype)
    for name in array.dtype.names:
        clean[name] = array[name]
    return clean


def merged(first: Container, second: Container) -> Container:
    """Results of two runs of one machine as one: all parts of the first, but those with which the second got further.

    Raises `InputError` if they were measured on different devices or transports.
    """
    for name, mine, theirs in (
        ("devices", _names(first), _names(second)),
        ("transport", first.header["transport"].get("name"), second.header["transport"].get("name")),
    ):
        if mine != theirs:
            raise InputError("are not of one machine", field=f"{name} of the results", value=theirs, allowed=str(mine))
    header = dict(first.header)
    plan = dict(first.header["plan"])
    new = [name for name in second.header["parts"] if _got(second, name) > _got(first, name)]
    plan["parts"] = {**plan["parts"], **{n: p for n, p in second.header["plan"]["parts"].items() if n in new}}
    prefixes = tuple(f"part/{name}/" for name in new)
    if "programs" in new:
        plan["programs"] = second.header["plan"]["programs"]
        prefixes += ("program/", "replay/")
    if "programs" in new and second.header["parts"].get("drift", {}).get("state") == "done":
        new.append("drift")  # how far the bursts had moved when the Programs had run
        prefixes += ("part/drift/",)
    header["plan"] = plan
    header["parts"] = {**first.header["parts"], **{name: second.header["parts"][name] for name in new}}
    header["warnings"] = list(dict.fromkeys([*first.header["warnings"], *second.header["warnings"]]))
    header["complete"] = all(told["state"] in ("done", "skipped") for told in header["parts"].values())
    if header["parts"].get(header.get("failed", {}).get("part"), {}).get("state") == "done":
        del header["failed"]  # what had failed has run
    if "failed" in second.header:
        header["failed"] = second.header["failed"]
    kept = {name: array for name, array in first.arrays.items() if not name.startswith(prefixes)}
    added = {name: array for name, array in second.arrays.items() if name.startswith(prefixes)}
    return Container("results", header, kept | added)


def _got(results: Container, name: str) -> int:
    """How far results got with a part; 0 if they lack it."""
    return ("", "not run", "skipped", "failed", "done").index(results.header["parts"].get(name, {}).get("state", ""))


def _names(results: Container) -> str:
    return ", ".join(str(one["name"]) for one in results.header["machine"]["devices"])
