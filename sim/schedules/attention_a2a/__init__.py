"""FlashAttention forward with the All-to-All that follows it in Ulysses sequence parallelism.

Every rank holds all tokens of its share of the heads. Its output rows belong to the ranks that own the tokens: row r to
rank floor(r / (S / P)), so a tile of rows goes to one rank or, across a border, to two.

    tiles.py    tile sizes, order of the tiles and output buffers of the kernel families (FA3 on SM90, FA4 on SM100, our own)
    shape.py    `Attention` (what is computed) and `Policy` (how the output travels), with byte volumes
    cost.py     how long a tile takes, from the numbers of the machine
    order.py    in which order a rank works through its tiles
    build.py    `build(machine, shape, policy) -> Program`
"""

from .build import build
from .cost import AttentionCosts, attention_flops, crossover_tokens, tile_times
from .shape import Attention, Policy, PolicyName
from .tiles import Family, Tile, tile_of

__all__ = [
    "Attention",
    "AttentionCosts",
    "Family",
    "Policy",
    "PolicyName",
    "Tile",
    "attention_flops",
    "build",
    "crossover_tokens",
    "tile_of",
    "tile_times",
]
