"""What a figure says above its title: what was simulated, and on which machine, from the scenario itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..terminal.heading import what_runs

if TYPE_CHECKING:
    from ..scenarios.loader import Resolved

SIZES = {
    "model": "{}", "hidden": "hidden {}", "experts": "{} experts", "heads": "{} heads", "tokens": "{} tokens", "m": "m = {}",
    "n": "n = {}", "k": "k = {}",
}  # fmt: skip
"""Keys of workloads that say how large they are, in the order in which they are said."""


def setting_of(resolved: Resolved, varied: Collection[str] = ()) -> str:
    """Workload, sizes, GPUs and machine of a scenario in one line; keys in `varied` differ within the figure."""
    workload = resolved.scenario.workload
    what = workload.title if "policy" in varied else what_runs(workload)
    sizes = [
        text.format(getattr(workload, name))
        for name, text in SIZES.items()
        if name not in varied and getattr(workload, name, None) is not None
    ]
    ranks = " a rank" if workload.kind == "megamoe" and "tokens" not in varied else ""
    return f"{', '.join([what, *sizes])}{ranks}, on {workload.gpus} GPUs of {resolved.machine.name}"
