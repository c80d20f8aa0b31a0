"""Ctrl-C and SIGTERM get their answer at any time, also while the command is still being imported."""

import json
import signal
import subprocess
import sys

import pytest

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
    assert done.returncode == 1
    if "--json" in words:
        assert json.loads(done.stdout) == {"error": {"type": "Interrupted", "message": "interrupted"}}
    else:
        assert (done.stdout, done.stderr) == ("", "xstage: interrupted\n")


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


def test_a_shell_completes_nothing_but_names_of_the_interface():
    import xstage as xs

    assert {name for name in dir(xs) if not name.startswith("__")} == set(xs.__all__)
