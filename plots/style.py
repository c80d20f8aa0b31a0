"""One look for all figures: `house_style` while a figure is drawn and while it is saved, and the meaning of each colour."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.text import Annotation

BLUE, ORANGE, GREEN, PINK, AMBER, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, MUTED = "#000000", "#555555"

_SHEET = Path(__file__).with_name("house.mplstyle")


def house_style() -> AbstractContextManager[None]:
    """The settings of house.mplstyle and nothing of the reader's own, until the block ends."""
    return style.context(_SHEET, after_reset=True)


def mark_x(axes: Axes, x: float, text: str, height: float, colour: str = MUTED, side: str = "right") -> Annotation:
    """A dashed upright at `x` with `text` beside it, at a share `height` of the axes."""
    axes.axvline(x, color=colour, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    right = side == "right"
    return axes.annotate(
        text, (x, height), xycoords=("data", "axes fraction"), xytext=(5 if right else -5, 0),
        textcoords="offset points", ha="left" if right else "right", va="center", color=colour, fontsize="small",
    )  # fmt: skip
