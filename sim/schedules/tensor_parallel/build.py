"""Build the Program of a tensor-parallel GEMM for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ...program_builder import ProgramBuilder
from ..launch import starts_by_rank
from ..policy import check_fits
from ..size_limit import check_ops
from .gather import Gather
from .gemm import Gemm
from .reduce import Reduce
from .shape import Policy, TensorParallel

if TYPE_CHECKING:
    from ...machine import Machine
    from ...program import Program

OPS_OF_TILE = 10
"""Of all lanes, at least."""


def build(
    machine: Machine, shape: TensorParallel, policy: Policy, starts_ps: Sequence[int] = (), least_factor: float = 1.0
) -> Program:
    """The Program; with one rank every policy is the GEMM alone. `starts_ps` delays the launch of ranks, in rank order.
    `least_factor` is what a degraded port has left of its rate: the switch adds up as slowly as the slowest sends.

    Raises `InputError` if the machine lacks a number, has too few GPUs, or the policy reserves all its SMs.
    """
    check_fits(machine, shape.ranks, policy.reserved_sms)
    n_tiles = shape.n_tiles(policy.in_place) * shape.ranks
    check_ops(OPS_OF_TILE * n_tiles, "m x n", f"{shape.m} x {shape.n}")
    if policy.name == "reshaped":
        check_ops(policy.pieces * n_tiles, "pieces", policy.pieces)
    how = policy.name if shape.ranks > 1 else "compute_only"
    builder = ProgramBuilder(shape.ranks)
    sms = machine.sms - (policy.reserved_sms if how == "reserved_sms" else 0)
    sms = min(sms, shape.grid or sms)
    gemm = Gemm(machine, shape, policy, builder, sms, starts_by_rank(starts_ps, shape.ranks), least_factor)
    data = Gather(gemm, policy, how) if shape.operation == "ag_gemm" else Reduce(gemm, policy, how)
    for rank in range(shape.ranks):
        data.add_rank(rank)
    return builder.build(
        schedule="tensor_parallel",
        shape=asdict(shape),
        policy=asdict(policy),
        kernel={"block_m": shape.block_m, "block_n": shape.block_n},
        math="bf16",
        flops=[shape.flops] * shape.ranks,
    )
