"""Ctrl-C and SIGTERM get their answer at any time, also while the command is still being imported."""

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

XSTAGE = [sys.executable, "-m", "xstage"]
EXPLAIN = ["explain", "isolated-burst", "--set", "workload.producers=1"]

CODE = """
import sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
sys.argv = ["xstage", *sys.argv[1:]]
from xstage.entry import main
sys.exit(main())
"""


@pytest.mark.parametrize("words", [("run", "isolated-burst", "--json"), ("run", "isolated-burst")])
def test_an_interrupt_while_it_is_imported_is_told_as_any_other(words):
    done = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT
    if "--json" in words:
        assert json.loads(done.stdout) == {"error": {"type": "Interrupted", "message": "interrupted"}}
    else:
        assert (done.stdout, done.stderr) == ("", "xstage: interrupted\n")


INTERRUPTED = """
import atexit, signal, sys
from xstage.entry import main
import xstage.answers.diagnosis as diagnosis

def doctor():
    atexit.register(print, "closed")
    print("started", flush=True)
    signal.pause()

diagnosis.doctor = doctor
sys.argv = ["xstage", "doctor"]
sys.exit(main())
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_ctrl_c_ends_a_loop_of_a_shell_once_all_is_closed(tmp_path):
    """As a terminal sends it, to the shell and to the command: bash goes on after one that has only returned a code."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    line = f"for i in 1 2; do {shlex.join([sys.executable, 'interrupted.py'])}; done"
    with subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
                          start_new_session=True) as loop:  # fmt: skip
        assert loop.stdout.readline() == "started\n"
        os.killpg(loop.pid, signal.SIGINT)
        read, _, _ = select.select([loop.stdout], [], [], 60)
        assert read
        out = [loop.stdout.readline(), loop.stdout.readline()]
        if out[1]:  # the loop has gone on
            os.killpg(loop.pid, signal.SIGKILL)
        assert out == ["closed\n", ""]
        assert loop.stderr.read() == "xstage: interrupted\n"


@pytest.mark.parametrize("words", [EXPLAIN, [*EXPLAIN, "--json"], ["--version"]])
def test_output_that_nobody_reads_any_more_ends_quietly_and_tells_a_shell_so(words):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*XSTAGE, *words], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


TERMINATED = """
import signal, sys
from xstage.plots.traces import perfetto
from xstage.entry import main

def pieces(ops, whole, progress):
    signal.raise_signal(signal.SIGTERM)
    yield b""

perfetto.perfetto_pieces = pieces
sys.argv = ["xstage", *sys.argv[1:]]
sys.exit(main())
"""


@pytest.mark.parametrize("words", [("--json",), ()])
def test_sigterm_while_a_file_is_written_leaves_none_and_ends_as_a_shell_expects(tmp_path, words):
    run = ("run", "isolated-burst", "--set", "workload.producers=1", "--trace", "trace.pftrace")
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, *run, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())
    if words:
        assert json.loads(done.stdout) == {"error": {"type": "Terminated", "message": "terminated"}}
    else:
        assert done.stdout == "" and done.stderr.endswith("xstage: terminated\n")


def shell(words, redirected="", **more):
    line = f"{shlex.join([*XSTAGE, *words])} {redirected}"
    return subprocess.run(line, shell=True, capture_output=True, encoding="utf-8", **more)


@pytest.mark.parametrize("words", [EXPLAIN, ["run", "--help"], [*EXPLAIN, "--json"]])
def test_closed_output_is_output_that_nobody_reads(words):
    done = shell(words, ">&- 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
@pytest.mark.parametrize("unbuffered", ["1", ""])
@pytest.mark.parametrize("words", [["--version"], ["run", "--help"], [*EXPLAIN, "--json"]])
def test_a_full_disk_is_told_in_a_line(words, unbuffered):
    done = shell(words, "> /dev/full", env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "No space left on device" in done.stderr.splitlines()[-1]


def test_what_an_encoding_lacks_is_a_question_mark():
    done = shell(EXPLAIN, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "?????" in done.stdout


def test_a_shell_completes_nothing_but_names_of_the_interface():
    import xstage as xs

    assert {name for name in dir(xs) if not name.startswith("__")} == set(xs.__all__)
