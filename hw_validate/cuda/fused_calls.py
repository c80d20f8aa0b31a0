"""The fused kernels as fused_run.py sees them: one call of a kernel, to be run under several policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

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
from .fused_job import KERNELS, Data, fused_job, random_data, reference
from .fused_megamoe import Fused, lower_megamoe
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


class Lowering(Protocol):
    """A Program lowered for a fused kernel."""

    @property
    def lowered(self) -> Lowered: ...


class Call(Protocol):
    """What is run: shapes and data, the same under every policy.

    source, bare: the kernel, and the same without its instrumentation; outputs: its buffers that hold what came out.
    """

    @property
    def source(self) -> str: ...
    @property
    def bare(self) -> str: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    @property
    def ranks(self) -> int: ...

    def build(self, machine: Machine, policy: Any) -> Program: ...
    def lower(self, program: Program, *, is_one_gpu: bool, shared_bytes: int) -> Any: ...
    def kernel(self, fused: Any) -> str: ...
    def job(self, fused: Any, transport: str, settings: Settings) -> Job: ...

    def error(self, fused: Any, outputs: Mapping[str, Array]) -> float:
        """Root mean square error of what came out against float64, over that of the exact numbers."""

    def tile_times(self, ops: pd.DataFrame) -> pd.DataFrame:
        """See fused_times.py, as for `summary`."""

    def summary(self, ops: pd.DataFrame) -> dict[str, float]: ...


@dataclass(frozen=True)
class MegaMoeCall:
    """MegaMoE with balanced routing, drawn from `seed` as its data."""

    shape: megamoe.MegaMoe
    seed: int = 0
    source, bare, outputs = "megamoe.cu", "megamoe_bare.cu", ("results",)

    @property
    def ranks(self) -> int:
        return self.shape.ranks

    @cached_property
    def routing(self) -> Routing:
        shape = self.shape
        size = shape.ranks, shape.tokens, shape.topk, shape.experts
        return balanced(*size, np.random.default_rng(self.seed))

    @cached_property
    def data(self) -> Data:
        return random_data(self.shape, np.random.default_rng([self.seed, 1]))

    def build(self, machine: Machine, policy: megamoe.Policy) -> Program:
        return megamoe.build(machine, self.shape, policy, self.routing)

    def lower(self, program: Program, *, is_one_gpu: bool, shared_bytes: int) -> Fused:
        return lower_megamoe(program, self.routing, is_one_gpu=is_one_gpu, shared_bytes=shared_bytes)

    def kernel(self, fused: Fused) -> str:
        return KERNELS[fused.stages]

    def job(self, fused: Fused, transport: str, settings: Settings) -> Job:
        return fused_job(fused, self.data, transport, settings)

    def error(self, fused: Fused, outputs: Mapping[str, Array]) -> float:
        found = np.stack([to_float(outputs[f"results@{rank}"]) for rank in range(self.ranks)])
        if "results" not in self._exact:  # the same under every policy, and by far the most work
            self._exact["results"] = reference(fused, self.data)
        return _relative(found, self._exact["results"])

    def tile_times(self, ops: pd.DataFrame) -> pd.DataFrame:
        return l2_tile_times(ops)

    def summary(self, ops: pd.DataFrame) -> dict[str, float]:
        return summary(ops)

    @cached_property
    def _exact(self) -> dict[str, Array]:
        return {}


@dataclass(frozen=True)
class AttentionCall:
    """Attention and the All-to-All of its output; data drawn from `seed`."""

    shape: attention_a2a.Attention
    seed: int = 0
    source, bare, outputs = "attention_a2a.cu", "attention_a2a_bare.cu", ("landing", "own_landing")

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

    def error(self, fused: FusedAttention, outputs: Mapping[str, Array]) -> float:
        return _relative(to_float(returned(self.shape, outputs)), self.exact)

    def tile_times(self, ops: pd.DataFrame) -> pd.DataFrame:
        return attention_tile_times(ops)

    def summary(self, ops: pd.DataFrame) -> dict[str, float]:
        return attention_summary(ops)


def _relative(found: Array, exact: Array) -> float:
    return float(np.sqrt(np.mean((found - exact) ** 2) / max(np.mean(exact**2), 1e-300)))
