"""What every kind of workload has; scenarios/workloads.py lists the kinds.

A workload that can run under several policies says so in `policies`: `compare` and `tune` know them from there. The
`without_...` methods take one thing away that costs time; `explain` asks for them. All have defaults that say "nothing".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator

from ..sim.checked import Checked, check, closest, refusal
from ..sim.machine import Machine
from ..sim.quantities import Count

if TYPE_CHECKING:
    from ..sim.program import Program
    from ..sim.topology import Fabric

End = Literal["makespan", "sender_visible"]
"""An end of a run: when the last lane is free (sender-visible), or the later one of that and of the last byte's arrival."""
Value: TypeAlias = int | bool | str
"""Of a setting, as it stands in a scenario."""


def choice_by(key: str) -> BeforeValidator:
    """One of several models, told apart by `key`; text alone means the one of that name without further keys."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            return {key: value}
        if not isinstance(value, (Mapping, Checked)):
            raise refusal("is not one choice", allowed=f"a name, or a mapping with the key {key}")
        if isinstance(value, Mapping) and key not in value:
            for given in value:
                if meant := closest(given, [key]):
                    raise refusal(f"is not a known key{meant}", key=(given,))
            if value:  # it says where it was written, which the missing key does not
                given = next(iter(value))
                raise refusal(f"needs {key} beside it", key=(given,), allowed=f"{{{key}: ..., {given}: ...}}")
        return value

    return BeforeValidator(read)


def needs_model_or_sizes(data: Any, sizes: tuple[str, ...], known: Iterable[str]) -> Any:
    """A "before" check of workloads that name a model or give its sizes: refuses the first size that is missing.

    It has nothing to say where a key is not `known`: the missing size may be that key, misspelt.
    """
    together = "both" if len(sizes) == 2 else "all"
    if isinstance(data, Mapping) and data.get("model") is None and set(data) <= set(known):
        for size in sizes:
            if data.get(size) is None:
                raise refusal("is missing", key=(size,), allowed=f"a model, or {together} of {', '.join(sizes)}")
    return data


@dataclass(frozen=True)
class Ring:
    """Room for m-blocks between L1 and L2, and the bytes of symmetric memory that it takes."""

    m_blocks: int
    room_bytes: int


@dataclass(frozen=True)
class Setting:
    """What a person can choose of a policy: `key` in the scenario, and its `values` as they stand there, in order.

    `meaning` is what it is called where the kernel is written. `usual` is the value where the policy needs one and nobody
    chose; None: the policy chooses for itself. `ring` marks a row lead D, whose smallest good value is the knee: it gives
    the ring that a lead is tried with.
    """

    key: str
    meaning: str
    values: Sequence[Value]
    usual: Value | None = None
    ring: Callable[[int], Ring] | None = None

    def given(self, value: Any) -> dict[str, Any]:
        """What is written into the scenario for a value: it and, of a row lead, the ring."""
        return {self.key: value} | ({} if self.ring is None else {"ring_m_blocks": self.ring(value).m_blocks})


@dataclass(frozen=True)
class PolicyChoice:
    """A policy that a workload can run under: what it does, and what of it can be set."""

    meaning: str
    settings: tuple[Setting, ...] = ()

    def usual(self) -> dict[str, Value]:
        """What has to be given where nobody chose."""
        return {s.key: s.usual for s in self.settings if s.usual is not None}


class Workload(Checked):
    """Fields are the keys under `workload:`. Raises `InputError` from `build` where the machine cannot hold it."""

    kind: str
    gpus: Count

    @abstractmethod
    def build(self, machine: Machine, seed: int) -> Program:
        """The Program; the same for the same machine and seed."""

    @property
    def title(self) -> str:
        """What is run, in a few words, without its policy."""
        return self.kind

    @property
    def policy_name(self) -> str | None:
        """The policy that it runs under; None where there are none to choose from."""
        policy = getattr(self, "policy", None)
        return None if policy is None else str(policy.name)

    @property
    def is_mirrored(self) -> bool:
        """Whether one rank against its mirror stands for all of them."""
        return False

    @property
    def judged_by(self) -> End:
        """The end that says how long it took, for `explain` and `needs`."""
        return "makespan"

    def compute_numbers(self) -> tuple[str, ...]:
        """Names of the machine's compute part without which no schedule of this workload can be built."""
        return ()

    def collective_rates(self) -> tuple[str, ...]:
        """Names of the machine's rates of collectives that some schedule of this workload may use."""
        return ()

    def fabric(self, machine: Machine, granule: int | None) -> Fabric:
        """What the Program runs on: the machine's first `gpus` GPUs, cut into granules of `granule` bytes."""
        return machine.fabric(self.gpus, granule)

    def policies(self, machine: Machine, seed: int) -> Mapping[str, PolicyChoice]:
        """The policies to choose from, on whatever machine; one of them may still refuse this machine or shape.

        Ranges of their settings are those of the Program that the same machine and seed make.
        """
        return {}

    def with_policy(self, name: str, parameters: Mapping[str, Value]) -> Self:
        """The same under another policy. Raises `InputError` for a name or parameter that it does not have."""
        return self._with(policy={"name": name, **parameters})

    def without_imbalance(self) -> Self | None:
        """The same with work spread evenly over ranks; None where it already is."""
        return None

    def without_late_ranks(self) -> Self | None:
        """The same with all ranks starting at once; None where they do."""
        return None

    def without_sending(self) -> Self | None:
        """The same computation with nothing sent; None where there is no such schedule."""
        return None

    def _with(self, **changes: Any) -> Self:
        return check(type(self), self.model_dump(exclude_unset=True) | changes)
