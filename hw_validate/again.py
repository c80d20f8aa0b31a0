"""Whether a validation agrees with itself: run again, and once more while another core is busy.

Two runs agree in a number if their 95 % intervals overlap. Where they do not, it is said by how much the number moved, and
how far the bursts of each run moved while it ran (its drift): hardware that changes in minutes cannot be told from a fit
that is wrong, and then neither run's intervals hold for the other. The verdict is another matter: numbers that agree within
wide intervals may still put the median error of the programs on either side of its limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..sim.calibrate import Calibration, Estimate
from .validation import Again, Validation

NUMBERS = {"t_iss0_ns": "T_iss0", "drain_gbs": "R", "capacity_bytes": "Q", "knee_bytes": "knee"}
_BUSY = "import numpy, os\na = numpy.zeros(1 << 22)\nwhile os.getppid() == {parent}:\n    a += 1.0"
"""Goes through 32 MiB of memory again and again, as long as whoever started it lives."""


def compared(what: str, first: Validation, again: Validation) -> Again:
    """What a run that was made again says beside the first."""
    mine, theirs = first.calibrated.calibration, again.calibrated.calibration
    moved = [_moved(name, mine, theirs) for name in NUMBERS if not overlap(getattr(mine, name), getattr(theirs, name))]
    if moved:
        moved.append(
            f"bursts of the first run moved by {_drift(first)} while it ran, those of this one by {_drift(again)}"
        )
    return Again(
        what=what,
        verdict=again.summary.verdict,
        numbers=numbers_of(theirs),
        median_abs_error_pct=again.summary.median_abs_error_pct,
        moved=moved,
        same_verdict=again.summary.verdict == first.summary.verdict,
    )


def refused(what: str, why: str) -> Again:
    return Again(what, None, {}, None, [], why)


def overlap(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals have a value in common."""
    return one.low <= other.high and other.low <= one.high


def numbers_of(calibration: Calibration) -> dict[str, list[float]]:
    """Value, low and high of each number that runs are compared by."""
    found = {name: getattr(calibration, name) for name in NUMBERS}
    return {name: [e.value, e.low, e.high] for name, e in found.items()}


def _moved(name: str, first: Calibration, again: Calibration) -> str:
    before, after = getattr(first, name).value, getattr(again, name).value
    return f"{NUMBERS[name]} moved by {100 * (after / before - 1):+.1f} %, more than the intervals allow"


def _drift(run: Validation) -> str:
    return "an unknown amount" if run.drift_pct is None else f"{run.drift_pct:.1f} %"


@contextmanager
def busy_core(kept_free: Sequence[int]) -> Iterator[int | None]:
    """Keep a core busy with memory traffic that is not in `kept_free`; gives its number, or None where there is no such.

    A process of its own does so; it ends with this block, or with this process.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    others = [core for core in usable if core not in kept_free]
    if not others or len(usable) < 2:
        yield None
        return
    core = others[-1]
    text = f"import os\nos.sched_setaffinity(0, {{{core}}})\n" + _BUSY.format(parent=os.getpid())
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield core
    finally:
        process.kill()
        process.wait()
