"""What each part of a scenario became, so that a change without effect cannot hide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..scenarios.attention import AttentionWorkload
from ..scenarios.attention_models import attention_model
from ..scenarios.expert_models import expert_model
from ..scenarios.loader import Resolved
from ..scenarios.megamoe import MegaMoeWorkload
from ..sim.program import Program
from ..sim.topology import PLAIN, REDUCE_RATE, SCATTER, Fabric
from ..sim.units import format_size, gbs
from ..terminal.output import table
from .topology_facts import shown_topology, topology_facts

if TYPE_CHECKING:
    from rich.table import Table

    from ..scenarios.attention_models import AttentionModel
    from ..scenarios.expert_models import ExpertModel
    from ..scenarios.workload import Workload


def scenario_parts(resolved: Resolved, program: Program, fabric: Fabric) -> dict[str, Any]:
    """Machine numbers with their sources, the fabric's ports and stages, and the schedule, as plain data."""
    machine, model = resolved.machine, _model(resolved.scenario.workload)
    return {
        **({"model": model} if model else {}),
        "scenario": resolved.scenario.model_dump(mode="json"),
        "machine": {
            "name": machine.name,
            "numbers": [
                {"name": name, **number.model_dump(mode="json", exclude_none=True)}
                for name, number in machine.numbers()
            ],
        },
        "fabric": {
            "gpus": fabric.n_gpus,
            "granule_bytes": fabric.granule_bytes,
            "capacity_sm_bytes": int(fabric.capacity_sm[0]),
            "capacity_gpu_bytes": int(fabric.capacity_gpu[0]),
            "ports": _ports(fabric),
        },
        "topology": topology_facts(machine.interconnect.kind.value, fabric),
        "program": program.describe().splitlines(),
    }


def shown_parts(explained: dict[str, Any]) -> list[Any]:
    """The same for a person."""
    fabric = explained["fabric"]
    numbers = [
        (number["name"], number["value"], "assumed" if number["assumed"] else "", number["source"])
        for number in explained["machine"]["numbers"]
    ]
    ports = [(p["ports"], p["store_gbs"], p["scatter_gbs"], p["reduce_gbs"]) for p in fabric["ports"]]
    stage = (
        f"stage of {format_size(fabric['capacity_sm_bytes'])} an SM and {format_size(fabric['capacity_gpu_bytes'])} a GPU, "
        f"in granules of {format_size(fabric['granule_bytes'])}"
    )
    return [
        table(f"machine {explained['machine']['name']}", ("number", "value", "", "source"), numbers),
        "",
        _workload_table(explained["scenario"]["workload"], explained.get("model")),
        "",
        table(f"fabric of {fabric['gpus']} GPUs: {stage}", ("ports", "GB/s: store", "scatter", "reduce"), ports),
        "",
        *shown_topology(explained["topology"]),
        "program",
        *explained["program"],
        "",
    ]


def _model(workload: Workload) -> dict[str, Any] | None:
    """The model that a workload names, and the sizes that it leaves to that; None where it names none."""
    known: ExpertModel | AttentionModel
    match workload:
        case MegaMoeWorkload(model=str(name)):
            known = expert_model(name)
        case AttentionWorkload(model=str(name)):
            known = attention_model(name)
        case _:
            return None
    left = [key for key, value in workload if value is None and getattr(known, key, None) is not None]
    sizes = {key: getattr(known, key) for key in left}
    return {"name": name, "source": known.source, "assumed": known.assumed, "sizes": sizes}


def _workload_table(written: Mapping[str, Any], model: Mapping[str, Any] | None) -> Table:
    """The keys of a workload; what is left to its model with the model's value."""
    if model is None:
        return table("workload", ("key", "value"), list(written.items()))
    origin = {"model": ("assumed, " if model["assumed"] else "") + model["source"]}
    origin |= dict.fromkeys(model["sizes"], model["name"])
    rows = [(key, model["sizes"].get(key, value), origin.get(key, "")) for key, value in written.items()]
    return table("workload", ("key", "value", "source"), rows)


def _ports(fabric: Fabric) -> list[dict[str, Any]]:
    """Ports of equal name and rates together, in order."""
    grouped: dict[tuple[Any, ...], int] = {}
    for name, rates in zip(fabric.port_names, fabric.rates_kbs, strict=True):
        key = (name.split()[0], gbs(int(rates[PLAIN])), gbs(int(rates[SCATTER])), gbs(int(rates[REDUCE_RATE])))
        grouped[key] = grouped.get(key, 0) + 1
    return [
        {"ports": f"{count} {name}", "store_gbs": plain, "scatter_gbs": scatter, "reduce_gbs": reduce}
        for (name, plain, scatter, reduce), count in grouped.items()
    ]
