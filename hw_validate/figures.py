"""The figures of a validation report, as SVG text that stands in an HTML page by itself.

Measured times are points with a bar over the middle half of the rounds; the law and its 95 % band are lines.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .calibrated import Calibrated
from .compare import AGREES_PCT, STALLED_SHARE, Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .validation import Validation

MEASURED, LAW, CONTROL = "#1f5fa8", "#c8501e", "#8a8a8a"
KIND_COLOURS = {"compute": "#9ec3e6", "store": LAW, "wait": "#e4e4e4"}
KINDS_OF = {"compute": ("compute", "signal"), "store": ("store", "load"), "wait": ("wait", "acquire")}
SIZE_INCHES, SQUARE_INCHES = (6.4, 3.9), (6.4, 5.2)


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
    """Simulated against measured issue time of Programs; the band is what counts as agreement."""
    from ..plots.style import BLUE, ORANGE

    axes, finish = _axes("issue time measured, µs a program", "issue time simulated, µs a program", SQUARE_INCHES)
    simulated = np.array([c.simulated_issue_us for c in comparisons])
    measured = np.array([c.measured_issue_us for c in comparisons])
    stalled = np.array([c.stalled_share > STALLED_SHARE for c in comparisons])
    ends = np.array([min(simulated.min(), measured.min()) / 1.3, max(simulated.max(), measured.max()) * 1.3])
    band = AGREES_PCT / 100
    axes.fill_between(
        ends, ends * (1 - band), ends * (1 + band), color="#dddddd", lw=0, label=f"within {AGREES_PCT:g} %"
    )
    axes.plot(ends, ends, color="#666666", lw=1)
    for chosen, colour, mark, label in ((stalled, ORANGE, "^", "with stall"), (~stalled, BLUE, "o", "almost none")):
        axes.plot(measured[chosen], simulated[chosen], mark, ms=4, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    axes.legend(frameon=False)
    return str(finish())


def timelines(validation: Validation) -> str | None:
    """One small schedule lane by lane, simulated above and measured below: the one with stall that has the fewest ops.

    None where only trains were run.
    """
    kinds = zip(validation.comparisons, validation.schedules, strict=False)
    stalled = [
        c for c, _ in kinds if c.stalled_share > STALLED_SHARE and "role" in c.ops and c.ops["role"].nunique() > 1
    ]
    if not stalled:
        return None
    chosen = min(stalled, key=lambda c: len(c.ops)).ops
    figure, finish = _figure((SIZE_INCHES[0], 4.6))
    lanes = sorted(chosen["lane"].unique())
    for axes, who in zip(figure.subplots(2, 1, sharex=True), ("simulated", "measured"), strict=True):
        for kind, colour in KIND_COLOURS.items():
            bars = chosen[chosen["kind"].isin(KINDS_OF[kind])]
            took = bars[f"{who}_issue_us"] + np.where(bars["kind"] == "store", bars[f"{who}_wait_us"], 0.0)
            places = bars["lane"].map(lanes.index).to_numpy()
            axes.barh(places, took, left=bars[f"{who}_start_us"], height=0.7, color=colour, lw=0, label=kind)
        role = chosen.drop_duplicates("lane").set_index("lane")["role"]
        axes.set_yticks(range(len(lanes)), [f"{role[lane]} {lane}" for lane in lanes], fontsize=7)
        axes.invert_yaxis()
        axes.set_title(who, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("µs")
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, ncols=3, loc="outside upper right")
    return str(finish("timelines"))


def _axes(x: str, y: str, size: tuple[float, float] = SIZE_INCHES) -> tuple[Axes, Any]:
    """Axes of a new figure, and the function that gives its SVG."""
    figure, finish = _figure(size)
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6)

    return axes, lambda: finish(f"{x} {y}")


def _figure(size: tuple[float, float]) -> tuple[Figure, Callable[[str], str]]:
    """A new figure, and the function that gives its SVG; the text it takes makes the ids in it unlike those of others."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")

    def finish(salt: str) -> str:
        text = io.StringIO()
        with rc_context(
            {"svg.hashsalt": f"xstage {salt}", "svg.fonttype": "none"}
        ):  # the same file each time; real text
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        svg = re.sub(r"^.*?(?=<svg)", "", text.getvalue(), count=1, flags=re.DOTALL)
        without_height = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
        return re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", without_height, count=1)

    return figure, finish


def _middle_half(rounds: Any) -> tuple[Any, Any, Any]:
    low, middle, high = np.quantile(rounds, [0.25, 0.5, 0.75], axis=0)
    return low, middle, high


def _colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["viridis"](0.05 + 0.8 * i / max(1, count - 1)) for i in range(count)]
