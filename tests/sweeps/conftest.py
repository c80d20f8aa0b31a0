"""A copy of xstage in which one module of the model has changed."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def changed_model(tmp_path_factory):
    """Variables of the environment with which a new process loads the copy."""
    copy, skip = tmp_path_factory.mktemp("changed") / "xstage", shutil.ignore_patterns("__pycache__")
    for name in ("xstage", "xstage.sim", "xstage.scenarios", "xstage.sweeps", "xstage.plots", "xstage.hw_validate"):
        target = copy.joinpath(*name.split(".")[1:])
        shutil.copytree(Path(import_module(name).__file__).parent, target, ignore=skip, dirs_exist_ok=True)
    with (copy / "sim" / "units.py").open("a") as file:
        file.write("\n# changed\n")
    return {"PYTHONPATH": str(copy.parent)}
