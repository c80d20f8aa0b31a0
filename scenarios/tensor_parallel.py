"""The workload `tensor_parallel`: a GEMM whose ranks share rows, columns or the reduction, and a policy.

workload:
  kind: tensor_parallel
  operation: gemm_rs           # ag_gemm, gemm_ar
  m: 8192                      # sizes over all ranks
  n: 8192
  k: 28672
  policy: {name: reserved_sms, sms: 16}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from ..sim.checked import Checked, refusal
from ..sim.machine import Machine
from ..sim.quantities import Count, Rate, Time
from .attention import ROTATION
from .workload import PolicyChoice, Setting, Workload, choice_by

if TYPE_CHECKING:
    from ..sim.program import Program
    from ..sim.schedules import tensor_parallel


class Alone(Checked):
    """The GEMM alone."""

    name: Literal["compute_only"]


class Fused(Checked):
    """Stores of the epilogue go to their owners: in plain order, or with `rotation: true` as under `reshaped`."""

    name: Literal["fused"]
    rotation: bool | None = None


class Reshaped(Checked):
    """Fused, with rows shifted by rank, or dealt over owners where GPUs do not meet on one switch, and each store in
    `pieces` over the next main loop.
    """

    name: Literal["reshaped"]
    pieces: Count = 4


class ReservedSms(Checked):
    """`sms` SMs move the data and compute nothing; rows as under `reshaped`, unless `rotation` is false."""

    name: Literal["reserved_sms"]
    sms: Count
    rotation: bool | None = None


class Serial(Checked):
    """The GEMM and a collective of its own; terms that are left out are the machine's."""

    name: Literal["serial"]
    launch: Time | None = None
    rate: Rate | None = None


Policy = Annotated[Alone | Fused | Reshaped | ReservedSms | Serial, Field(discriminator="name"), choice_by("name")]


MOST_PIECES = 16
"""Pieces of a tile's store that `reshaped` is tried with."""
_PLAIN = {"sms": "reserved_sms", "launch": "launch_ps", "rate": "rate_kbs"}
"""What the schedule calls the keys of a policy that it has other names for."""
_OPERATIONS = {"gemm_rs": "GEMM + ReduceScatter", "ag_gemm": "AllGather + GEMM", "gemm_ar": "GEMM + AllReduce"}


class TensorParallelWorkload(Workload):
    """`m` x `n` outputs, each a sum over `k`, on `gpus` ranks; all three are counted over all ranks.

    gemm_rs: GEMM + ReduceScatter, k shared out. ag_gemm: AllGather + GEMM, rows and columns shared out. gemm_ar: GEMM +
    AllReduce by `algorithm`, k shared out. The kernel computes on at most `grid` SMs. `starts` delays the launch of ranks.
    """

    kind: Literal["tensor_parallel"]
    gpus: Count = 8
    operation: Literal["gemm_rs", "ag_gemm", "gemm_ar"]
    algorithm: Literal["two_shot", "multicast", "in_switch", "one_shot"] = "two_shot"
    m: Count
    n: Count
    k: Count
    block_m: Count = 128
    block_n: Count = 256
    grid: Count | None = None
    policy: Policy = Field(default=Fused(name="fused"))
    starts: list[Time] = Field(default=[])

    @model_validator(mode="after")
    def _rows_are_scattered(self) -> Self:
        if getattr(self.policy, "rotation", None) is not None and self.operation != "gemm_rs":
            reason = "is for rows that are scattered, by operation gemm_rs"
            raise refusal(reason, key=("policy", "rotation"), allowed=f"none for {self.operation}")
        return self

    @property
    def title(self) -> str:
        return f"{_OPERATIONS[self.operation]}, bf16"

    def shape(self) -> tensor_parallel.TensorParallel:
        from ..sim.schedules.tensor_parallel import TensorParallel

        return TensorParallel(
            self.operation,
            self.m,
            self.n,
            self.k,
            self.gpus,
            self.algorithm,
            block_m=self.block_m,
            block_n=self.block_n,
            grid=self.grid,
        )

    def plain_policy(self) -> tensor_parallel.Policy:
        from ..sim.schedules.tensor_parallel import Policy as PlainPolicy

        return PlainPolicy(**{_PLAIN.get(key, key): value for key, value in self.policy})

    def policies(self, machine: Machine, seed: int) -> Mapping[str, PolicyChoice]:
        most = max(1, machine.sms // 4)
        sms = Setting("sms", "SMs that only move data", range(1, most + 1), usual=min(16, most))
        rotation = (ROTATION,) if self.operation == "gemm_rs" else ()
        return {
            "serial": PolicyChoice("the GEMM, then a collective of its own"),
            "fused": PolicyChoice("the store of each tile goes to its owner at once", rotation),
            "reserved_sms": PolicyChoice("some SMs move the data and compute nothing", (sms, *rotation)),
            "reshaped": PolicyChoice(
                "rows shifted by rank, or dealt over owners where GPUs do not meet on one switch, and each store moved into "
                "the next main loop, in one or more pieces",
                (Setting("pieces", "pieces of a tile's store", range(1, MOST_PIECES + 1)),),
            ),
        }

    def without_sending(self) -> Self | None:
        return None if self.policy.name == "compute_only" else self.with_policy("compute_only", {})

    def collective_rates(self) -> tuple[str, ...]:
        return ("ring_rate", "all_reduce_rate")

    def build(self, machine: Machine, seed: int, least_factor: float = 1.0) -> Program:
        """Where a degraded port has `least_factor` left of its rate, a sum in the switch takes as much longer."""
        from ..sim.schedules import tensor_parallel

        return tensor_parallel.build(machine, self.shape(), self.plain_policy(), self.starts, least_factor)
