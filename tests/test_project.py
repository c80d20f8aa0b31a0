"""Facts about the project: what it depends on, who imports whom, what a wheel holds, how it greets a wrong Python."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import xstage

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT_TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads(PYPROJECT_TEXT)
LOCK_TEXT = (ROOT / "requirements.lock").read_text(encoding="utf-8")

CORE = PYPROJECT["project"]["dependencies"]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
PACKAGE_FOLDERS = PYPROJECT["tool"]["setuptools"]["package-dir"]


def normalised(requirement):
    """The package a requirement names, spelt as in the lock: 'types-PyYAML>=6.0' is 'types-pyyaml'."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def locked():
    """{package: text of its entry} of the lock."""
    entries = re.split(r"^(?=\S)", re.sub(r"^\s*#.*\n", "", LOCK_TEXT, flags=re.MULTILINE), flags=re.MULTILINE)
    return {normalised(entry): entry for entry in entries if entry.strip()}


def test_every_locked_package_is_pinned_and_hashed():
    entries = locked()
    assert len(entries) > len(CORE)
    for name, entry in entries.items():
        assert re.match(r"[\w.-]+==[\w.+!]+( ;.*)? \\\n", entry), name
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), name


def test_the_lock_names_no_index_and_no_file():
    assert not re.search(r"://|--index|--extra-index|--find-links|--trusted-host|^-e|^\.?/|@ ", LOCK_TEXT, re.MULTILINE)


def test_the_lock_says_how_to_make_it_again():
    assert "make lock" in LOCK_TEXT[:200]


@pytest.mark.parametrize("requirement", CORE + EXTRAS["dev"])
def test_what_make_installs_is_locked(requirement):
    assert normalised(requirement) in locked()


@pytest.mark.parametrize(
    "requirement", CORE + [r for extra in EXTRAS.values() for r in extra] + PYPROJECT["build-system"]["requires"]
)
def test_every_dependency_says_why_it_is_here(requirement):
    lines = [line for line in PYPROJECT_TEXT.splitlines() if f'"{requirement}"' in line]
    for line in lines:
        assert re.search(r'"[\],]*\s+# \w+ \w+', line), line
    assert lines


def test_the_version_is_the_same_everywhere():
    version = PYPROJECT["project"]["version"]
    assert importlib.metadata.version("xstage") == version
    assert xstage.__version__ == version


def test_the_licence_is_apache_2():
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License\n                           Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()


ARROWS = {
    "sim": set(),
    "plots": {"sim"},
    "scenarios": {"sim"},
    "sweeps": {"plots", "scenarios", "sim"},
    "hw_validate": {"plots", "scenarios", "sim"},
}
"""From which other packages each may import. All may be imported by `xstage`, the interface, and none may import that,
nor a name from the root, such as `__version__`."""

INTERFACE_ARROWS = {
    "terminal": set(),
    "answers": {"terminal"},
    "predictions": {"table_rows", "terminal", "workers"},
    "paper": {"answers", "table_rows", "terminal", "workers"},
    "differences": {"answers", "table_rows", "terminal"},
    "pages": {"answers", "table_rows", "terminal"},
    "gallery": {"answers", "paper", "predictions", "table_rows", "terminal", "workers"},
    "demo": {"answers", "gallery", "pages", "paper", "terminal"},
    "commands": {
        "answers",
        "demo",
        "differences",
        "gallery",
        "pages",
        "paper",
        "predictions",
        "table_rows",
        "terminal",
    },
}
"""The same among the packages and modules of the interface itself."""


def imported(folder, root, known):
    """{one of `known`: places where a module of a folder imports from it}; `known` lie beside each other in `root`."""
    found = {}
    for file in sorted((root / folder).rglob("*.py")):
        depth = len(file.relative_to(root).parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.level != depth:
                continue
            for name in [node.module.split(".")[0]] if node.module else [one.name for one in node.names]:
                if name in known:
                    found.setdefault(name, []).append(f"{file.relative_to(root)}:{node.lineno}")
    return found


INTERFACE = {file.relative_to(ROOT / "xstage").parts[0].removesuffix(".py") for file in (ROOT / "xstage").rglob("*.py")}


@pytest.mark.parametrize(
    ("folder", "root", "arrows"),
    [(folder, ROOT, ARROWS) for folder in ARROWS]
    + [(folder, ROOT / "xstage", INTERFACE_ARROWS) for folder in INTERFACE_ARROWS],
)
def test_packages_import_each_other_one_way(folder, root, arrows):
    beside = {*ARROWS, *dir(xstage)} if root == ROOT else set()
    found = imported(folder, root, beside | INTERFACE - {"__init__"} - {folder})
    assert {package: places for package, places in found.items() if package not in arrows[folder]} == {}
    assert arrows[folder] <= set(found), "an arrow that no module needs"


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
class TestMake:
    def make(self, *arguments):
        own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        command = ["make", *arguments]
        return subprocess.run(command, cwd=ROOT, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def fake_python(self, folder, script):
        python = folder / "fake-python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        return python

    def test_help_lists_the_targets(self):
        listed = self.make("help").stdout
        for target in ("demo", "test", "check", "lock"):
            assert f"  make {target} " in listed

    def test_an_old_python_is_refused(self, tmp_path):
        old = self.fake_python(tmp_path, 'case "$1" in --version) echo Python 3.8.1;; *) exit 1;; esac')
        result = self.make("install", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}")
        assert result.returncode != 0
        assert "Python 3.8.1 is too old: xstage needs Python 3.11 or newer" in result.stdout

    def test_a_missing_python_is_named(self, tmp_path):
        result = self.make("install", "PYTHON=no-such-python", f"VENV={tmp_path / 'venv'}")
        assert result.returncode != 0
        assert "no-such-python not found: install Python 3.11 or newer" in result.stdout

    def test_a_python_without_venv_says_what_to_install(self, tmp_path):
        bare = self.fake_python(tmp_path, 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac')
        result = self.make("install", f"PYTHON={bare}", f"VENV={tmp_path / 'venv'}")
        assert result.returncode != 0
        assert "apt install python3-venv" in result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the project, unpacked into a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "build", "out", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "source", ignore=ignored)
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip_wheel, "-w", folder, folder / "source"], check=True, stdin=subprocess.DEVNULL)
    [built] = folder.glob("xstage-*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


@pytest.mark.slow
def test_a_wheel_holds_every_module_and_data_file(wheel):
    kinds = {".py", ".typed", ".yaml", ".csv", ".md", ".cu", ".cuh", ".h", ".cpp", ".html", ".j2", ".css", ".mplstyle"}
    missing = []
    for package, folder in PACKAGE_FOLDERS.items():
        files = [path for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
        installed = wheel / package.replace(".", "/")
        missing += [path for path in files if not (installed / path.relative_to(ROOT / folder)).exists()]
    assert missing == []


@pytest.mark.slow
def test_a_wheel_works_away_from_the_project(wheel, tmp_path):
    code = "import xstage.sim.units as units; print(units.__file__, units.parse_size('32 KiB'))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(wheel)}, capture_output=True, text=True
    )
    assert result.stdout.split() == [str(wheel / "xstage" / "sim" / "units.py"), "32768"], result.stderr
