"""How long do building and running a MegaMoE call take, and how much memory?

    python benchmarks/megamoe.py

DSv4-Flash with one rank for all (targets: build + run under 0.2 s, building no slower than running), and DSv4-Pro with all 8
ranks (targets: under 5 s and 2 GB), both with 8192 tokens a rank on hgx-b200, the granule of the machine file, and the code
compiled. Times are the least of several runs; on a busy computer go by the CPU time. Routing is not counted: it is input.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
from xstage.scenarios.machine_files import load_machine
from xstage.sim.execute import simulate
from xstage.sim.machine import Machine
from xstage.sim.mirror import mirrored
from xstage.sim.program import Program
from xstage.sim.routing import balanced
from xstage.sim.schedules.megamoe import Alternating, ExpertWave, MegaMoe, Policy, build
from xstage.sim.trace import Trace

FLASH = MegaMoe(4096, 2048, 256, 6, 8192)
PRO = MegaMoe(7168, 3072, 384, 6, 8192)


@dataclass
class Times:
    """Least wall and CPU time of some action, in seconds."""

    wall: float = float("inf")
    cpu: float = float("inf")

    def note(self, wall: float, cpu: float) -> None:
        self.wall, self.cpu = min(self.wall, time.perf_counter() - wall), min(self.cpu, time.process_time() - cpu)


def measure(
    machine: Machine, shape: MegaMoe, policy: Policy, ranks: Literal["all", "symmetric"], repeats: int
) -> tuple[Times, Times, Program, Trace]:
    """Times of building and of running, and the last Program and its trace."""
    rows = balanced(shape.ranks, shape.tokens, shape.topk, shape.experts, np.random.default_rng(0))
    fabric = machine.fabric(shape.ranks)
    fabric = mirrored(fabric) if ranks == "symmetric" else fabric
    building, running = Times(), Times()
    for _ in range(repeats):
        started = time.perf_counter(), time.process_time()
        program = build(machine, shape, policy, rows, ranks=ranks)
        building.note(*started)
        started = time.perf_counter(), time.process_time()
        trace = simulate(program, fabric, trace="off")
        running.note(*started)
    return building, running, program, trace


def main() -> None:
    machine = load_machine("hgx-b200")
    measure(machine, MegaMoe(4096, 2048, 256, 6, 64), ExpertWave(), "all", 1)  # compiles
    print(f"granule {machine.granule_bytes} B; least of several runs, seconds of wall time (CPU time)\n")
    print(
        "call            policy       build        run          together     build/run  ops        events      peak MB"
    )
    calls: tuple[tuple[str, MegaMoe, Policy, Literal["all", "symmetric"], int], ...] = (
        ("Flash, 1 for 8", FLASH, ExpertWave(), "symmetric", 9),
        ("Flash, 1 for 8", FLASH, Alternating(), "symmetric", 9),
        ("Pro, 8 ranks", PRO, ExpertWave(), "all", 2),
        ("Pro, 8 ranks", PRO, Alternating(), "all", 2),
    )
    for name, shape, policy, ranks, repeats in calls:
        made, ran, program, trace = measure(machine, shape, policy, ranks, repeats)
        both = f"{made.wall + ran.wall:.2f} ({made.cpu + ran.cpu:.2f})"
        built, run = f"{made.wall:.2f} ({made.cpu:.2f})", f"{ran.wall:.2f} ({ran.cpu:.2f})"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        row = f"{name:<15} {program.meta['policy']['name']:<12} {built:<12} {run:<12} {both:<12} {made.cpu / ran.cpu:>9.2f}"
        print(f"{row}  {len(program.ops):<10,} {trace.outcome.events:<11,} {peak:.0f}")


if __name__ == "__main__":
    main()
