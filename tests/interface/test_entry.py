"""Ctrl-C gets its answer at any time, also while the command is still being imported."""

import json
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
