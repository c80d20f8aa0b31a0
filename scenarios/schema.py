"""What a scenario file says: a question, a machine, a workload, and how to run it.

    question: How long does one burst of 48 KiB from every SM wait?
    machine: hgx-b200                       # or {base: hgx-b200, overrides: {interconnect.drain_rate: 358 GB/s}}
    workload: {kind: burst_train, producers: 148, burst: 48 KiB, mode: isolated}
    granule: 512 B                          # from here on optional
    engine: compiled
    trace: summary
    seed: 0
    disturb: {slow_gpu: {gpu: 1, factor: 1.2}}

scenarios/loader.py reads it and joins it with its machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from ..sim.checked import Checked, refusal
from ..sim.machine import Machine
from ..sim.quantities import Size, Text
from ..sim.run_options import EngineName, TraceLevel
from .disturbance import Disturbance
from .workloads import AnyWorkload


def _off(value: Any) -> Any:
    return "off" if value is False else value  # YAML reads a bare `off` as false


def one_line(text: str) -> str:
    if "\n" in text.strip():
        raise refusal("must be one line")
    return text.strip()


def _kind_of_base(value: Any) -> str:
    return "machine" if isinstance(value, (Machine, Mapping)) else "name"


class MachineChoice(Checked):
    """A machine by name or file, or a `Machine`, and numbers or parts of it that the scenario replaces, by dotted path."""

    base: Annotated[Annotated[Text, Tag("name")] | Annotated[Machine, Tag("machine")], Discriminator(_kind_of_base)]
    overrides: dict[Text, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, data: Any) -> Any:
        if not isinstance(data, (str, Machine, Mapping, cls)):
            raise refusal(
                "is no machine", allowed="the name or file of one, or a mapping with the keys base and overrides"
            )
        return {"base": data} if isinstance(data, (str, Machine)) else data


class Scenario(Checked):
    """A scenario as it is written; `load_scenario` in scenarios/loader.py gives it its machine."""

    name: Text
    question: Annotated[Text, AfterValidator(one_line)]
    machine: MachineChoice
    workload: AnyWorkload
    granule: Size | None = None
    engine: EngineName = "compiled"
    trace: Annotated[TraceLevel, BeforeValidator(_off)] = "summary"
    seed: Annotated[int, Field(strict=True, ge=0)] = 0
    disturb: Disturbance = Field(default_factory=Disturbance)
