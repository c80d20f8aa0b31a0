"""What is computed (`TensorParallel`), how partial results travel (`Policy`), and how many bytes that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import InputError
from ..policy import check_policy

Operation = Literal["gemm_rs", "ag_gemm", "gemm_ar"]
Algorithm = Literal["two_shot", "multicast", "in_switch", "one_shot"]
PolicyName = Literal["compute_only", "serial", "fused", "reserved_sms", "reshaped"]

ALGORITHMS: dict[Operation, tuple[Algorithm, ...]] = {
    "gemm_rs": ("two_shot",),
    "ag_gemm": ("two_shot", "multicast"),
    "gemm_ar": ("two_shot", "multicast", "in_switch", "one_shot"),
}

ROTATIONS: dict[PolicyName, tuple[bool, ...]] = {
    "fused": (False, True),
    "reserved_sms": (True, False),
    "reshaped": (True,),
}
"""Whether the rows of a ReduceScatter may be shifted by rank, the default first; never under other policies.

reserved_sms: Triton-distributed begins with the rows of rank + 1, and so do the kernels of ThunderKittens
(https://github.com/ByteDance-Seed/Triton-distributed, python/triton_dist/kernels/nvidia;
https://github.com/HazyResearch/ThunderKittens, kernels/parallel).
"""

ELEMENT_BYTES = 2

MOST_SUMS = 2**16
"""FP32 sums of a tile that fit into an SM: its registers have 256 KiB, and so has TMEM."""
MOST_K = 2**31
"""Far beyond any model, and low enough for times and sizes of 64 bits."""


@dataclass(frozen=True)
class TensorParallel:
    """A GEMM of m rows, n columns and a reduction over k, all counted over `ranks` GPUs. 16-bit elements.

    gemm_rs   each rank has k / ranks and a partial result of all rows; rows are added up at their owner (ReduceScatter)
    ag_gemm   each rank has m / ranks rows of the input, and n / ranks columns of the weights; rows are gathered (AllGather),
              by stores for each peer, or with `multicast` by one that the switch copies to all
    gemm_ar   as gemm_rs, but every rank gets the whole sum (AllReduce), by `algorithm`:
              two_shot   added up at the tile's owner, which stores it to every other rank
              multicast  the same, but the owner's store is replicated by the switch
              in_switch  the switch adds up too (multimem.ld_reduce): each rank takes a P-th of the sum of every tile from
                         it and multicasts that. Copies on their way into the switch take no port here: a lane moves its
                         share at what the machine's `all_reduce_rate` leaves to each of the lanes
              one_shot   every rank multicasts its partial result, and each adds up all of them (Lamport)

    Tiles are block_m x block_n in steps of block_k, on at most `grid` SMs (all if left out). Raises `InputError` for an
    algorithm that the operation does not have, unless the ranks divide what is shared out, and the sums of a tile fit into
    an SM.
    """

    operation: Operation
    m: int
    n: int
    k: int
    ranks: int = 1
    algorithm: Algorithm = "two_shot"
    block_m: int = 128
    block_n: int = 256
    block_k: int = 64
    grid: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("operation", get_args(Operation)), ("algorithm", get_args(Algorithm))):
            if getattr(self, name) not in known:
                raise InputError("is unknown", field=name, value=getattr(self, name), allowed=known)
        for name in ("m", "n", "k", "ranks", "block_m", "block_n", "block_k"):
            if getattr(self, name) < 1:
                raise InputError("must be at least 1", field=name, value=getattr(self, name))
        if self.block_m * self.block_n > MOST_SUMS:
            value, allowed = f"{self.block_m} x {self.block_n}", f"at most {MOST_SUMS} sums, as many as an SM holds"
            raise InputError("is too large a tile", field="block_m x block_n", value=value, allowed=allowed)
        if self.algorithm not in (known := ALGORITHMS[self.operation]):
            reason = f"is not an algorithm of {self.operation}"
            raise InputError(reason, field="algorithm", value=self.algorithm, allowed=known)
        if self.k > MOST_K:
            raise InputError("is too large", field="k", value=self.k, allowed=f"1 to {MOST_K}")
        if self.grid is not None and self.grid < 1:
            raise InputError("must be at least 1", field="grid", value=self.grid)
        shared = {"gemm_rs": ("m", "k"), "ag_gemm": ("m", "n"), "gemm_ar": ("k",)}[self.operation]
        for name in shared:
            if getattr(self, name) % self.ranks:
                allowed = f"a multiple of {self.ranks} ranks"
                raise InputError("cannot be shared out evenly", field=name, value=getattr(self, name), allowed=allowed)

    @property
    def local_n(self) -> int:
        """Columns that one rank computes."""
        return self.n // self.ranks if self.operation == "ag_gemm" else self.n

    @property
    def local_k(self) -> int:
        """Length of the reduction on one rank."""
        return self.k if self.operation == "ag_gemm" else self.k // self.ranks

    @property
    def local_m(self) -> int:
        """Rows that one rank owns."""
        return self.m // self.ranks

    def part_rows(self, in_place: bool = False) -> int:
        """Rows that are cut into blocks together. Where rows are gathered, no block crosses the border between those of two
        ranks, as it would wait for both; with `in_place` all rows are there before the GEMM begins.
        """
        return self.local_m if self.operation == "ag_gemm" and not in_place else self.m

    def n_tiles(self, in_place: bool = False) -> int:
        """Tiles that one rank computes."""
        part = self.part_rows(in_place)
        return self.m // part * -(-part // self.block_m) * -(-self.local_n // self.block_n)

    @property
    def flops(self) -> int:
        """FLOPs of one rank."""
        return 2 * self.m * self.local_n * self.local_k

    @property
    def bytes_sent(self) -> int:
        """Bytes that leave one rank of a fused kernel. The collective of `serial` is another: unless the switch adds up, it
        sends to each rank its own, and an AllReduce in two rounds, as two_shot does. Between nodes of g GPUs AllGather and
        ReduceScatter send more within a node, and a g-th to others.

        gemm_rs (P-1)/P m n 2; ag_gemm (P-1)/P m k 2, or m k 2 / P with multicast, which leaves once; gemm_ar on average over
        the ranks, as whole tiles have one owner: two_shot 2 (P-1)/P m n 2, multicast and one_shot m n 2, in_switch the
        m n 2 / P of its sums.
        """
        p, output = self.ranks, self.m * self.n * ELEMENT_BYTES
        if p == 1:
            return 0
        if self.operation == "ag_gemm":
            copies = 1 if self.algorithm == "multicast" else p - 1
            return copies * self.local_m * self.k * ELEMENT_BYTES
        if self.operation == "gemm_rs":
            return (p - 1) * self.local_m * self.n * ELEMENT_BYTES
        if self.algorithm == "in_switch":
            return output // p
        return 2 * (p - 1) * output // p if self.algorithm == "two_shot" else output

    @property
    def bytes_received(self) -> int:
        """Bytes that reach one rank of a fused kernel, on average.

        As sent without multicast; (P-1) m n 2 for one_shot, 2 (P-1)/P m n 2 for multicast and (P-1)/P m n 2 for in_switch.
        """
        p, output = self.ranks, self.m * self.n * ELEMENT_BYTES
        if self.operation == "ag_gemm":
            return (p - 1) * self.local_m * self.k * ELEMENT_BYTES
        if self.operation == "gemm_rs" or p == 1:
            return self.bytes_sent
        copies = {"one_shot": (p - 1) * p, "in_switch": p - 1}.get(self.algorithm, 2 * (p - 1))
        return copies * output // p


@dataclass(frozen=True)
class Policy:
    """How data travels.

    compute_only   not at all: the GEMM alone, with its inputs in place
    serial         the GEMM and a collective of its own, one after the other
    fused          the store of a tile goes to its owner; a copy engine gathers inputs beside the GEMM, own rows first
    reserved_sms   `reserved_sms` SMs do so, and compute nothing
    reshaped       fused with `rotation`, and each store in `pieces` spread over the next main loop; the output has a buffer
                   of its own

    `rotation` shifts the rows of a ReduceScatter by rank, so that ranks do not aim at the same owner (where GPUs do not meet
    on one switch, deals them over owners); without it all ranks go through them in the same order. Left out, it is on for
    reserved_sms, whose public kernels shift rows, and off for fused. reshaped has it always, the others never. It says
    nothing of other operations: AllGather + GEMM begins with the rank's own rows, and tiles of an AllReduce have owners in
    turn.

    `own_staging` gives the output a buffer of its own in any policy, where it lies over inputs otherwise (SM90).

    `launch_ps` and `rate_kbs` of `serial` are the machine's `collective_launch` and `ring_rate` if left out
    (`all_reduce_rate` for in_switch). A collective passes the ports of the GPUs, and is no faster than they drain a scatter.
    """

    name: PolicyName = "fused"
    reserved_sms: int = 0
    rotation: bool | None = None
    pieces: int = 4
    own_staging: bool = False
    launch_ps: int | None = None
    rate_kbs: int | None = None

    def __post_init__(self) -> None:
        check_policy(self, get_args(PolicyName), {"pieces": 1, "launch_ps": 0, "rate_kbs": 1})
        allowed = ROTATIONS.get(self.name, (False,))
        rotation = allowed[0] if self.rotation is None else self.rotation
        if rotation not in allowed:
            raise InputError("does not fit the policy", field="rotation", value=rotation, allowed=allowed)
        object.__setattr__(self, "rotation", rotation)

    @property
    def in_place(self) -> bool:
        """Whether all rows of the input are there before the GEMM begins."""
        return self.name in ("compute_only", "serial")

    @property
    def alone(self) -> Policy:
        """The same kernel without communication."""
        return Policy("compute_only", own_staging=self.own_staging or self.name == "reshaped")
