"""The figures of a validation report, as SVG text that stands in an HTML page by itself.

Measured times are points with a bar over the middle half of the rounds; the law and its 95 % band are lines.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .compare import AGREES_PCT, STALLED_SHARE, Comparison
from .validate import Calibrated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED, LAW, CONTROL = "#1f5fa8", "#c8501e", "#8a8a8a"
SIZE_INCHES = (6.4, 3.9)


def isolated_bursts(calibrated: Calibrated) -> str:
    """Issue time of isolated bursts against their size, with the knee; ordinary stores as the control."""
    axes, finish = _axes("burst, KiB a producer", "time to issue, ns")
    times, found = calibrated.times, calibrated.calibration
    chosen = times.isolated
    size = times.burst_bytes[chosen]
    low, middle, high = _middle_half(times.issue_ns[:, chosen])
    axes.errorbar(size / 1024, middle, (middle - low, high - middle), fmt="o", ms=4, color=MEASURED, label="measured")
    dense = np.linspace(size.min(), size.max(), 400)
    axes.plot(dense / 1024, found.issue_ns(dense, np.inf), color=LAW, label="law, fitted")
    kib = calibrated.isolated_bytes / 1024
    axes.plot(
        kib, calibrated.completed_ns, "-", color=MEASURED, lw=0.8, alpha=0.6, label="until the last has left the core"
    )
    axes.plot(kib, calibrated.control_ns, ".--", color=CONTROL, lw=1, label="control: stores into the cache")
    knee = found.knee_bytes
    axes.axvspan(knee.low / 1024, knee.high / 1024, color=LAW, alpha=0.15, lw=0)
    axes.axvline(knee.value / 1024, color=LAW, lw=1, ls=":", label=f"knee, {knee.value / 1024:.1f} KiB")
    axes.legend(frameon=False)
    return str(finish())


def trains(calibrated: Calibrated) -> str:
    """Issue time of bursts in trains against the gap between them, one colour a size."""
    axes, finish = _axes("gap between bursts, ns", "time to issue, ns")
    times, found = calibrated.times, calibrated.calibration
    sizes = np.unique(times.burst_bytes[~times.isolated])
    colours = _colours(len(sizes))
    for size, colour in zip(sizes, colours, strict=True):
        chosen = ~times.isolated & (times.burst_bytes == size)
        order = np.argsort(times.gap_ns[chosen])
        gap = times.gap_ns[chosen][order]
        low, middle, high = (part[order] for part in _middle_half(times.issue_ns[:, chosen]))
        axes.errorbar(
            gap, middle, (middle - low, high - middle), fmt="o", ms=4, color=colour, label=f"{size / 1024:.1f} KiB"
        )
        dense = np.linspace(gap.min(), gap.max(), 400)
        axes.plot(dense, found.issue_ns(size, dense), color=colour, lw=1.2)
    axes.legend(frameon=False, title="points measured, lines law")
    return str(finish())


def scatter(comparisons: Sequence[Comparison]) -> str:
    """Measured against simulated issue time of Programs; the band is what counts as agreement."""
    axes, finish = _axes("issue time simulated, µs a program", "issue time measured, µs a program")
    simulated = np.array([c.simulated_issue_us for c in comparisons])
    measured = np.array([c.measured_issue_us for c in comparisons])
    stalled = np.array([c.stalled_share > STALLED_SHARE for c in comparisons])
    ends = np.array([min(simulated.min(), measured.min()) / 1.3, max(simulated.max(), measured.max()) * 1.3])
    band = AGREES_PCT / 100
    axes.fill_between(
        ends, ends / (1 + band), ends / (1 - band), color="#dddddd", lw=0, label=f"within {AGREES_PCT:g} %"
    )
    axes.plot(ends, ends, color="#666666", lw=1)
    for chosen, colour, label in ((stalled, LAW, "with stall"), (~stalled, MEASURED, "almost none")):
        axes.plot(simulated[chosen], measured[chosen], "o", ms=4, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.legend(frameon=False)
    return str(finish())


def _axes(x: str, y: str) -> tuple[Axes, Any]:
    """Axes of a new figure, and the function that gives its SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)

    def finish() -> str:
        text = io.StringIO()
        with rc_context(
            {"svg.hashsalt": f"xstage {x} {y}", "svg.fonttype": "none"}
        ):  # the same file each time; real text
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        svg = re.sub(r"^.*?(?=<svg)", "", text.getvalue(), count=1, flags=re.DOTALL)
        return re.sub(
            r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1), count=1
        )

    return axes, finish


def _middle_half(rounds: Any) -> tuple[Any, Any, Any]:
    low, middle, high = np.quantile(rounds, [0.25, 0.5, 0.75], axis=0)
    return low, middle, high


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["viridis"](0.05 + 0.8 * i / max(1, count - 1)) for i in range(count)]
