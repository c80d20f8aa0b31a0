"""Figure of a layer: the kernels of one block of a model, one after the other, a bar a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from .style import AMBER, BLUE, GREEN, INK, PINK, SKY, house_style, say_setting

if TYPE_CHECKING:
    import pandas as pd

COLOURS = (BLUE, SKY, GREEN, AMBER, PINK, "#999999", "#555555", "#cccccc")
DOTS = "..."
"""Of kernels beyond the colours there are: the first colours again, dotted."""


def layer_figure(data: pd.DataFrame, setting: str = "") -> Figure:
    """`data`: columns policy, kernel, start_us, time_us, exposed_us. What is exposed communication is hatched.

    `setting` says what was simulated.
    """
    policies = list(dict.fromkeys(data["policy"]))
    kernels = list(dict.fromkeys(data["kernel"]))
    with house_style():
        figure = Figure(figsize=(5.0, 1.6 + 0.4 * len(policies) + 0.2 * -(-len(kernels) // 3)))
        axes = figure.subplots()
        for at, kernel in enumerate(kernels):
            mine = data[data["kernel"] == kernel]
            places = [policies.index(policy) for policy in mine["policy"]]
            colour = COLOURS[at % len(COLOURS)]
            hatch = DOTS if at >= len(COLOURS) else None
            axes.barh(
                places, mine["time_us"], left=mine["start_us"], color=colour, edgecolor="white", height=0.6, label=kernel,
                hatch=hatch, linewidth=0,
            )  # fmt: skip
            exposed = mine["exposed_us"].clip(lower=0)
            left = mine["start_us"] + mine["time_us"] - exposed
            axes.barh(places, exposed, left=left, color="none", edgecolor=INK, hatch="////", height=0.6, linewidth=0)
        axes.set(xlabel="time, µs", yticks=range(len(policies)), yticklabels=policies)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_title("Hatched: exposed communication")
        figure.legend(loc="outside lower center", ncols=3, fontsize="small")
        say_setting(figure, setting)
    return figure
