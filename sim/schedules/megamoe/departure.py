"""How far the order that ran departs from the nominal one, in the terms that the tile costs depend on.

Costs are fixed when a Program is built, with L2 hits by the nominal order. This looks at the order in which tiles really
began, and says what share of them would have found their weights in L2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...program_index import expand
from ...tile_cost import TileCosts
from .kernel import Kernel
from .order import Tiles
from .shape import MegaMoe
from .tiles import weight_hits

if TYPE_CHECKING:
    from ...machine import Machine
    from ...trace import Trace


def hits_as_run_pct(trace: Trace, machine: Machine) -> list[float]:
    """Share of tiles that find their weights in L2, percent, for each rank that was simulated.

    To be compared with `weight_hits_pct` of the Program's meta. The second tile of a cluster is taken as its first one's
    neighbour on SM100 and as its twin on SM90; blocks are taken as full. Needs spans.
    """
    program = trace.program
    kernel, shape = Kernel(**program.meta["kernel"]), MegaMoe(**program.meta["shape"])
    costs = TileCosts.of(machine, shape.format.math)
    names = program.phases
    phase = [names.index(name) if name in names else -1 for name in ("l1", "l2")]
    task = np.flatnonzero(np.isin(program.tasks["phase"], phase))
    _, first_span = expand(trace.layout.span_first[task], np.ones(len(task), dtype=np.int64))
    spans = trace.outcome.spans[first_span]
    gpu = program.groups["gpu"][spans["group"]]
    shares = []
    for rank in range(len(program.meta["m_blocks"])):
        mine = np.flatnonzero(gpu == rank)
        mine = mine[np.argsort(spans["start_ps"][mine], kind="stable")]
        rows = np.repeat(program.tasks[task[mine]], kernel.cluster)
        neighbour = np.tile(np.arange(kernel.cluster), len(mine)) * (kernel.family == "sm100")
        tiles = Tiles(rows["phase"] == phase[1], rows["m_block"].astype(np.int64), rows["n_block"] + neighbour)
        full = np.full(len(rows), kernel.block_m)
        hits = weight_hits(kernel, shape, costs, tiles, rows["expert"].astype(np.int64), full)
        shares.append(100 * float(hits.mean()) if len(hits) else 0.0)
    return shares


def nominal_hits_pct(kernel: Kernel, shape: MegaMoe, costs: TileCosts, tiles: Tiles, expert: np.ndarray) -> float:
    """The same for the nominal order of one rank; `expert` is by block."""
    if not len(tiles.n):
        return 0.0
    full = np.full(len(tiles.n), kernel.block_m)
    return 100 * float(weight_hits(kernel, shape, costs, tiles, expert[tiles.block], full).mean())
