"""What is computed (`Attention`) and how its output travels (`Policy`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import InputError
from ..policy import check_policy
from .tiles import Family, Inputs, Tile, tile_of

PolicyName = Literal["compute_only", "serial", "comm_warp", "reserved_sms", "piggyback"]

ELEMENT_BYTES = 2
"""Of the output."""
INPUT_BYTES: dict[Inputs, int] = {"bf16": 2, "fp8": 1}


@dataclass(frozen=True)
class Attention:
    """Forward attention of `batch` sequences of `tokens` over `ranks` GPUs: all tokens and 1 / ranks of the heads on each.

    `tokens` is the whole sequence length S, `heads` counts the query heads of all ranks. `kv_heads` and `value_dim` are
    those of the queries if left out. K and V heads are replicated where there are fewer than ranks. `inputs` is the type of
    Q, K and V; the output has 16 bits. `family` is the kernel; if left out, the machine's own.
    Raises `InputError` unless ranks divide heads and tokens, and K and V heads can be shared out.
    """

    tokens: int
    heads: int
    head_dim: int = 128
    ranks: int = 1
    kv_heads: int | None = None
    value_dim: int | None = None
    batch: int = 1
    causal: bool = False
    family: Family | None = None
    inputs: Inputs = "bf16"

    def __post_init__(self) -> None:
        for name in ("tokens", "heads", "head_dim", "ranks", "batch", "n_kv_heads", "output_dim"):
            if getattr(self, name) < 1:
                raise InputError("must be at least 1", field=name, value=getattr(self, name))
        if self.inputs not in INPUT_BYTES:
            raise InputError("is unknown", field="inputs", value=self.inputs, allowed=INPUT_BYTES)
        if self.heads % self.ranks:
            allowed = f"a divisor of {self.heads} heads"
            raise InputError("cannot share out the heads evenly", field="ranks", value=self.ranks, allowed=allowed)
        if self.tokens % self.ranks:
            allowed = f"a multiple of {self.ranks} ranks"
            raise InputError("cannot be shared out evenly", field="tokens", value=self.tokens, allowed=allowed)
        if self.heads % self.n_kv_heads:
            allowed = f"a divisor of {self.heads} heads"
            raise InputError("must divide the query heads", field="kv_heads", value=self.n_kv_heads, allowed=allowed)
        if self.n_kv_heads % self.ranks and self.ranks % self.n_kv_heads:
            allowed = f"a multiple or a divisor of {self.ranks} ranks"
            raise InputError("cannot be shared out", field="kv_heads", value=self.n_kv_heads, allowed=allowed)

    @property
    def n_kv_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def output_dim(self) -> int:
        """Columns of V, and so of the output of one head."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def input_bytes(self) -> int:
        """Of an element of Q, K and V."""
        return INPUT_BYTES[self.inputs]

    @property
    def local_heads(self) -> int:
        return self.heads // self.ranks

    @property
    def heads_sharing_kv(self) -> int:
        """Query heads of a rank that share one K and V head: fewer than of all ranks where that head is replicated."""
        return min(self.heads // self.n_kv_heads, self.local_heads)

    @property
    def local_tokens(self) -> int:
        """Tokens whose output one rank owns, of each sequence."""
        return self.tokens // self.ranks

    @property
    def output_bytes_sent(self) -> int:
        """Bytes of output that one rank sends: (P-1)/P (S/P) H d_v 2 B. The All-to-All after attention."""
        return (self.ranks - 1) * self.local_tokens * self.local_heads * self.output_dim * ELEMENT_BYTES * self.batch

    @property
    def qkv_bytes_sent(self) -> int:
        """Bytes of Q, K and V that one rank sends before attention; K and V heads that are replicated go to each copy.

        (P-1)/P (S/P) (H d + Hkv (d + d_v)) elements, with Hkv at least P. That All-to-All is not part of the schedule.
        """
        kv = max(self.n_kv_heads, self.ranks) * (self.head_dim + self.output_dim)
        columns = (self.heads * self.head_dim + kv) // self.ranks
        return (self.ranks - 1) * self.local_tokens * columns * self.input_bytes * self.batch

    def tile(self, family: Family) -> Tile:
        sizes = (family, self.head_dim, self.output_dim)
        sharing = self.heads_sharing_kv
        return tile_of(*sizes, causal=self.causal, tokens=self.tokens, inputs=self.inputs, heads_sharing_kv=sharing)


@dataclass(frozen=True)
class Policy:
    """How the output travels.

    compute_only   not at all: attention that stores to its own memory
    serial         attention, then a launch, a permutation and an All-to-All at an achieved bandwidth
    comm_warp      a warp of each SM copies finished tiles to their owners
    reserved_sms   `reserved_sms` SMs do so, and compute nothing
    piggyback      the store of each tile goes to its owner at once

    `rotation` starts rank r with the rows of a neighbour and ends with its own, so that ranks do not aim at the same
    receiver; with a causal mask it gives up the order of longest tiles first. `own_staging` gives the output a buffer of
    its own, so that a store may last for the whole next tile (a changed FA3; FA4 has it).
    The terms of `serial` are the machine's if left out: `launch_ps` and `rate_kbs` from its interconnect, and no separate
    permutation (`permute_kbs`: bytes of the whole local output, read and written once), which `rate_kbs` then contains. An
    All-to-All passes the ports of the GPUs, and is no faster than they drain a scatter.
    """

    name: PolicyName = "piggyback"
    reserved_sms: int = 0
    rotation: bool = False
    own_staging: bool = False
    launch_ps: int | None = None
    rate_kbs: int | None = None
    permute_kbs: int | None = None

    def __post_init__(self) -> None:
        check_policy(self, get_args(PolicyName), {"launch_ps": 0, "rate_kbs": 1, "permute_kbs": 1})

    @property
    def alone(self) -> Policy:
        """The same kernel without communication."""
        return Policy("compute_only", rotation=self.rotation, own_staging=self.own_staging)
