"""The `xstage` command. Each subcommand calls one function of the Python interface and prints its answer.

With `--json` standard output is one JSON object and nothing else, also for an error. Exit codes: 0 done, 2 bad input,
1 failure; 130, 141 and 143 ended by SIGINT (Ctrl-C), a closed pipe and SIGTERM. Modules are imported when a command needs
them, so that `--help` is quick.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from .commands import (
    audit,
    demo,
    diff,
    doctor,
    figures,
    layer,
    paper,
    published,
    run,
    scenarios,
    schedule,
    sweep,
    trace,
    validate,
)
from .terminal.invocation import invoked
from .terminal.output import OutputLostError, print_json, to_standard_output

# The class of all errors in a command line; where it can be imported from depends on the version of typer.
CommandLineError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""A disk that is full or broken: no fault of the program, so that where it was says nothing."""

_INTERRUPTED = 128 + signal.SIGINT
"""What newer versions of typer make of Ctrl-C, and what a shell says of a process that it ended."""
_UNREAD = 128 + signal.SIGPIPE
"""The same of a process whose output nobody reads any more."""

app = typer.Typer(
    name="xstage",
    help="Simulate fused GPU communication-computation kernels.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    run,
    audit,
    scenarios,
    doctor,
    demo,
    diff,
    figures,
    layer,
    paper,
    published,
    schedule,
    sweep,
    trace,
    validate,
):  # in the order of `xstage --help`
    command.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 130 after Ctrl-C, 141 if the reader of the output has left."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(words, "--json" in words)
        with to_standard_output():
            return code
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        code = _UNREAD
    except OutputLostError as error:
        print(f"xstage: {error}", file=sys.stderr)
        code = 1
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again when it ends
    return code


def _run(words: list[str], as_json: bool) -> int:
    """The exit code, after errors were told."""
    try:
        with invoked(words):
            code = app(words, prog_name="xstage", standalone_mode=False)
    except (BrokenPipeError, OutputLostError):
        raise
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # of which typer makes exit code 1
            raise ended.__context__ from None
        raise
    except (typer.Abort, KeyboardInterrupt) as stopped:
        if isinstance(stopped.__cause__, EOFError):  # typer takes the end of any file for that of what a person types
            return _raised(stopped.__cause__, as_json)
        code = _INTERRUPTED
    except CommandLineError as error:
        message: str = error.format_message() if hasattr(error, "format_message") else str(error)
        return _failed({"type": "UsageError", "message": message}, as_json, 2)
    except Exception as error:
        stop = error.__cause__  # pydantic wraps whatever ends one of its serializers
        if stop is None or isinstance(stop, Exception):
            return _raised(error, as_json)
        if not isinstance(stop, KeyboardInterrupt):
            raise stop from None
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        return _failed({"type": "Interrupted", "message": "interrupted"}, as_json, _INTERRUPTED)
    return int(code or 0)


def _raised(error: Exception, as_json: bool) -> int:
    from .sim.errors import InputError, ProgramError, XstageError

    if isinstance(error, XstageError):
        return _failed(error.as_dict(), as_json, 2 if isinstance(error, (InputError, ProgramError)) else 1)
    if isinstance(error, OSError) and error.errno in _DISK:
        return _failed({"type": "OSError", "message": f"cannot be written: {error.strerror}"}, as_json, 1)
    traceback.print_exception(error)
    return _failed({"type": type(error).__name__, "message": f"unexpected: {error}"}, as_json, 1)


def _failed(error: dict[str, object], as_json: bool, code: int) -> int:
    if as_json:
        print_json({"error": error})
    else:
        print(f"xstage: {error['message']}", file=sys.stderr)
    return code


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        from . import __version__

        print(f"xstage {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
