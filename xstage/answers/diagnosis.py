"""What this computer has of what xstage uses: versions, processors, the compiled engine's cache, a GPU."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..sim.compilation import CACHE_ADVICE, cache_folders, engine_is_compiled
from ..sweeps.parent import processors

PACKAGES = ("numpy", "simpy", "numba", "scipy", "pandas", "pyarrow", "matplotlib", "networkx", "pydantic", "typer")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `ok` is False only for what keeps xstage from working."""

    name: str
    found: str
    ok: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """All that was looked at."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}

    def _repr_html_(self) -> str:
        import pandas as pd

        return str(pd.DataFrame(check.__dict__ for check in self.checks).to_html(index=False))


def doctor() -> Diagnosis:
    """Look at everything once. Finding no GPU is no failure."""
    looks: tuple[Callable[[], Iterator[Check]], ...] = (_versions, _processors, _compiled_engine, _gpu)
    return Diagnosis(tuple(check for look in looks for check in look()))


def _versions() -> Iterator[Check]:
    yield Check("xstage", version("xstage"))
    yield Check("Python", f"{platform.python_version()} on {platform.platform()}")
    for name in PACKAGES:
        try:
            yield Check(name, version(name))
        except PackageNotFoundError:
            yield Check(name, "missing: install xstage again", ok=False)


def _processors() -> Iterator[Check]:
    yield Check("CPU", _cpu_name())
    yield Check("processors", f"{processors()} that this process may use, of {os.cpu_count()}")


def _compiled_engine() -> Iterator[Check]:
    try:
        import numba

        folders = cache_folders()
    except ImportError as error:
        yield Check("compiled engine", f"cannot be loaded: {error}", ok=False)
        return
    yield Check("threads", f"numba uses {numba.config.NUMBA_NUM_THREADS}")  # type: ignore[attr-defined]
    state = "compiled" if engine_is_compiled() else "to be compiled by the next run"
    for folder in folders:
        where = "kept in" if _writable(folder) else "and that each time, because nothing can be written to"
        yield Check("compiled engine", f"{state}, {where} {folder}")
    if not folders:
        yield Check("compiled engine", f"compiled by each process anew: nothing can be written; {CACHE_ADVICE}")


def _gpu() -> Iterator[Check]:
    if importlib.util.find_spec("cupy") is None:
        yield Check(
            "GPU", "not looked for: CuPy is not installed (pip install 'cupy-cuda13x[ctk]' or 'cupy-cuda12x[ctk]')"
        )
        return
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount() if cupy.cuda.is_available() else 0
        names = [cupy.cuda.runtime.getDeviceProperties(index)["name"].decode() for index in range(count)]
    except (ImportError, RuntimeError, OSError) as error:  # a CuPy without its CUDA libraries, or without a driver
        yield Check("GPU", f"CuPy cannot be used: {error}")
        return
    yield Check("CuPy", str(cupy.__version__))
    yield Check("GPU", ", ".join(names) or "none that CuPy can use")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _writable(folder: Path) -> bool:
    """Whether a file can be made in a folder, or in the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)
