"""What a scenario says about GPUs and links that are not as good as the others.

disturb:
  slow_gpu: {gpu: 3, factor: 1.2}                    # its computing takes 1.2 times as long
  late_gpu: {gpu: 5, by: 20 us}                      # all of it starts 20 us later
  degraded_link: {gpu: 1, factor: 0.5}               # all ports of a GPU at half their rate; or
  # degraded_link: {between: [0, 1], factor: 0.5}    # one link, where the topology has links; '0-3': each of a range
  # each may also be a list of such mappings; a port that several name has the smallest of their factors
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from ..sim.checked import Checked, refusal
from ..sim.interconnect import End, joined
from ..sim.quantities import CountOrZero, Efficiency, Time

if TYPE_CHECKING:
    from ..sim.program import Program
    from ..sim.topology import Fabric


class SlowGpu(Checked):
    """A GPU that computes more slowly: every COMPUTE takes `factor` times as long."""

    gpu: CountOrZero
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]


class LateGpu(Checked):
    """A GPU that starts late."""

    gpu: CountOrZero
    by: Time


class DegradedLink(Checked):
    """All ports of a `gpu`, or the link `between` two nodes, at `factor` of their rate.

    An end that is a range of GPUs means the link of each of them; each has to be there.
    """

    gpu: CountOrZero | None = None
    between: tuple[End, End] | None = None
    factor: Efficiency

    @model_validator(mode="after")
    def _one_of_two(self) -> DegradedLink:
        if (self.gpu is None) == (self.between is None):
            raise refusal("names one of two things", allowed="either gpu or between")
        return self


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, (Mapping, Checked)) else value


class Disturbance(Checked):
    """What is not as it should be; nothing by default."""

    slow_gpu: Annotated[tuple[SlowGpu, ...], BeforeValidator(_listed)] = ()
    late_gpu: Annotated[tuple[LateGpu, ...], BeforeValidator(_listed)] = ()
    degraded_link: Annotated[tuple[DegradedLink, ...], BeforeValidator(_listed)] = ()

    def __bool__(self) -> bool:
        return bool(self.slow_gpu or self.late_gpu or self.degraded_link)

    def of_program(self, program: Program) -> Program:
        """`program` with slow and late GPUs. Raises `InputError` for a GPU that takes no part."""
        if not (self.slow_gpu or self.late_gpu):
            return program
        from ..sim.disturb import delayed, slowed

        for slow in self.slow_gpu:
            program = slowed(program, slow.gpu, slow.factor)
        for late in self.late_gpu:
            program = delayed(program, late.gpu, late.by)
        return program

    def of_fabric(self, fabric: Fabric) -> Fabric:
        """`fabric` with degraded ports. Raises `InputError` for a link that is not there."""
        if not self.degraded_link:
            return fabric
        from ..sim.disturb import degraded

        return degraded(fabric, self._degraded_ports(fabric))

    def least_factor(self, fabric: Fabric) -> float:
        """The least that a degraded port on some route of `fabric` has left of its rate."""
        used = set(fabric.route_ports.tolist())
        return min((factor for ports, factor in self._degraded_ports(fabric) if used.intersection(ports)), default=1.0)

    def _degraded_ports(self, fabric: Fabric) -> list[tuple[list[int], float]]:
        """Ports, and what they have left of their rate."""
        from ..sim.disturb import ports_of_gpu, ports_of_link

        found = []
        for link in self.degraded_link:
            if link.between is not None:
                found += [(ports_of_link(fabric, *ends), link.factor) for ends in joined(link.between)]
            elif link.gpu is not None:
                found.append((ports_of_gpu(fabric, link.gpu), link.factor))
        return found

    def gpus(self) -> Iterator[tuple[str, int]]:
        """Every GPU that is named, with the key that names it."""
        for key in ("slow_gpu", "late_gpu", "degraded_link"):
            for one in getattr(self, key):
                if one.gpu is not None:
                    yield key, one.gpu
