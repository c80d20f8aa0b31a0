"""Tiles of the FlashAttention forward kernels: sizes, scheduling, and when the output buffer is needed again.

What happens after a tile's output is handed to the asynchronous store differs by kernel, and decides what a slow store
costs. The store frees the staging buffer when it has read it out, which is when the post-issue stage has taken all of it.

    late     the buffer is needed again at the end of the next tile: the whole main loop is a drain window
    early    the buffer lies over an input stage that the next tile needs after `resume_steps` KV steps
    exit     one CTA for each tile: a slow store keeps the CTA on the SM, and its successor waits

Sources: https://github.com/Dao-AILab/flash-attention, hopper/tile_size.h, hopper/flash_api.cpp, hopper/epilogue_fwd.hpp,
hopper/tile_scheduler.hpp (FA3) and flash_attn/cute/flash_fwd_sm100.py, sm100_hd256_2cta_fmha_forward.py, interface.py,
tile_scheduler.py (FA4), read at commits 0251105a, 001e2737 and 01fc7d1a. `portable` is the kernel of this project
(attention_a2a.cu in hw_validate/cuda/kernels).

    >>> tile_of("fa3", 128, 128, causal=False, tokens=8192).block_n
    176
    >>> tile_of("fa4", 128, 128, causal=True, tokens=8192).contract
    'exit'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import InputError

Family = Literal["fa3", "fa4", "portable"]
Contract = Literal["late", "early", "exit"]
Inputs = Literal["bf16", "fp8"]
"""Of Q, K and V; the output has 16 bits."""

MIB = 2**20
FA3_RESUME_STEPS = 0.5
"""FA3's producer loads K0 and Q, then waits for the output buffer before V0: the first QK and softmax are the window."""

_FA3_BLOCKS = {  # head dim: (block_m, block_n) without and with a causal mask
    64: ((192, 192), (192, 128)),
    96: ((192, 144), (192, 144)),
    128: ((128, 176), (128, 128)),
    192: ((128, 112), (128, 112)),
    256: ((128, 80), (128, 80)),
}
_FA3_WIDE_VALUES = {(64, 256): (128, 96), (64, 512): (64, 64), (192, 128): (128, 128)}
_FA3_FP8_BLOCKS = {64: (192, 160), 96: (192, 128), 128: (128, 224), 192: (128, 160), 256: (128, 128)}  # masked or not
_FA4_HEAD_DIMS = (64, 96, 128, 192, 256)
_FA4_PAIRED = (128, 192)
"""Padded head dims for which pairs of CTAs share K and V, if values have 128 columns and nothing is masked."""
_FA4_MULTIPLE = 16
"""FA4 pads head dims to a multiple of it, one k-step of the MMA."""
_FA4_WIDEST_VALUES = 128
"""Beside keys of at most as many columns; values of wider heads are no wider than these."""
_FA4_PACKED_ROWS = 128
"""Rows of a tile for which whole groups of query heads that share K and V are packed."""
_PORTABLE_BLOCKS = {64: (128, 64), 128: (128, 64)}  # head dim: (block_m, block_n)


@dataclass(frozen=True)
class Tile:
    """What one task computes and how its output leaves.

    `block_m` query rows in `stores` equal parts, each with an output buffer and a store of its own; K and V in steps of
    `block_n`. `multicast` CTAs, a cluster, share each load of K and V and take m-blocks side by side. `l2_section` is how
    many bytes of K and V the scheduler keeps in L2 before it goes on to other heads; 0 where heads run one after the other.
    `softmax_share` is how many of the softmax warps there are that the machine's rate of softmax is that of.
    `packed_heads` query heads that share K and V lie side by side in the rows of a tile, which then has fewer tokens.
    The MMA computes `head_dim` columns of Q and K and `value_dim` of V, valid or not; none but the valid ones are moved.
    """

    block_m: int
    block_n: int
    stores: int
    contract: Contract
    resume_steps: float
    multicast: int
    longest_first: bool
    l2_section: int
    head_dim: int
    value_dim: int
    softmax_share: float = 1.0
    sections_of_groups: bool = True
    packed_heads: int = 1

    @property
    def rows_per_store(self) -> int:
        return self.block_m // self.stores

    @property
    def static(self) -> bool:
        """Persistent CTAs with a fixed stride, rather than tiles handed out as CTAs become free."""
        return not self.longest_first and self.contract != "exit"

    def blocks(self, tokens: int) -> int:
        """m-blocks of a head, filled up to whole clusters; the last ones may have no rows."""
        return -(-tokens // (self.block_m * self.multicast)) * self.multicast


def tile_of(
    family: Family,
    head_dim: int,
    value_dim: int,
    *,
    causal: bool,
    tokens: int,
    inputs: Inputs = "bf16",
    heads_sharing_kv: int = 1,
) -> Tile:
    """The tile that the family's kernel takes. Head dims between those of the table are padded to the next one, in FA4 to
    a multiple of 16. `heads_sharing_kv` is how many query heads of a rank share a K and V head.

    Not modelled: paged, local and split variants, the transposition of V inside FP8 kernels, and FP8 in FA4. Tiles that are
    packed from the rows of several query heads stand as tiles of single heads, which follow one another; their order and how
    far they reach under a causal mask are those of packed tiles. Where tiles are handed out, the CTAs of a pair are taken
    one by one.
    Raises `InputError` if the family is unknown or has no kernel for the head dim, or none for these values beside it.
    """
    if family not in get_args(Family):
        raise InputError("is unknown", field="family", value=family, allowed=get_args(Family))
    known = {"fa3": tuple(_FA3_BLOCKS), "fa4": _FA4_HEAD_DIMS, "portable": tuple(_PORTABLE_BLOCKS)}[family]
    fitting = [size for size in known if size >= head_dim]
    if not fitting:
        raise InputError(f"has no {family} kernel here", field="head_dim", value=head_dim, allowed=f"1 to {max(known)}")
    if inputs == "fp8" and family != "fa3":
        raise InputError(f"has no {family} kernel here", field="inputs", value=inputs, allowed="bf16")
    size = fitting[0]
    values = _value_dims(family, size)
    if value_dim > values[-1]:
        allowed = f"1 to {values[-1]} for head_dim {head_dim}"
        raise InputError(f"has no {family} kernel here", field="value_dim", value=value_dim, allowed=allowed)
    value_size = next(columns for columns in values if columns >= value_dim)
    if family == "portable":
        return _portable(size, value_size, causal)
    if family == "fa3":
        return _fa3(size, value_size, causal, tokens, inputs == "fp8")
    if size == 256:
        return _fa4_256(head_dim, value_dim)
    return _fa4(_fa4_padded(head_dim), _fa4_padded(value_dim), causal, tokens, heads_sharing_kv)


def _value_dims(family: Family, head_dim: int) -> tuple[int, ...]:
    """Columns of V that the family has kernels for beside a head dim of its table, narrowest first."""
    if family == "fa3":
        return tuple(sorted([head_dim, *(values for keys, values in _FA3_WIDE_VALUES if keys == head_dim)]))
    return (max(head_dim, _FA4_WIDEST_VALUES),) if family == "fa4" else tuple(_PORTABLE_BLOCKS)


def _fa4_padded(columns: int) -> int:
    return -(-columns // _FA4_MULTIPLE) * _FA4_MULTIPLE


def _fa3(head_dim: int, value_dim: int, causal: bool, tokens: int, fp8: bool) -> Tile:
    block_m, block_n = _FA3_WIDE_VALUES.get((head_dim, value_dim), _FA3_BLOCKS[head_dim][causal])
    if fp8:
        block_m, block_n = _FA3_FP8_BLOCKS[head_dim]
    even_tiles = -(-tokens // block_m) % 2 == 0
    return Tile(
        block_m=block_m,
        block_n=block_n,
        stores=1,
        contract="early",
        resume_steps=FA3_RESUME_STEPS,
        multicast=2 if head_dim >= 128 and not causal and even_tiles and not fp8 else 1,
        longest_first=causal,
        l2_section=32 * MIB if causal else 0,
        head_dim=head_dim,
        value_dim=value_dim,
    )


def _fa4(head_dim: int, value_dim: int, causal: bool, tokens: int, heads_sharing_kv: int) -> Tile:
    """Two tiles of 128 rows that take turns. With head dim 192 the output lies over Q, and no CTA is persistent.

    Query heads that share K and V are packed into the rows of one tile where 128 rows hold whole groups of them, and the
    scheduler then counts groups. It counts query heads where they are not packed (`pack_gqa` of interface.py).
    """
    stores = 2 if tokens > 128 else 1
    packs = _FA4_PACKED_ROWS % heads_sharing_kv == 0
    paired = head_dim in _FA4_PAIRED and value_dim == 128 and not causal and tokens > 256
    return Tile(
        block_m=128 * stores,
        block_n=128,
        stores=stores,
        contract="exit" if causal or head_dim > 128 else "late",
        resume_steps=0.0,
        multicast=2 if paired else 1,
        longest_first=causal,
        l2_section=50 * MIB if causal else 0,
        head_dim=head_dim,
        value_dim=value_dim,
        sections_of_groups=packs,
        packed_heads=heads_sharing_kv if packs else 1,
    )


def _fa4_256(head_dim: int, value_dim: int) -> Tile:
    """A kernel of its own: pairs of CTAs, masked or not, each with one tile of 128 rows and 4 softmax warps, not 8."""
    if value_dim <= 192:
        raise InputError("has no fa4 kernel here", field="value_dim", value=value_dim, allowed="that of the queries")
    return Tile(
        block_m=128,
        block_n=128,
        stores=1,
        contract="exit",
        resume_steps=0.0,
        multicast=2,
        longest_first=False,
        l2_section=0,
        head_dim=_fa4_padded(head_dim),
        value_dim=_fa4_padded(value_dim),
        softmax_share=0.5,
    )


def _portable(head_dim: int, value_dim: int, causal: bool) -> Tile:
    """Persistent; Q of the next tile comes to the second of two buffers, in which its output will stand."""
    block_m, block_n = _PORTABLE_BLOCKS[head_dim]
    return Tile(
        block_m=block_m,
        block_n=block_n,
        stores=1,
        contract="late",
        resume_steps=0.0,
        multicast=1,
        longest_first=causal,
        l2_section=32 * MIB if causal else 0,
        head_dim=head_dim,
        value_dim=value_dim,
    )
