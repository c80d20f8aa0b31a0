"""Blocks of known models, ready for `simulate_block` of sim/layers.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..sim.checked import closest
from ..sim.errors import InputError
from .attention_models import AttentionModel, attention_model, latent_projections
from .expert_models import expert_model

if TYPE_CHECKING:
    from ..sim.layers import Kernel
    from ..sim.routing import Routing
    from ..sim.schedules.megamoe import MegaMoe

DIFFUSION = ("wan-14b", "wan-14b-480p", "wan-5b", "wan-1.3b", "hunyuan-video", "cogvideox-5b", "flux-1", "flux-2")
DENSE = ("llama-3-8b", "llama-3-70b", "llama-3-405b")
EXPERTS = ("deepseek-v3",)
DIFFUSION_EXPERTS = ("dit-moe",)
BLOCKS = (*DIFFUSION, *DENSE, *EXPERTS, *DIFFUSION_EXPERTS)

INTERLEAVED_READY = "interleaved_ready"
"""`interleaved` that takes an L2 task only once its inputs are there; the schedule has it as a setting of that."""

COMPUTE_NUMBERS = (
    "kernels", "kernel_launch", "hbm_rate", "hbm_efficiency",
    "bf16_tflops", "mma_efficiency_bf16", "sm_feed", "sm_port", "l2", "l2_share", "tile_fixed", "epilogue_requantise",
    "epilogue_scatter", "epilogue_floor",
    "attention_mma_efficiency", "attention_softmax", "attention_overlap", "l2_rate", "cta_start",
)  # fmt: skip
"""What norms, GEMMs and attention need of a machine: those of every block."""

RESERVED_SMS = {"attention": 8, "gemm": 16}
"""SMs that `reserved_sms` takes where no number is said."""


def block(
    name: str, policy: str | None = None, *, gpus: int = 8, tokens: int | None = None, seed: int = 0
) -> tuple[Kernel, ...]:
    """The kernels of one block of a model on `gpus` ranks.

    `policy` is that of the attention of a diffusion model (default piggyback), of the GEMMs of a dense one (fused), or of
    the MegaMoE call (expert_wave). In `dit-moe` attention goes along: serial if the call is unfused, else piggyback.
    `tokens` are those that `tokens_of` names. Raises `InputError` for a model without a block, or an unknown policy.
    """
    known = _model(name)
    length = known.tokens if tokens is None else tokens
    if name in DIFFUSION:
        return _diffusion(known, policy or "piggyback", gpus, length)
    if name in DENSE:
        return _dense(known, policy or "fused", gpus, length)
    if name in EXPERTS:
        return _experts(known, policy or "expert_wave", gpus, length, seed)
    return _diffusion_experts(known, policy or "expert_wave", gpus, length, seed)


def tokens_of(name: str) -> Literal["sequence", "rank"]:
    """Whose tokens a block is asked for: those of the whole sequence, or of each rank where attention runs by data."""
    return "rank" if name in EXPERTS else "sequence"


def expert_numbers(name: str) -> str | None:
    """The types of weights and activations of a block's experts, as its model is released; None for one without."""
    return expert_model(name).numbers if name in (*EXPERTS, *DIFFUSION_EXPERTS) else None


def compute_numbers(name: str) -> tuple[str, ...]:
    """Names of the machine's compute part without which a model's block cannot run under any policy."""
    if name not in (*EXPERTS, *DIFFUSION_EXPERTS):
        return COMPUTE_NUMBERS
    from ..sim.schedules.megamoe.shape import FORMATS
    from . import megamoe

    math = FORMATS[expert_model(name).numbers].math  # type: ignore[index]
    of_experts = (f"{math}_tflops", f"mma_efficiency_{math}", *megamoe.COMPUTE_NUMBERS)
    return tuple(dict.fromkeys([*COMPUTE_NUMBERS, *of_experts]))


def block_policies(name: str) -> tuple[str, ...]:
    """What `policy` of a model's block may be, the one with separate collectives first. Raises `InputError`."""
    _model(name)
    if name in DIFFUSION:
        return ("serial", "comm_warp", "reserved_sms", "piggyback")
    if name in DENSE:
        return ("serial", "fused", "reserved_sms", "reshaped")
    from ..sim.schedules.megamoe import POLICIES

    return (*POLICIES, INTERLEAVED_READY)


def _model(name: str) -> AttentionModel:
    if name not in BLOCKS:
        raise InputError(f"is no model with a block{closest(name, BLOCKS)}", field="model", value=name, allowed=BLOCKS)
    return attention_model(name)


def _diffusion(known: AttentionModel, policy: str, gpus: int, tokens: int) -> tuple[Kernel, ...]:
    from ..sim.blocks import diffusion_block
    from ..sim.schedules.attention_a2a import Attention

    shape = Attention(tokens, known.heads, known.head_dim, gpus)
    return diffusion_block(shape, *_widths(known), _attention_policy(policy))


def _dense(known: AttentionModel, policy: str, gpus: int, tokens: int) -> tuple[Kernel, ...]:
    from ..sim.blocks import dense_block
    from ..sim.schedules.attention_a2a import Attention
    from ..sim.schedules.tensor_parallel import Policy

    shape = Attention(tokens, known.heads, known.head_dim, gpus, known.kv_heads, causal=known.causal)
    sms = RESERVED_SMS["gemm"] if policy == "reserved_sms" else 0
    return dense_block(shape, *_widths(known), Policy(policy, reserved_sms=sms))  # type: ignore[arg-type]


def _experts(known: AttentionModel, policy: str, gpus: int, tokens: int, seed: int) -> tuple[Kernel, ...]:
    from ..sim.blocks import expert_block
    from ..sim.schedules.attention_a2a import Attention

    how = _moe_policy(policy)
    attention = Attention(tokens, known.heads, known.head_dim, value_dim=known.value_dim, causal=known.causal)
    experts, rows = _moe_call(known.name, tokens, gpus, seed)
    return expert_block(attention, experts.hidden, latent_projections(known.name), experts, how, rows)


def _diffusion_experts(known: AttentionModel, policy: str, gpus: int, tokens: int, seed: int) -> tuple[Kernel, ...]:
    from ..sim.blocks import diffusion_expert_block
    from ..sim.schedules.attention_a2a import Attention

    how = _moe_policy(policy)
    attention = Attention(tokens, known.heads, known.head_dim, gpus)
    experts, rows = _moe_call(known.name, attention.local_tokens, gpus, seed)
    along = _attention_policy("serial" if policy == "unfused" else "piggyback")
    return diffusion_expert_block(attention, experts.hidden, along, experts, how, rows)


def _attention_policy(name: str) -> Any:
    """Fused policies begin each rank with other rows, so that ranks do not aim at the same receiver."""
    from ..sim.schedules.attention_a2a import Policy

    sms = RESERVED_SMS["attention"] if name == "reserved_sms" else 0
    return Policy(name, reserved_sms=sms, rotation=name not in ("serial", "compute_only"))  # type: ignore[arg-type]


def _moe_policy(name: str) -> Any:
    from ..sim.schedules.megamoe import POLICIES, Interleaved

    if name == INTERLEAVED_READY:
        return Interleaved(ready=True)
    if name not in POLICIES:
        raise InputError("is unknown", field="policy", value=name, allowed=(*POLICIES, INTERLEAVED_READY))
    return POLICIES[name]()


def _moe_call(name: str, tokens: int, gpus: int, seed: int) -> tuple[MegaMoe, Routing]:
    """A MegaMoE call of `tokens` a rank with the model's numbers and shared experts, and balanced routing for it."""
    import numpy as np

    from ..sim import routing
    from ..sim.schedules.megamoe import MegaMoe

    moe = expert_model(name)
    experts = MegaMoe(
        moe.hidden,
        moe.intermediate,
        moe.experts,
        moe.topk,
        tokens,
        gpus,
        numbers=moe.numbers,  # type: ignore[arg-type]
        shared_experts=moe.shared_experts or 0,
    )
    return experts, routing.balanced(gpus, tokens, moe.topk, moe.experts, np.random.default_rng(seed))


def _widths(known: AttentionModel) -> tuple[int, int]:
    assert known.hidden is not None and known.intermediate is not None, known.name
    return known.hidden, known.intermediate
