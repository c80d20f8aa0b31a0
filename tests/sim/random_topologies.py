"""Random wirings of every kind, for tests that hold two engines against each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from xstage.sim import topologies
from xstage.sim.program import Program
from xstage.sim.routes import fabric_of
from xstage.sim.topologies import Link
from xstage.sim.topology import Fabric

from .random_programs import KBS_PER_BYTE_PER_PS, random_program, random_stage, randomly_shared

Rng = np.random.Generator


def rate(rng: Rng) -> int:
    return int(rng.choice([1, 2, 3])) * KBS_PER_BYTE_PER_PS // int(rng.choice([1, 1, 4]))


def random_links(rng: Rng, n_gpus: int) -> list[Link]:
    """A tree of GPUs and switches, so that all reach each other, and a few links more."""
    nodes = [*range(n_gpus), *(f"s{index}" for index in range(rng.integers(0, 4)))]
    order = [nodes[index] for index in rng.permutation(len(nodes))]
    ends = [(order[rng.integers(0, at)], order[at]) for at in range(1, len(order))]
    ends += [(nodes[a], nodes[b]) for a, b in rng.integers(0, len(nodes), (3, 2)) if a != b]
    return [Link(a, b, rate(rng), int(rng.choice([0, 5]))) for a, b in ends]


KINDS: dict[str, Callable[[Rng, int], object]] = {
    "oversubscribed_switch": lambda rng, n: topologies.oversubscribed_switch(
        n, rate(rng), float(rng.choice([1, 2, 3.5]))
    ),
    "multi_plane_switch": lambda rng, n: topologies.multi_plane_switch(n, rate(rng), int(rng.integers(1, 5))),
    "ring": lambda rng, n: topologies.ring(n, rate(rng)),
    "hybrid_cube_mesh": lambda rng, n: topologies.hybrid_cube_mesh(rate(rng)),
    "islands": lambda rng, n: topologies.islands(
        n, int(rng.choice([1, 2])), rate(rng), rate(rng), int(rng.choice([0, 9]))
    ),
    "custom": lambda rng, n: topologies.custom(n, random_links(rng, n)),
}


def random_case(kind: str, seed: int) -> tuple[Program, Fabric]:
    """A Program on a wiring of one kind; the same for the same seed."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    n_gpus = int(rng.choice([2, 4, 8]))
    graph = KINDS[kind](rng, n_gpus)
    fabric = fabric_of(graph, n_gpus, random_stage(rng), int(rng.choice([0, 2])))  # type: ignore[arg-type]
    program = random_program(rng, n_gpus)
    return program, randomly_shared(rng, fabric) if rng.random() < 0.25 else fabric
