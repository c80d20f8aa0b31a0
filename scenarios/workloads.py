"""The kinds of workload that a scenario can name, each with what a person writes and the schedule that it becomes.

A kind is a `Workload`: its fields are the keys under `workload:` in a scenario, `shape` turns them into the plain shape of
its schedule, and `build` makes the Program. To add one, write the model and list it in `WORKLOADS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import core_schema

from ..sim.machine import Machine
from ..sim.quantities import Count, CountOrZero, SizeOrZero, Time
from .attention import AttentionWorkload
from .megamoe import MegaMoeWorkload
from .own_program import ProgramWorkload
from .tensor_parallel import TensorParallelWorkload
from .workload import End, Workload

if TYPE_CHECKING:
    from ..sim.program import Program
    from ..sim.schedules.burst_train import BurstTrain


class BurstTrainWorkload(Workload):
    """`producers` SMs of each sender store `burst` each, then nothing for `gap`; `bursts` times.

    Producers start spread over a period and go at their own pace (`free_running`), start each burst together
    (`synchronised`), or do so with a gap in which the stage runs empty (`isolated`). `senders` is GPU 0 or every GPU; each
    stores to the next GPU (`peer`) or deals its bursts over all others.
    """

    kind: Literal["burst_train"]
    gpus: Annotated[int, Field(strict=True, ge=2)] = 2
    producers: CountOrZero
    burst: SizeOrZero
    gap: Time = 0
    bursts: Count = 1
    mode: Literal["free_running", "synchronised", "isolated"] = "free_running"
    destination: Literal["peer", "all"] = "peer"
    senders: Literal["one", "all"] = "one"

    def shape(self) -> BurstTrain:
        from ..sim.schedules.burst_train import BurstTrain

        return BurstTrain(
            producers=self.producers,
            burst_bytes=self.burst,
            gap_ps=self.gap,
            bursts=self.bursts,
            mode=self.mode,
            destination=self.destination,
            gpus=self.gpus,
            senders=self.senders,
        )

    @property
    def judged_by(self) -> End:
        """A single burst is judged by how long it takes to issue: its last byte arrives when R has drained it, whatever Q
        is.

        In a train what one burst waits makes the next one late, so the makespan has it, and counts no stage that would hold
        the backlog of just so many bursts as a remedy. An All-to-All is done when its data are there. Producers that run
        freely begin when R says, at different moments of a period.
        """
        is_one_burst = self.bursts == 1 and self.mode != "free_running"
        is_all_to_all = (self.senders, self.destination) == ("all", "all")
        return "sender_visible" if is_one_burst and not is_all_to_all else "makespan"

    def build(self, machine: Machine, seed: int, least_factor: float = 1.0) -> Program:
        """Where a degraded port has `least_factor` left of its rate, the stage takes as much longer to run empty."""
        from ..sim.schedules import burst_train

        return burst_train.build(machine, self.shape(), least_factor)


WORKLOADS: dict[str, type[Workload]] = {
    "attention_a2a": AttentionWorkload,
    "burst_train": BurstTrainWorkload,
    "megamoe": MegaMoeWorkload,
    "program": ProgramWorkload,
    "tensor_parallel": TensorParallelWorkload,
}


class _ByKind:
    """Picks the model by the key `kind`."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        choices = {kind: handler.generate_schema(model) for kind, model in WORKLOADS.items()}
        return core_schema.tagged_union_schema(choices, discriminator="kind")


AnyWorkload = Annotated[Workload, _ByKind]
