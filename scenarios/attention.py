"""The workload `attention_a2a`: a model or heads, tokens and a policy.

workload:
  kind: attention_a2a
  model: wan-14b               # or heads, head_dim, tokens
  tokens: 32760                # the whole sequence
  policy: {name: reserved_sms, sms: 8}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ..sim.checked import Checked
from ..sim.machine import Machine
from ..sim.quantities import Count, Rate, Text, Time
from .attention_models import attention_model
from .workload import PolicyChoice, Setting, Value, Workload, choice_by, needs_model_or_sizes

if TYPE_CHECKING:
    from ..sim.program import Program
    from ..sim.schedules import attention_a2a

SIZES = ("heads", "tokens")
_PLAIN = {"sms": "reserved_sms", "launch": "launch_ps", "rate": "rate_kbs", "permute": "permute_kbs"}
"""What the schedule calls the keys of a policy that it has other names for."""
ROTATION = Setting("rotation", "each rank begins with the rows of the next", (False, True))


class Simple(Checked):
    """Attention that sends nothing, or whose output a warp of each SM copies to its owners."""

    name: Literal["compute_only", "comm_warp"]
    rotation: bool = False


class Piggyback(Checked):
    """The store of each tile goes to its owner; `own_staging` gives it a buffer that the next tile does not need."""

    name: Literal["piggyback"]
    rotation: bool = False
    own_staging: bool = False


class ReservedSms(Checked):
    """`sms` SMs copy finished tiles to their owners and compute nothing."""

    name: Literal["reserved_sms"]
    sms: Count
    rotation: bool = False


class Serial(Checked):
    """Attention, then an All-to-All of its own; terms that are left out are the machine's."""

    name: Literal["serial"]
    launch: Time | None = None
    rate: Rate | None = None
    permute: Rate | None = None


Policy = Annotated[Simple | Piggyback | ReservedSms | Serial, Field(discriminator="name"), choice_by("name")]


class AttentionWorkload(Workload):
    """Forward attention on `gpus` ranks that share the heads, and the All-to-All of its output.

    `tokens` is the whole sequence, `heads` those of all ranks. What a `model` does not say, or the scenario replaces, is
    given beside it. `family` is the kernel, by default that of the machine, `inputs` the type of Q, K and V. `starts` delays
    the launch of ranks.
    """

    kind: Literal["attention_a2a"]
    gpus: Count = 8
    model: Text | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    value_dim: Count | None = None
    tokens: Count | None = None
    batch: Count = 1
    causal: bool | None = None
    family: Literal["fa3", "fa4"] | None = None
    inputs: Literal["bf16", "fp8"] = "bf16"
    policy: Policy = Field(default=Piggyback(name="piggyback"))
    starts: list[Time] = Field(default=[])

    @model_validator(mode="before")
    @classmethod
    def _model_or_sizes(cls, data: Any) -> Any:
        return needs_model_or_sizes(data, SIZES, cls.model_fields)

    @property
    def title(self) -> str:
        sent = "" if self.policy.name == "compute_only" else " with the All-to-All of its output"
        return f"attention{sent}, {self.inputs}"

    def shape(self) -> attention_a2a.Attention:
        """The plain shape; what is given replaces the model's. Raises `InputError` for an unknown model."""
        from ..sim.schedules.attention_a2a import Attention

        fields = ("heads", "kv_heads", "head_dim", "value_dim", "tokens", "causal")
        sizes = {name: getattr(self, name) for name in fields if getattr(self, name) is not None}
        if self.model is not None:
            known = attention_model(self.model)
            sizes = {name: getattr(known, name) for name in fields} | sizes
        return Attention(ranks=self.gpus, batch=self.batch, family=self.family, inputs=self.inputs, **sizes)

    def plain_policy(self) -> attention_a2a.Policy:
        from ..sim.schedules.attention_a2a import Policy as PlainPolicy

        return PlainPolicy(**{_PLAIN.get(key, key): value for key, value in self.policy})

    def policies(self, machine: Machine, seed: int) -> Mapping[str, PolicyChoice]:
        most = max(1, machine.sms // 4)
        sms = Setting("sms", "SMs that only copy", range(1, most + 1), usual=min(8, most))
        staging = Setting("own_staging", "a buffer of its own for the output tile", (False, True))
        return {
            "serial": PolicyChoice("attention, then an All-to-All of its own"),
            "comm_warp": PolicyChoice("a warp of each SM copies finished tiles to their owners", (ROTATION,)),
            "reserved_sms": PolicyChoice("some SMs copy finished tiles and compute nothing", (sms, ROTATION)),
            "piggyback": PolicyChoice("the store of each tile goes to its owner at once", (staging, ROTATION)),
        }

    def with_policy(self, name: str, parameters: Mapping[str, Value]) -> Self:
        """As for every workload; what this one says about `rotation` goes for the other policy too."""
        kept = {"rotation": True} if name != "serial" and getattr(self.policy, "rotation", False) else {}
        return super().with_policy(name, kept | dict(parameters))

    def without_sending(self) -> Self | None:
        return None if self.policy.name == "compute_only" else self.with_policy("compute_only", {})

    def collective_rates(self) -> tuple[str, ...]:
        return ("all_to_all_rate",)

    def build(self, machine: Machine, seed: int) -> Program:
        from ..sim.schedules import attention_a2a

        return attention_a2a.build(machine, self.shape(), self.plain_policy(), self.starts)
