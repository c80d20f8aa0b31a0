"""Runs every command and example of README.md and docs/, so that no page shows what the program does not do.

    python docs/check.py [--update] [--jobs N] [PAGE ...]

Each page gets a temporary copy of the project as its working folder. From the top of the page to its end:

- In a `console`, `bash`, `sh` or `shell` block a line that begins with `$ ` is a command; a backslash at its end
  continues it on the next line. It must succeed. Lines shown under it must be its standard output, to the letter but
  for spaces at line ends; with `--update` they are replaced by it. Every command has a shell of its own.
- A `python` block with `>>>` is a doctest, one without is run whole. The blocks of a page share their names.

A comment on the line above a block changes that:

    <!-- no-check: why -->   skip the block; it is counted and listed
    <!-- output varies -->   run it, but compare no output (times, the machine's name)
    <!-- measures -->        the same; where the computer cannot be measured, or is too busy, so that a command ends with
                             exit code 1 and a reason, the block is listed as skipped (a traceback is still a failure)
    <!-- exit 2 -->          its last command must end with this exit code; standard error is output too
    <!-- file: my.yaml -->   above a block of any language: do not run it, write it to this file of the working folder
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import doctest
import io
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHELL = {"console", "bash", "sh", "shell"}
PYTHON = {"python", "py", "pycon"}
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".hypothesis", "build", "out", "__pycache__", "*.egg-info")

FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})\s*(?P<language>[\w+-]*)[^`]*\Z")
DIRECTIVE = re.compile(r"<!--\s*(?P<text>(?:no-check|output|measures|exit|file)\b.*?)\s*-->\Z")
VARIES = {"output varies", "measures"}
NO_CHECK = re.compile(r"no-check: (?P<why>\S.*)\Z")
EXIT = re.compile(r"exit (?P<code>\d+)\Z")
FILE = re.compile(r"file: (?P<name>[^/\s]\S*)\Z")


class PageError(Exception):
    """A page that cannot be read as blocks; the message begins with its line."""


@dataclass
class Block:
    """A fenced block; `lines` begin at the page's line `first` (counted from 0) and are without the block's indent."""

    language: str
    indent: str
    first: int
    lines: list[str]
    directive: str = ""

    @property
    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)


@dataclass
class Command:
    """A command and the range of page lines that show its output (empty: none shown)."""

    line: int
    text: str
    shown: range
    exit_code: int = 0


@dataclass
class Outcome:
    """What became of one page."""

    commands: int = 0
    examples: int = 0
    skipped: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    new_output: dict[range, list[str]] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Checks the pages named in `arguments` (default: README.md and docs/**/*.md of `root`); 0 if all is well."""
    parser = argparse.ArgumentParser(description="Run every command and example in the documentation.")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: README.md and docs/**/*.md")
    parser.add_argument("--update", action="store_true", help="write what the commands print into the pages")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="pages at a time (default: 1)")
    parser.add_argument("--timeout", type=float, default=900, metavar="SECONDS", help="for one command (default: 900)")
    options = parser.parse_args(arguments)

    pages = options.pages or [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    check = partial(check_page, root=root, update=options.update, timeout_s=options.timeout)
    if options.jobs == 1:
        outcomes = [check(page) for page in pages]
    else:
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            outcomes = pool.map(check, pages, chunksize=1)
    skipped = [line for outcome in outcomes for line in outcome.skipped]
    failures = [line for outcome in outcomes for line in outcome.failures]
    for line in [*skipped, *failures]:
        print(line)
    commands, examples = sum(o.commands for o in outcomes), sum(o.examples for o in outcomes)
    print(
        f"docs: {len(pages)} pages, {commands} commands, {examples} Python examples; "
        f"{len(skipped)} blocks not checked, {len(failures)} failures"
    )
    return 1 if failures else 0


def check_page(page: Path, root: Path = ROOT, *, update: bool = False, timeout_s: float = 900) -> Outcome:
    """Runs the blocks of `page` in a copy of `root`; with `update` rewrites the outputs that it shows."""
    name = str(page.relative_to(root)) if page.is_relative_to(root) else str(page)
    lines = page.read_text(encoding="utf-8").splitlines()
    outcome = Outcome()
    try:
        blocks = list(find_blocks(lines))
    except PageError as error:
        outcome.failures.append(f"{name}:{error}")
        return outcome

    with tempfile.TemporaryDirectory(prefix="xstage-docs-") as folder:
        copy = Path(folder) / root.name
        shutil.copytree(root, copy, ignore=NOT_COPIED, symlinks=True)
        if (root / ".venv").is_dir():
            (copy / ".venv").symlink_to(root / ".venv")
        names: dict[str, object] = {"__name__": "__main__"}
        for block in blocks:
            _check_block(block, name, copy, names, outcome, update, timeout_s)

    if update and outcome.new_output:
        for shown in sorted(outcome.new_output, key=lambda shown: shown.start, reverse=True):
            lines[shown.start : shown.stop] = outcome.new_output[shown]
        page.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return outcome


def find_blocks(lines: Sequence[str]) -> Iterator[Block]:
    """The fenced blocks of a page. Raises `PageError` for one that is never closed or whose directive is misspelt."""
    at = 0
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if not fence:
            at += 1
            continue
        indent, ticks, opened = fence["indent"], fence["ticks"], at
        closing = re.compile(rf" *{ticks}`*\s*\Z")
        at += 1
        while at < len(lines) and not closing.match(lines[at]):
            at += 1
        if at == len(lines):
            raise PageError(f"{opened + 1}: this block is never closed")
        body = [line.removeprefix(indent) for line in lines[opened + 1 : at]]
        yield Block(fence["language"].lower(), indent, opened + 1, body, _directive_above(lines, opened))
        at += 1


def _directive_above(lines: Sequence[str], fence: int) -> str:
    found = DIRECTIVE.match(lines[fence - 1].strip()) if fence else None
    if not found:
        return ""
    text = found["text"]
    if text not in VARIES and not any(known.match(text) for known in (NO_CHECK, EXIT, FILE)):
        allowed = "'no-check: why', 'output varies', 'measures', 'exit CODE', 'file: NAME'"
        raise PageError(f"{fence}: '{text}' says nothing about a block (allowed: {allowed})")
    return text


def find_commands(block: Block) -> list[Command]:
    """The commands of a shell block, each with the page lines that show its output."""
    commands: list[Command] = []
    at = 0
    while at < len(block.lines):
        if not block.lines[at].startswith("$ "):
            at += 1
            continue
        line, text = block.first + at, block.lines[at][2:]
        while text.endswith("\\") and at + 1 < len(block.lines):
            at += 1
            text = text[:-1] + block.lines[at].removeprefix("> ").lstrip()
        at += 1
        start = at
        while at < len(block.lines) and not block.lines[at].startswith("$ "):
            at += 1
        stop = at
        while stop > start and not block.lines[stop - 1].strip():
            stop -= 1
        commands.append(Command(line, text, range(block.first + start, block.first + stop)))
    return commands


def _check_block(
    block: Block, page: str, folder: Path, names: dict[str, object], outcome: Outcome, update: bool, timeout_s: float
) -> None:
    if named := FILE.match(block.directive):
        target = folder / named["name"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text, encoding="utf-8")
    elif block.language not in SHELL | PYTHON:
        return
    elif skip := NO_CHECK.match(block.directive):
        outcome.skipped.append(f"{page}:{block.first}: not checked: {skip['why']}")
    elif block.language in PYTHON:
        _check_python(block, page, folder, names, outcome)
    else:
        _check_shell(block, page, folder, outcome, update, timeout_s)


def _check_shell(block: Block, page: str, folder: Path, outcome: Outcome, update: bool, timeout_s: float) -> None:
    commands = find_commands(block)
    if not commands:
        outcome.failures.append(f"{page}:{block.first}: no line of this block begins with '$ ': nothing to check")
        return
    expected_exit = EXIT.match(block.directive)
    if expected_exit:
        commands[-1].exit_code = int(expected_exit["code"])
    for command in commands:
        outcome.commands += 1
        where = f"{page}:{command.line + 1}"
        begun = time.monotonic()
        exit_code, stdout, stderr = _run(command.text, folder, timeout_s)
        print(f"{where}: $ {command.text}  ({time.monotonic() - begun:.1f} s)", flush=True)
        if block.directive == "measures" and exit_code == 1 and stderr and "Traceback" not in stderr:
            outcome.skipped.append(f"{where}: not checked: {stderr.strip()}")
            return
        if exit_code != command.exit_code:
            ended = f"ran over {timeout_s:g} s" if exit_code is None else f"exit code {exit_code}"
            wanted = f", expected {command.exit_code}" if command.exit_code else ""
            outcome.failures.append(f"{where}: {ended}{wanted}: {command.text}\n" + _indented(stdout + stderr))
            continue
        shown = block.lines[command.shown.start - block.first : command.shown.stop - block.first]
        printed = _trimmed(stdout + stderr if expected_exit else stdout)
        if not shown or printed == _trimmed("\n".join(shown)):
            continue
        if update:
            outcome.new_output[command.shown] = [(block.indent + line).rstrip() for line in printed]
        elif block.directive not in VARIES:
            diff = difflib.unified_diff(_trimmed("\n".join(shown)), printed, "shown", "printed", lineterm="")
            outcome.failures.append(f"{where}: prints something else: {command.text}\n" + _indented("\n".join(diff)))


def _run(command: str, folder: Path, timeout_s: float) -> tuple[int | None, str, str]:
    """Exit code (None: timed out), standard output and standard error of `command`, run as a reader would."""
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return None, stdout, stderr
        raise
    return process.returncode, stdout, stderr


def _check_python(block: Block, page: str, folder: Path, names: dict[str, object], outcome: Outcome) -> None:
    with contextlib.chdir(folder):
        if not any(line.startswith(">>>") for line in block.lines):
            outcome.examples += 1
            code = "\n" * block.first + block.text  # so that a traceback gives the page's lines
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(code, page, "exec"), names)
            except (Exception, SystemExit) as error:
                line = _line_of(error, page) or block.first + 1
                outcome.failures.append(f"{page}:{line}: {type(error).__name__}: {error}")
            return
        test = doctest.DocTestParser().get_doctest(block.text, {}, page, page, block.first)
        test.globs = names
        outcome.examples += len(test.examples)
        checker = _AnyOutput() if block.directive in VARIES else None
        _PageRunner(outcome, checker=checker, verbose=False).run(test, out=lambda text: None, clear_globs=False)


def _line_of(error: BaseException, page: str) -> int | None:
    """The line of `page` at which `error` arose."""
    if isinstance(error, SyntaxError) and error.filename == page:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == page]
    return lines[-1] if lines else None


class _AnyOutput(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return True


class _PageRunner(doctest.DocTestRunner):
    """A doctest runner whose failures become lines of the page's outcome."""

    def __init__(self, outcome: Outcome, checker: doctest.OutputChecker | None, verbose: bool):
        super().__init__(checker, verbose, optionflags=doctest.ELLIPSIS)
        self.outcome = outcome

    def report_failure(self, out, test, example, got):  # type: ignore[no-untyped-def]
        difference = self._checker.output_difference(example, got, self.optionflags)  # type: ignore[attr-defined]
        self._report(test, example, f"prints something else: {example.source.strip()}\n{_indented(difference)}")

    def report_unexpected_exception(self, out, test, example, exc_info):  # type: ignore[no-untyped-def]
        self._report(test, example, "".join(traceback.format_exception_only(*exc_info[:2])).strip())

    def _report(self, test: doctest.DocTest, example: doctest.Example, text: str) -> None:
        self.outcome.failures.append(f"{test.filename}:{(test.lineno or 0) + example.lineno + 1}: {text}")


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _indented(text: str) -> str:
    return textwrap.indent(text.rstrip(), "    ")


if __name__ == "__main__":
    sys.exit(main())
