"""Tensor-parallel GEMMs fused with their collective: GEMM + ReduceScatter, AllGather + GEMM, GEMM + AllReduce.

shape.py       `TensorParallel` (what is computed) and `Policy` (how data travels), with byte volumes
wiring.py      one switch, or links that lead to some peers only; nodes
gemm.py        tiles, their cost and order, and the lanes of an SM
reduce.py      partial results to their owners, and sums to everybody
gather.py      rows of the input to every rank
collective.py  the collective of its own of the `serial` policy
build.py       `build(machine, shape, policy) -> Program`
"""

from .build import build
from .collective import all_reduce_port_kbs
from .gemm import Gemm, TileTime, balance_k, tiles
from .shape import Algorithm, Operation, Policy, PolicyName, TensorParallel
from .wiring import node_size, on_one_switch

__all__ = [
    "Algorithm",
    "Gemm",
    "Operation",
    "Policy",
    "PolicyName",
    "TensorParallel",
    "TileTime",
    "all_reduce_port_kbs",
    "balance_k",
    "build",
    "node_size",
    "on_one_switch",
    "tiles",
]
