"""One look for all figures: `house_style` while a figure is drawn and while it is saved, and the meaning of each colour."""

from __future__ import annotations

import textwrap
from contextlib import AbstractContextManager
from pathlib import Path

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, AMBER, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
INK, MUTED = "#000000", "#555555"
DASHES = (0, (4, 3))

_SHEET = Path(__file__).with_name("house.mplstyle")


def house_style() -> AbstractContextManager[None]:
    """The settings of house.mplstyle and nothing of the reader's own, until the block ends."""
    return style.context(_SHEET, after_reset=True)


def say_setting(figure: Figure, text: str) -> None:
    """`text`, what was simulated, small above all titles: a figure is often shown without the page that it is from."""
    if text:
        figure.suptitle(textwrap.fill(text, 74), x=0.012, ha="left", fontsize=8.3, color=MUTED)


def mark_x(axes: Axes, x: float, text: str, top: float, colour: str = MUTED, side: str = "right") -> None:
    """A dashed upright at `x` from the axis to a share `top` of the height, with `text` beside its upper end."""
    axes.axvline(x, ymax=top, color=colour, linewidth=1.0, linestyle=DASHES, zorder=1)
    right = side == "right"
    axes.annotate(
        text, (x, top), xycoords=("data", "axes fraction"), xytext=(5 if right else -5, 0),
        textcoords="offset points", ha="left" if right else "right", va="top", color=colour, fontsize="small",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )  # fmt: skip
