"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from .arguments import check_path
from .errors import InputError


@contextmanager
def write_whole(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it to `path` if the block ends well, else delete it.

    A reader sees the old file or the new one, never a part, also after Ctrl-C or a full disk. A symbolic link stays one:
    the file that it leads to is written. Raises `InputError` where no file can be made.
    """
    with _refused_at(path):
        target = _behind_links(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=Path(path).suffix, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with _refused_at(path):
            temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def make_folder(path: str | Path, option: str = "output") -> None:
    """Make the folder that results go to, and those around it. Raises `InputError` where none can be made."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot be made: {error.strerror}"
        raise InputError(reason, field=option, value=str(path), allowed="a folder that can be written to") from error


def check_output(path: str | Path, option: str, allowed: tuple[str, ...]) -> None:
    """Before work begins whose result goes to `path`: raises `InputError` for a suffix that cannot be written, a folder or
    a pipe of that name, and a place where no file can be made.

    A missing folder is made below the working folder, such as `out/`. Anywhere else it is refused: the path is mistyped.
    """
    check_path(path, option)
    target = Path(path)
    if not target.name:
        raise InputError("names no file", field=option, allowed=allowed)
    if target.suffix not in allowed:
        raise InputError("has no suffix that can be written", field=option, value=str(path), allowed=allowed)
    try:
        refused = _refusal_of(_behind_links(target))
    except OSError as error:  # such as a name that is too long
        refused = f"cannot be written: {error.strerror}", None
    if refused is not None:
        raise InputError(refused[0], field=option, value=str(path), allowed=refused[1])


def check_not_read(path: str | Path, option: str, *read: str | Path | None) -> None:
    """Before work begins: raises `InputError` if `path`, which is to be written, is one of the files that are `read`."""
    if any(other is not None and is_same_file(path, other) for other in read):
        raise InputError("is the file that is read", field=option, value=str(path), allowed="another file")


def is_same_file(one: str | Path, other: str | Path) -> bool:
    """Whether two paths lead to one file, which need not exist."""
    with suppress(OSError):
        return os.path.samefile(one, other)
    with suppress(OSError):  # one of them is not there
        return _behind_links(one) == _behind_links(other)
    return False  # nor is the working folder


def _refusal_of(target: Path) -> tuple[str, str | None] | None:
    """Why no file can be made at `target`, and what is allowed instead; None where one can."""
    folder = target.parent
    there = next(above for above in (folder, *folder.parents) if above.exists())
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = target.stat().st_mode  # not `is_dir`, which newer versions answer for a name that is too long
        if not S_ISREG(mode):
            return "is a folder" if S_ISDIR(mode) else "is a pipe or a device", "the name of a file"
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return "cannot be written", f"not below {there}"
    if there != folder and not folder.is_relative_to(Path.cwd()):
        return f"has no folder: {folder} does not exist", "a folder that exists, or one below the working folder"
    return None


def _behind_links(path: str | Path) -> Path:
    """Where a file of that name is, every symbolic link followed. Unlike `Path.resolve` it lets a circle of them pass."""
    return Path(os.path.realpath(path))


@contextmanager
def _refused_at(target: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", file=str(target)) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
