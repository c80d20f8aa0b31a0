"""From rows as they were written down to rows of the schema. Everything is text here; csv_lines.py checks and types it.

A row says which variant it is, and variants.csv what that means: family, version, policy, what was timed. gpus.csv does the
same for GPUs, rules.yaml reads notes, and fit.csv lists the rows from which machine files have numbers.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from ...sim.checked import closest
from ...sim.errors import InputError
from .csv_lines import Line
from .mapping import Rule, fit_rows, gpu_named, rules, variant_named
from .schema import COLUMNS, Kind, Operation, as_number, names, repeat_key

RAW_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "megamoe": (
        *("source_url", "gpu", "ranks", "hidden", "intermediate", "experts", "topk", "tokens_per_rank"),
        *("act_dtype", "weight_dtype", "combine_dtype", "variant", "time_us"),
    ),
    "attention_tp": ("source_url", "kind", "gpu", "ranks", "shape", "dtype", "variant", "time_us"),
}
"""Columns that a table as written down must have. The rest (`MORE_COLUMNS`) may be missing."""
MORE_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "megamoe": ("tflops", "hbm_gbps", "nvlink_gbps", "notes", "scope"),
    "attention_tp": ("tflops", "bus_gbps", "notes"),
}
SHAPE_KEYS = {
    **{"b": "batch", "s": "seq", "h": "heads", "hkv": "kv_heads", "d": "head_dim"},
    **{name: name for name in ("causal", "m", "n", "k", "m_per_rank", "n_local", "k_local", "chunks", "bytes")},
    **{name: name for name in ("producers", "burst_bytes_per_producer", "hidden", "layer", "model", "kv_heads")},
}
"""Keys of the column `shape`, and the columns that they fill; `note` is the only other key."""
CALLED: dict[Kind, dict[str, str]] = {
    "megamoe": {"n_gpus": "ranks", "note": "notes"},
    "attention_tp": {"n_gpus": "ranks", "note": "notes", "operation": "kind"}
    | {column: f"shape.{key}" for key, column in reversed(SHAPE_KEYS.items())},
}
"""What a column of the schema is called where the rows are written down, if not the same."""
_DTYPES = {"bf16/fp16 (assumed)": "16bit", "fp16/bf16": "16bit", "bf16/fp16": "16bit"}


def clean(lines: Iterable[Line], kind: Kind, file: str) -> Iterator[Line]:
    """The rows in the columns of the schema. Raises `InputError` for a shape that cannot be read, or an unknown kind."""
    seen: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        cells = _cleaned(line, kind, file)
        key = tuple(cells.get(name, "") for name in repeat_key(kind))
        seen[key] += 1
        cells |= {"repeat": str(seen[key]), "fit": "yes" if fit_rows().names(kind, cells) else "no"}
        yield Line(line.number, {name: cells.get(name, "") for name in names(COLUMNS[kind])})


def _cleaned(line: Line, kind: Kind, file: str) -> dict[str, str]:
    raw = {name: text.strip() for name, text in line.cells.items()}
    shape = _megamoe_shape(raw) if kind == "megamoe" else _attention_shape(raw, file, line.number)
    operation = shape.get("operation", "")
    gpu, gpu_is_inferred = gpu_named(raw["gpu"])
    variant, nearest = variant_named(kind, operation, raw["variant"], gpu["generation"])
    note = "; ".join(text for text in (raw.get("notes", ""), shape.pop("note", "")) if text)
    cells = {
        **{name: _number(raw.get(name, "")) for name in ("time_us", "tflops", "hbm_gbps", "nvlink_gbps", "bus_gbps")},
        **{name: variant[name] for name in ("family", "version", "policy", "timed", "part")},
        "source_url": raw["source_url"],
        "gpu": gpu["gpu"],
        "gpu_as_written": raw["gpu"],
        "machine": gpu["machine"],
        "n_gpus": _number(raw["ranks"]),
        "variant": raw["variant"],
        "nearest_variant": nearest,
        "note": note,
        **shape,
    }
    if nearest and raw.get("scope") in ("kernel", "part", "communication_only", "end_to_end"):
        cells["timed"] = raw["scope"]
    inferred = {"gpu"} if gpu_is_inferred else set()
    return _with_time_of_rate(_with_rules(cells, inferred, kind))


def _with_rules(cells: dict[str, str], inferred: set[str], kind: Kind) -> dict[str, str]:
    """The row with what rules.yaml says, and the columns that its source does not state."""
    columns = names(COLUMNS[kind])
    found: dict[str, str] = {}
    for rule in rules():
        if (match := rule.pattern.search(cells.get(rule.column, ""))) is None:
            continue
        for name, value in {**rule.sets, **match.groupdict()}.items():
            found.setdefault(name, value)
        inferred |= {name for name in rule.infers if name in columns}
        found |= _filled(rule, cells)
    cells = {name: value for name, value in {**cells, **found}.items() if name in columns}
    return cells | {"inferred": ";".join(name for name in columns if name in inferred)}


def _with_time_of_rate(cells: dict[str, str]) -> dict[str, str]:
    """Attention whose time is inferred gets it from its TFLOPS, 4 B H S^2 d in it and half of that under a causal mask: a
    source that has times at all rounds them, to two digits of a ms beside rates of three or four.
    """
    if cells.get("operation") != "fa" or "time_us" not in cells["inferred"].split(";"):
        return cells
    batch, seq, heads, dim, rate = (as_number(cells[name]) for name in ("batch", "seq", "heads", "head_dim", "tflops"))
    if not batch or not seq or not heads or not dim or not rate:
        return cells
    flops = 4 * batch * heads * seq**2 * dim / (2 if cells["causal"] == "yes" else 1)
    return cells | {"time_us": _number(f"{flops / rate / 1e6:.2f}")}


def _filled(rule: Rule, cells: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in rule.infers.items() if value and not cells.get(name)}


def _megamoe_shape(raw: Mapping[str, str]) -> dict[str, str]:
    sizes = {name: _number(raw[name]) for name in ("hidden", "intermediate", "experts", "topk", "tokens_per_rank")}
    return sizes | {name: raw[name] for name in ("act_dtype", "weight_dtype", "combine_dtype")}


def _attention_shape(raw: Mapping[str, str], file: str, line: int) -> dict[str, str]:
    """Columns from the mapping in the column `shape`, and the columns beside it."""
    if raw["kind"] not in get_args(Operation):
        reason = f"is not known{closest(raw['kind'], get_args(Operation))}"
        raise InputError(reason, field="kind", value=raw["kind"], file=file, line=line, allowed=get_args(Operation))
    try:
        shape: Any = json.loads(raw["shape"])
    except json.JSONDecodeError as error:
        reason = f"is not JSON: {error.msg}"
        raise InputError(reason, field="shape", value=raw["shape"], file=file, line=line) from None
    if not isinstance(shape, dict):
        raise InputError("is no mapping", field="shape", value=raw["shape"], file=file, line=line)
    cells = {"operation": raw["kind"], "dtype": _DTYPES.get(raw["dtype"], raw["dtype"])}
    for key, value in shape.items():
        if key != "note" and key not in SHAPE_KEYS:
            allowed = f"{', '.join(SHAPE_KEYS)} or note"
            raise InputError("is no key of a shape", field=f"shape.{key}", file=file, line=line, allowed=allowed)
        text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
        cells[SHAPE_KEYS.get(key, "note")] = text if isinstance(value, (bool, str)) else _number(text)
    return cells


def _number(text: str) -> str:
    """A number in its shortest form: 8.0 is 8. Anything else stays, for the schema to refuse."""
    number = as_number(text)
    if number is None:
        return text
    return str(int(number)) if number == int(number) else re.sub(r"\.0$", "", repr(number))
