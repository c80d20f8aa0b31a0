"""What the computer around the GPUs is, for the record. Needs the standard library alone."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def smi(*arguments: str) -> str:
    """What nvidia-smi prints; nothing where it is missing or fails, because this is for the record only."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def numa_node(bus: str) -> int | None:
    """The NUMA node that a GPU hangs on, as Linux tells (None: it does not)."""
    path = Path("/sys/bus/pci/devices") / bus[-12:].lower() / "numa_node"
    try:
        node = int(path.read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the system has no nodes


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
