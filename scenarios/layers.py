"""Blocks of known models, ready for `simulate_block` of sim/layers.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sim.errors import InputError
from .attention_models import AttentionModel, attention_model
from .models import model as expert_model

if TYPE_CHECKING:
    from ..sim.layers import Kernel

DIFFUSION = ("wan-14b", "wan-14b-480p", "wan-5b", "wan-1.3b", "hunyuan-video", "cogvideox-5b", "flux-1", "flux-2")
DENSE = ("llama-3-8b", "llama-3-70b", "llama-3-405b")
EXPERTS = ("deepseek-v3",)

LATENT_PROJECTIONS = (("q down", 1536, 7168), ("q up", 24576, 1536), ("kv down", 576, 7168), ("kv up", 32768, 512))
"""Of DeepSeek-V3: (name, n, k); ranks of 1536 and 512, 128 heads of 128 + 64 and 128 + 128 (arXiv 2412.19437)."""


def block(
    name: str, policy: str | None = None, *, gpus: int = 8, tokens: int | None = None, seed: int = 0
) -> tuple[Kernel, ...]:
    """The kernels of one block of a model on `gpus` ranks.

    `policy` is that of the attention of a diffusion model (default piggyback), of the GEMMs of a dense one (fused), or of
    the MegaMoE call (expert_wave). `tokens` is the whole sequence, for `deepseek-v3` that of one rank. Raises `InputError`
    for a model without a block, or an unknown policy.
    """
    known = attention_model(name, field="model")
    length = known.tokens if tokens is None else tokens
    if name in DIFFUSION:
        return _diffusion(known, policy or "piggyback", gpus, length)
    if name in DENSE:
        return _dense(known, policy or "fused", gpus, length)
    if name in EXPERTS:
        return _experts(known, policy or "expert_wave", gpus, length, seed)
    raise InputError("has no block", field="model", value=name, allowed=(*DIFFUSION, *DENSE, *EXPERTS))


def _diffusion(known: AttentionModel, policy: str, gpus: int, tokens: int) -> tuple[Kernel, ...]:
    from ..sim.blocks import diffusion_block
    from ..sim.schedules.attention_a2a import Attention, Policy

    shape = Attention(tokens, known.heads, known.head_dim, gpus)
    return diffusion_block(shape, *_widths(known), Policy(policy))  # type: ignore[arg-type]


def _dense(known: AttentionModel, policy: str, gpus: int, tokens: int) -> tuple[Kernel, ...]:
    from ..sim.blocks import dense_block
    from ..sim.schedules.attention_a2a import Attention
    from ..sim.schedules.tensor_parallel import Policy

    shape = Attention(tokens, known.heads, known.head_dim, gpus, known.kv_heads, causal=known.causal)
    return dense_block(shape, *_widths(known), Policy(policy))  # type: ignore[arg-type]


def _experts(known: AttentionModel, policy: str, gpus: int, tokens: int, seed: int) -> tuple[Kernel, ...]:
    import numpy as np

    from ..sim import routing
    from ..sim.blocks import expert_block
    from ..sim.schedules.attention_a2a import Attention
    from ..sim.schedules.megamoe import POLICIES, MegaMoe

    if policy not in POLICIES:
        raise InputError("is unknown", field="policy", value=policy, allowed=POLICIES)
    moe = expert_model(known.name)
    attention = Attention(tokens, known.heads, known.head_dim, value_dim=known.value_dim, causal=known.causal)
    experts = MegaMoe(moe.hidden, moe.intermediate, moe.experts, moe.topk, tokens, gpus)
    rows = routing.balanced(gpus, tokens, moe.topk, moe.experts, np.random.default_rng(seed))
    return expert_block(attention, moe.hidden, LATENT_PROJECTIONS, experts, POLICIES[policy](), rows)


def _widths(known: AttentionModel) -> tuple[int, int]:
    assert known.hidden is not None and known.intermediate is not None, known.name
    return known.hidden, known.intermediate
