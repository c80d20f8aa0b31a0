"""Run a module of this folder out of a source tree, without installing xstage:

    python hw_validate/cuda/run_here.py device_check -o DIR
    python hw_validate/cuda/run_here.py collect PLAN.npz -o RESULTS.npz

The folders of the tree stand at its root, and only an installation makes them packages of `xstage`. This does the same for
one process. Needs what the module needs, and nothing else.
"""

import runpy
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    package = types.ModuleType("xstage")
    package.__path__ = [str(ROOT / "xstage"), str(ROOT)]
    setattr(package, "__version__", "source tree")  # noqa: B010 (a module has no such attribute by itself)
    sys.modules["xstage"] = package
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [
        place for place in sys.path if place != here
    ]  # its modules are parts of the package, and nothing else
    module = f"xstage.hw_validate.cuda.{sys.argv.pop(1)}"
    runpy.run_module(module, run_name="__main__", alter_sys=True)
