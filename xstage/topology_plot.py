"""The topology of a scenario or a machine as a picture, with its links as a table beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .sim.errors import InputError
from .sim.units import gbs, us
from .topology_facts import topology_facts

if TYPE_CHECKING:
    import pandas as pd

    from .sim.machine import Machine

FORMATS = ("png", "svg", "pdf")


def plot_topology(name: str, file: str | Path) -> tuple[dict[str, Any], list[Path]]:
    """Draw the topology of a catalogue entry or file, and write its links as CSV beside it.

    Returns what it became (see `topology_facts`) and the files written. Raises `InputError` for a name that is not known,
    a study, or a suffix that cannot be drawn.
    """
    path = Path(file)
    if path.suffix.removeprefix(".") not in FORMATS:
        raise InputError(
            "is no format of a figure", field="--plot", value=str(file), allowed=[f".{f}" for f in FORMATS]
        )
    from .plots.save import save
    from .plots.topology_figures import topology_figure

    machine, gpus = _machine_of(name)
    facts = topology_facts(machine.interconnect.kind.value, machine.fabric(gpus))
    kind = facts["kind"].replace("_", " ")
    figure = topology_figure(links_table(machine), machine.gpus, gpus, f"{Path(name).stem}: {kind}, {gpus} GPUs")
    return facts, save(figure, links_table(machine), path.parent, path.stem, [path.suffix.removeprefix(".")])


def links_table(machine: Machine) -> pd.DataFrame:
    """A row for each direction of each link: source, target, rate_gbs, latency_us (on top of what every route has).

    Where a link is nothing but a GPU's own egress or ingress, the rate is theirs.
    """
    import pandas as pd

    graph = machine.interconnect.graph()

    def rate_kbs(source: Any, target: Any, own: int | None) -> int:
        if own is not None:
            return own
        name, gpu = ("egress_kbs", source) if "egress_kbs" in graph.nodes[source] else ("ingress_kbs", target)
        return int(graph.nodes[gpu][name])

    edges = graph.edges(data=True)
    rows = [(a, b, gbs(rate_kbs(a, b, e["rate_kbs"])), us(e["latency_ps"])) for a, b, e in edges]
    return pd.DataFrame(rows, columns=["source", "target", "rate_gbs", "latency_us"])


def _machine_of(name: str) -> tuple[Machine, int]:
    """The machine that a name or file means, and how many of its GPUs are used."""
    from .scenarios.catalogue import find, find_any
    from .scenarios.document import read
    from .scenarios.loader import load
    from .scenarios.machine_files import load_machine

    if name.endswith((".yaml", ".yml")) or "/" in name:
        data = read(find(name, "machine")).data
        kind = "scenario" if isinstance(data, dict) and "workload" in data else "machine"
    else:
        kind = find_any(name).kind
    if kind == "study":
        raise InputError("has no topology of its own", field="name", value=name, allowed="a scenario or a machine")
    if kind == "machine":
        machine = load_machine(name)
        return machine, machine.gpus
    resolved = load(name)
    return resolved.machine, resolved.scenario.workload.gpus
