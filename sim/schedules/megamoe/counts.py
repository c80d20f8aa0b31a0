"""FLOPs of a MegaMoE call, as its benchmark script counts them.

The script is `tests/test_mega_moe.py` of https://github.com/deepseek-ai/DeepGEMM; with its definition the published TFLOPS
follow from the published times. H hidden, I intermediate (of the gate or the up half), R = rows that a rank receives, its
own included; a row is one (token, top-k slot).
"""

from __future__ import annotations


def flops(rows: int, *, hidden: int, intermediate: int) -> int:
    """6 R H I: 2 for multiply and add, 3 for the gate, up and down matrices."""
    return 6 * rows * hidden * intermediate
