"""A machine: SMs, the post-issue stage behind their stores, and the interconnect that drains it.

Three parts that can be combined freely: `compute` (what an SM and its memory can do), `stage` (T_iss0 and Q) and
`interconnect` (R, wiring, latency). Every number carries its source, see `Sourced`. In a file a machine reads

    compute:      {sms: {value: 148, source: ...}, ...}
    stage:        {t0: ..., issue_rate: ..., capacity_sm: ..., capacity_gpu: ..., granule: ...}
    interconnect: {kind: ..., gpus: ..., drain_rate: ..., latency: ..., ...}

The files are in scenarios/machines; scenarios/machine_files.py reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from . import topology
from .burst_gap import XStage
from .checked import Checked, Where, check, nowhere, refusal
from .errors import InputError
from .interconnect import Destination, InterconnectProfile
from .quantities import Count, Efficiency, Fraction, Positive, Rate, Size, Sourced, Text, Time

PARTS = ("compute", "stage", "interconnect")


class ComputeProfile(Checked):
    """What one GPU computes with. Rates are dense; a number that is not known is left out. `clock_mhz` says at which clock
    the rates hold, and nothing is computed from it.

    The second half is what a tile of a fused GEMM kernel costs beyond its FLOPs; sim/tile_cost.py says how they combine.
    `kernels` is the family of public kernels that runs on the GPU. `mma_efficiency_*` is the share of the peak that a
    main loop reaches when nothing else holds it up, `sm_feed` what one SM takes in from L2, `l2_share` the part of L2 that
    keeps weight tiles, `epilogue_*` the output elements (10^9 a second) that one SM turns over in its epilogue. Only where
    it is known does `l2_throughput` limit what L2 gives to all SMs and takes in from HBM, together. `fp4_unpack` is the FP4
    weights (10^9 a second) that one SM without FP4 Tensor Cores turns into FP8, `promotion` how long a lone warpgroup takes
    to add the FP8 accumulators of a K-block to its FP32 sums.

    The last part is for kernels on their own and for attention (sim/schedules/attention_a2a/cost.py): `kernel_launch` from
    the launch to the first instruction, `sm_port` the most that one SM takes in from L2, whatever is asked for, `cta_start`
    what a CTA takes before its first MMA, `l2_rate` what all SMs together read from L2, `attention_softmax` the scores (10^9
    a second) that one SM turns into probabilities, `attention_overlap` the part of softmax and MMA that hides the other.
    """

    sms: Sourced[Count]
    clock_mhz: Sourced[Positive] | None = None
    bf16_tflops: Sourced[Positive] | None = None
    fp8_tflops: Sourced[Positive] | None = None
    fp4_tflops: Sourced[Positive] | None = None
    hbm_rate: Sourced[Rate] | None = None
    l2: Sourced[Size] | None = None

    kernels: Sourced[Literal["sm90", "sm100", "portable"]] | None = None
    mma_efficiency_bf16: Sourced[Efficiency] | None = None
    mma_efficiency_fp8: Sourced[Efficiency] | None = None
    mma_efficiency_fp4: Sourced[Efficiency] | None = None
    tile_fixed: Sourced[Time] | None = None
    sm_feed: Sourced[Rate] | None = None
    l2_throughput: Sourced[Rate] | None = None
    fp4_unpack: Sourced[Positive] | None = None
    promotion: Sourced[Time] | None = None
    l2_share: Sourced[Efficiency] | None = None
    hbm_efficiency: Sourced[Efficiency] | None = None
    epilogue_requantise: Sourced[Positive] | None = None
    epilogue_scatter: Sourced[Positive] | None = None
    epilogue_floor: Sourced[Time] | None = None
    pull_row: Sourced[Time] | None = None
    count_rows: Sourced[Time] | None = None
    grid_sync: Sourced[Time] | None = None
    combine_floor: Sourced[Time] | None = None
    kernel_gap: Sourced[Time] | None = None

    kernel_launch: Sourced[Time] | None = None
    sm_port: Sourced[Rate] | None = None
    cta_start: Sourced[Time] | None = None
    l2_rate: Sourced[Rate] | None = None
    attention_mma_efficiency: Sourced[Efficiency] | None = None
    attention_softmax: Sourced[Positive] | None = None
    attention_overlap: Sourced[Fraction] | None = None


class StageProfile(Checked):
    """The post-issue stage of one GPU. A burst of B bytes issues in T_iss0 = t0 + B / issue_rate if nothing holds it up.

    What the stage holds for K producing SMs is Q(K) = min(K * capacity_sm, capacity_gpu). `granule` is the resolution of
    the simulation, no property of the hardware: stores are cut into pieces of this size.
    """

    t0: Sourced[Time]
    issue_rate: Sourced[Rate]
    capacity_sm: Sourced[Size]
    capacity_gpu: Sourced[Size]
    granule: Sourced[Size]

    @model_validator(mode="after")
    def _granule_fits(self) -> StageProfile:
        room = min(self.capacity_sm.value, self.capacity_gpu.value)
        if self.granule.value > room:
            raise refusal("does not fit into the stage", key=("granule", "value"), allowed=f"at most {room} B")
        return self


class Machine(Checked):
    """GPUs of one kind in one domain. Times in ps, sizes in bytes, rates in kB/s; `parse` reads the text of a file."""

    name: Text
    description: str = ""
    compute: ComputeProfile
    stage: StageProfile
    interconnect: InterconnectProfile

    @classmethod
    def parse(cls, data: object, where: Where = nowhere) -> Machine:
        """A machine from plain data with quantities as text. Raises `InputError` naming the field."""
        return check(cls, data, where)

    def __reduce__(self) -> tuple[Any, ...]:
        """As plain data for other processes: types of numbers with sources have no name that pickle could look up."""
        return Machine.parse, (self.model_dump(mode="json", exclude_none=True),)

    def __repr__(self) -> str:
        return f"<Machine {self.name}: {self.gpus} GPUs of {self.sms} SMs, {self.interconnect.kind.value}>"

    __str__ = __repr__

    @property
    def sms(self) -> int:
        """SMs of a GPU."""
        return self.compute.sms.value

    @property
    def gpus(self) -> int:
        """The most GPUs that the interconnect joins."""
        return self.interconnect.gpus.value

    @property
    def granule_bytes(self) -> int:
        """Size of the pieces that stores are cut into."""
        return self.stage.granule.value

    @overload
    def issue_time_ps(self, size: int) -> int: ...
    @overload
    def issue_time_ps(self, size: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def issue_time_ps(self, size: Any) -> Any:
        """T_iss0 = t0 + ceil(B / w) of bursts of `size` bytes, in ps; 0 where nothing is stored."""
        issued = self.stage.t0.value - (-size * 10**9 // self.stage.issue_rate.value)
        return np.where(size > 0, issued, 0) if isinstance(size, np.ndarray) else issued if size > 0 else 0

    def drain_kbs(self, destination: Destination = "peer", n_gpus: int | None = None) -> int:
        """R in kB/s of one of `n_gpus` GPUs (default: all there are)."""
        return self.interconnect.drain_kbs(destination, self._count(n_gpus))

    def x_stage(self, destination: Destination = "peer", n_gpus: int | None = None) -> XStage:
        """The machine's three numbers for the closed forms of burst_gap."""
        return XStage(
            t0_ps=self.stage.t0.value,
            issue_kbs=self.stage.issue_rate.value,
            drain_kbs=self.drain_kbs(destination, n_gpus),
            capacity_per_producer_bytes=self.stage.capacity_sm.value,
            capacity_total_bytes=self.stage.capacity_gpu.value,
        )

    def fabric(self, n_gpus: int | None = None, granule_bytes: int | None = None) -> topology.Fabric:
        """Stages and ports of the first `n_gpus` GPUs (default: all) as arrays for an engine.

        Raises `InputError` for more GPUs than there are, or a granule that does not fit into the stage.
        """
        wiring, count = self.interconnect, self._count(n_gpus)
        stage = topology.StageParameters(
            granule_bytes=self.granule_bytes if granule_bytes is None else granule_bytes,
            capacity_sm_bytes=self.stage.capacity_sm.value,
            capacity_gpu_bytes=self.stage.capacity_gpu.value,
            latency_ps=wiring.latency.value,
            local_latency_ps=wiring.local_latency.value,
            fan_out_efficiency=wiring.fan_out_efficiency.value,
            duplex_efficiency=wiring.duplex_efficiency.value,
            reduce_efficiency=wiring.reduce_efficiency.value,
            request_permille=_permille(wiring.load_request_fraction.value),
            fair_replies=wiring.reply_arbitration.value == "fair",
        )
        return wiring.fabric(count, stage)

    def numbers(self) -> Iterator[tuple[str, Sourced[Any]]]:
        """Every number that the machine has, by its dotted name."""
        for part in PARTS:
            for name, number in getattr(self, part):
                if number is not None:
                    yield f"{part}.{name}", number

    def _count(self, n_gpus: int | None) -> int:
        count = self.gpus if n_gpus is None else n_gpus
        if not 1 <= count <= self.gpus:
            raise InputError("is not on this machine", field="gpus", value=count, allowed=f"1 to {self.gpus}")
        return count


def _permille(fraction: float) -> int:
    """The fabric counts in thousandths: a fraction that would vanish is refused, not rounded to nothing."""
    permille = round(1000 * fraction)
    if fraction > 0 and permille == 0:
        field, allowed = "interconnect.load_request_fraction", "0, or 0.001 to 1"
        raise InputError("is too small to count", field=field, value=fraction, allowed=allowed)
    return permille
