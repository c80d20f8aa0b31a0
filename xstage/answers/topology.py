"""The topology of a scenario or a machine: what it became, its links as a table, and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sim.errors import InputError
from ..sim.machine import Machine
from ..sim.units import gbs, us
from ..terminal.output import parts_html
from .topology_facts import shown_topology, topology_facts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False, eq=False)
class Topology:
    """How the first `gpus` GPUs of a machine are joined. `facts` are those of `topology_facts`."""

    name: str
    machine: Machine
    gpus: int
    facts: dict[str, Any]

    def links(self) -> pd.DataFrame:
        """A row for each direction of each link: source, target, rate_gbs, latency_us (on top of what every route has).

        Where a link is nothing but a GPU's own egress or ingress, the rate is theirs.
        """
        return links_table(self.machine)

    def plot(self) -> Figure:
        """GPUs on a circle, switches between them, links as wide as they are fast."""
        from ..plots.topology_figures import topology_figure

        title = f"{Path(self.name).stem}: {self.facts['kind'].replace('_', ' ')}, {self.gpus} GPUs"
        return topology_figure(self.links(), self.machine.gpus, self.gpus, title)

    def save(self, file: str | Path) -> list[Path]:
        """Write the picture, and the links as CSV beside it. Raises `InputError` for a suffix that cannot be drawn."""
        from ..plots.save import save

        path = Path(file)
        return save(self.plot(), self.links(), path.parent, path.stem, [path.suffix.removeprefix(".")])

    def __repr__(self) -> str:
        kind = self.facts["kind"].replace("_", " ")
        return f"<Topology of {self.name}: {kind}, {self.gpus} GPUs>"

    def _repr_html_(self) -> str:
        return parts_html(shown_topology(self.facts))


def topology(name: str | Path | Machine) -> Topology:
    """The topology of a catalogue entry, a file or a `Machine`. Raises `InputError` for a name that is not known, or a
    study.
    """
    machine, gpus = _machine_of(name)
    called = machine.name if isinstance(name, Machine) else str(name)
    return Topology(called, machine, gpus, topology_facts(machine.interconnect.kind.value, machine.fabric(gpus)))


def links_table(machine: Machine) -> pd.DataFrame:
    """The links of all GPUs of a machine, see `Topology.links`."""
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


def _machine_of(name: str | Path | Machine) -> tuple[Machine, int]:
    """The machine that a name or file means, and how many of its GPUs are used."""
    from ..scenarios.any_file import find_entry
    from ..scenarios.loader import load_scenario
    from ..scenarios.machine_files import load_machine

    kind = "machine" if isinstance(name, Machine) else find_entry(name).kind
    if kind == "study":
        raise InputError("has no topology of its own", field="name", value=str(name), allowed="a scenario or a machine")
    if isinstance(name, Machine) or kind == "machine":
        machine = load_machine(name)
        return machine, machine.gpus
    resolved = load_scenario(name)
    return resolved.machine, resolved.scenario.workload.gpus
