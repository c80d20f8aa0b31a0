"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError


@contextmanager
def write_whole(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it to `path` if the block ends well, else delete it.

    A reader sees the old file or the new one, never a part, also after Ctrl-C or a full disk. Raises `InputError` where no
    file can be made.
    """
    target = Path(path)
    with _refused_at(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with _refused_at(target):
            temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_output(path: str | Path, option: str, allowed: tuple[str, ...]) -> None:
    """Before work begins whose result goes to `path`: raises `InputError` for a suffix that cannot be written, a folder of
    that name, and a place where no file can be made."""
    target = Path(path)
    if target.suffix not in allowed:
        raise InputError("has no suffix that can be written", field=option, value=str(path), allowed=allowed)
    if target.is_dir():
        raise InputError("is a folder", field=option, value=str(path), allowed="the name of a file")
    there = next(folder for folder in target.absolute().parents if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise InputError("cannot be written", field=option, value=str(path), allowed=f"not below {there}")


@contextmanager
def _refused_at(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(target)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
