"""What every kind of workload has; scenarios/workloads.py lists the kinds."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from ..sim.checked import Checked
from ..sim.machine import Machine
from ..sim.quantities import Count

if TYPE_CHECKING:
    from ..sim.program import Program
    from ..sim.topology import Fabric


class Workload(Checked):
    """Fields are the keys under `workload:`. Raises `InputError` from `build` where the machine cannot hold it."""

    kind: str
    gpus: Count

    @abstractmethod
    def build(self, machine: Machine, seed: int) -> Program:
        """The Program; the same for the same machine and seed."""

    def fabric(self, machine: Machine, granule: int | None) -> Fabric:
        """What the Program runs on: the machine's first `gpus` GPUs, cut into granules of `granule` bytes."""
        return machine.fabric(self.gpus, granule)
