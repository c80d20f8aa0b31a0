"""Ranks as the simulator sees them: each a GPU of its own (transport `peer`), or all on one GPU.

Ranks on one GPU run on SMs of their own and store to far memory, the host's (GPU 1 of the machine that calibration on one
GPU makes): they share ONE egress and ONE stage, and counters between them travel as they do between GPUs.
"""

from __future__ import annotations

from ...sim.execute import simulate
from ...sim.machine import Machine
from ...sim.program import Program
from ...sim.shared_gpus import shared_gpus
from ...sim.topology import Fabric
from ...sim.trace import Trace


def simulated_ranks(program: Program, machine: Machine, transport: str) -> Trace:
    """The Program as it should run on `machine`, which was calibrated on that transport."""
    return simulate(program, fabric_of_ranks(machine, program.n_gpus, transport), trace="full")


def fabric_of_ranks(machine: Machine, ranks: int, transport: str) -> Fabric:
    """Raises `InputError` for more ranks than the machine has GPUs, on `peer`."""
    if transport == "peer":
        return machine.fabric(max(2, ranks))
    return shared_gpus(machine.fabric(2), [0] * ranks, [1] * ranks)
