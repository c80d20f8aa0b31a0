"""Blocks of transformers as kernels for sim/layers.py: diffusion transformers, dense language models, mixtures of experts.

Left out: cross-attention to text and the modulation of diffusion transformers, positions, sampling; each norm is a kernel
that reads and writes the rows once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from .layers import AttentionKernel, Elementwise, Exchange, Kernel, MoeKernel
from .predict import GemmCall
from .routing import Routing
from .schedules import attention_a2a, megamoe, tensor_parallel
from .schedules.attention_a2a import Attention
from .schedules.megamoe import MegaMoe
from .schedules.tensor_parallel import TensorParallel

ELEMENT_BYTES = 2


def diffusion_block(
    attention: Attention, hidden: int, intermediate: int, policy: attention_a2a.Policy
) -> tuple[Kernel, ...]:
    """Ulysses: tokens are shared out, but for attention, where heads are. Weights are on every rank.

    norm, QKV projection, All-to-All of Q, K and V, attention with the All-to-All of its output by `policy`, output
    projection, norm, two layers of an MLP.
    """
    rows = attention.batch * attention.local_tokens
    kv = attention.n_kv_heads * (attention.head_dim + attention.output_dim)
    qkv = Exchange(attention.qkv_bytes_sent, attention.ranks)
    exchange = [Kernel("a2a of q, k, v", qkv)] if attention.ranks > 1 else []
    return (
        _norm("norm 1", rows, hidden),
        _gemm("qkv projection", rows, attention.heads * attention.head_dim + kv, hidden),
        *exchange,
        Kernel("attention", AttentionKernel(attention, policy)),
        _gemm("output projection", rows, hidden, attention.heads * attention.output_dim),
        _norm("norm 2", rows, hidden),
        _gemm("mlp up", rows, intermediate, hidden),
        _gemm("mlp down", rows, hidden, intermediate),
    )


def diffusion_expert_block(
    attention: Attention,
    hidden: int,
    policy: attention_a2a.Policy,
    experts: MegaMoe,
    how: megamoe.Policy,
    routing: Routing,
) -> tuple[Kernel, ...]:
    """As `diffusion_block`, with experts in place of the MLP: a rank's rows are the tokens of its MegaMoE call."""
    kernels = diffusion_block(attention, hidden, experts.intermediate, policy)
    return (*kernels[:-2], Kernel("experts", MoeKernel(experts, how, routing)))


def dense_block(
    attention: Attention,
    hidden: int,
    intermediate: int,
    policy: tensor_parallel.Policy,
    reduce: Literal["gemm_rs", "gemm_ar"] = "gemm_rs",
) -> tuple[Kernel, ...]:
    """Tensor parallel over `attention.ranks`: heads and the width of a gated MLP are shared out. K and V heads are computed
    by several ranks where there are fewer of them than ranks.

    With `gemm_rs` rows are gathered before and scattered after each pair of GEMMs, and norms work on a rank's own rows;
    with `gemm_ar` every rank holds all rows.
    """
    ranks, rows = attention.ranks, attention.batch * attention.tokens
    local = replace(
        attention,
        heads=attention.local_heads,
        kv_heads=max(1, attention.n_kv_heads // ranks),
        ranks=1,
    )
    kv = max(attention.n_kv_heads, ranks) * (attention.head_dim + attention.output_dim)
    qkv = attention.heads * attention.head_dim + kv
    scatter = reduce == "gemm_rs"
    norm_rows = rows // ranks if scatter else rows

    def into(name: str, n: int) -> Kernel:
        if not scatter:
            return _gemm(name, rows, n // ranks, hidden)
        return Kernel(name, GemmCall(TensorParallel("ag_gemm", rows, n, hidden, ranks), policy))

    def out_of(name: str, k: int) -> Kernel:
        return Kernel(name, GemmCall(TensorParallel(reduce, rows, hidden, k, ranks), policy))

    return (
        _norm("norm 1", norm_rows, hidden),
        into("qkv projection", qkv),
        Kernel("attention", AttentionKernel(local)),
        out_of("output projection", attention.heads * attention.output_dim),
        _norm("norm 2", norm_rows, hidden),
        into("mlp gate and up", 2 * intermediate),
        out_of("mlp down", intermediate),
    )


def expert_block(
    attention: Attention,
    hidden: int,
    projections: Sequence[tuple[str, int, int]],
    experts: MegaMoe,
    policy: megamoe.Policy,
    routing: Routing,
) -> tuple[Kernel, ...]:
    """Attention by data, experts shared out: every rank has its own sequences, and all meet in one MegaMoE call.

    `attention` is of one rank; `projections` are (name, n, k) of the GEMMs before it; its tokens are the MoE's.
    """
    rows = attention.batch * attention.tokens
    return (
        _norm("norm 1", rows, hidden),
        *(_gemm(name, rows, n, k) for name, n, k in projections),
        Kernel("attention", AttentionKernel(attention)),
        _gemm("output projection", rows, hidden, attention.heads * attention.output_dim),
        _norm("norm 2", rows, hidden),
        Kernel("experts", MoeKernel(experts, policy, routing)),
    )


def _gemm(name: str, m: int, n: int, k: int) -> Kernel:
    return Kernel(name, GemmCall(TensorParallel("gemm_rs", m, n, k, 1)))


def _norm(name: str, rows: int, hidden: int) -> Kernel:
    return Kernel(name, Elementwise(2 * rows * hidden * ELEMENT_BYTES))
