"""From a measured row to the case that predicts it: shape, schedule and settings, or the reason why there is none.

kernels.csv says for each family and version which schedule of this project stands for it (`as_row`: the policy in the
row), with which settings, and what is taken as something else. Its first line that matches counts. A setting with the name
of a GPU before it, such as B300.grid, goes for rows of that GPU only, and so does what is taken. An `algorithm` is that of
AllReduce; a library's AllGather and ReduceScatter run at the machine's `ring_rate`. `packs` kernels around collectives
bring `packed` tensors of Q, K, V and O into their layout: none where the stores of a kernel do so themselves
(https://github.com/flashinfer-ai/flashinfer, docs/design_docs/ulysses_head_chunk_primitives.md).

Separate kernels have the grouped GEMM that their dispatch makes rows for (`gemm`), and `launches` beyond those of the
schedule. With DeepEP's `ElasticBuffer`: rows are expanded and tokens reduced by kernels of their own. With its `Buffer`:
layout, two of notify, and two that bring counts back to the GPU (https://github.com/deepseek-ai/DeepEP, `csrc`, and
`tests/test_mega_moe_hopper.py` of https://github.com/sgl-project/DeepGEMM).

The wave kernel of https://github.com/sgl-project/DeepGEMM has tiles of 128 x 256 by four warpgroups from 64 rows an expert
on. Its threads have 112 registers for 128 accumulators and sums (`sm90_fp8_mega_moe.cuh`), so they spill, which is not
modelled. H20, whose MMA is slow, takes the tall tile. On H100 it would be predicted 18 to 29 % too fast, so that six rows
keep tiles of 64 rows, and say so: that choice has seen them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast, get_args

import pandas as pd

from ...sim.errors import InputError
from ...sim.predict import AttentionCase, Case, GemmCall, MegaMoeCase, PartCase
from ...sim.predict_parts import Part
from ...sim.schedules import attention_a2a, megamoe, tensor_parallel
from ...sim.schedules.attention_a2a.shape import ELEMENT_BYTES
from ...sim.schedules.megamoe.shape import CombineType, Numbers
from .csv_lines import Line, read_lines
from .schema import Kind

Reason = Literal["not this kernel family", "host time included", "part not modelled", "shape missing", "GPU unknown"]
"""Why a row is not predicted. host time included: a layer, a model, or launches that the row does not separate."""

Row = Mapping[str, Any]

_NUMBERS: dict[tuple[str, str], Numbers] = {
    ("fp8_e4m3", "fp4_e2m1"): "w4a8",
    ("fp8_e4m3", "fp8_e4m3"): "w8a8",
    ("fp8_e4m3", "nvfp4"): "w4a8",
    ("mxfp8", "mxfp8"): "w8a8",
    ("bf16", "bf16"): "bf16",
    ("fp4_e2m1", "fp4_e2m1"): "fp4",
    ("nvfp4", "nvfp4"): "fp4",
}
_COMBINE: dict[str, CombineType] = {"bf16": "bf16", "fp8_e4m3+ue8m0": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
_SIXTEEN_BITS = ("16bit", "bf16", "fp16")


@dataclass(frozen=True)
class Mapped:
    """A row's case, or why it has none; `approximations` is what it takes as something else."""

    case: Case | None = None
    skipped: Reason | None = None
    approximations: tuple[str, ...] = ()
    detail: str = ""


def mapped(row: Row) -> Mapped:
    """The case of a row of `load_published` or `load_like`."""
    part = row["part"] if row["timed"] == "part" and row["part"] in get_args(Part) else ""
    if row["timed"] != "kernel" and not part:
        return Mapped(skipped="host time included" if row["timed"] == "end_to_end" else "part not modelled")
    kernel = _kernel(row["table"], row["family"], row["version"])
    if kernel["skipped"]:
        return Mapped(skipped=cast(Reason, kernel["skipped"]))
    if not row["machine"]:
        return Mapped(skipped="GPU unknown")
    taken = _approximations(kernel["approximation"], row["gpu"])
    if row["nearest_variant"]:
        taken.append(f"unknown variant, {row['nearest_variant']} taken")
    settings = _settings(kernel["settings"], row["gpu"])
    schedule = settings.get("schedule", row["policy"] if kernel["schedule"] == "as_row" else kernel["schedule"])
    make = {"megamoe": _megamoe, "fa": _attention, "ulysses_a2a": _attention}
    try:
        made = make.get(row.get("operation") or row["table"], _gemm)(row, schedule, settings, taken)
    except InputError as error:
        return Mapped(skipped="part not modelled", detail=str(error))
    if isinstance(made, str):
        return Mapped(skipped=made)
    if part:
        made = PartCase(cast(MegaMoeCase, made), cast(Part, part))
    return Mapped(case=made, approximations=tuple(taken))


def _settings(text: str, gpu: str) -> dict[str, str]:
    """Settings of kernels.csv by name, for one GPU."""
    pairs = [pair.split("=") for pair in text.split(";") if pair]
    plain = {name: value for name, value in pairs if "." not in name}
    return plain | {name.removeprefix(f"{gpu}."): value for name, value in pairs if name.startswith(f"{gpu}.")}


def _approximations(text: str, gpu: str) -> list[str]:
    """What kernels.csv says is taken as something else, for one GPU."""
    found = []
    for said in text.split("; "):
        of_gpu, dot, rest = said.partition(".")
        if dot and " " not in of_gpu:
            found += [rest] * (of_gpu == gpu)
        elif said:
            found.append(said)
    return found


def _megamoe(row: Row, schedule: str, settings: Mapping[str, str], taken: list[str]) -> Case | Reason:
    numbers = (row["act_dtype"], row["weight_dtype"])
    _check("act_dtype with weight_dtype", numbers, _NUMBERS)
    combine = row["combine_dtype"] or "bf16"
    _check("combine_dtype", combine, _COMBINE)
    if row["tokens_per_rank"] != int(row["tokens_per_rank"]):
        return "shape missing"
    sizes = {name: int(row[name]) for name in ("hidden", "intermediate", "experts", "topk")}
    shape = megamoe.MegaMoe(
        **sizes, tokens=int(row["tokens_per_rank"]), ranks=_gpus(row, taken), numbers=_NUMBERS[numbers],
        combine=_COMBINE[combine],
    )  # fmt: skip
    swap_ab = _swaps(shape, settings.get("swap_ab", ""))
    return MegaMoeCase(
        shape,
        _policy(schedule, settings),
        release=cast(Any, settings.get("release", "june")),
        launches=int(settings.get("launches", 0)),
        swap_ab=swap_ab,
        tile="wide" if swap_ab else cast(Any, settings.get("tile", "wide")),
    )


def _policy(schedule: str, settings: Mapping[str, str]) -> megamoe.Policy:
    """The schedule; of two launches, whose times published tables add up, with the L1 tile that a setting names."""
    if schedule == "lag" and "lag" in settings:
        return megamoe.Lag(lag=int(settings["lag"]))
    if schedule == "unfused" and "gemm" in settings:
        return megamoe.Unfused(cast(Any, settings["gemm"]))
    if schedule == "interleaved_ready":
        return megamoe.Interleaved(ready=True)
    if schedule != "split":
        return megamoe.POLICIES[schedule]()
    l1_block_n = int(settings["l1_block_n"]) if "l1_block_n" in settings else None
    return megamoe.Split(l1_block_n=l1_block_n, launch_gap_ps=None if settings.get("launch_gap") == "machine" else 0)


def _swaps(shape: megamoe.MegaMoe, rule: str) -> bool:
    """Whether the kernel swaps A and B, by one of two public rules; without a rule it never does.

    `tuned`: up to 16 rows an expert, narrow models (H < 5120) up to 24 (`heuristics/sm90_mega_moe.hpp` of
    https://github.com/deepseek-ai/DeepGEMM/pull/383). A number: up to so many tokens a rank, 128 in
    https://github.com/sgl-project/DeepGEMM/pull/48, which was merged before the pull requests 69 and 88 there.
    """
    if rule == "tuned":
        rows = shape.tokens * shape.topk * shape.ranks / shape.experts
        return rows <= (24 if 3072 <= shape.hidden < 5120 else 16)
    return shape.tokens <= int(rule or 0)


def _attention(row: Row, schedule: str, settings: Mapping[str, str], taken: list[str]) -> Case | Reason:
    _check("dtype", row["dtype"], _SIXTEEN_BITS)
    if missing(row, "batch", "seq", "heads", "head_dim"):
        return "shape missing"
    alone = row["operation"] == "fa"
    ranks = 1 if alone else _gpus(row, taken)
    share = int(row["n_gpus"]) if alone and not missing(row, "n_gpus") else 1  # attention alone: the heads of one rank
    shape = attention_a2a.Attention(
        tokens=int(row["seq"]),
        heads=int(row["heads"]) // share,
        head_dim=int(row["head_dim"]),
        ranks=ranks,
        kv_heads=None if missing(row, "kv_heads") else max(1, int(row["kv_heads"]) // share),
        batch=int(row["batch"]),
        causal=bool(row["causal"]) if not missing(row, "causal") else False,
        family="fa3" if row["family"] == "fa3" else None,
    )
    if settings.get("before") and row["nearest_variant"]:
        taken.append(f"with an All-to-All of {', '.join(settings['before'].upper())} before attention")
    before = {
        "": 0,
        "qkv": shape.qkv_bytes_sent,
        "kv": shape.qkv_bytes_sent - (ranks - 1) * shape.local_tokens * shape.local_heads * shape.head_dim
        * ELEMENT_BYTES * shape.batch,
    }[settings.get("before", "")]  # fmt: skip
    tensor = shape.batch * shape.local_tokens * shape.heads * shape.head_dim * ELEMENT_BYTES  # Q, K, V or O of a rank
    return AttentionCase(
        shape,
        attention_a2a.Policy(cast(Any, schedule)),
        int(settings.get("launches", 0)),
        before,
        int(settings.get("packs", 0)),
        int(settings.get("packed", 0)) * tensor,
    )


def _gemm(row: Row, schedule: str, settings: Mapping[str, str], taken: list[str]) -> Case | Reason:
    if not schedule:
        return "not this kernel family"
    _check("dtype", row["dtype"], _SIXTEEN_BITS)
    if missing(row, "m", "n", "k"):
        return "shape missing"
    m, n, k = (int(row[name]) for name in ("m", "n", "k"))
    whole = int(settings.get("whole_tiles", 1))  # rows to which the kernel fills up
    shape = tensor_parallel.TensorParallel(
        row["operation"],
        -(-m // whole) * whole,
        n,
        k,
        _gpus(row, taken),
        cast(Any, settings.get("algorithm", "two_shot") if row["operation"] == "gemm_ar" else "two_shot"),
        block_n=int(settings.get("block_n", 256)),
        grid=int(settings["grid"]) if "grid" in settings else None,
    )
    sms = int(settings.get("sms", 0)) if schedule == "reserved_sms" else 0
    return GemmCall(shape, tensor_parallel.Policy(cast(Any, schedule), reserved_sms=sms))


def _check(column: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raises `InputError` for a cell, or a pair of them, that is not modelled."""
    if value not in allowed:
        texts = [" with ".join(each) if isinstance(each, tuple) else each for each in (value, *allowed)]
        raise InputError("is not modelled", field=column, value=texts[0], allowed=texts[1:])


def missing(row: Row, *names: str) -> bool:
    """Whether one of the cells is empty."""
    return any(row.get(name) is None or pd.isna(row[name]) for name in names)


def _gpus(row: Row, taken: list[str]) -> int:
    """GPUs of the row; 8, an HGX board, where it does not say."""
    if missing(row, "n_gpus"):
        taken.append("8 GPUs assumed")
        return 8
    return int(row["n_gpus"])


def _kernel(table: Kind, family: str, version: str) -> Mapping[str, str]:
    for line in _kernels():
        cells = line.cells
        if cells["table"] == table and fnmatchcase(family, cells["family"]) and fnmatchcase(version, cells["version"]):
            return cells
    return {"skipped": "not this kernel family"}


@cache
def _kernels() -> tuple[Line, ...]:
    return tuple(read_lines(files(__package__).joinpath("kernels.csv"))[1])
