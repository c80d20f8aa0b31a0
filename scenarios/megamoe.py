"""The workload `megamoe`: a model or a shape, tokens, routing, placement and a policy.

workload:
  kind: megamoe
  model: dsv4-flash            # or hidden, intermediate, experts and topk
  tokens: 8192                 # a rank
  policy: {name: expert_wave, experts_per_wave: 4}
  routing: {kind: zipf, max_over_mean: 2.5}
  placement: {kind: eplb, redundant: 32}
  ranks: symmetric
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ..sim.checked import Checked, refusal
from ..sim.errors import InputError
from ..sim.machine import Machine
from ..sim.quantities import Count, CountOrZero, Fraction, Positive, Text, Time
from .expert_models import expert_model, expert_models
from .megamoe_placement import Contiguous, Placement, check_placement, earlier_batches, placed
from .megamoe_policies import choices
from .workload import PolicyChoice, Workload, choice_by, needs_model_or_sizes

if TYPE_CHECKING:
    import numpy as np

    from ..sim.placement import Placement as Placed
    from ..sim.program import Program
    from ..sim.routing import Routing as Routed
    from ..sim.schedules.megamoe import MegaMoe
    from ..sim.schedules.megamoe import Policy as PlainPolicy
    from ..sim.topology import Fabric

Readiness = Literal["block", "k_block"]
SIZES = ("hidden", "intermediate", "experts", "topk")
COMPUTE_NUMBERS = (
    "sm_feed", "hbm_rate", "hbm_efficiency", "l2", "l2_share", "tile_fixed", "epilogue_requantise", "epilogue_scatter",
    "epilogue_floor", "pull_row", "grid_sync", "count_rows", "combine_floor",
)  # fmt: skip
"""What every call needs of a machine beside its kernels and their Tensor Core rate."""
MOST_SCORES = 2**31
"""More take minutes to draw."""


# Policies; a key that is left out is chosen as the public kernel does -------------------------------------------------


class Unfused(Checked):
    """Separate kernels with launch gaps; `gemm`: DeepGEMM's grouped GEMM with this layout of rows, SM90."""

    name: Literal["unfused"]
    gemm: Literal["contiguous", "psum", "masked"] | None = None


class ExpertWave(Checked):
    """Waves of experts, all L1 before all L2."""

    name: Literal["expert_wave"]
    experts_per_wave: Count | None = None
    ring_m_blocks: CountOrZero | None = None
    readiness: Readiness = "block"


class Split(Checked):
    """Two launches: pull and L1, then L2, return and combine; SM90."""

    name: Literal["split"]
    l1_n_major: bool | None = None
    l2_n_major: bool | None = None
    l1_block_n: Count | None = None


class Lag(Checked):
    """L2 units a fixed distance behind L1 units; SM90."""

    name: Literal["lag"]
    lag: CountOrZero | None = None
    group: Count | None = None
    unit: Count = 8
    ring_m_blocks: CountOrZero | None = None
    readiness: Readiness = "block"
    publish_rows: Count | None = None
    early_combine: bool | None = None


class Alternating(Checked):
    """L2 and L1 in turn after a warm-up; SM100."""

    name: Literal["alternating"]
    warm_up: Count | None = None
    ring_m_blocks: CountOrZero | None = None
    readiness: Readiness = "k_block"


class Interleaved(Checked):
    """L2 as soon as L1 leads it by `lead_rows`; `interleaved_ready` also waits for its inputs before it is taken."""

    name: Literal["interleaved", "interleaved_ready"]
    lead_rows: CountOrZero | None = None
    ring_m_blocks: CountOrZero = 0


def _has_no_reserved_sms(value: Any) -> Any:
    """Refuses the policy of that name, which other workloads have, with what can be asked in its place."""
    if isinstance(value, Mapping) and value.get("name") == "reserved_sms":
        raise refusal(
            "is no policy of MegaMoE kernels, which reserve no SM: every SM pulls rows, and its epilogues return them",
            key=("name",),
            allowed="another policy, and machine.compute.sms for a call that leaves SMs to another kernel",
        )
    return value


Policy = Annotated[
    Unfused | ExpertWave | Split | Lag | Alternating | Interleaved,
    Field(discriminator="name"),
    BeforeValidator(_has_no_reserved_sms),
    choice_by("name"),
]


def plain_policy(policy: Checked) -> PlainPolicy:
    """The policy as the schedule knows it."""
    from ..sim.schedules import megamoe

    fields = policy.model_dump(exclude={"name"})
    name: str = policy.name  # type: ignore[attr-defined]
    if name == "interleaved_ready":
        return megamoe.Interleaved(ready=True, **fields)
    return megamoe.POLICIES[name](**fields)


# Routings -------------------------------------------------------------------------------------------------------------


class Balanced(Checked):
    """Every expert is equally likely."""

    kind: Literal["balanced"]
    masked: Fraction = 0.0


class Even(Checked):
    """Every expert gets as many rows."""

    kind: Literal["even"]
    masked: Fraction = 0.0


class Zipf(Checked):
    """Popularity falls as a power of its place; give the exponent, or what the busiest expert is to have over the mean.

    Busy experts lie anywhere, so that ranks are much more even than experts, as they are in servers (of Kimi-K3 on 16
    ranks, placed in order, the busiest had 1.07 times the mean: https://github.com/vllm-project/vllm/pull/50647). With
    `shuffle: false` the first expert is the busiest, so the first rank is too.
    """

    kind: Literal["zipf"]
    exponent: Positive | None = None
    max_over_mean: Positive | None = None
    shuffle: Annotated[bool, Field(strict=True)] = True
    masked: Fraction = 0.0


class HotExpert(Checked):
    """The first `n_hot` experts take `max_over_mean` times the mean load each; they are never shuffled.

    As many as a rank holds make the first rank the busiest, by as much.
    """

    kind: Literal["hot_expert"]
    max_over_mean: Positive
    n_hot: Count = 1
    masked: Fraction = 0.0


class Histogram(Checked):
    """Popularity of all experts, in any unit: each token draws its experts one after the other, each at most once.

    So a busy expert gets a smaller share of the rows than of the popularity; of every token, at most one.
    """

    kind: Literal["histogram"]
    load: list[float]
    masked: Fraction = 0.0


class Recorded(Checked):
    """The top-k experts of every token in a .npy, .parquet or .csv file."""

    kind: Literal["recorded"]
    file: Text
    masked: Fraction = 0.0


Routing = Annotated[
    Balanced | Even | Zipf | HotExpert | Histogram | Recorded, Field(discriminator="kind"), choice_by("kind")
]


def _check_recorded(rows: Routed, shape: MegaMoe, file: str) -> None:
    """Raises `InputError`, in the words of the scenario, where a file was recorded for other sizes."""
    has = {"tokens": (rows.n_tokens, "tokens a rank"), "topk": (rows.k, "experts a token")}
    for field, (count, what) in has.items():
        if (given := getattr(shape, field)) != count:
            reason = f"differs from {Path(file).name}, which has {count} {what}"
            raise InputError(reason, field=field, value=given, allowed=str(count))


class MegaMoeWorkload(Workload):
    """One MegaMoE call of `gpus` ranks with `tokens` tokens each.

    A model brings its routed experts only: whether the call computes shared ones too is said by `shared_experts`.
    `numbers` are weight and activation types: if left out, those in which the model is released, or w4a8 where that is not
    known. `combine` is the type in which rows return, `capacity` the tokens that buffers are made for. `ranks: symmetric`
    simulates one rank against its mirror. `starts` delays the launch of ranks. `l1_main_loop` and `l2_main_loop` are
    measured times of full tiles, in place of the machine's tile costs.
    """

    kind: Literal["megamoe"]
    gpus: Count = 8
    model: Text | None = None
    hidden: Count | None = None
    intermediate: Count | None = None
    experts: Count | None = None
    topk: Count | None = None
    tokens: Count
    capacity: Count | None = None
    shared_experts: CountOrZero = 0
    numbers: Literal["w4a8", "w8a8", "bf16", "fp4"] = "w4a8"
    combine: Literal["bf16", "fp8", "fp4"] = "bf16"
    policy: Policy = Field(default=ExpertWave(name="expert_wave"))
    release: Literal["pr304", "pr316", "june", "sept"] = "june"
    routing: Routing = Field(default=Balanced(kind="balanced"))
    placement: Placement = Field(default=Contiguous(kind="contiguous"))
    ranks: Literal["all", "symmetric"] = "all"
    starts: list[Time] = Field(default=[])
    l1_main_loop: Time | None = None
    l2_main_loop: Time | None = None

    @model_validator(mode="before")
    @classmethod
    def _filled_from_the_model(cls, data: Any) -> Any:
        data = needs_model_or_sizes(data, SIZES, cls.model_fields)
        if isinstance(data, Mapping) and "numbers" not in data:
            model = expert_models().get(str(data.get("model")))
            return {**data, "numbers": model.numbers} if model and model.numbers else data
        return data

    @property
    def title(self) -> str:
        return f"megamoe, {self.numbers}"

    def shape(self) -> MegaMoe:
        """The plain shape; sizes that are given replace the model's. Raises `InputError` for an unknown model."""
        from ..sim.schedules.megamoe import MegaMoe

        sizes = {size: getattr(self, size) for size in SIZES}
        if self.model is not None:
            known = expert_model(self.model)
            sizes = {size: getattr(known, size) if given is None else given for size, given in sizes.items()}
        return MegaMoe(
            **sizes,
            tokens=self.tokens,
            ranks=self.gpus,
            numbers=self.numbers,
            combine=self.combine,
            shared_experts=self.shared_experts,
            capacity=self.capacity,
            l1_main_loop_ps=self.l1_main_loop,
            l2_main_loop_ps=self.l2_main_loop,
        )

    def compute_numbers(self) -> tuple[str, ...]:
        from ..sim.schedules.megamoe.shape import FORMATS

        math = FORMATS[self.numbers].math
        return ("kernels", f"{math}_tflops", f"mma_efficiency_{math}", *COMPUTE_NUMBERS)

    @property
    def is_mirrored(self) -> bool:
        return self.ranks == "symmetric"

    def build(self, machine: Machine, seed: int) -> Program:
        from ..sim.schedules import megamoe

        shape, policy = self.shape(), plain_policy(self.policy)
        rows, placement = self._placed_rows(machine, shape, policy, seed)
        return megamoe.build(
            machine,
            shape,
            policy,
            rows,
            placement,
            ranks=self.ranks,
            release=self.release,
            starts_ps=self.starts,
        )

    def fabric(self, machine: Machine, granule: int | None) -> Fabric:
        from ..sim.mirror import mirrored

        whole = super().fabric(machine, granule)
        return mirrored(whole) if self.is_mirrored else whole

    def policies(self, machine: Machine, seed: int) -> Mapping[str, PolicyChoice]:
        from ..sim.pools import pools
        from ..sim.schedules.megamoe import Interleaved as PlainInterleaved

        shape = self.shape()
        rows, placement = self._placed_rows(machine, shape, PlainInterleaved(), seed)
        return choices(machine, shape, self.release, pools(rows, placement).rows_per_replica)

    def without_imbalance(self) -> Self | None:
        if self.routing.kind in ("balanced", "even"):
            return None
        return self._with(routing={"kind": "even", "masked": self.routing.masked})

    def without_late_ranks(self) -> Self | None:
        return self._with(starts=[]) if any(self.starts) else None

    def _check_scores(self, shape: MegaMoe) -> None:
        """A made-up router scores every expert for every token."""
        scores = shape.tokens * shape.ranks * shape.experts
        if scores > MOST_SCORES and self.routing.kind != "recorded":
            raise InputError(
                "makes too many scores to draw",
                field="tokens x gpus x experts",
                value=f"{shape.tokens} x {shape.ranks} x {shape.experts}",
                allowed=f"{MOST_SCORES:,} scores, not {scores:,}",
            )

    def _placed_rows(self, machine: Machine, shape: MegaMoe, policy: PlainPolicy, seed: int) -> tuple[Routed, Placed]:
        """The rows of all tokens, and the experts where they are placed.

        Routing takes long where it is large, so what it needs is asked before. Raises `InputError`.
        """
        import numpy as np

        from ..sim.schedules import megamoe

        check_placement(self.placement, shape.experts, shape.ranks)
        megamoe.check_size(machine, shape, policy, self.ranks, self.release)
        self._check_scores(shape)
        rng = np.random.default_rng(seed)
        if isinstance(self.placement, Contiguous) or self.routing.kind == "recorded":
            rows = self._routed(shape, rng)
            return rows, placed(self.placement, rows)
        batches = 1 + earlier_batches(shape)
        drawn = self._routed(shape, rng, batches)
        rows, earlier = drawn.of_ranks(slice(shape.ranks)), drawn.of_ranks(slice(shape.ranks, None))
        return rows, placed(self.placement, rows, earlier)

    def _routed(self, shape: MegaMoe, rng: np.random.Generator, batches: int = 1) -> Routed:
        """The rows of as many `batches` as are drawn of one popularity, one after the other."""
        from ..sim import routing as make
        from ..sim.routing_file import recorded

        ask, sizes = self.routing, (batches * shape.ranks, shape.tokens, shape.topk)
        masks = rng.spawn(1)[0]  # of its own, so that the first batch is the same however many follow
        match ask:
            case Even():
                rows = make.even(*sizes, shape.experts, rng)
            case Zipf():
                rows = make.zipf(*sizes, shape.experts, rng, exponent=ask.exponent, max_over_mean=ask.max_over_mean,
                                 shuffle=ask.shuffle)  # fmt: skip
            case HotExpert():
                rows = make.hot_expert(*sizes, shape.experts, rng, max_over_mean=ask.max_over_mean, n_hot=ask.n_hot)
            case Histogram():
                rows = make.from_histogram(ask.load, *sizes, rng)
            case Recorded():
                rows = recorded(ask.file, shape.experts, n_ranks=shape.ranks)
                _check_recorded(rows, shape, ask.file)
            case _:
                rows = make.balanced(*sizes, shape.experts, rng)
        return rows.masked(ask.masked, masks) if ask.masked else rows
