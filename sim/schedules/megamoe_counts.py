"""FLOPs and bytes of a MegaMoE call: as its benchmark script reports them, and as they really cross the wire.

The script is `tests/test_mega_moe.py` of https://github.com/deepseek-ai/DeepGEMM; with its definitions the published
TFLOPS and GB/s follow from the published times. H hidden, I intermediate (of the gate or the up half), R = rows that a
rank receives, its own included; a row is one (token, top-k slot). Sizes in bytes, times in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

SCRIPT_REDUCTION_BYTES_PER_US = 6.5e6  # 6.5 TB/s, the script's guess for the serial combine


def flops(rows: int, *, hidden: int, intermediate: int) -> int:
    """6 R H I: 2 for multiply and add, 3 for the gate, up and down matrices."""
    return 6 * rows * hidden * intermediate


def hbm_bytes(
    rows: int, touched_experts: int, *, hidden: int, intermediate: int, weight_bits: int, act_bytes: int = 1
) -> int:
    """Script's HBM traffic of a rank: every touched expert's weights once, 3 H I weight_bits / 8, and for every row L1
    input H, L1 output and L2 input 2 I (`act_bytes` each) and L2 output 2 H.

    Left out: pool writes, combine reads, scale factors, weights read more than once (`weight_bytes`).
    """
    weights = weight_bytes(touched_experts, hidden=hidden, intermediate=intermediate, weight_bits=weight_bits)
    return weights + rows * (act_bytes * (hidden + 2 * intermediate) + 2 * hidden)


def weight_bytes(m_blocks: int, *, hidden: int, intermediate: int, weight_bits: int) -> int:
    """3 H I weight_bits / 8 for every m-block: weight traffic before any reuse in the L2 cache."""
    return m_blocks * 3 * hidden * intermediate * weight_bits // 8


def nvlink_bytes(rows: int, *, hidden: int) -> int:
    """Script's NVLink traffic of a rank, 3 R H: an FP8 pull and a BF16 return of every row, own-rank rows included.

    Scales and metadata are left out; the script keeps the factor 3 for BF16 pulls. For the wire see `wire_bytes`.
    """
    return 3 * rows * hidden


def reduction_us(tokens: int, *, hidden: int, k: int) -> float:
    """Script's estimate of the serial combine, T H 2 (1 + k) B at 6.5 TB/s."""
    return 2 * tokens * hidden * (1 + k) / SCRIPT_REDUCTION_BYTES_PER_US


def overlap_factor(time_us: float, reduction: float) -> float:
    """f = t / (t - t_red), by which the script multiplies its HBM and NVLink rates; `InputError` if t <= t_red."""
    if time_us <= reduction:
        raise InputError(
            "is not longer than the combine alone", field="time_us", value=time_us, allowed=f"> {reduction}"
        )
    return time_us / (time_us - reduction)


def pull_row_bytes(hidden: int, dtype: Literal["fp8", "bf16", "fp4"] = "fp8") -> int:
    """Payload of one pulled row: values, one scale byte per 32 FP8 or 16 FP4 values, and the 4 B top-k weight."""
    values = {"fp8": hidden + hidden // 32, "bf16": 2 * hidden, "fp4": hidden // 2 + hidden // 16}
    return values[dtype] + 4


def return_row_bytes(hidden: int, dtype: Literal["bf16", "fp8", "fp4"] = "bf16") -> int:
    """Payload of one returned row: 2 H in BF16; H and one scale byte per 128 values in FP8 (sgl-project/DeepGEMM); H / 2
    and one scale byte per 16 values in FP4 (NVFP4).
    """
    return {"bf16": 2 * hidden, "fp8": hidden + hidden // 128, "fp4": hidden // 2 + hidden // 16}[dtype]


def l2_burst_bytes(valid_rows: int, block_n: int) -> int:
    """BF16 bytes that the epilogue of an L2 tile stores, to all destinations together: 2 valid_rows BN."""
    return 2 * valid_rows * block_n


@dataclass(frozen=True, eq=False)
class WireBytes:
    """Payload bytes that leave and reach every rank over NVLink, [ranks] int64 each."""

    egress: NDArray[np.int64]
    ingress: NDArray[np.int64]


def wire_bytes(rows_between: NDArray[np.int64], *, pull_bytes: int, return_bytes: int) -> WireBytes:
    """Traffic per direction for `rows_between` [owners, sources], the rows that an owner computes for a source.

    Egress of r = rows that others pull from r, `pull_bytes` each, and rows computed on r for others, `return_bytes`
    each; ingress mirrors it. Own-rank rows stay off the wire. Two rows of a token that go to one rank cross twice.
    Raises `InputError` if the table is not square.
    """
    if rows_between.ndim != 2 or rows_between.shape[0] != rows_between.shape[1]:
        raise InputError("must be square", field="rows_between", value=rows_between.shape)
    remote = np.where(np.eye(len(rows_between), dtype=bool), 0, rows_between)
    to_owner, to_source = remote.sum(axis=1), remote.sum(axis=0)
    return WireBytes(
        egress=to_source * pull_bytes + to_owner * return_bytes,
        ingress=to_owner * pull_bytes + to_source * return_bytes,
    )
