"""L2 tiles as an instrumented kernel sees them: how long their epilogue took, and how long the MMA warps stood before them.

    mma       | wait inputs | wait for a free buffer = stall | main loop = T_mma |
    epilogue                                                        wait full   | convert and store, step by step |
                                                                                |<---------- span --------------->|

The span is that of one CTA: from the moment at which both the accumulator is full and the epilogue is free for it, to the
end of issuing the tile's last store. It holds conversion, staging, T_iss0 and the stall of the stores, as two readings of
the clock around the body of the L2 epilogue do (arXiv 2607.23264). The stall is that of the cluster's one MMA lane: its wait
for the buffers of both CTAs once its inputs are there, before each L2 task. Both follow from the spans of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...program_index import phase_number, run_ps
from ...units import PS_PER_US

if TYPE_CHECKING:
    from ...trace import Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class L2Tiles:
    """By task of a cluster, in the order of the Program: times in us."""

    gpu: Ints  # [tasks]
    begin_us: Floats  # [tasks] the main loop begins
    inputs_us: Floats  # [tasks] wait for the block's L1 output
    stall_us: Floats  # [tasks] wait for a free buffer
    span_us: Floats  # [tasks, CTAs]

    def of(self, gpu: int) -> L2Tiles:
        """Those of one GPU."""
        mine = self.gpu == gpu
        return L2Tiles(
            self.gpu[mine], self.begin_us[mine], self.inputs_us[mine], self.stall_us[mine], self.span_us[mine]
        )


def l2_tiles(trace: Trace) -> L2Tiles:
    """Spans and stalls of a fused SM100 MegaMoE run whose L2 waits for whole blocks. Needs spans.

    Raises `InputError` for another Program, or a run without spans.
    """
    program, spans, first = trace.program, trace.outcome.spans, trace.layout.span_first
    meta = program.meta
    if trace.level == "off":
        raise InputError("is too little for L2 tiles", field="trace", value="off", allowed=["summary", "full"])
    fused = meta.get("schedule") == "megamoe" and meta["policy"]["name"] != "unfused"
    if not fused or meta["kernel"]["family"] == "sm90" or meta["policy"]["readiness"] != "block":
        raise InputError(
            "has no L2 tiles to be measured", field="program", allowed="fused MegaMoE with epilogue lanes, by blocks"
        )
    cluster = meta["kernel"]["cluster"]
    l1, l2 = (np.flatnonzero(program.tasks["phase"] == phase_number(program, name)) for name in ("l1", "l2"))
    block_of, seats = program.tasks["m_block"], 1 + np.arange(cluster)
    gpu_of_l1, gpu = (program.groups["gpu"][spans["group"][first[tasks]]] for tasks in (l1, l2))
    published = np.zeros((program.n_gpus, 1 + int(block_of.max(initial=0))), dtype=np.int64)
    for seat in seats:
        np.maximum.at(published, (gpu_of_l1, block_of[l1]), spans["end_ps"][first[l1] + seat])
    mma = spans[first[l2]]
    begin = mma["end_ps"] - run_ps(program)[program.tasks["first_run"][l2]]
    could = np.maximum(mma["start_ps"], published[gpu, block_of[l2]])
    row = first[l2][:, None] + seats
    span = spans["end_ps"][row] - np.maximum(spans["start_ps"][row], mma["end_ps"][:, None])
    return L2Tiles(
        gpu=gpu.astype(np.int64),
        begin_us=begin / PS_PER_US,
        inputs_us=(could - mma["start_ps"]) / PS_PER_US,
        stall_us=(begin - could) / PS_PER_US,
        span_us=span / PS_PER_US,
    )
