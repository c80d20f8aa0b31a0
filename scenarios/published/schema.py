"""Columns of the tables of published measurements: meaning, type, unit (in the name) and allowed values.

A cell that the source does not fill is empty. Sizes are of the whole problem unless the name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ...sim.checked import closest

Kind = Literal["megamoe", "attention_tp"]
Timed = Literal["kernel", "part", "communication_only", "end_to_end"]
"""kernel: one operation from start to end, be it one fused kernel or the pipeline of kernels that it replaces;
part: a phase of it, an ablation that leaves something out, or a moment inside; communication_only: nothing is computed;
end_to_end: a layer or a model of which the operation is a part."""
Statistic = Literal[
    "mean",
    "median",
    "mean_rank",
    "median_rank",
    "max_rank",
    "max_rank_median",
    "rank0",
    "best",
    "pipelined_p50",
    "barrier_cold_p50",
]
"""Over repetitions (mean, median, best), over ranks (.._rank, rank0), or both; pipelined_p50: launches back to back."""
Policy = Literal[
    "unfused",
    "expert_wave",
    "split",
    "alternating",
    "lag",
    "interleaved",
    "interleaved_ready",
    "compute_only",
    "serial",
    "comm_warp",
    "piggyback",
    "fused",
    "reserved_sms",
    "reshaped",
]
Operation = Literal["fa", "ulysses_a2a", "a2a_bw", "ag_gemm", "gemm_rs", "gemm_ar"]


@dataclass(frozen=True)
class Column:
    """One column. Numbers are above 0, or 0 where `zero`. A flag is 'yes' or 'no'; what is not required may be empty."""

    name: str
    kind: Literal["text", "count", "number", "flag"]
    meaning: str
    required: bool = False
    choices: tuple[str, ...] = ()
    zero: bool = False

    @property
    def allowed(self) -> str:
        if self.choices:
            return ", ".join(self.choices)
        numbers = "number, 0 or above" if self.zero else "number above 0"
        return {"text": "text", "count": f"a whole {numbers}"}.get(self.kind, f"a {numbers}")

    def parse(self, text: str) -> str | int | float | bool | None:
        """The value of a cell, None (or no text) if it is empty. Raises `ValueError` with what is wrong."""
        text = text.strip()
        if not text:
            if self.required:
                raise ValueError("is empty")
            return "" if self.kind == "text" else None
        if self.choices and text not in self.choices:
            raise ValueError(f"is not known{closest(text, self.choices)}")
        if self.kind in ("text", "flag"):
            return text if self.kind == "text" else text == "yes"
        number, whole = as_number(text), self.kind == "count"
        if number is None or number < 0 or (number == 0 and not self.zero) or (whole and number != int(number)):
            raise ValueError("is not acceptable")
        return int(number) if whole else number


def as_number(text: str) -> float | None:
    """The finite number that `text` says, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _flag(name: str, meaning: str, required: bool = False) -> Column:
    return Column(name, "flag", meaning, required, ("yes", "no"))


_WHO = (
    Column("source_url", "text", "where it was published", True),
    Column("gpu", "text", "GPU by its usual name", True),
    Column("gpu_as_written", "text", "as the source or its transcription names it", True),
    Column("machine", "text", "machine file that describes it, empty if there is none"),
    Column("n_gpus", "count", "GPUs that take part"),
    Column("family", "text", "project or product that the kernel belongs to", True),
    Column("version", "text", "which of the family's kernels; empty where one is like another"),
    Column("variant", "text", "name of the kernel as written down", True),
    Column("nearest_variant", "text", "the known variant that an unknown one was taken for"),
    Column("policy", "text", "policy of this project that is nearest, empty if none is", choices=get_args(Policy)),
    Column("timed", "text", "what the time covers, see `Timed`", True, get_args(Timed)),
    Column("part", "text", "which phase, where timed is part or communication_only"),
    Column("statistic", "text", "see `Statistic`; empty if not stated", choices=get_args(Statistic)),
    _flag("cold_l2", "L2 was flushed before; empty if not stated"),
    Column("offset_low_us", "number", "least launch overhead inside time_us, as the source states it"),
    Column("offset_high_us", "number", "most launch overhead inside time_us, as the source states it"),
)
_WHAT = (
    Column("time_us", "number", "the time", True),
    Column("tflops", "number", "as published or derived, see note", zero=True),
)
_HOW_SURE = (
    Column("inferred", "text", "columns whose value the source does not itself state, joined by ;"),
    Column("repeat", "count", "1 for the first measurement of one kernel and shape, 2 for the next, ...", True),
    _flag("fit", "a number of a machine file comes from this row, so it is not judged", True),
    Column("note", "text", "what else is known"),
)
_SHAPES: dict[Kind, tuple[Column, ...]] = {
    "megamoe": (
        Column("routing", "text", "how tokens choose experts"),
        Column("recv_rows_min", "count", "fewest rows that a rank received, if stated"),
        Column("recv_rows_max", "count", "most rows that a rank received, if stated"),
        Column("hidden", "count", "H", True),
        Column("intermediate", "count", "I, of the gate or the up half", True),
        Column("experts", "count", "E, over all ranks", True),
        Column("topk", "count", "experts of a token", True),
        Column("tokens_per_rank", "number", "T", True),
        Column("act_dtype", "text", "activations"),
        Column("weight_dtype", "text", "weights"),
        Column("combine_dtype", "text", "what returns to the tokens' ranks"),
    ),
    "attention_tp": (
        Column("operation", "text", "what is computed", True, get_args(Operation)),
        Column("batch", "count", "B"),
        Column("seq", "count", "S, tokens over all ranks"),
        Column("heads", "count", "query heads over all ranks"),
        Column("kv_heads", "count", "key and value heads over all ranks, if not as many"),
        Column("head_dim", "count", "d"),
        _flag("causal", "with a causal mask"),
        Column("m", "count", "rows of the GEMM, over all ranks"),
        Column("n", "count", "columns, over all ranks"),
        Column("k", "count", "reduction, over all ranks"),
        Column("m_per_rank", "count", "rows of one rank"),
        Column("n_local", "count", "columns of one rank"),
        Column("k_local", "count", "reduction of one rank"),
        Column("chunks", "count", "pieces in which the result is sent"),
        Column("bytes", "count", "buffer of one rank"),
        Column("producers", "count", "SMs that store"),
        Column("burst_bytes_per_producer", "count", "bytes that each of them stores"),
        Column("hidden", "count", "width of the layer"),
        Column("layer", "text", "layer whose time it is"),
        Column("model", "text", "model whose time it is"),
        Column("dtype", "text", "elements"),
    ),
}
_RATES: dict[Kind, tuple[Column, ...]] = {
    "megamoe": (
        Column("hbm_gbps", "number", "as published", zero=True),
        Column("nvlink_gbps", "number", "as published", zero=True),
    ),
    "attention_tp": (Column("bus_gbps", "number", "as published or derived, see note", zero=True),),
}
COLUMNS: dict[Kind, tuple[Column, ...]] = {
    kind: (*_WHO, *_SHAPES[kind], *_WHAT, *_RATES[kind], *_HOW_SURE) for kind in get_args(Kind)
}
"""Columns of each table, in order."""

LINK_COLUMNS = (
    Column("source", "text", "address, or what kind of public notes", True),
    Column("gpu", "text", "GPU by its usual name", True),
    Column("machine", "text", "machine file that describes it", True),
    Column(
        "quantity",
        "text",
        "what was measured",
        True,
        ("peer_write", "peer_write_duplex", "peer_read", "incast", "fan_out", "read_round_trip", "atomic_round_trip"),
    ),
    Column("method", "text", "who moves the bytes", True, ("sm", "tma", "copy_engine")),
    Column("sms", "count", "SMs that took part, empty for all"),
    Column("message_bytes", "count", "size of one message, if it was varied"),
    Column("rate_gbs", "number", "of one GPU in one direction; into one GPU for incast, out of one for fan_out"),
    Column("time_ns", "number", "for round trips"),
    Column("note", "text", "conditions"),
)


def names(columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(column.name for column in columns)


def repeat_key(kind: Kind) -> tuple[str, ...]:
    """Columns that agree between measurements of the same kernel on the same shape.

    Two rows that agree in these and in `time_us` may be one measurement published twice: for noise, count them once.
    """
    return (
        "gpu",
        "machine",
        "n_gpus",
        "family",
        "version",
        "timed",
        "part",
        "cold_l2",
        *(column.name for column in _SHAPES[kind] if column.name not in ("recv_rows_min", "recv_rows_max", "routing")),
    )
