"""The fused kernels as fused_run.py sees them: one call of a kernel, to be run under several policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...sim.placement import contiguous
from ...sim.pools import pools
from ...sim.program import Program
from ...sim.routing import Routing, balanced
from ...sim.schedules import attention_a2a, megamoe
from .bf16 import to_float
from .fused_attention import (
    AttentionData,
    FusedAttention,
    attention_job,
    attention_reference,
    lower_attention,
    random_attention,
    returned,
)
from .fused_megamoe import FusedMegaMoe, lower_megamoe
from .fused_megamoe_job import KERNELS, MegaMoeData, megamoe_job, megamoe_reference, random_megamoe
from .fused_times import attention_summary, attention_tile_times, l2_tile_times, summary
from .job import Array, Job
from .lower import Lowered
from .replay_job import Settings

if TYPE_CHECKING:
    import pandas as pd

    from ...sim.machine import Machine

MEGAMOE_POLICIES: Mapping[str, megamoe.Policy] = {
    "expert_wave": megamoe.ExpertWave(),
    "interleaved": megamoe.Interleaved(),
    "alternating": megamoe.Alternating(),
    "lag": megamoe.Lag(lag=1, group=1),
}
ATTENTION_POLICIES: Mapping[str, attention_a2a.Policy] = {
    "serial": attention_a2a.Policy("serial"),
    "comm_warp": attention_a2a.Policy("comm_warp"),
    "reserved_sms": attention_a2a.Policy("reserved_sms", reserved_sms=1),
    "piggyback": attention_a2a.Policy("piggyback"),
}


ERRORS = ("relative_error", "wrong_rows")
"""Root mean square error over that of the exact numbers, and the share of rows (of a token, or of a token's head) whose own
error is beyond `WRONG_ROW`: a few wrong rows have another cause than many."""
WRONG_ROW = 0.05


class Lowering(Protocol):
    """A Program lowered for a fused kernel."""

    @property
    def lowered(self) -> Lowered: ...


class Call(Protocol):
    """What is run: shapes and data, the same under every policy.

    source, bare: the kernel, and the same without its instrumentation; outputs: its buffers that hold what came out;
    written: all of its buffers that it writes.
    """

    @property
    def source(self) -> str: ...
    @property
    def bare(self) -> str: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    @property
    def written(self) -> Sequence[str]: ...
    @property
    def ranks(self) -> int: ...

    def build(self, machine: Machine, policy: Any) -> Program: ...
    def lower(self, program: Program, *, is_one_gpu: bool, shared_bytes: int) -> Any: ...
    def kernel(self, fused: Any) -> str: ...
    def job(self, fused: Any, transport: str, settings: Settings) -> Job: ...

    def errors(self, fused: Any, outputs: Mapping[str, Array]) -> dict[str, float]:
        """Of what came out against float64, see `ERRORS`."""

    def tile_times(self, ops: pd.DataFrame) -> pd.DataFrame:
        """See fused_times.py, as for `summary`."""

    def summary(self, ops: pd.DataFrame) -> dict[str, float]: ...


@dataclass(frozen=True)
class MegaMoeCall:
    """MegaMoE with balanced routing, drawn from `seed` as its data."""

    shape: megamoe.MegaMoe
    seed: int = 0
    source, bare, outputs = "megamoe.cu", "megamoe_bare.cu", ("results",)
    written = ("landing", "own_landing", "inputs", "middles", "weights", "results")

    @property
    def ranks(self) -> int:
        return self.shape.ranks

    @cached_property
    def routing(self) -> Routing:
        shape = self.shape
        size = shape.ranks, shape.tokens, shape.topk, shape.experts
        return balanced(*size, np.random.default_rng(self.seed))

    @cached_property
    def data(self) -> MegaMoeData:
        return random_megamoe(self.shape, np.random.default_rng([self.seed, 1]))

    @cached_property
    def exact(self) -> Array:
        placed = contiguous(self.shape.experts, self.shape.ranks)
        return megamoe_reference(self.shape, pools(self.routing, placed), self.data)

    def build(self, machine: Machine, policy: megamoe.Policy) -> Program:
        return megamoe.build(machine, self.shape, policy, self.routing)

    def lower(self, program: Program, *, is_one_gpu: bool, shared_bytes: int) -> FusedMegaMoe:
        return lower_megamoe(program, self.routing, is_one_gpu=is_one_gpu, shared_bytes=shared_bytes)

    def kernel(self, fused: FusedMegaMoe) -> str:
        return KERNELS[fused.stages]

    def job(self, fused: FusedMegaMoe, transport: str, settings: Settings) -> Job:
        return megamoe_job(fused, self.data, transport, settings)

    def errors(self, fused: FusedMegaMoe, outputs: Mapping[str, Array]) -> dict[str, float]:
        found = np.stack([to_float(outputs[f"results@{rank}"]) for rank in range(self.ranks)])
        return _errors(found, self.exact)

    def tile_times(self, ops: pd.DataFrame) -> pd.DataFrame:
        return l2_tile_times(ops)

    def summary(self, ops: pd.DataFrame) -> dict[str, float]:
        return summary(ops)


@dataclass(frozen=True)
class AttentionCall:
    """Attention and the All-to-All of its output; data drawn from `seed`."""

    shape: attention_a2a.Attention
    seed: int = 0
    source, bare, outputs = "attention_a2a.cu", "attention_a2a_bare.cu", ("landing", "own_landing")
    written = (*outputs, "outputs")

    @property
    def ranks(self) -> int:
        return self.shape.ranks

    @cached_property
    def data(self) -> AttentionData:
        return random_attention(self.shape, np.random.default_rng(self.seed))

    @cached_property
    def exact(self) -> Array:
        return attention_reference(self.shape, self.data)

    def build(self, machine: Machine, policy: attention_a2a.Policy) -> Program:
        return attention_a2a.build(machine, self.shape, policy)

    def lower(self, program: Program, *, is_one_gpu: bool, shared_bytes: int) -> FusedAttention:
        return lower_attention(program, is_one_gpu=is_one_gpu, shared_bytes=shared_bytes)

    def kernel(self, fused: FusedAttention) -> str:
        return fused.variant.kernel

    def job(self, fused: FusedAttention, transport: str, settings: Settings) -> Job:
        return attention_job(fused, self.data, transport, settings)

    def errors(self, fused: FusedAttention, outputs: Mapping[str, Array]) -> dict[str, float]:
        return _errors(to_float(returned(self.shape, outputs)), self.exact)

    def tile_times(self, ops: pd.DataFrame) -> pd.DataFrame:
        return attention_tile_times(ops)

    def summary(self, ops: pd.DataFrame) -> dict[str, float]:
        return attention_summary(ops)


def _errors(found: Array, exact: Array) -> dict[str, float]:
    off = found - exact
    scale = max(float(np.vdot(exact, exact)) / max(1, exact.size), 1e-300)
    of_rows = np.sqrt(np.einsum("...i,...i", off, off) / exact.shape[-1] / scale)
    wrong = ~(of_rows <= WRONG_ROW)  # what is no number counts, too
    return {"relative_error": float(np.sqrt(np.mean(of_rows**2))), "wrong_rows": float(np.mean(wrong))}
